"""The probe of an engine: inputs, and the answers of the unoptimised source model that make an answer correct.

Like bench.engine.manifest, a leaf that imports only the standard library at its top: the server reads probes too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import PROBE_FILE, Manifest
from bench.errors import EngineRefused

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """Inputs, and the outputs that the unoptimised source model gives for them."""

    inputs: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def read_probe(engine_dir: Path, manifest: Manifest, case: int = 0) -> ProbeCase:
    """One case of the engine's probe. Raises EngineRefused where it is missing or not of the manifest's tensors."""
    with _probe(engine_dir) as archive:
        try:
            return ProbeCase(
                inputs={t.name: archive[f"{case}/input/{t.name}"] for t in manifest.inputs},
                expected={t.name: archive[f"{case}/output/{t.name}"] for t in manifest.outputs},
            )
        except KeyError as error:
            raise EngineRefused(
                f"{engine_dir / PROBE_FILE} is not the probe of engine {manifest.name} ({error.args[0]}); build the engine again"
            ) from None


def count_probe_cases(engine_dir: Path) -> int:
    """How many warm-up shapes the probe covers. Raises EngineRefused."""
    with _probe(engine_dir) as archive:
        return 1 + max(int(name.partition("/")[0]) for name in archive.files)


@contextmanager
def _probe(engine_dir: Path) -> Iterator[NpzFile]:
    """The probe's arrays. Raises EngineRefused where the file is missing or no archive, also while it is read."""
    import zipfile  # numpy has imported it by then

    import numpy as np

    path = engine_dir / PROBE_FILE
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except FileNotFoundError:
        raise EngineRefused(f"{path} is missing; build the engine again") from None
    except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise EngineRefused(f"{path} is not an engine's probe ({error}); build the engine again") from None
