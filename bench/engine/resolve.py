"""Every command takes a built-in name, a model file or an engine directory; this turns any of them into an engine directory.

Engines made on the way are kept in `~/.cache/coldburst` (or `$XDG_CACHE_HOME/coldburst`), under a key of all that
they depend on, so that the same question is not built twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import bench
from bench.engine.build import build_engine
from bench.engine.manifest import MANIFEST_FILE, SCHEMA_VERSION, Baseline, cpu_device, describe_file, read_manifest
from bench.engine.manifest_reading import PLAIN_NAME, is_plain_name
from bench.engine.request import BuildRequest, Progress, TensorrtOptions
from bench.engine.shapes import parse_assignments
from bench.engine.source import source_digest
from bench.errors import BenchError
from bench.models import BUILT_IN, write_model
from bench.packages import installed_version
from bench.subprocesses import Child, child_environment, module_command

BASELINE_TIMEOUT_S = 600.0


def cache_folder() -> Path:
    """Where built-in models and the engines made of them are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coldburst"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The flags that all commands share: how to build where the argument is not an engine yet."""

    runtime: str = "onnxruntime"
    optimize: str = "all"
    name: str | None = None
    shapes: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    tensorrt: TensorrtOptions = field(default_factory=TensorrtOptions)

    @classmethod
    def from_flags(
        cls,
        *,
        runtime: str,
        optimize: str,
        name: str | None,
        shapes: Sequence[str],
        inputs: Sequence[str],
        seed: int,
        tensorrt: TensorrtOptions | None = None,
    ) -> BuildOptions:
        """Raises BenchError for a flag that is not NAME=VALUE."""
        return cls(
            runtime=runtime,
            optimize=optimize,
            name=name,
            shapes=parse_assignments(shapes, "--shape"),
            inputs=parse_assignments(inputs, "--input"),
            seed=seed,
            tensorrt=tensorrt or TensorrtOptions(),
        )


def resolve_engine(subject: str, options: BuildOptions, progress: Progress = lambda _: None) -> Path:
    """An engine directory for `subject`, built into the cache where it is a name or a model file. Raises BenchError."""
    path = Path(subject)
    if (path / MANIFEST_FILE).is_file():
        if options != BuildOptions():
            raise BenchError(f"{subject} is an engine, its shapes and options were fixed when it was built; give a model to build another")
        return path
    request, origin = build_request(subject, options)
    key = hashlib.sha256(
        json.dumps(
            [SCHEMA_VERSION, bench.__version__, origin, _builder(request), cpu_device(), dataclasses.asdict(options)], default=str
        ).encode()
    ).hexdigest()[:12]
    if not is_plain_name(request.model_name):
        raise BenchError(f"--name {request.model_name[:80]!r} may only hold {PLAIN_NAME}")
    directory = cache_folder() / "engines" / f"{request.model_name}-{key}"
    damaged = directory.exists()
    if damaged:
        if _is_whole(directory):
            return directory
        progress("the engine in the cache is damaged")
    if is_built_in(subject):
        progress(f"making {subject}")
        provide_built_in(subject, request.model)
    try:
        build_engine(request, directory, measure=measure_baseline, progress=progress, replace_anything=damaged)
    except (BenchError, OSError):
        if not _is_whole(directory):  # two at once: the other one's engine is as good
            raise
    return directory


def _is_whole(directory: Path) -> bool:
    """Whether the engine's files are those that its manifest vouches for; nobody looks after the cache, so we do."""
    try:
        return all(describe_file(directory / file.name) == file for file in read_manifest(directory).files)
    except (BenchError, OSError):
        return False


def build_request(subject: str, options: BuildOptions) -> tuple[BuildRequest, str]:
    """What `subject` asks to be built, and what it is made of (for the cache). Raises BenchError."""
    path = Path(subject)
    shapes, inputs = dict(options.shapes), dict(options.inputs)
    name = options.name
    if is_built_in(subject):
        built_in = BUILT_IN[subject]
        model = cache_folder() / "models" / f"{subject}-onnx{installed_version('onnx')}.onnx"
        origin = f"built-in {subject} onnx {installed_version('onnx')}"
        shapes = {**({} if shapes else built_in.default_shapes), **shapes}
        inputs = {**built_in.default_inputs, **inputs}
        name = subject if name is None else name
    elif path.is_file():
        model = path
        origin = source_digest(path)
    elif (path / MANIFEST_FILE).is_file():
        raise BenchError(f"{subject} is an engine already: name the model that it was built of")
    elif path.is_dir():
        raise BenchError(f"{subject} is a folder without {MANIFEST_FILE}, so it is not an engine directory; make one with `bench build`")
    else:
        raise BenchError(f"{subject} is neither a built-in model ({', '.join(BUILT_IN)}), nor a model file, nor an engine directory")
    arrays = [Path(text) for text in inputs.values() if not text.startswith("uniform:")]
    origin = " ".join([origin, *(describe_file(array).sha256 for array in arrays if array.is_file())])
    request = BuildRequest(
        model=model,
        runtime=options.runtime,
        optimize=options.optimize,
        name=name,
        shapes=shapes,
        inputs=inputs,
        seed=options.seed,
        tensorrt=options.tensorrt,
    )
    return request, origin


def is_built_in(subject: str) -> bool:
    """Whether `subject` names a built-in model. A file of that name goes before it."""
    return subject in BUILT_IN and not Path(subject).is_file()


def provide_built_in(subject: str, path: Path) -> None:
    """Make a built-in model in the cache, unless it is there and whole: nobody looks after the cache, so we do."""
    noted = path.with_suffix(".sha256")
    try:
        if noted.read_text("ascii") == describe_file(path).sha256:
            return
    except (BenchError, OSError, ValueError):
        pass
    noted.write_text(write_model(subject, 0, path, force=True).sha256, "ascii")


def measure_baseline(engine_dir: Path) -> Baseline:
    """One slot in closed loop, in a process of its own. Raises BenchError where the engine does not load or answer there."""
    from bench.analysis.statistics import percentile

    command = module_command("reference_server.probe", str(engine_dir), "--level", "baseline")
    if read_manifest(engine_dir).options.get("version_compatible") == "on":
        command += ["--set", "trust_host_code=on"]  # the lean runtime inside the plan: this very command had it put there
    with Child(command, child_environment()) as child:
        line, _ = child.read_line(BASELINE_TIMEOUT_S)
    event = json.loads(line)
    durations = event["durations_ns"]
    p50, p99 = (percentile(durations, percent) for percent in (50, 99))
    return Baseline(
        rate_per_s=len(durations) / (event["elapsed_ns"] / 1e9),
        p50_ns=int(p50 or 0),
        p99_ns=None if p99 is None else int(p99),
        samples=len(durations),
        errors=event["errors"],
    )


def _builder(request: BuildRequest) -> list[str]:
    """What an engine depends on besides its model and options: the builder's version, and for a GPU's engine the GPU."""
    if request.runtime != "tensorrt":
        return [installed_version(request.runtime) or "unknown"]
    from bench.engine.tensorrt_plan import find_gpu

    module = request.tensorrt.module.replace("_", "-")
    versions = [installed_version(f"{module}{suffix}") or "unknown" for suffix in ("", "-bindings", "-cu12", "-cu13")]
    return [*versions, *sorted((find_gpu() or {}).values())]
