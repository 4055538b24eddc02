"""Which of the sizes that hold is taken, why, and which one after it: the order, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.capacity.candidates import FAMILIES
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.statistics import Interval
    from bench.capacity.plan import Plan
    from bench.capacity.predict import Prediction
    from bench.capacity.search import Found

PEAK, MEAN = "peak", "mean"  # of the memory held: by which of them less is less
_SAME_REPLICAS = 0.02
_SAME_MEMORY = 0.2  # in the mean: below that the ways to serve that load while others wait are not worth what the model leaves out


def choose(found: Sequence[Found], rooms: Mapping[str, float | None], memory_by: str = PEAK) -> Prediction | None:
    """Of those that hold: the fewest replicas in the mean (they cost; 2 % are none), then the least memory. At its peak, since that is
    what has to fit; where two hold as much, the lower figure of the first SLO, then the more room. In the mean, where something else
    uses what is free in between: there 20 % are none, and the family with the fewest surprises is taken. None where nothing holds."""
    holding = [one.smallest for one in found if one.smallest is not None]
    if not holding:
        return None
    holding = _as_few_replicas(holding)
    known = all(one.held_bytes is not None and one.peak_bytes is not None for one in holding)
    if known and memory_by == PEAK:
        return min(holding, key=lambda one: (one.peak_bytes, one.value_ns, -(rooms.get(one.candidate.family) or 0.0), _order(one)))
    if known:
        least = min(one.held_bytes or 0.0 for one in holding)
        holding = [one for one in holding if (one.held_bytes or 0.0) <= least * (1 + _SAME_MEMORY)]
    return min(holding, key=_order)


def _as_few_replicas(holding: Sequence[Prediction]) -> list[Prediction]:
    fewest = min(one.replicas for one in holding)
    return [one for one in holding if one.replicas <= fewest * (1 + _SAME_REPLICAS)]


def _order(one: Prediction) -> int:
    return FAMILIES.index(one.candidate.family)


def why_chosen(plan: Plan) -> str | None:
    """Why the answer was taken and not another way that holds, in words; None where there is no other, or nothing holds."""
    answer = plan.answer
    others = [one.prediction for one in plan.families if one.holds and one.prediction is not None and one.prediction != answer]
    if answer is None or not plan.holds or not others:
        return None
    near = [one for one in _as_few_replicas([answer, *others]) if one != answer]
    if not near:
        next_ = min(others, key=lambda one: (one.replicas, _order(one)))
        return f"it runs the fewest replicas in the mean: {answer.replicas:.3g}; {next_.candidate.text}: {next_.replicas:.3g}"
    name, held = ("in the mean", _held) if plan.memory_by == MEAN else ("at its peak", _peak)
    mine = held(answer)
    if mine is None or any(held(one) is None for one in near):
        return "what they hold is not known, and it has the fewest surprises of the ways with as few replicas"
    next_ = min(near, key=lambda one: (held(one), one.value_ns, _order(one)))
    beside = f"{format_size(mine)}; {next_.candidate.text}: {format_size(held(next_))}"
    if plan.memory_by == MEAN:
        return f"of the ways with as few replicas it holds the least {name}, or little more and has fewer surprises ({beside})"
    if held(next_) == mine:
        times = f"{format_duration(answer.values_ns[0])}; {next_.candidate.text}: {format_duration(next_.values_ns[0])}"
        return f"no way with as few replicas holds less {name} ({format_size(mine)}), and of those with as much it is the fastest ({times})"
    return f"of the ways with as few replicas it holds the least {name} ({beside})"


def next_size(plan: Plan) -> Prediction | None:
    """Of the answer's family, the smallest larger size that was simulated with all seeds and holds in every single run; where none does,
    the next one that holds at all. None where none was simulated."""
    answer = plan.answer
    if answer is None:
        return None
    larger = sorted(
        (
            one
            for one in plan.tried
            if one.candidate.family == answer.candidate.family
            and one.holds
            and one.seeds == answer.seeds
            and _size(one) > _size(answer)
            and one.candidate.minimum >= answer.candidate.minimum
        ),
        key=_size,
    )
    safe = [one for one in larger if one.interval is not None and one.interval.high <= plan.goal.slo.bound_ns]
    return next(iter(safe or larger), None)


def _size(one: Prediction) -> tuple[int, int, int]:
    return one.candidate.replicas, one.candidate.slots, one.candidate.minimum


def miss_text(plan: Plan) -> str | None:
    """That a single run of the answer may miss the SLO, and what to take instead, in words; None where it may not."""
    answer = plan.answer
    if answer is None or answer.interval is None or not plan.may_miss:
        return None
    larger = next_size(plan)
    if larger is None:
        instead = "no larger size that was simulated holds; allow more time, or send less"
    else:
        instead = f"the next size to take is {larger.candidate.text}: {_withrange_text(larger)}"
    return f"it holds over all seeds, but a single run may miss it ({range_text(answer.interval)}); {instead}"


def _withrange_text(one: Prediction) -> str:
    return format_duration(one.values_ns[0]) + (f" ({range_text(one.interval)})" if one.interval is not None else "")


def straddled(interval: Interval | None, bound_ns: float) -> bool:
    """Whether a single run may lie on either side of the bound; where no range is known, that is not said."""
    return interval is not None and interval.low <= bound_ns < interval.high


def range_text(interval: Interval) -> str:
    """Such as `1.77 s to 2.23 s`."""
    return f"{format_duration(interval.low)} to {format_duration(interval.high)}"


def _held(one: Prediction) -> float | None:
    return one.held_bytes


def _peak(one: Prediction) -> float | None:
    return one.peak_bytes
