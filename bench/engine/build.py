"""From a model to an engine directory: optimised, proved against its source, measured once, then given its name.

The directory appears as a whole or not at all: it is made beside its place under another name.
"""

from __future__ import annotations

import dataclasses
import platform
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.clock import now_ns, utc_now
from bench.engine import onnxruntime_builder, tensorrt_builder
from bench.engine.manifest import (
    PROBE_FILE,
    SCHEMA_VERSION,
    Baseline,
    Manifest,
    ShapeRange,
    Tensor,
    axis_sizes,
    describe_file,
    write_manifest,
)
from bench.engine.request import BuildRequest, Built, Progress, Work
from bench.engine.shapes import InputSource, make_values, parse_input, resolve_profiles
from bench.engine.source import SourceModel, read_source
from bench.errors import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Builder(Protocol):
    """What a module of this folder offers that builds for one runtime."""

    def check_options(self, request: BuildRequest) -> None:
        """Raises BenchError for options that this builder does not take."""
        ...

    def build(self, request: BuildRequest, work: Work, progress: Progress) -> Built:
        """Write the engine's files into `work.directory` and check what can be checked without running the engine.

        Raises BenchError, with the place and the reason, for a graph that the builder refuses.
        """
        ...


BUILDERS: Mapping[str, Builder] = {"onnxruntime": onnxruntime_builder, "tensorrt": tensorrt_builder}


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
        manifest, runs_here = _build_into(workplace, request, progress)
        if runs_here:
            progress("measuring one slot")
            baseline = measure(workplace)
            manifest = dataclasses.replace(
                manifest, baseline=baseline, parity_error=max(baseline.errors.values(), default=manifest.parity_error)
            )
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
    if request.runtime not in BUILDERS:
        raise BenchError(f"--runtime {request.runtime} cannot build here: this build knows {', '.join(BUILDERS)}")
    BUILDERS[request.runtime].check_options(request)
    if directory.exists() and not request.replace:
        raise BenchError(f"{directory} exists already and is not overwritten; name another with -o, or say --force")
    if directory.exists() and not (directory / "manifest.json").exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BenchError(f"{directory} is not an engine directory, so --force does not replace it; name another with -o")
    if request.sign_with is not None:
        from bench.engine.signature import read_private_key

        read_private_key(request.sign_with)


def _build_into(workplace: Path, request: BuildRequest, progress: Progress) -> tuple[Manifest, bool]:
    """The manifest of the engine built, and whether the engine can run on this machine."""
    import numpy as np

    started = now_ns()
    progress("reading the model")
    source = read_source(request.model)
    profiles = resolve_profiles(source.inputs, request.shapes)
    sources = _input_sources(request, source)
    cases = _cases(source, profiles, sources, request.seed)
    progress("running the source model")
    answers = onnxruntime_builder.reference_answers(source, cases)
    source = dataclasses.replace(source, outputs=_observed_outputs(source, cases, answers))
    arrays: dict[str, NDArray[Any]] = {}
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        arrays |= {f"{number}/input/{name}": value for name, value in case.items()}
        arrays |= {f"{number}/output/{name}": value for name, value in answer.items()}
    if any(array.dtype == object for array in arrays.values()):
        raise BenchError(f"{request.model} has string tensors, which cannot be kept in a probe without pickled objects")
    work = Work(source=source, profiles=profiles, input_sources=sources, cases=cases, answers=answers, directory=workplace)
    built = BUILDERS[request.runtime].build(request, work, progress)
    np.savez(workplace / PROBE_FILE, allow_pickle=False, **arrays)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=request.name or request.model.stem,
        version=request.version,
        source_sha256=source.sha256,
        files=(*map(describe_file, built.files), describe_file(workplace / PROBE_FILE)),
        runtime=request.runtime,
        runtime_version=built.runtime_version,
        precision=built.precision,
        device=built.device,
        device_features=built.device_features,
        inputs=source.inputs,
        outputs=source.outputs,
        profiles=profiles,
        options={**built.options, "seed": str(request.seed)},
        tolerance=built.tolerance,
        parity_error=built.parity_error,
        built_at=utc_now(),
        build_duration_ns=now_ns() - started,
        host=platform.node(),
        baseline=None,
        details=built.details,
    )
    write_manifest(workplace, manifest)
    return manifest, built.runs_here


def _input_sources(request: BuildRequest, source: SourceModel) -> dict[str, InputSource]:
    sources = {name: parse_input(name, text) for name, text in request.inputs.items()}
    names = [t.name for t in source.inputs]
    unknown = [name for name in sources if name not in names]
    if unknown:
        raise BenchError(f"--input names {unknown[0]!r}, but the model's inputs are {', '.join(names)}")
    return sources


def _cases(
    source: SourceModel, profiles: Sequence[Mapping[str, ShapeRange]], sources: Mapping[str, InputSource], seed: int
) -> list[dict[str, NDArray[Any]]]:
    """The probe's inputs: one case each for the smallest, the most frequent and the largest shapes of each profile, where they differ."""
    import numpy as np

    cases: list[dict[str, NDArray[Any]]] = []
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for profile in profiles:
        for kind in ("min", "opt", "max"):
            shapes = {name: getattr(shape_range, kind) for name, shape_range in profile.items()}
            key = tuple(shapes.values())
            if key in seen:
                continue
            seen.add(key)
            generator = np.random.default_rng([seed, len(cases)])
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
