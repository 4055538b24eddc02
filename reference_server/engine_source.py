"""Where the slots of one pool get their engines: one that they share, or one each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from bench.engine.manifest import Manifest
from bench.engine.probe import count_probe_cases, read_probe
from bench.errors import EngineRefused
from reference_server.loader import check_loading, load_engine, run_probe
from reference_server.phases import Phases
from reference_server.runtimes import Engine, Slot


class EngineSource:
    """Where slot threads get their engines. With `shared` the first taker loads, the others get the same one.

    A shared engine is closed when its last taker gives it back; the next one then loads it anew.
    """

    def __init__(self, engine_dir: Path, manifest: Manifest, options: Mapping[str, str], trust: Path | None, *, shared: bool) -> None:
        self.manifest = manifest
        self.engine_dir = engine_dir
        self._options = options
        self._trust = trust
        self._shared = shared
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._takers = 0
        self.engine_loads = 0  # engines really loaded, for the metrics

    @property
    def can_share(self) -> bool:
        """Whether the next taker gets an engine that is loaded already."""
        return self._engine is not None

    def check_later_load(self) -> None:
        """Raises BenchError where it cannot succeed."""
        check_loading(self.engine_dir, self.manifest, self._options, trust=self._trust)

    def take(self, phases: Phases) -> Engine:
        """Raises BenchError, or what the runtime raises, where the load fails; nothing is held then."""
        if not self._shared:
            return self._load(phases)
        with self._lock:  # the others wait here for the one load
            if self._engine is None:
                self._engine = self._load(phases)
            self._takers += 1
            return self._engine

    def give_back(self, engine: Engine) -> None:
        if not self._shared:
            engine.close()
            return
        with self._lock:
            self._takers -= 1
            if self._takers == 0:
                self._engine = None
                engine.close()

    def open_slot(self, phases: Phases) -> tuple[Engine, Slot]:
        """An engine and a slot of it. Where it raises, neither is left."""
        engine = self.take(phases)
        try:
            return engine, engine.make_slot(phases)
        except BaseException:
            self.give_back(engine)
            raise

    def close_slot(self, engine: Engine, slot: Slot) -> None:
        try:
            slot.close()
        finally:
            self.give_back(engine)

    def check(self, slot: Slot, *, every_case: bool, phases: Phases | None = None) -> None:
        """Run the probe's cases, read anew from the disk: a phase `probe` (reading) and `warmup` (running, checking) each.

        Raises WrongAnswer, EngineRefused or what the runtime raises.
        """
        phases = Phases() if phases is None else phases
        number, cases = 0, 1
        while number < cases:
            with phases.phase("probe"):
                if every_case and number == 0:
                    cases = count_probe_cases(self.engine_dir)
                case = read_probe(self.engine_dir, self.manifest, number)
            with phases.phase("warmup"):
                run_probe(slot, self.manifest, case)
            number += 1

    def _load(self, phases: Phases) -> Engine:
        engine = load_engine(self.engine_dir, self._options, phases, trust=self._trust)
        self.engine_loads += 1
        if engine.manifest != self.manifest:
            engine.close()
            raise EngineRefused(f"{self.engine_dir} was built again while it was served; restart the server to serve the new engine")
        return engine
