"""The ONNX Runtime builder: the graph optimised ahead of time for this CPU, and the answers of the unoptimised one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import BuildDetails, cpu_device, relative_error
from bench.engine.onnxruntime_library import import_onnxruntime
from bench.engine.precision import count_nodes
from bench.engine.request import BuildRequest, Built, Progress, TensorrtOptions, Work
from bench.engine.source import SourceModel
from bench.errors import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGINE_FILE = "model.onnx"
WEIGHTS_FILE = "model.weights"
OPTIMIZE_LEVELS = ("all", "basic", "none")
_GRAPH_LEVEL = {"all": "ORT_ENABLE_ALL", "basic": "ORT_ENABLE_BASIC", "none": "ORT_DISABLE_ALL"}
FP32_TOLERANCE = 1e-3
_ONE_FILE_LIMIT_BYTES = 1_900_000_000  # protobuf cannot hold 2 GiB; weights beyond this go into a file of their own


def check_options(request: BuildRequest) -> None:
    """Raises BenchError."""
    if request.optimize not in OPTIMIZE_LEVELS:
        raise BenchError(f"--optimize {request.optimize} is not one of {', '.join(OPTIMIZE_LEVELS)}")
    if request.tensorrt != TensorrtOptions():
        raise BenchError("precision, workspace, timing cache and the like are options of --runtime tensorrt")


def build(request: BuildRequest, work: Work, progress: Progress) -> Built:
    """Optimise the graph and compare it with its source. Raises BenchError."""
    source = work.source
    progress("optimising the graph")
    paths = optimize(source, request.optimize, work.directory)
    progress("comparing with the source model")
    errors = parity_error(paths[0], work.cases, work.answers)
    device, features = cpu_device()
    version = runtime_version()
    return Built(
        files=tuple(paths),
        precision=source.precision,
        runtime_version=version,
        device=device,
        device_features=features,
        options={"optimize": request.optimize},
        tolerance=_tolerance(source, errors),
        parity_error=max(errors.values()),
        details=BuildDetails(versions={"onnxruntime": version}, source_nodes=count_nodes(source.path), engine_layers=count_nodes(paths[0])),
    )


def _tolerance(source: SourceModel, errors: Mapping[str, float]) -> float:
    """1e-3 for fp32; for other precisions twice what was measured, and never below that. Raises BenchError for fp32."""
    worst = max(errors, key=lambda name: errors[name])
    if source.precision != "fp32" and errors[worst] < 0.1:
        return max(FP32_TOLERANCE, 2 * errors[worst])
    if not errors[worst] <= FP32_TOLERANCE:
        raise BenchError(
            f"{source.path}: the optimised engine's output {worst!r} is off by {errors[worst]:.3g} relative "
            f"(at most {FP32_TOLERANCE:g} is allowed); outputs near zero may need realistic values with --input, else try --optimize basic"
        )
    return FP32_TOLERANCE


def reference_answers(source: SourceModel, cases: Sequence[Mapping[str, NDArray[Any]]]) -> list[dict[str, NDArray[Any]]]:
    """The unoptimised model's outputs for each case. Raises BenchError where it does not run, or not twice the same."""
    session = _session(source.path, "none", source.path.name)
    names = [t.name for t in source.outputs]
    answers = [_run(session, names, case, source.path.name) for case in cases]
    again = _run(session, names, cases[0], source.path.name)
    for name in names:
        if relative_error(answers[0][name], again[name]) > 1e-5:
            raise BenchError(f"{source.path}: output {name!r} differs between two runs on the same input, so no answer can be checked")
    return answers


def optimize(source: SourceModel, level: str, directory: Path) -> list[Path]:
    """Write the optimised graph into `directory`; returns its files, the one to load first.

    Where the source keeps weights in files of their own, ONNX Runtime would go on pointing at those, so they are split off too.
    """
    split = bool(source.external) or source.bytes > _ONE_FILE_LIMIT_BYTES
    _session(source.path, level, source.path.name, save_to=directory / ENGINE_FILE, split_weights=split)
    weights = directory / WEIGHTS_FILE
    return [directory / ENGINE_FILE, *([weights] if weights.exists() else [])]


def parity_error(
    engine_path: Path,
    cases: Sequence[Mapping[str, NDArray[Any]]],
    expected: Sequence[Mapping[str, NDArray[Any]]],
    what: str = "the optimised engine",
) -> dict[str, float]:
    """The largest relative error of each output over all cases, of a graph run as it is. `what` names it in a refusal."""
    session = _session(engine_path, "none", what)
    worst = dict.fromkeys(expected[0], 0.0)
    for case, wanted in zip(cases, expected, strict=True):
        answer = _run(session, list(wanted), case, what)
        for name in wanted:
            worst[name] = max(worst[name], relative_error(wanted[name], answer[name]))
    return worst


def runtime_version() -> str:
    """ONNX Runtime's version, as manifests keep it."""
    return str(import_onnxruntime().__version__)


def _session(path: Path, level: str, what: str, save_to: Path | None = None, split_weights: bool = False) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what matters of it is in the exception
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _GRAPH_LEVEL[level])
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
        if split_weights:
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
            options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises many kinds of its own, all of them a refusal to load
        if save_to is not None and any(text in str(error) for text in ("No space left", "Protobuf serialization failed")):
            raise BenchError(f"the engine of {what} cannot be written into {save_to.parent.parent}: the disk is full") from None
        raise BenchError(f"{what} does not load in onnxruntime {onnxruntime.__version__}: {_reason(error)}") from None


def _run(session: Any, names: list[str], case: Mapping[str, NDArray[Any]], what: str) -> dict[str, NDArray[Any]]:
    try:
        return dict(zip(names, session.run(names, dict(case)), strict=True))
    except Exception as error:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in case.items())
        raise BenchError(f"{what} does not run with {shapes}: {_reason(error)}; other shapes or values: --shape, --input") from None


def _reason(error: Exception) -> str:
    """ONNX Runtime's message without its prefix of codes and source lines."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    text = re.sub(r"/\S+/(onnxruntime|onnx)/\S+?:\d+ \S+ ?(\([^)]*\))? ?", "", text)
    return text[:400] or type(error).__name__
