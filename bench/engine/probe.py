"""The probe of an engine: inputs, and the answers of the unoptimised source model that make an answer correct.

Like bench.engine.manifest, a leaf that imports only the standard library at its top: the server reads probes too.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import DATATYPES, PROBE_FILE, Manifest, check_request_shapes
from bench.errors import BenchError, EngineRefused

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray

# What numpy and zipfile raise for files that are not what they claim to be, as found by damaging them.
UNREADABLE = (
    ValueError, OSError, EOFError, AttributeError, TypeError, NotImplementedError, MemoryError, OverflowError, RuntimeError, KeyError,
    SyntaxError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """Inputs, and the outputs that the unoptimised source model gives for them."""

    inputs: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def read_probe(engine_dir: Path, manifest: Manifest, case: int = 0) -> ProbeCase:
    """One case of the engine's probe. Raises EngineRefused where it is missing or not of the manifest's tensors."""
    with _probe(engine_dir) as archive:
        try:
            found = ProbeCase(
                inputs={t.name: read_array(archive, f"{case}/input/{t.name}") for t in manifest.inputs},
                expected={t.name: read_array(archive, f"{case}/output/{t.name}") for t in manifest.outputs},
            )
            _check_form(manifest, found)
        except (KeyError, BenchError) as error:
            raise EngineRefused(
                f"{engine_dir / PROBE_FILE} is not the probe of engine {manifest.name} ({error.args[0]}); build the engine again"
            ) from None
        return found


def read_array(archive: NpzFile, name: str) -> NDArray[Any]:
    """An array of an .npz file. Raises KeyError where there is none of this name, ValueError where it is no array or too large."""
    import numpy as np

    try:
        array = archive[name]
    except (MemoryError, OverflowError):
        raise ValueError(f"{name} claims to be larger than memory") from None
    if not isinstance(array, np.ndarray):  # numpy gives the bytes of what has not the form of an array
        raise ValueError(f"{name} is not an array")
    return array


def _check_form(manifest: Manifest, case: ProbeCase) -> None:
    """Raises BenchError for arrays that are not what the manifest declares: what runs them relies on it."""
    for tensors, arrays in ((manifest.inputs, case.inputs), (manifest.outputs, case.expected)):
        for tensor in tensors:
            array = arrays[tensor.name]
            fixed = len(array.shape) == len(tensor.dims) and all(
                dim == size for dim, size in zip(tensor.dims, array.shape, strict=True) if isinstance(dim, int)
            )
            if not fixed or array.dtype.name != DATATYPES[tensor.datatype]:
                raise BenchError(f"{tensor.name!r} is {array.dtype}{list(array.shape)}, not {tensor.datatype}{list(tensor.shape)}")
    check_request_shapes(manifest, {name: array.shape for name, array in case.inputs.items()})


def count_probe_cases(engine_dir: Path) -> int:
    """How many warm-up shapes the probe covers. Raises EngineRefused."""
    with _probe(engine_dir) as archive:
        return 1 + max(int(name.partition("/")[0]) for name in archive.files)


@contextmanager
def _probe(engine_dir: Path) -> Iterator[NpzFile]:
    """The probe's arrays. Raises EngineRefused where the file is missing or no archive, also while it is read."""
    import numpy as np

    path = engine_dir / PROBE_FILE
    if path.exists() and not path.is_file():
        raise EngineRefused(f"{path} is not a regular file; build the engine again")
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except FileNotFoundError:
        raise EngineRefused(f"{path} is missing; build the engine again") from None
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:  # no more open files, a disk that fails: another will do as little
            raise EngineRefused(f"{path} cannot be read ({error.strerror})") from None
        raise EngineRefused(f"{path} is not an engine's probe ({error}); build the engine again") from None
