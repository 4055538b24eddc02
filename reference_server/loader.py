"""From an engine directory to a loaded engine, with nothing loaded that its manifest does not vouch for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from bench.engine.manifest import Manifest, check_answer, check_bytes, describe_file, read_manifest, read_regular
from bench.engine.probe import ProbeCase
from bench.errors import EngineRefused
from reference_server.phases import Phases
from reference_server.runtimes import Answer, Engine, Slot, open_runtime


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
            try:
                found = describe_file(engine_dir / file.name)
            except FileNotFoundError:
                raise _missing(engine_dir / file.name) from None
            check_bytes(engine_dir, file, found.sha256, found.bytes)
    return runtime.load(manifest, engine_dir, engine_bytes, options, phases, trusted=trust is not None)


def check_loading(engine_dir: Path, manifest: Manifest, options: Mapping[str, str], *, trust: Path | None = None) -> None:
    """What can be known of a later `load_engine` without the engine and its library. Raises EngineRefused or BenchError."""
    if trust is not None:
        from bench.engine.signature import check_signature

        check_signature(engine_dir, trust)
    open_runtime(manifest.runtime).check_options(manifest, options)


def read_file(path: Path) -> bytes:
    """All of an engine's file. Raises EngineRefused where it is missing."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise _missing(path) from None


def _missing(path: Path) -> EngineRefused:
    return EngineRefused(f"{path} is missing; build the engine again")


def run_probe(slot: Slot, manifest: Manifest, case: ProbeCase) -> Answer:
    """Run a probe case and check the answer. Raises WrongAnswer."""
    answer = slot.run(case.inputs)
    check_answer(manifest, case.expected, answer.outputs)
    return answer
