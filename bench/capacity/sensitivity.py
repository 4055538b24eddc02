"""How the answer changes with what nobody knows exactly: the peak, the length of a burst, and how clustered the arrivals are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.capacity.candidates import SCALE_OUT, WARM, Candidate
from bench.capacity.offered import Offered, with_cv, with_length, with_peak
from bench.capacity.predict import Prediction, predict
from bench.capacity.search import Search, smallest
from bench.errors import BenchError

PEAK, LENGTH, BURSTINESS = "peak", "burst length", "cv of the gaps"
_PEAKS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
_CVS = (0.0, 1.0, 2.0, 4.0)
_SEEDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One load beside the planned one. what: peak, burst length (both as factors), or cv of the gaps (as it is). planned:
    whether it is the load of the plan. chosen: what the plan's answer would do with it. answer: the smallest size of
    the same family that holds, of the planned load the plan's own; None where none does."""

    what: str
    value: float
    planned: bool
    chosen: Prediction
    answer: Candidate | None


def sensitivity(search: Search, candidate: Candidate, progress: Callable[[str], None]) -> tuple[Variation, ...]:
    """Every variation with up to five seeds, the planned load with all of them, as the plan has it; what the load does not allow is
    left out."""
    seeds = search.seeds[:_SEEDS]
    offered = dataclasses.replace(search.offered, schedules=search.offered.schedules[: len(seeds)])
    own_cv = offered.cv
    cvs = sorted({*_CVS, *([own_cv] if own_cv is not None else [])})
    changes: tuple[tuple[str, Sequence[float], Callable[[float], Offered | None]], ...] = (
        (PEAK, _PEAKS, lambda factor: with_peak(offered, factor, seeds)),
        (LENGTH, _LENGTHS, lambda factor: with_length(offered, factor, seeds)),
        (BURSTINESS, cvs, lambda cv: offered if cv == own_cv else with_cv(offered, cv, seeds)),
    )
    found = []
    for what, values, change in changes:
        for value in values:
            progress(f"{what} {value:g}")
            other = _changed(change, value)
            if other is not None:
                planned = value == (own_cv if what == BURSTINESS else 1.0)
                found.append(_variation(search, candidate, what, value, planned, other, seeds))
    return tuple(found)


def _changed(change: Callable[[float], Offered | None], value: float) -> Offered | None:
    """None where the load has nothing that could be changed so, or has no arrivals then."""
    try:
        return change(value)
    except BenchError:
        return None


def _variation(
    search: Search, candidate: Candidate, what: str, value: float, planned: bool, offered: Offered, seeds: Sequence[int]
) -> Variation:
    if planned:  # the plan's own answer: it may not contradict itself
        chosen = search.predict(candidate, whole=True)
        return Variation(what=what, value=value, planned=True, chosen=chosen, answer=candidate if chosen.holds else None)
    there = dataclasses.replace(search, offered=offered, seeds=seeds, done={})
    chosen = predict(candidate, search.measured, offered, search.goal, search.rules, seeds)
    there.done[candidate] = chosen
    answer = smallest(there, WARM if candidate.family == SCALE_OUT else candidate.family).smallest
    return Variation(what=what, value=value, planned=planned, chosen=chosen, answer=None if answer is None else answer.candidate)
