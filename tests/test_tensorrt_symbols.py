"""Every name of TensorRT that our code uses, read off its syntax trees, is in the bindings that are published.

A name that some version lacks has to be asked for with hasattr or getattr; those are listed here with the versions that lack them.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorrt_bindings import PUBLISHED, fetch_or_skip, missing_in, missing_symbols

ROOT = Path(__file__).resolve().parents[1]
BUILDER = [ROOT / "bench/engine/tensorrt_plan.py", ROOT / "bench/engine/tensorrt_log.py"]  # the runtime has the log from there too
RUNTIME = sorted((ROOT / "reference_server/runtimes").glob("tensorrt*.py"))

# What our variables hold, by their names.
BUILDER_TYPES = {
    "trt": "", "self._trt": "", "builder": "Builder", "network": "INetworkDefinition", "config": "IBuilderConfig", "parser": "OnnxParser",
    "error": "ParserError", "profile": "IOptimizationProfile", "tensor": "ITensor", "runtime": "Runtime", "engine": "ICudaEngine",
    "context": "IExecutionContext", "inspector": "EngineInspector", "cache": "ITimingCache",
}  # fmt: skip
RUNTIME_TYPES = {
    "trt": "", "self.module": "", "runtime": "Runtime", "engine": "ICudaEngine", "context": "IExecutionContext",
    "self._context": "IExecutionContext",
}  # fmt: skip

# Asked for before they are used; and which versions have none.
PROBED: Mapping[str, tuple[str, ...]] = {
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED": ("8.6.1",),
    "IProgressMonitor": ("8.6.1",),
    "IBuilderConfig.progress_monitor": ("8.6.1",),
    "ParserError.node_name": ("8.6.1",),
    "ParserError.node_operator": ("8.6.1",),
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": ("11.4.0.106",),
    "BuilderFlag.FP16": ("11.4.0.106",),
    "BuilderFlag.INT8": ("11.4.0.106",),
    "PreviewFeature.PROFILE_SHARING_0806": ("11.4.0.106",),
}

BUILDER_SYMBOLS = {
    "Builder", "Builder.build_serialized_network", "Builder.create_builder_config", "Builder.create_network",
    "Builder.create_optimization_profile", "BuilderFlag", "EngineInspector.execution_context", "EngineInspector.get_engine_information",
    "IBuilderConfig.add_optimization_profile", "IBuilderConfig.builder_optimization_level", "IBuilderConfig.create_timing_cache",
    "IBuilderConfig.progress_monitor", "IBuilderConfig.profiling_verbosity", "IBuilderConfig.set_flag",
    "IBuilderConfig.set_memory_pool_limit", "IBuilderConfig.set_preview_feature", "IBuilderConfig.set_tactic_sources",
    "IBuilderConfig.set_timing_cache", "ICudaEngine.create_engine_inspector", "ICudaEngine.create_execution_context",
    "ICudaEngine.num_layers", "IExecutionContext.set_input_shape", "ILogger", "ILogger.Severity.ERROR", "ILogger.Severity.INTERNAL_ERROR",
    "INetworkDefinition.get_input", "INetworkDefinition.num_inputs", "INetworkDefinition.num_layers", "IOptimizationProfile.set_shape",
    "IProgressMonitor", "ITensor.is_shape_tensor", "ITensor.name", "ITimingCache.serialize",
    "LayerInformationFormat.JSON", "MemoryPoolType.WORKSPACE",
    "NetworkDefinitionCreationFlag", "OnnxParser", "OnnxParser.get_error", "OnnxParser.num_errors", "OnnxParser.parse_from_file",
    "ParserError.code", "ParserError.desc", "ParserError.node", "ParserError.node_name", "ParserError.node_operator", "PreviewFeature",
    "PreviewFeature.PROFILE_SHARING_0806", "ProfilingVerbosity.DETAILED", "Runtime", "Runtime.deserialize_cuda_engine",
    "Runtime.engine_host_code_allowed", "TacticSource",
}  # fmt: skip
RUNTIME_SYMBOLS = {
    "ICudaEngine.create_execution_context", "ICudaEngine.get_tensor_dtype", "IExecutionContext.execute_async_v3",
    "IExecutionContext.get_tensor_shape", "IExecutionContext.set_input_shape", "IExecutionContext.set_optimization_profile_async",
    "IExecutionContext.set_tensor_address", "Runtime",
    "Runtime.deserialize_cuda_engine", "Runtime.engine_host_code_allowed",
}  # fmt: skip
# Named by text, so that the syntax tree does not show them.
BY_NAME = {
    "BuilderFlag.FP16", "BuilderFlag.INT8", "BuilderFlag.VERSION_COMPATIBLE", "NetworkDefinitionCreationFlag.EXPLICIT_BATCH",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED", "TacticSource.EDGE_MASK_CONVOLUTIONS", "TacticSource.JIT_CONVOLUTIONS",
    "DataType.FLOAT", "DataType.HALF", "DataType.INT8", "DataType.INT32", "DataType.BOOL", "DataType.UINT8",
}  # fmt: skip


def used(path: Path, types: Mapping[str, str]) -> set[str]:
    """`Class.attribute` for each attribute of a variable that holds something of TensorRT's; the longest chain of names counts."""
    found: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        chain = ast.unparse(node).partition("(")[0]  # what a call gives back is somebody else's
        owner = next((name for name in sorted(types, key=len, reverse=True) if chain.startswith(name + ".")), None)
        if owner is not None:
            found.add(f"{types[owner]}.{chain.removeprefix(owner + '.')}".removeprefix("."))
    return {name for name in found if "__" not in name}


def test_the_list_is_what_the_code_uses() -> None:
    assert set().union(*(used(path, BUILDER_TYPES) for path in BUILDER)) == BUILDER_SYMBOLS
    assert set().union(*(used(path, RUNTIME_TYPES) for path in RUNTIME)) == RUNTIME_SYMBOLS


@pytest.mark.parametrize("requirement", PUBLISHED)
def test_published_bindings_have_them(requirement: str) -> None:
    version = requirement.partition("==")[2]
    wanted = sorted(BUILDER_SYMBOLS | RUNTIME_SYMBOLS | BY_NAME | set(PROBED))
    lacking = {name for name, versions in PROBED.items() if version in versions}
    assert set(missing_symbols(fetch_or_skip(requirement), wanted)) == lacking


@pytest.mark.parametrize("module", ["tensorrt", "tensorrt_lean", "tensorrt_rtx"])
def test_installed_modules_have_what_the_runtime_uses(module: str) -> None:
    found: Any = None
    try:
        found = importlib.import_module(module)
    except (ImportError, OSError) as error:
        pytest.skip(f"{module} is not installed here ({error})")
    assert missing_in(found, sorted(RUNTIME_SYMBOLS)) == []
    if module != "tensorrt_lean":
        assert set(missing_in(found, sorted(BUILDER_SYMBOLS))) <= set(PROBED)
