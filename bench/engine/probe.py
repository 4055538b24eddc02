"""The probe of an engine: inputs, and the answers of the unoptimised source model that make an answer correct.

Like bench.engine.manifest, a leaf that imports only the standard library at its top: the server reads probes too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import PROBE_FILE, Manifest
from bench.errors import EngineRefused

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """Inputs, and the outputs that the unoptimised source model gives for them."""

    inputs: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def read_probe(engine_dir: Path, manifest: Manifest, case: int = 0) -> ProbeCase:
    """One case of the engine's probe. Raises EngineRefused where it is missing or not of the manifest's tensors."""
    import numpy as np

    path = engine_dir / PROBE_FILE
    try:
        with np.load(path, allow_pickle=False) as archive:
            return ProbeCase(
                inputs={t.name: archive[f"{case}/input/{t.name}"] for t in manifest.inputs},
                expected={t.name: archive[f"{case}/output/{t.name}"] for t in manifest.outputs},
            )
    except FileNotFoundError:
        raise EngineRefused(f"{path} is missing; build the engine again") from None
    except Exception as error:  # zip and zlib errors among them: whatever it is, this is not the probe
        raise EngineRefused(f"{path} is not the probe of engine {manifest.name} ({error}); build the engine again") from None


def count_probe_cases(engine_dir: Path) -> int:
    """How many warm-up shapes the probe covers."""
    import numpy as np

    with np.load(engine_dir / PROBE_FILE, allow_pickle=False) as archive:
        return 1 + max(int(name.partition("/")[0]) for name in archive.files)
