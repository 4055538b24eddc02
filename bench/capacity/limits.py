"""What stands in the way of a smaller size, and how much room the chosen one has.

What limits is found by taking it away: with starts that take no time, or without the bound on memory, would the next
smaller size hold? Where neither helps, it is the device: compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.capacity.candidates import COLD, ELASTIC, LAZY, SCALE_OUT, Candidate
from bench.capacity.offered import with_rate
from bench.capacity.predict import Prediction, predict

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.search import Search

COMPUTE, MEMORY, START = "compute", "memory", "start time"
_LARGEST_FACTOR = 16.0
_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """what: compute, memory or start time. smaller: the next smaller size, which does not hold; None where there is none.
    why: in words."""

    what: str
    smaller: Prediction | None
    why: str


def limit_of(search: Search, prediction: Prediction) -> Limit | None:
    """Why the next smaller size does not hold; None where the smallest there is holds already."""
    fewer = next_smaller(search, prediction.candidate)
    if fewer is None:
        return None
    smaller = search.predict(fewer, whole=True)
    if _holds_with_instant_starts(search, fewer):
        return Limit(what=START, smaller=smaller, why=f"with {fewer.text} the starts take too long: if they took no time it would hold")
    wider = _first_that_does_not_fit(search, prediction.candidate)
    if prediction.candidate.replicas > 1 and wider is not None and _predict_without_memory(search, wider).holds:
        return Limit(what=MEMORY, smaller=smaller, why=f"{wider.text} would hold, and does not fit into the memory")
    return Limit(what=COMPUTE, smaller=smaller, why=f"{fewer.text} cannot work off the load fast enough")


def limit_of_failure(search: Search, closest: Prediction) -> Limit:
    """Why nothing holds, from the candidate that comes closest."""
    candidate = closest.candidate
    fastest = min(float(np.median(level)) for level in search.measured.levels)
    if fastest > search.goal.slo.bound_ns:
        return Limit(what=COMPUTE, smaller=None, why="the service alone takes longer than the SLO")
    if _holds_with_instant_starts(search, candidate):
        return Limit(what=START, smaller=None, why=f"the starts take too long: if they took no time, {candidate.text} would hold")
    wider = _first_that_does_not_fit(search, candidate)
    if wider is not None and _predict_without_memory(search, wider).holds:
        return Limit(what=MEMORY, smaller=None, why=f"{wider.text} would hold, and does not fit into the memory")
    more = f"with at most {search.bounds.most_replicas} replica{'s' if search.bounds.most_replicas > 1 else ''} (--max-replicas)"
    return Limit(what=COMPUTE, smaller=None, why=f"{more} the load cannot be worked off fast enough")


def headroom(search: Search, prediction: Prediction) -> float | None:
    """By which factor all rates may grow until the goal is missed, less 1; from bisection in steps of about 3 %. None where
    it does not hold now."""
    if not prediction.holds:
        return None
    low, high = 1.0, 1.25
    while high < _LARGEST_FACTOR and _holds_at(search, prediction.candidate, high):
        low, high = high, high * 1.25
    for _ in range(_STEPS if high < _LARGEST_FACTOR else 0):
        middle = (low + high) / 2
        if _holds_at(search, prediction.candidate, middle):
            low = middle
        else:
            high = middle
    return low - 1


def next_smaller(search: Search, candidate: Candidate) -> Candidate | None:
    """One slot less; of one slot (or of a reserve that grows), one replica less."""
    if candidate.family == SCALE_OUT:
        return dataclasses.replace(candidate, replicas=candidate.replicas - 1) if candidate.replicas > 1 else None
    if candidate.family == ELASTIC and candidate.minimum > 1:
        return dataclasses.replace(candidate, minimum=candidate.minimum - 1)
    if candidate.slots > 1:
        return dataclasses.replace(candidate, slots=candidate.slots - 1)
    if candidate.replicas > 1:
        fewer = candidate.replicas - 1
        return dataclasses.replace(
            candidate, replicas=fewer, maximum=fewer, slots=min(search.measured.useful_slots, search.bounds.most_slots)
        )
    return None


def _holds_at(search: Search, candidate: Candidate, factor: float) -> bool:
    seeds = _few(search.seeds)
    offered = with_rate(dataclasses.replace(search.offered, schedules=search.offered.schedules[: len(seeds)]), factor, seeds)
    return predict(candidate, search.measured, offered, search.goal, search.rules, seeds, give_up=1.5).holds


def _few(seeds: Sequence[int]) -> Sequence[int]:
    return seeds[:3]


def _holds_with_instant_starts(search: Search, candidate: Candidate) -> bool:
    if candidate.family not in (ELASTIC, SCALE_OUT, LAZY, COLD):
        return False
    rules = dataclasses.replace(search.rules, ready_ns=0, detect_ns=0) if candidate.family == SCALE_OUT else search.rules
    found = predict(candidate, instant(search.measured), search.offered, search.goal, rules, search.seeds, give_up=1.5)
    return found.holds


def instant(measured: Measured) -> Measured:
    """The same engine, if its starts took no time."""
    none = np.zeros(1, np.int64)
    starts = dataclasses.replace(measured.starts, cold_load_ns=none, load_ns=none, slot_ns=none, ready_ns=none)
    return dataclasses.replace(measured, starts=starts)


def _first_that_does_not_fit(search: Search, candidate: Candidate) -> Candidate | None:
    for slots in range(candidate.slots + 1, len(search.measured.levels) + 1):
        wider = dataclasses.replace(candidate, slots=slots, replicas=1, maximum=1)
        if not search.fits(wider):
            return wider
    return None


def _predict_without_memory(search: Search, candidate: Candidate) -> Prediction:
    return predict(candidate, search.measured, search.offered, search.goal, search.rules, search.seeds, give_up=1.5)
