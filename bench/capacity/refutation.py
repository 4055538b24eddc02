"""Has a measurement refuted the plan? The planned size, measured, against the SLO that it was planned for.

A prediction that is far off may still hold; one that says "holds" where the measurement says "does not" takes the answer with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analysis.statistics import Interval
from bench.capacity.predict import t_point
from bench.units import format_duration

if TYPE_CHECKING:
    from bench.capacity.plan import Plan
    from bench.capacity.validation import Case, Validation


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the runs say of a plan. missed: cases of the planned size that missed its SLO although they were predicted to hold it, or
    were of the planned load itself. either: the same, where the runs differ so much that the SLO lies inside of their interval.
    instead: cases of another size that held it under a load under which the planned one missed it, the fewest slots first."""

    bound_ns: int
    missed: tuple[Case, ...]
    either: tuple[Case, ...]
    instead: tuple[Case, ...]

    @property
    def sentence(self) -> str | None:
        """What was measured, and that it takes the answer back; None where nothing did."""
        if not self.missed:
            return None
        worst = max(self.missed, key=lambda case: case.p99.measured_ns or 0.0)
        runs = f"{len(worst.runs)} run{'' if len(worst.runs) == 1 else 's'}"
        return (
            f"The plan is refuted: its answer, {worst.name}, was predicted to have a P99 of {format_duration(worst.p99.predicted_ns)} "
            f"under {worst.text}, and was measured with {format_duration(worst.p99.measured_ns)} ({runs}), over the SLO of "
            f"{format_duration(self.bound_ns)}: do not size by it"
        )


def against_measurement(plan: Plan, validation: Validation) -> Outcome | None:
    """None where the plan has no answer that holds, or no P99 of all arrivals to hold, or a size that no single server has."""
    slo, answer = plan.goal.slo, plan.answer
    if answer is None or not plan.holds or slo.statistic != "p99" or slo.phase is not None or answer.candidate.maximum > 1:
        return None
    size = (answer.candidate.mode, answer.candidate.slots, answer.candidate.minimum)
    own = [case for case in validation.cases if (case.mode, case.slots, case.minimum) == size]
    over = [case for case in own if _over(case, slo.bound_ns) and (case.text == plan.load.text or not _predicted_over(case, slo.bound_ns))]
    either = tuple(case for case in over if straddles(case, slo.bound_ns))
    missed = tuple(case for case in over if case not in either)
    loads = {case.load for case in missed}
    held = [case for case in validation.cases if case.load in loads and case not in own and _held(case, slo.bound_ns)]
    return Outcome(
        bound_ns=slo.bound_ns, missed=missed, either=either, instead=tuple(sorted(held, key=lambda case: (case.slots, case.mode)))
    )


def measured_interval(case: Case) -> Interval | None:
    """Where the P99 of the case lies, 95 %, from how its runs differ; None with one run."""
    p99 = case.p99.measured_ns
    if p99 is None or case.noise is None or len(case.runs) < 2:
        return None
    reach = t_point(len(case.runs) - 1) * case.noise / math.sqrt(len(case.runs))
    return Interval(low=p99 * math.exp(-reach), high=p99 * math.exp(reach))


def straddles(case: Case, bound_ns: float) -> bool:
    """Whether the runs leave open on which side of the bound the case lies."""
    interval = measured_interval(case)
    return interval is not None and interval.low <= bound_ns <= interval.high


def _over(case: Case, bound_ns: float) -> bool:
    return case.p99.measured_ns is not None and case.p99.measured_ns > bound_ns


def _predicted_over(case: Case, bound_ns: float) -> bool:
    return case.p99.predicted_ns is not None and case.p99.predicted_ns > bound_ns


def _held(case: Case, bound_ns: float) -> bool:
    return case.p99.measured_ns is not None and case.p99.measured_ns <= bound_ns and case.measured_shed == 0
