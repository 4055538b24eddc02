"""An engine directory: what it holds, and whether it may be loaded here.

    manifest.json   this module's `Manifest`
    model.onnx      the engine itself (the file names are in `files`, each with size and sha256)
    probe.npz       inputs and the outputs that are correct for them, one case a warm-up shape:
                    arrays `0/input/NAME`, `0/output/NAME`, `1/input/NAME`, ... (case 0 is the smallest shape)
    manifest.sig    optional Ed25519 signature of manifest.json (bench.engine.signature)

Only the standard library is imported at the top: the server reads manifests inside the cold start it measures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError, EngineRefused, WrongAnswer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
PROBE_FILE = "probe.npz"

# Open Inference Protocol datatype -> numpy dtype name (KServe V2, "Tensor Data Types"). BYTES holds objects.
DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}

# The instruction sets that CPU kernels choose between; an engine tuned with one of them needs it where it runs.
_TUNING_FEATURES = (
    "sse4_1", "avx", "avx2", "f16c", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output. `dims` holds sizes, names of dynamic axes (`batch`), or "" for an axis nothing is known of."""

    name: str
    datatype: str
    dims: tuple[int | str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as the wire says it: -1 for each dynamic axis."""
        return tuple(dim if isinstance(dim, int) else -1 for dim in self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """The shapes that one input may take in a profile: smallest, most frequent, largest."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def holds(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.min) and all(low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile:
    """A file of the engine directory that the manifest vouches for."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What one slot did when the engine was built: closed loop, one request after the other, on the build host.

    `p99_ns` is None with fewer than 100 samples. `errors` is the largest relative error of each output over all probe cases.
    """

    rate_per_s: float
    p50_ns: int
    p99_ns: int | None
    samples: int
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDetails:
    """How an engine was made, for people and for the checks before it is loaded.

    `source_nodes` are the operators of the user's graph, `network_layers` those that the builder saw after conversion, and
    `engine_layers` what is executed. `layer_precisions` counts executed layers by precision, where the runtime tells
    (`precision_evidence` says who told). `conversion_errors` is the converted graph against the source, both in ONNX
    Runtime on the CPU, by output; empty where nothing was converted.
    """

    versions: Mapping[str, str]
    gpu: str | None = None
    driver: str | None = None
    flags: tuple[str, ...] = ()
    conversion_errors: Mapping[str, float] = field(default_factory=dict)
    source_nodes: int | None = None
    network_layers: int | None = None
    engine_layers: int | None = None
    layer_precisions: Mapping[str, int] = field(default_factory=dict)
    precision_evidence: str | None = None

    @property
    def share_fused(self) -> float | None:
        """The share of the source's operators that are no longer executed on their own; None where not known."""
        if not self.source_nodes or self.engine_layers is None:
            return None
        return max(0.0, 1 - self.engine_layers / self.source_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is known of an engine. `tolerance` is relative to the largest magnitude of each expected output."""

    schema_version: int
    name: str
    version: str
    source_sha256: str
    files: tuple[EngineFile, ...]
    runtime: str
    runtime_version: str
    precision: str
    device: str  # "cpu:x86_64", "cuda:9.0", or "none" for the synthetic runtime
    device_features: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    profiles: tuple[Mapping[str, ShapeRange], ...]
    options: Mapping[str, str]
    tolerance: float
    parity_error: float  # largest relative error of the built engine against its source, measured at the build
    built_at: str
    build_duration_ns: int
    host: str
    baseline: Baseline | None
    details: BuildDetails | None = None

    @property
    def engine_file(self) -> EngineFile:
        """The file that the runtime loads (the first one)."""
        return self.files[0]

    @property
    def title(self) -> str:
        """What every number about this engine belongs to."""
        library = self.options.get("module", self.runtime)
        return f"{self.name}, {library} {self.runtime_version}, {self.precision}, {self.device}"

    @property
    def engine_files(self) -> tuple[EngineFile, ...]:
        """What the runtime reads: all files but the probe."""
        return tuple(file for file in self.files if file.name != PROBE_FILE)

    @property
    def engine_bytes(self) -> int:
        return sum(file.bytes for file in self.engine_files)

    @property
    def max_batch(self) -> int | None:
        """The largest first dimension that any profile allows, where the first axis is dynamic in all inputs."""
        if not self.inputs or not all(t.dims and isinstance(t.dims[0], str) for t in self.inputs):
            return None
        return max(profile[t.name].max[0] for profile in self.profiles for t in self.inputs)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=False) + "\n"


def relative_error(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Largest absolute difference over the largest finite magnitude expected; inf where they cannot be compared.

    Integers, booleans and bytes must be equal (0 or inf). NaN and infinities must stand in the same places.
    """
    import numpy as np

    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return math.inf
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind != "f":
        return 0.0 if bool(np.array_equal(expected, actual)) else math.inf
    wide_expected, wide_actual = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(wide_expected)
    if not np.array_equal(wide_expected[~finite], wide_actual[~finite], equal_nan=True) or not np.isfinite(wide_actual[finite]).all():
        return math.inf
    if not finite.any():
        return 0.0
    difference = float(np.abs(wide_expected[finite] - wide_actual[finite]).max())
    scale = float(np.abs(wide_expected[finite]).max())
    return 0.0 if difference == 0 else difference / scale if scale > 0 else math.inf


def check_answer(manifest: Manifest, expected: Mapping[str, NDArray[Any]], answer: Mapping[str, NDArray[Any]]) -> None:
    """Correct means: names, datatypes and shapes as declared, and values within the manifest's tolerance.

    Raises WrongAnswer with the first output that is not correct.
    """
    for tensor in manifest.outputs:
        if tensor.name not in answer:
            raise WrongAnswer(f"engine {manifest.name}: output {tensor.name!r} is missing from the answer")
        got, want = answer[tensor.name], expected[tensor.name]
        if got.dtype != want.dtype or got.shape != want.shape:
            raise WrongAnswer(
                f"engine {manifest.name}: output {tensor.name!r} is {got.dtype}{list(got.shape)}, "
                f"the probe says {want.dtype}{list(want.shape)}"
            )
        error = relative_error(want, got)
        if not error <= manifest.tolerance:
            raise WrongAnswer(
                f"engine {manifest.name}: output {tensor.name!r} is off by {error:.3g} relative, "
                f"the manifest allows {manifest.tolerance:.3g}"
            )


def axis_sizes(tensors: Sequence[Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The size of each named dynamic axis, read off the tensors' shapes; an axis of two sizes has none."""
    sizes: dict[str, int] = {}
    doubtful: set[str] = set()
    for tensor in tensors:
        for dim, size in zip(tensor.dims, shapes[tensor.name], strict=True):
            if isinstance(dim, str) and dim and sizes.setdefault(dim, size) != size:
                doubtful.add(dim)
    return {dim: size for dim, size in sizes.items() if dim not in doubtful}


def read_manifest(engine_dir: Path) -> Manifest:
    """Read and check `manifest.json`. Raises EngineRefused, in one sentence."""
    from bench.engine.manifest_reading import parse_manifest  # it knows this module's types

    path = engine_dir / MANIFEST_FILE
    try:
        raw = json.loads(read_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        raise EngineRefused(f"{engine_dir} is not an engine directory: it has no {MANIFEST_FILE}") from None
    except (ValueError, RecursionError) as error:
        raise EngineRefused(f"{path} is not readable JSON ({error}); build the engine again") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise EngineRefused(f"{path} has schema version {version!r:.40}, this program reads {SCHEMA_VERSION}; build the engine again")
    try:
        return parse_manifest(raw)
    except ValueError as error:
        raise EngineRefused(f"{path} is not a complete manifest ({error}); build the engine again") from None


def read_regular(path: Path) -> bytes:
    """All of a file. Raises EngineRefused for a pipe or a device, which might never end, and OSError."""
    if not path.is_file() and path.exists():
        raise EngineRefused(f"{path} is not a regular file; build the engine again")
    return path.read_bytes()


def write_manifest(engine_dir: Path, manifest: Manifest) -> None:
    """Write or replace `manifest.json`."""
    (engine_dir / MANIFEST_FILE).write_text(manifest.to_json(), "utf-8")


def describe_file(path: Path) -> EngineFile:
    """Size and sha256 of a file, read in pieces."""
    if not path.is_file() and path.exists():
        raise EngineRefused(f"{path} is not a regular file; build the engine again")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return EngineFile(name=path.name, bytes=path.stat().st_size, sha256=digest)


def check_bytes(engine_dir: Path, file: EngineFile, digest: str, size: int) -> None:
    """Compare what was read with what the manifest vouches for. Raises EngineRefused."""
    if size != file.bytes:
        raise EngineRefused(f"{engine_dir / file.name} has {size} bytes, its manifest says {file.bytes}; build the engine again")
    if digest != file.sha256:
        raise EngineRefused(
            f"{engine_dir / file.name} has sha256 {digest[:12]}..., its manifest says {file.sha256[:12]}...; "
            "the file was changed, build the engine again"
        )


def cpu_device() -> tuple[str, tuple[str, ...]]:
    """This host's CPU as manifests name it: `cpu:x86_64` and the tuning features it has (none known off Linux)."""
    flags: set[str] = set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:  # the first processor's line is enough, and there may be hundreds of processors
                if line.startswith(("flags", "Features")):
                    flags = set(line.partition(":")[2].split())
                    break
    except OSError:
        pass
    return f"cpu:{platform.machine()}", tuple(f for f in _TUNING_FEATURES if f in flags)


def check_cpu(manifest: Manifest) -> None:
    """Refuse an engine that was tuned for another CPU. Raises EngineRefused naming both sides."""
    device, features = cpu_device()
    if manifest.device != device:
        raise EngineRefused(f"engine {manifest.name} was built for {manifest.device}, this host is {device}; build it here")
    missing = [f for f in manifest.device_features if f not in features]
    if missing:
        raise EngineRefused(
            f"engine {manifest.name} was tuned for a CPU with {', '.join(missing)}, this CPU has only "
            f"{', '.join(features) or 'no known features'}; build it here"
        )
    # ONNX Runtime's NCHWc layout has the block size of the widest vectors, so it does not move up either.
    if manifest.options.get("optimize") == "all" and "avx512f" in features and "avx512f" not in manifest.device_features:
        raise EngineRefused(
            f"engine {manifest.name} was laid out for a CPU without avx512f, this CPU has it; build it here or with --optimize basic"
        )


def check_runtime_version(manifest: Manifest, version: str) -> None:
    """Raises EngineRefused naming both versions."""
    if manifest.runtime_version != version:
        raise EngineRefused(
            f"engine {manifest.name} was built by {manifest.runtime} {manifest.runtime_version}, "
            f"this is {manifest.runtime} {version}; build it again"
        )


def check_request_shapes(manifest: Manifest, shapes: Mapping[str, Sequence[int]]) -> None:
    """Every input within one of the profiles. Raises BenchError with the allowed range."""
    for profile in manifest.profiles:
        if all(profile[t.name].holds(shapes[t.name]) for t in manifest.inputs):
            return
    for tensor in manifest.inputs:
        shape = tuple(shapes[tensor.name])
        if not any(profile[tensor.name].holds(shape) for profile in manifest.profiles):
            ranges = " or ".join(f"{list(p[tensor.name].min)} to {list(p[tensor.name].max)}" for p in manifest.profiles)
            batch = ""
            if manifest.max_batch is not None and shape and shape[0] > manifest.max_batch:
                batch = f" (the maximum batch is {manifest.max_batch})"
            raise BenchError(f"input {tensor.name!r} has shape {list(shape)}, engine {manifest.name} takes {ranges}{batch}")
    raise BenchError(f"no profile of engine {manifest.name} takes these shapes together: { ({k: list(v) for k, v in shapes.items()}) }")
