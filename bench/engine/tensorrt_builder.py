"""The TensorRT builder: the graph converted and checked on the CPU, then built into a plan by a child process on the GPU.

The child is bench.engine.tensorrt_plan; nothing of CUDA is loaded into this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.drafts import file_to_replace
from bench.engine import layers, onnxruntime_builder, precision
from bench.engine.manifest import BuildDetails
from bench.engine.request import BuildRequest, Built, Progress, Work
from bench.engine.tensorrt_plan import MODULES, PlanRequest
from bench.errors import BenchError
from bench.subprocesses import Child, child_environment, module_command
from bench.units import format_size

ENGINE_FILE = "model.plan"
LAYERS_FILE = "layers.json"  # the inspector's own words, for `bench inspect`; nothing loads it, so the manifest does not vouch for it
# Relative to each output's largest magnitude, for the converted graph and for the engine. fp32 engines multiply in TF32, which keeps
# 10 bits of the mantissa, as fp16 does; int8 keeps 8.
TOLERANCES = {"fp32": 5e-3, "fp16": 1e-2, "int8": 0.2}
_LARGEST_TIMING_CACHE = 1 << 30  # bytes; that of a large transformer has some MB
SILENCE_S = 3600.0  # no build step that tells nothing takes longer


def check_options(request: BuildRequest) -> None:
    """Raises BenchError."""
    given = request.tensorrt
    if request.optimize != "all":
        raise BenchError("--optimize is for --runtime onnxruntime: TensorRT takes --optimization-level")
    if given.precision not in precision.PRECISIONS:
        raise BenchError(f"--precision {given.precision} is not one of {', '.join(precision.PRECISIONS)}")
    if given.module not in MODULES:
        raise BenchError(f"--module {given.module} builds no engines: choose one of {', '.join(MODULES)}")
    if given.calibration is not None and given.precision != "int8":
        raise BenchError(f"--calibration is for --precision int8, not {given.precision}")
    if given.version_compatible and given.module == "tensorrt_rtx":
        raise BenchError("--version-compatible is for --module tensorrt: TensorRT-RTX has no lean runtime to load such an engine")
    if given.optimization_level is not None and not 0 <= given.optimization_level <= 5:
        raise BenchError(f"--optimization-level {given.optimization_level} is not between 0 and 5")
    if given.workspace_bytes is not None and given.workspace_bytes <= 0:
        raise BenchError("--workspace is larger than 0")
    if given.tolerance is not None and not 0 < given.tolerance < 1:
        raise BenchError(f"--tolerance {given.tolerance:g} is not between 0 and 1")
    if given.timing_cache is not None:
        _check_timing_cache(given.timing_cache)


def _check_timing_cache(given: Path) -> None:
    """That it can be read before the build, and written after it. Raises BenchError."""
    cache = file_to_replace(given, "--timing-cache")
    folder = cache.absolute().parent
    if not folder.is_dir():
        raise BenchError(f"--timing-cache {given}: there is no such folder")
    if not os.access(folder, os.W_OK):
        raise BenchError(f"--timing-cache {given} cannot be written after the build: the folder is not writable; name another")
    if cache.exists() and cache.stat().st_size > _LARGEST_TIMING_CACHE:
        raise BenchError(f"--timing-cache {given} is larger than any timing cache ({format_size(cache.stat().st_size)}): name another")


def build(request: BuildRequest, work: Work, progress: Progress) -> Built:
    """Convert, check on the CPU, build on the GPU. Raises BenchError."""
    given, source = request.tensorrt, work.source
    plan = work.directory / ENGINE_FILE
    graph = work.directory / "converted.onnx"
    tolerance = given.tolerance or TOLERANCES[given.precision]
    with Child(module_command("bench.engine.tensorrt_plan", given.module), child_environment()) as child:
        library = _expect(child, "library", progress)
        calibration = _calibration(request, work)
        if given.precision != "fp32":
            progress(f"converting the graph to {given.precision}")
        converted = precision.convert(source.path, graph, given.precision, typed=library["typed"], calibration=calibration)
        errors: dict[str, float] = {}
        if converted:
            progress("comparing the converted graph with the source model")
            errors = onnxruntime_builder.parity_error(graph, work.cases, work.answers, f"the graph in {given.precision}")
            _check_conversion(errors, tolerance, request)
        child.send_line(json.dumps(asdict(_plan_request(request, work, graph if converted else source.path, plan))))
        built = _expect(child, "built", progress)
        child.wait(60)
    graph.unlink(missing_ok=True)
    if built["layers"] is not None:
        (work.directory / LAYERS_FILE).write_text(built["layers"], "utf-8")
    counts = layers.count_precisions(layers.parse_layers(built["layers"])) if built["layers"] is not None else {}
    gpu = built["gpu"] or {}
    versions = {given.module: library["version"], "TensorRT library": built["library_version"], "cuda": gpu.get("cuda")}
    return Built(
        files=(plan,),
        precision=given.precision,
        runtime_version=library["version"],
        device=f"cuda:{gpu['compute_capability']}" if gpu else "cuda",
        options=_options(request, calibration),
        tolerance=tolerance,
        parity_error=max(errors.values(), default=0.0),
        details=BuildDetails(
            versions={name: version for name, version in versions.items() if version},
            gpu=gpu.get("name"),
            driver=_driver_version(),
            flags=tuple(built["flags"]),
            conversion_errors=errors,
            source_nodes=precision.count_nodes(source.path),
            network_layers=built["network_layers"],
            engine_layers=built["engine_layers"],
            layer_precisions=counts,
            precision_evidence=layers.evidence(counts, built["layers"] is not None),
        ),
        runs_here=built["runs_here"],
    )


def _calibration(request: BuildRequest, work: Work) -> precision.Calibration | None:
    if request.tensorrt.precision != "int8":
        return None
    if request.tensorrt.calibration is not None:
        return precision.read_calibration(request.tensorrt.calibration, work.source.inputs, work.profiles[0])
    return precision.random_calibration(work.source.inputs, work.profiles[0], work.input_sources, request.seed)


def _check_conversion(errors: Mapping[str, float], tolerance: float, request: BuildRequest) -> None:
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= tolerance:
        raise BenchError(
            f"{request.model}: in {request.tensorrt.precision}, output {worst!r} is off by {errors[worst]:.3g} relative "
            f"(at most {tolerance:g} is allowed); calibrate with real data (--calibration), give realistic --input, "
            "choose another --precision, or say --tolerance"
        )


def _plan_request(request: BuildRequest, work: Work, graph: Path, plan: Path) -> PlanRequest:
    given = request.tensorrt
    return PlanRequest(
        graph=str(graph),
        plan=str(plan),
        precision=given.precision,
        profiles=[{name: (shape.min, shape.opt, shape.max) for name, shape in profile.items()} for profile in work.profiles],
        workspace_bytes=given.workspace_bytes,
        timing_cache=str(file_to_replace(given.timing_cache)) if given.timing_cache is not None else None,
        optimization_level=given.optimization_level,
        version_compatible=given.version_compatible,
    )


def _options(request: BuildRequest, calibration: precision.Calibration | None) -> dict[str, str]:
    given = request.tensorrt
    return {
        "module": given.module,
        **({"calibration": calibration.origin} if calibration is not None else {}),
        **({"workspace": str(given.workspace_bytes)} if given.workspace_bytes is not None else {}),
        **({"optimization_level": str(given.optimization_level)} if given.optimization_level is not None else {}),
        **({"version_compatible": "on"} if given.version_compatible else {}),
        **({"timing_cache": given.timing_cache.name} if given.timing_cache is not None else {}),
    }


def _expect(child: Child, event: str, progress: Progress) -> dict[str, Any]:
    """The child's next line of this event; what it says of its progress is passed on. Raises BenchError with its own sentence."""
    while True:
        line, _ = child.read_line(SILENCE_S)
        try:
            value: dict[str, Any] = json.loads(line)
        except ValueError:  # a library printed to standard output
            continue
        if value.get("event") == "progress":
            progress(value["text"])
        elif value.get("event") == event:
            return value


def _driver_version() -> str | None:
    from bench.gpus import read_gpus

    gpus = read_gpus()
    return gpus[0].driver_version if gpus else None
