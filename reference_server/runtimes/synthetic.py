"""A runtime of declared times: it sleeps where a real one works, and says so. The tests' oracle, never a result.

Its engine file is JSON with the fields of `Declaration`. Output element j of a batch row is twice input element
`j mod input_elements`. Memory that is declared is really allocated and touched.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.clock import now_ns
from bench.engine.manifest import Manifest, check_runtime_version
from bench.errors import BenchError, EngineRefused
from reference_server.phases import Phases
from reference_server.runtimes import Answer, DeviceSpoiled, parse_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What the engine pretends to take. Times in ns, memory in bytes; 0 is none."""

    load_ns: int = 0
    slot_ns: int = 0
    service_ns: int = 0
    spread_percent: int = 0  # the standard deviation of the service time's logarithm; service_ns is then its median
    slow_percent: int = 0  # each further slot that runs as a run begins makes it longer by so much: slots of one device
    first_service_ns: int = 0  # added to the first run of each slot
    gap_ns: int = 0  # spent between two phases of a load, in none of them: shows up as unattributed
    engine_bytes: int = 0
    slot_bytes: int = 0
    fail_every_loads: int = 0  # each n-th load of the process fails
    fail_every_runs: int = 0  # each n-th run of a slot fails
    wrong_every_runs: int = 0  # each n-th run of a slot answers wrongly
    spoil_every_runs: int = 0  # each n-th run of a slot spoils the (declared) device
    gate: str = ""  # a path: while a file is there, every load and every run waits; for states that must last until they were seen
    input_elements: int = 1024
    output_elements: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """Runtime settings; `threads` is accepted so that one command line serves every runtime."""

    threads: int = 1


class _Running:
    """How many slots of an engine run; thread-safe."""

    def __init__(self) -> None:
        self._number = 0
        self._lock = threading.Lock()

    def __enter__(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._number -= 1


class SyntheticSlot:
    """Takes the declared service time for each run, and holds the declared memory."""

    def __init__(self, declared: Declaration, running: _Running) -> None:
        import numpy as np

        self._declared = declared
        self._running = running
        self._draw = random.Random()
        self._factor = np.float32(2)
        self._repeats = -(-declared.output_elements // declared.input_elements)
        self._memory = _touched(declared.slot_bytes)
        self._runs = 0

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> Answer:
        declared = self._declared
        started = now_ns()
        self._runs += 1
        given = inputs["input"].copy()
        copied = now_ns()
        if declared.gate:
            _pass(declared.gate)
        with self._running as busy:
            pause_ns = self._service_ns(busy) + (declared.first_service_ns if self._runs == 1 else 0)
            if pause_ns:
                time.sleep(pause_ns / 1e9)
        if declared.fail_every_runs and self._runs % declared.fail_every_runs == 0:
            raise RuntimeError("synthetic: this run was declared to fail")
        if declared.spoil_every_runs and self._runs % declared.spoil_every_runs == 0:
            raise DeviceSpoiled("synthetic: this run was declared to spoil the device")
        inferred = now_ns()
        answer = given[:, : declared.output_elements] * self._factor
        if self._repeats > 1:
            import numpy as np

            answer = np.tile(answer, (1, self._repeats))[:, : declared.output_elements]
        if declared.wrong_every_runs and self._runs % declared.wrong_every_runs == 0:
            answer = answer + self._factor / 2
        done = now_ns()
        return Answer(outputs={"output": answer}, input_ns=copied - started, infer_ns=inferred - copied, output_ns=done - inferred)

    def _service_ns(self, busy: int) -> float:
        declared = self._declared
        drawn = self._draw.lognormvariate(0.0, declared.spread_percent / 100) if declared.spread_percent else 1.0
        return declared.service_ns * drawn * (1 + (busy - 1) * declared.slow_percent / 100)

    def close(self) -> None:
        self._memory = b""


class SyntheticEngine:
    """Holds the declared memory, and makes slots that take the declared time."""

    def __init__(self, manifest: Manifest, declared: Declaration) -> None:
        self.manifest = manifest
        self._declared = declared
        self._running = _Running()
        self._memory = _touched(declared.engine_bytes)

    def make_slot(self, phases: Phases) -> SyntheticSlot:
        with phases.phase("slot"):
            if self._declared.slot_ns:
                time.sleep(self._declared.slot_ns / 1e9)
        with phases.phase("buffers"):
            return SyntheticSlot(self._declared, self._running)

    def close(self) -> None:
        self._memory = b""


class SyntheticRuntime:
    """Counts the loads of the process, since each n-th may be declared to fail."""

    version = VERSION

    def __init__(self) -> None:
        self._loads = 0
        self._lock = threading.Lock()

    def check_options(self, manifest: Manifest, options: Mapping[str, str]) -> None:
        parse_options(SyntheticOptions, options)

    def start(self, manifest: Manifest, options: Mapping[str, str], phases: Phases) -> None:
        with phases.phase("library"):
            import numpy  # noqa: F401  (what a real library would import too)

    def device_bytes(self) -> int | None:
        return None

    def sm_clock_mhz(self) -> int | None:
        return None

    def measure_floors(self, size: int, phases: Phases) -> None:
        """There is no device to copy to."""

    def load(
        self,
        manifest: Manifest,
        engine_dir: Path,
        engine_bytes: bytes,
        options: Mapping[str, str],
        phases: Phases,
        *,
        trusted: bool = False,
    ) -> SyntheticEngine:
        check_runtime_version(manifest, self.version)
        parse_options(SyntheticOptions, options)
        try:
            declared = Declaration(**json.loads(engine_bytes))
        except (ValueError, TypeError) as error:
            raise EngineRefused(f"{engine_dir / manifest.engine_file.name} is not a synthetic engine: {error}") from None
        if declared.gap_ns:
            time.sleep(declared.gap_ns / 1e9)
        with self._lock:
            self._loads += 1
            fails = declared.fail_every_loads and self._loads % declared.fail_every_loads == 0
        with phases.phase("deserialise"):
            _pass(declared.gate)
            if declared.load_ns:
                time.sleep(declared.load_ns / 1e9)
            if fails:
                raise BenchError("synthetic: this load was declared to fail")
            return SyntheticEngine(manifest, declared)


def _pass(gate: str) -> None:
    while gate and Path(gate).exists():
        time.sleep(0.001)


def _touched(size: int) -> bytes:
    return b"\x01" * size


RUNTIME = SyntheticRuntime()
