"""From an engine directory to a loaded engine, with nothing loaded that its manifest does not vouch for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import PROBE_FILE, Manifest, check_answer, check_bytes, describe_file, read_manifest
from bench.errors import EngineRefused
from reference_server.phases import Phases
from reference_server.runtimes import Answer, Engine, Slot, open_runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """Inputs, and the outputs that the unoptimised source model gives for them."""

    inputs: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def load_engine(engine_dir: Path, options: Mapping[str, str], phases: Phases, *, trust: Path | None = None) -> Engine:
    """Read, verify and load an engine.

    Phases: `manifest`, `imports`, `library`, `device` and `runtime` (where there is one), `read`, `verify`, `deserialise`.
    `trust` is a public key: an unsigned or wrongly signed engine is then refused. Raises EngineRefused or BenchError.
    """
    with phases.phase("manifest"):
        manifest = read_manifest(engine_dir)
    if trust is not None:
        from bench.engine.signature import check_signature

        with phases.phase("signature"):
            check_signature(engine_dir, trust)
    with phases.phase("imports"):  # our own module for the runtime; its library comes next
        runtime = open_runtime(manifest.runtime)
    runtime.start(manifest, options, phases)
    with phases.phase("read"):
        engine_bytes = read_file(engine_dir / manifest.engine_file.name)
    with phases.phase("verify"):
        check_bytes(engine_dir, manifest.engine_file, hashlib.sha256(engine_bytes).hexdigest(), len(engine_bytes))
        for file in manifest.files[1:]:
            found = describe_file(engine_dir / file.name)
            check_bytes(engine_dir, file, found.sha256, found.bytes)
    return runtime.load(manifest, engine_dir, engine_bytes, options, phases, trusted=trust is not None)


def read_file(path: Path) -> bytes:
    """All of an engine's file. Raises EngineRefused where it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise EngineRefused(f"{path} is missing; build the engine again") from None


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
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise EngineRefused(f"{path} is not the probe of engine {manifest.name} ({error}); build the engine again") from None


def count_probe_cases(engine_dir: Path) -> int:
    """How many warm-up shapes the probe covers."""
    import numpy as np

    with np.load(engine_dir / PROBE_FILE, allow_pickle=False) as archive:
        return 1 + max(int(name.partition("/")[0]) for name in archive.files)


def run_probe(slot: Slot, manifest: Manifest, case: ProbeCase) -> Answer:
    """Run a probe case and check the answer. Raises WrongAnswer."""
    answer = slot.run(case.inputs)
    check_answer(manifest, case.expected, answer.outputs)
    return answer
