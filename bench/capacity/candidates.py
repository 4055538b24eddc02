"""What a plan chooses among: ways to serve, each with its numbers, and what the simulation is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.simulation import Replicas, Server

WARM, ELASTIC, SCALE_OUT, LAZY, COLD = "warm-pool", "elastic", "scale-out", "lazy", "cold-load"
# In the order in which one is taken over another that is no better: the fewer surprises, the earlier.
FAMILIES = (WARM, ELASTIC, SCALE_OUT, LAZY, COLD)


_WITHOUT_STARTS = "what a start takes is not known without --coldstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve. slots: of each replica (cold-load: how many load at a time); minimum: elastic's slots that are
    kept. replicas: at the start; maximum: as many as there may become (scale-out: a warm reserve that grows)."""

    family: str
    slots: int
    minimum: int = 1
    replicas: int = 1
    maximum: int = 1

    @property
    def mode(self) -> str:
        """The server's."""
        return WARM if self.family == SCALE_OUT else self.family

    @property
    def text(self) -> str:
        """Such as `warm-pool, 2 replicas x 3 slots`."""
        slots = f"{self.minimum} to {self.slots} slots" if self.family == ELASTIC else f"{self.slots} slot{_s(self.slots)}"
        if self.family == SCALE_OUT:
            return f"scale-out, {self.replicas} to {self.maximum} replicas x {slots}"
        return f"{self.family}, {f'{self.replicas} replicas x ' if self.replicas > 1 else ''}{slots}"

    @property
    def command(self) -> str:
        """How each replica is started."""
        size = f"--min {self.minimum} --max {self.slots}" if self.family == ELASTIC else f"--pool-size {self.slots}"
        return f"bench serve ENGINE --mode {self.mode} {size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is the same for all candidates: the server's limits, and the rule by which replicas are started.

    ready_ns: from the decision to start a replica until it is ready; None: as measured. above: the waiting requests a slot
    beyond which the rule fires once it has seen that for detect_ns.
    """

    queue_limit: int | None = None
    acquire_timeout_ns: int | None = None
    idle_timeout_ns: int = 30 * 10**9
    ready_ns: int | None = None
    detect_ns: int = 15 * 10**9
    above: float = 1.0


def server_of(candidate: Candidate, measured: Measured, rules: Rules) -> Server:
    """The simulation's server. What was not measured is taken as 0; `lacking` says for which families that will not do."""
    from bench.capacity.simulation import Server

    starts = measured.starts
    given: dict[str, Any] = {}
    if candidate.family == COLD:
        given["load_ns"] = starts.cold_load_ns
    elif candidate.family in (LAZY, ELASTIC):
        given |= {"load_ns": starts.load_ns, "slot_ns": starts.slot_ns}
    return Server(
        mode=candidate.mode,  # type: ignore[arg-type]
        slots=candidate.slots,
        minimum=candidate.minimum if candidate.family == ELASTIC else 0,
        queue_limit=rules.queue_limit,
        acquire_timeout_ns=rules.acquire_timeout_ns,
        idle_timeout_ns=rules.idle_timeout_ns if candidate.family == ELASTIC else None,
        sharing="copy" if measured.sharing == "copy" else "engine",
        **{name: samples for name, samples in given.items() if samples is not None},
    )


def replicas_of(candidate: Candidate, measured: Measured, rules: Rules) -> Replicas:
    """The simulation's replicas, with their rule."""
    from bench.capacity.simulation import Replicas

    return Replicas(
        initial=candidate.replicas,
        maximum=max(candidate.maximum, candidate.replicas),
        signal="waiting",
        above=rules.above * candidate.slots,
        detect_ns=rules.detect_ns,
        start_ns=ready_samples(measured, rules),
    )


def ready_samples(measured: Measured, rules: Rules) -> NDArray[np.int64]:
    """How long a replica takes from the decision to start it, ns: as given, else as measured, else 0."""
    if rules.ready_ns is not None:
        return np.array([rules.ready_ns], np.int64)
    return np.zeros(1, np.int64) if measured.starts.ready_ns is None else measured.starts.ready_ns


def lacking(family: str, measured: Measured, rules: Rules) -> str | None:
    """Why the family cannot be planned with what was measured; None where it can."""
    starts = measured.starts
    if not starts.known and (family in (COLD, LAZY, ELASTIC) or (family == SCALE_OUT and rules.ready_ns is None)):
        return _WITHOUT_STARTS
    if family == COLD and starts.cold_load_ns is None:
        return "the cold-start run has no level engine"
    if family in (LAZY, ELASTIC) and (starts.load_ns is None or starts.slot_ns is None):
        return "the cold-start run lacks the level engine or slot"
    if family == SCALE_OUT and rules.ready_ns is None and starts.ready_ns is None:
        return "the cold-start run has no level server or process, and --replica-start is not given"
    return None


def left_out(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """(What, why) in sentences, those of one reason together: `lazy and cold-load are left out: ...`."""
    found: dict[str, list[str]] = {}
    for what, why in reasons:
        found.setdefault(why, []).append(what)
    return [
        f"{', '.join(names[:-1]) + ' and ' if len(names) > 1 else ''}{names[-1]} {'are' if len(names) > 1 else 'is'} left out: {why}"
        for why, names in found.items()
    ]


def _s(count: int) -> str:
    return "" if count == 1 else "s"
