"""The smallest size of each family that holds the goal.

Fewest replicas first, because a replica is what is paid for; then the fewest slots. Slots on one device slow each other down,
so more of them may be worse: every number is tried, and none is skipped because a smaller one failed. Over replicas it is
bisected: another replica takes load off all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bench.capacity.candidates import COLD, ELASTIC, FAMILIES, SCALE_OUT, WARM, Candidate, Rules, lacking
from bench.capacity.predict import Prediction, predict, replica_bytes

if TYPE_CHECKING:
    from bench.capacity.goal import Goal
    from bench.capacity.measured import Measured
    from bench.capacity.offered import Offered

_GIVE_UP = 2.0
_FAR_TOO_LITTLE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """most_slots: of one replica, at most as many as the curve has measured. usable_bytes: memory of one replica's device
    less the reserve; None is no bound."""

    most_slots: int
    most_replicas: int
    usable_bytes: int | None


@dataclass(slots=True, kw_only=True)
class Search:
    """Predictions for one load, each candidate's made once. `seeds` has one entry for each schedule of `offered`."""

    measured: Measured
    offered: Offered
    goal: Goal
    rules: Rules
    bounds: Bounds
    seeds: Sequence[int]
    done: dict[Candidate, Prediction] = field(default_factory=dict)

    def predict(self, candidate: Candidate, *, whole: bool = False) -> Prediction:
        """`whole`: with all seeds, also where the first one says that it is hopeless."""
        found = self.done.get(candidate)
        if found is None or (whole and found.seeds < len(self.seeds)):
            give_up = float("inf") if whole else _GIVE_UP
            found = predict(candidate, self.measured, self.offered, self.goal, self.rules, self.seeds, give_up=give_up)
            self.done[candidate] = found
        return found

    def fits(self, candidate: Candidate) -> bool:
        """Whether a replica has room on its device."""
        held = replica_bytes(candidate, self.measured)
        return self.bounds.usable_bytes is None or held is None or held <= self.bounds.usable_bytes

    @property
    def fewest_replicas(self) -> int:
        """Fewer than these cannot even do half of the work within the time of the load."""
        return max(1, int(_FAR_TOO_LITTLE * self.offered.mean_per_s / max(self.measured.best_per_s, 1e-9)))

    def sizes(self, family: str, replicas: int) -> Iterator[Candidate]:
        """Of so many replicas, the fewest slots first, those that fit."""
        for slots in range(1, self.bounds.most_slots + 1):
            minima = range(1, slots) if family == ELASTIC else (1,)
            for minimum in minima:
                candidate = Candidate(family=family, slots=slots, minimum=minimum, replicas=replicas, maximum=replicas)
                if self.fits(candidate):
                    yield candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one family: the smallest candidate that holds, or None; then `closest` is the one that misses by the least. why:
    the reason where the family could not be tried at all."""

    family: str
    smallest: Prediction | None
    closest: Prediction | None
    why: str | None = None

    @property
    def best(self) -> Prediction | None:
        return self.smallest or self.closest


def search_all(search: Search, families: Sequence[str] = FAMILIES) -> tuple[Found, ...]:
    """Every family that can be tried with what was measured."""
    found: dict[str, Found] = {}
    for family in sorted(families, key=FAMILIES.index):
        why = lacking(family, search.measured, search.rules)
        if why is not None:
            found[family] = Found(family=family, smallest=None, closest=None, why=why)
        elif family == SCALE_OUT:
            found[family] = _scale_out(search, found.get(WARM) or smallest(search, WARM))
        else:
            found[family] = smallest(search, family)
    return tuple(found[family] for family in families)


def smallest(search: Search, family: str) -> Found:
    """Fewest replicas, then fewest slots."""
    if family == COLD and (alone := _cold_start_alone(search)) is not None:
        return alone
    most = search.bounds.most_replicas
    low, high, holding = search.fewest_replicas, None, None
    tried = min(low, most)
    while holding is None:
        holding = _at(search, family, tried)
        if holding is not None:
            high = tried
        elif tried == most:
            return Found(family=family, smallest=None, closest=_closest(search, family))
        else:
            low, tried = tried + 1, min(2 * tried, most)
    while low < high:  # type: ignore[operator]
        middle = (low + high) // 2  # type: ignore[operator]
        found = _at(search, family, middle)
        if found is not None:
            holding, high = found, middle
        else:
            low = middle + 1
    return Found(family=family, smallest=holding, closest=holding)


def _cold_start_alone(search: Search) -> Found | None:
    """Where half of the loads take longer than an SLO on the median or above, no number of places helps."""
    slo, load_ns = search.goal.slo, search.measured.starts.cold_load_ns
    if load_ns is None or float(np.median(load_ns)) <= slo.bound_ns:
        return None
    most = search.bounds.most_replicas
    widest = [one for one in search.sizes(COLD, most) if one.slots <= search.measured.useful_slots]
    return Found(family=COLD, smallest=None, closest=search.predict(widest[-1], whole=True) if widest else None)


def _at(search: Search, family: str, replicas: int) -> Prediction | None:
    """The fewest slots that hold with so many replicas. All are tried, so that the frontier has them."""
    holding = None
    for candidate in search.sizes(family, replicas):
        if family == ELASTIC and holding is not None and candidate.minimum > 1:
            continue  # to keep more of them is only worth trying where to keep one is not enough
        prediction = search.predict(candidate)
        if prediction.holds and holding is None:
            holding = search.predict(candidate, whole=True)
            if not holding.holds:
                holding = None
    return holding


def _closest(search: Search, family: str) -> Prediction | None:
    """With all replicas that may be: what misses by the least. None where nothing fits."""
    tried = [one for one in search.done.values() if one.candidate.family == family]
    if not tried:
        return None
    nearest = min(tried, key=lambda one: (max(one.value_ns / search.goal.slo.bound_ns, 1.0), -one.attainment, one.value_ns))
    return search.predict(nearest.candidate, whole=True)


def _scale_out(search: Search, warm: Found) -> Found:
    """A warm reserve that grows: the fewest replicas at the start, each with as many slots as the warm pool's answer has. It may
    grow to what a warm pool needs, or to twice that, since it starts behind; the better of both is taken."""
    base = warm.best
    if base is None:
        return Found(family=SCALE_OUT, smallest=None, closest=None, why="no warm pool fits into the memory")
    needed = base.candidate.replicas
    if warm.smallest is not None and needed == 1:
        return Found(family=SCALE_OUT, smallest=None, closest=None, why="one replica is enough, so there is none to start later")
    larger = min(2 * needed, search.bounds.most_replicas)
    found = [_reserve(search, base, most, most if warm.smallest is None else needed) for most in sorted({needed, larger})]
    holding = [one for one in found if one is not None]
    best = min(holding, key=lambda one: (one.replicas, one.candidate.replicas), default=None)
    return Found(family=SCALE_OUT, smallest=best, closest=best or _closest(search, SCALE_OUT))


def _reserve(search: Search, base: Prediction, most: int, below: int) -> Prediction | None:
    """The smallest reserve of fewer than `below` replicas that holds and may grow to `most`, by bisection. None where none does."""
    low, high = 1, below - 1
    holding: Prediction | None = None
    while low <= high:
        middle = (low + high) // 2
        found = search.predict(Candidate(family=SCALE_OUT, slots=base.candidate.slots, replicas=middle, maximum=most))
        if found.holds:
            holding, high = found, middle - 1
        else:
            low = middle + 1
    return holding
