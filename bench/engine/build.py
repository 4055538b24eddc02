"""From a model to an engine directory: optimised, proved against its source, measured once, then given its name.

The directory appears as a whole or not at all: it is made beside its place under another name.
"""

from __future__ import annotations

import dataclasses
import errno
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.clock import now_ns, utc_now
from bench.drafts import clear_abandoned, draft_folder, replace_folder
from bench.engine import onnxruntime_builder, tensorrt_builder
from bench.engine.manifest import (
    MANIFEST_FILE,
    PROBE_FILE,
    SCHEMA_VERSION,
    Baseline,
    Manifest,
    ShapeRange,
    Tensor,
    axis_sizes,
    describe_file,
    read_manifest,
    write_manifest,
)
from bench.engine.manifest_reading import PLAIN_NAME, is_plain_name
from bench.engine.request import BuildRequest, Built, Progress, Work
from bench.engine.shapes import InputSource, make_values, parse_input, resolve_profiles
from bench.engine.signature import SIGNATURE_FILE
from bench.engine.source import SourceModel, read_source
from bench.engine.tensorrt_builder import LAYERS_FILE
from bench.errors import BenchError, EngineRefused, one_sentence

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
    request: BuildRequest,
    directory: Path,
    *,
    measure: Callable[[Path], Baseline],
    progress: Progress = lambda _: None,
    replace_anything: bool = False,
) -> Manifest:
    """Build into `directory`, or to where it leads if it is a link. `measure` runs one slot of the engine in a process of its own.

    `replace_anything` is for the caller's own folders, such as a cache: what is there may be too damaged to be known for an engine.

    Raises BenchError: what cannot be read, optimised, run, or does not answer like its source.
    """
    check_request(request, directory, replace_anything=replace_anything)
    target = directory.resolve() if directory.is_symlink() or directory.name in ("", "..") else directory
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_abandoned(target.parent)
    with draft_folder(target) as workplace:
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
        try:
            if replace_anything:
                replace_folder(workplace, target)
            elif request.replace:
                _check_place(request, directory)  # once more: much may have happened meanwhile
                replace_folder(workplace, target)
            else:
                workplace.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise BenchError(f"{directory} was made by another process meanwhile; name another with -o") from None
    return manifest


def check_request(request: BuildRequest, directory: Path, *, replace_anything: bool = False) -> None:
    """All that can be known to be wrong before the long work starts. Raises BenchError."""
    if request.runtime not in BUILDERS:
        raise BenchError(f"--runtime {request.runtime} cannot build here: this build knows {', '.join(BUILDERS)}")
    BUILDERS[request.runtime].check_options(request)
    for flag, name in (("--name", request.model_name), ("--model-version", request.version)):
        if not is_plain_name(name):
            raise BenchError(f"{flag} {name[:80]!r} may only hold {PLAIN_NAME}")
    if not replace_anything:
        _check_place(request, directory)
    if request.sign_with is not None:
        from bench.engine.signature import read_private_key

        read_private_key(request.sign_with)


def _check_place(request: BuildRequest, directory: Path) -> None:
    """Only an engine directory is ever replaced, and only where all that it holds is the engine's. Raises BenchError."""
    if not directory.exists():
        return
    if not request.replace:
        raise BenchError(f"{directory} exists already and is not overwritten; name another with -o, or say --force")
    refused = "so --force does not replace it; remove it yourself, or name another with -o"
    if not directory.is_dir() or (any(directory.iterdir()) and not (directory / MANIFEST_FILE).exists()):
        raise BenchError(f"{directory} is not an engine directory, {refused}")
    held = {path.name for path in directory.iterdir()}
    if not held:
        return
    try:
        files = {file.name for file in read_manifest(directory).files}
    except (EngineRefused, OSError) as error:
        raise BenchError(f"{directory} is not an engine directory ({one_sentence(error)}), {refused}") from None
    foreign = sorted(held - files - {MANIFEST_FILE, SIGNATURE_FILE, LAYERS_FILE})
    if foreign:
        raise BenchError(f"{directory} holds {foreign[0]!r}, which is not the engine's, {refused}")


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
        name=request.model_name,
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
