"""From an engine directory to a loaded engine, with nothing loaded that its manifest does not vouch for."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import PROBE_FILE, Manifest, check_answer, check_bytes, describe_file, read_manifest
from bench.errors import EngineRefused
from reference_server.phases import Phases
from reference_server.runtimes import Answer, Engine, Slot, open_runtime

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """Inputs, and the outputs that the unoptimised source model gives for them."""

    inputs: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def load_engine(engine_dir: Path, options: Mapping[str, str], phases: Phases, *, trust: Path | None = None) -> Engine:
    """Read, verify and load an engine.

    Phases: `manifest`, `imports`, `library`, `device` (where the runtime has one), `read`, `verify`, `deserialise`.
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
    runtime.start(phases)
    with phases.phase("read"):
        engine_bytes = read_file(engine_dir / manifest.engine_file.name)
    with phases.phase("verify"):
        check_bytes(engine_dir, manifest.engine_file, hashlib.sha256(engine_bytes).hexdigest(), len(engine_bytes))
        for file in manifest.files[1:]:
            try:
                found = describe_file(engine_dir / file.name)
            except FileNotFoundError:
                raise _missing(engine_dir / file.name) from None
            check_bytes(engine_dir, file, found.sha256, found.bytes)
    return runtime.load(manifest, engine_dir, engine_bytes, options, phases)


def read_file(path: Path) -> bytes:
    """All of an engine's file. Raises EngineRefused where it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None


def _missing(path: Path) -> EngineRefused:
    return EngineRefused(f"{path} is missing; build the engine again")


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
        raise _missing(path) from None
    except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise EngineRefused(f"{path} is not an engine's probe ({error}); build the engine again") from None


def run_probe(slot: Slot, manifest: Manifest, case: ProbeCase) -> Answer:
    """Run a probe case and check the answer. Raises WrongAnswer."""
    answer = slot.run(case.inputs)
    check_answer(manifest, case.expected, answer.outputs)
    return answer
