"""What starting takes, from a cold-start run: an engine, a further slot, a whole server, as samples for the simulation.

The server does more than load when it makes a slot: it reads the probe and answers each of its cases before the slot
serves anybody (reference_server.slots). The level `server` has that as the phases `probe` and `warmup`; a run without this
level has only the first answer of a new slot, which stands for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.analysis.cold_start_run import finished_trials, summary_of
from bench.errors import BenchError
from bench.records import open_run

Samples = NDArray[np.int64]
_ANSWER = ("first_inference", "check")
_READY_LEVELS = ("server", "process", "process-disk")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Starts:
    """Samples in ns; None where the run lacks the level that tells it.

    cold_load_ns: what a request of cold-load waits beyond a warm one: the load of engine and slot, and what a first run takes
    beyond a steady one. load_ns: an engine alone, in a process that is up. slot_ns: a slot on it, made and checked.
    ready_ns: from a server's start until it is ready; `ready_level` says which level told. engine: its manifest. notes:
    what stands for something that was not measured, in sentences. invalid: why the run may not be used.
    """

    cold_load_ns: Samples | None
    load_ns: Samples | None
    slot_ns: Samples | None
    ready_ns: Samples | None
    ready_level: str | None
    engine: Mapping[str, Any]
    notes: tuple[str, ...]
    invalid: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether there is a cold-start run that tells anything."""
        return any(samples is not None for samples in (self.cold_load_ns, self.load_ns, self.slot_ns, self.ready_ns))


def read_starts(path: Path) -> Starts:
    """From a run of `bench coldstart`, its first variant. Raises BenchError where it is none, or has no finished trial."""
    saved = open_run(path, "coldstart")
    table = saved.table("cold_starts", ("order", "variant", "level", "phase", "duration_ns"))
    variants = saved.run.get("variants") or []
    if table is None or table.num_rows == 0 or not variants:
        raise BenchError(f"--coldstart {path} has no finished trial")
    invalid = summary_of(saved, finished_trials(saved)).invalid
    first = variants[0]["label"]
    trials: dict[str, list[dict[str, list[int]]]] = defaultdict(list)
    for level, phases in _trials(table.to_pylist(), first):
        trials[level].append(phases)
    notes = [f"of the variants of the cold-start run, the first one counts ({first})"] if len(variants) > 1 else []
    making = np.array([sum(one.get("warmup", ())) + sum(one.get("probe", ())) for one in trials.get("server", ())], np.int64)
    if not len(making):
        notes.append("the cold-start run has no level server: the first answer of a new slot stands for all that the server checks in it")
    ready_level = next((level for level in _READY_LEVELS if level in trials), None)
    if ready_level not in (None, "server"):
        notes.append(f"the time to ready is that of the level {ready_level}, without the start of the server around it")
    return Starts(
        cold_load_ns=_samples(trials.get("engine"), _cold),
        load_ns=_samples(trials.get("engine"), lambda one: _before(one, (*_ANSWER, "slot", "buffers"))),
        slot_ns=_made(trials.get("slot"), making),
        ready_ns=None if ready_level is None else _samples(trials[ready_level], lambda one: _before(one, (*_ANSWER, "connect"))),
        ready_level=ready_level,
        engine=variants[0]["engine"],
        notes=tuple(notes),
        invalid=tuple(f"the cold-start run is not valid: {why}" for why in invalid),
    )


def no_starts(engine: Mapping[str, Any]) -> Starts:
    """Where there is no cold-start run: nothing is known."""
    return Starts(
        cold_load_ns=None,
        load_ns=None,
        slot_ns=None,
        ready_ns=None,
        ready_level=None,
        engine=engine,
        notes=(),
    )


def _trials(rows: Sequence[Mapping[str, Any]], variant: str) -> list[tuple[str, dict[str, list[int]]]]:
    """(level, phase -> its durations) of each trial with a total, in the order in which they were run."""
    found: dict[int, tuple[str, dict[str, list[int]]]] = {}
    for row in rows:
        if row["variant"] == variant:
            found.setdefault(row["order"], (row["level"], defaultdict(list)))[1][row["phase"]].append(row["duration_ns"])
    return [trial for _, trial in sorted(found.items()) if "total" in trial[1]]


def _before(one: Mapping[str, list[int]], left_out: Sequence[str]) -> int:
    return sum(one["total"]) - sum(sum(one.get(phase, ())) for phase in left_out)


def _cold(one: Mapping[str, list[int]]) -> int:
    """A first run takes longer than the steady ones that the service curve has."""
    slower = sum(one.get("first_inference", ())) - sum(one.get("steady", one.get("first_inference", ())))
    return _before(one, _ANSWER) + max(0, slower)


def _made(trials: Sequence[Mapping[str, list[int]]] | None, making: Samples) -> Samples | None:
    """A slot without an answer, and what the server adds: of its own trials, in their order, again from the start where
    there are fewer."""
    if not trials:
        return None
    bare = np.array([_before(one, _ANSWER) for one in trials], np.int64)
    if len(making):
        return bare + np.resize(making, len(bare))
    return bare + np.array([sum(one.get("first_inference", ())) for one in trials], np.int64)


def _samples(trials: Sequence[Mapping[str, list[int]]] | None, of: Any) -> Samples | None:
    return np.maximum(np.array([of(one) for one in trials], np.int64), 0) if trials else None
