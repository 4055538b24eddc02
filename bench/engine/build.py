"""From a model to an engine directory: optimised, proved against its source, measured once, then given its name.

The directory appears as a whole or not at all: it is made beside its place under another name.
"""

from __future__ import annotations

import dataclasses
import platform
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.clock import now_ns, utc_now
from bench.engine import onnxruntime_builder
from bench.engine.manifest import (
    PROBE_FILE,
    SCHEMA_VERSION,
    Baseline,
    Manifest,
    ShapeRange,
    Tensor,
    axis_sizes,
    cpu_device,
    describe_file,
    write_manifest,
)
from bench.engine.shapes import InputSource, make_values, parse_input, resolve_shapes
from bench.engine.source import SourceModel, read_source
from bench.errors import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FP32_TOLERANCE = 1e-3

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. `shapes` and `inputs` are the texts of `--shape` and `--input` by tensor name."""

    model: Path
    runtime: str = "onnxruntime"
    optimize: str = "all"
    name: str | None = None
    version: str = "1"
    shapes: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    sign_with: Path | None = None
    replace: bool = False


def build_engine(
    request: BuildRequest, directory: Path, *, measure: Callable[[Path], Baseline], progress: Progress = lambda _: None
) -> Manifest:
    """Build into `directory`. `measure` runs one slot of the finished engine (in a process of its own).

    Raises BenchError: what cannot be read, optimised, run, or does not answer like its source.
    """
    check_request(request, directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    workplace = directory.parent / f".{directory.name}.{secrets.token_hex(4)}.building"
    replaced = workplace.with_suffix(".replaced")
    workplace.mkdir()
    try:
        manifest = _build_into(workplace, request, progress)
        progress("measuring one slot")
        manifest = dataclasses.replace(manifest, baseline=measure(workplace))
        write_manifest(workplace, manifest)
        if request.sign_with is not None:
            from bench.engine.signature import sign_manifest

            sign_manifest(workplace, request.sign_with)
        if request.replace and directory.exists():
            directory.rename(replaced)  # at no time is there half an engine under its name
        workplace.rename(directory)
    finally:
        if replaced.exists() and not directory.exists():  # stopped between the two
            replaced.rename(directory)
        for left in (workplace, replaced):
            shutil.rmtree(left, ignore_errors=True)
    return manifest


def check_request(request: BuildRequest, directory: Path) -> None:
    """All that can be known to be wrong before the long work starts. Raises BenchError."""
    if request.runtime != "onnxruntime":
        raise BenchError(f"--runtime {request.runtime} cannot build here: this build knows onnxruntime")
    if request.optimize not in onnxruntime_builder.OPTIMIZE_LEVELS:
        raise BenchError(f"--optimize {request.optimize} is not one of {', '.join(onnxruntime_builder.OPTIMIZE_LEVELS)}")
    if directory.exists() and not request.replace:
        raise BenchError(f"{directory} exists already and is not overwritten; name another with -o, or say --force")
    if directory.exists() and not (directory / "manifest.json").exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BenchError(f"{directory} is not an engine directory, so --force does not replace it; name another with -o")
    if request.sign_with is not None:
        from bench.engine.signature import read_private_key

        read_private_key(request.sign_with)


def _build_into(workplace: Path, request: BuildRequest, progress: Progress) -> Manifest:
    import numpy as np

    started = now_ns()
    progress("reading the model")
    source = read_source(request.model)
    ranges = resolve_shapes(source.inputs, request.shapes)
    cases = _cases(source, ranges, request)
    progress("running the source model")
    answers = onnxruntime_builder.reference_answers(source, cases)
    source = dataclasses.replace(source, outputs=_observed_outputs(source, cases, answers))
    progress("optimising the graph")
    paths = onnxruntime_builder.optimize(source, request.optimize, workplace)
    progress("comparing with the source model")
    errors = onnxruntime_builder.parity_error(paths[0], cases, answers)
    parity = max(errors.values())
    tolerance = _tolerance(source, errors)
    arrays: dict[str, NDArray[Any]] = {}
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        arrays |= {f"{number}/input/{name}": value for name, value in case.items()}
        arrays |= {f"{number}/output/{name}": value for name, value in answer.items()}
    if any(array.dtype == object for array in arrays.values()):
        raise BenchError(f"{request.model} has string tensors, which cannot be kept in a probe without pickled objects")
    np.savez(workplace / PROBE_FILE, allow_pickle=False, **arrays)
    device, features = cpu_device()
    files = [describe_file(path) for path in paths] + [describe_file(workplace / PROBE_FILE)]
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=request.name or request.model.stem,
        version=request.version,
        source_sha256=source.sha256,
        files=tuple(files),
        runtime=request.runtime,
        runtime_version=onnxruntime_builder.runtime_version(),
        precision=source.precision,
        device=device,
        device_features=features,
        inputs=source.inputs,
        outputs=source.outputs,
        profiles=(ranges,),
        options={"optimize": request.optimize, "seed": str(request.seed)},
        tolerance=tolerance,
        parity_error=parity,
        built_at=utc_now(),
        build_duration_ns=now_ns() - started,
        host=platform.node(),
        baseline=None,
    )
    write_manifest(workplace, manifest)
    return manifest


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


def _cases(source: SourceModel, ranges: Mapping[str, ShapeRange], request: BuildRequest) -> list[dict[str, NDArray[Any]]]:
    """The probe's inputs: one case each for the smallest, the most frequent and the largest shapes, where they differ."""
    import numpy as np

    sources = {name: parse_input(name, text) for name, text in request.inputs.items()}
    unknown = [name for name in sources if name not in ranges]
    if unknown:
        raise BenchError(f"--input names {unknown[0]!r}, but the model's inputs are {', '.join(ranges)}")
    cases: list[dict[str, NDArray[Any]]] = []
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for kind in ("min", "opt", "max"):
        shapes = {name: getattr(shape_range, kind) for name, shape_range in ranges.items()}
        key = tuple(shapes.values())
        if key in seen:
            continue
        seen.add(key)
        generator = np.random.default_rng([request.seed, len(cases)])
        cases.append({t.name: make_values(t, shapes[t.name], sources.get(t.name, InputSource()), generator) for t in source.inputs})
    return cases


def _observed_outputs(
    source: SourceModel, cases: list[dict[str, NDArray[Any]]], answers: list[dict[str, NDArray[Any]]]
) -> tuple[Tensor, ...]:
    """The declared outputs, each axis kept only where every case bears it out; an axis that is not is unknown ("").

    Raises BenchError for an output that is not an array.
    """
    observed = []
    for tensor in source.outputs:
        dims = list(tensor.dims)
        for case, answer in zip(cases, answers, strict=True):
            value = answer[tensor.name]
            if not hasattr(value, "shape"):
                raise BenchError(f"{source.path}: output {tensor.name!r} is a {type(value).__name__}, only tensors can be served")
            if len(dims) != value.ndim:
                dims = [""] * value.ndim
            sizes = axis_sizes(source.inputs, {name: array.shape for name, array in case.items()})
            for axis, dim in enumerate(dims):
                if (dim if isinstance(dim, int) else sizes.get(dim)) != value.shape[axis]:
                    dims[axis] = ""
        if dims and dims[0] == "" and _follows_batch(source, tensor, cases, answers):
            dims[0] = source.inputs[0].dims[0]
        observed.append(dataclasses.replace(tensor, dims=tuple(dims)))
    return tuple(observed)


def _follows_batch(
    source: SourceModel, tensor: Tensor, cases: list[dict[str, NDArray[Any]]], answers: list[dict[str, NDArray[Any]]]
) -> bool:
    """Exporters lose the batch axis's name in outputs: three batch sizes that come out again are taken for it."""
    first = source.inputs[0]
    if not first.dims or not isinstance(first.dims[0], str):
        return False
    batches = [case[first.name].shape[0] for case in cases]
    return len(set(batches)) >= 3 and batches == [answer[tensor.name].shape[0] for answer in answers]
