"""The few numbers of one load run that a person looks for first: response times, in spikes and outside, beside the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.analysis.statistics import percentile
from bench.units import format_duration

_LAG_WORTH_SAYING = 0.1

Times = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Response times (done − intended) of correct answers, ns; None with too few of them. lag_p99_ns: of all sends.
    in_time: correct answers within slo_ns, both None for a run without an SLO. values_known: the generator had the right
    values to compare answers with; else a correct answer is one of the right form."""

    answered: int
    p50_ns: float | None
    p99_ns: float | None
    spike_p99_ns: float | None
    base_p99_ns: float | None
    lag_p99_ns: int | None
    slo_ns: int | None
    in_time: int | None
    values_known: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "answered": self.answered,
            "response_ns": {"p50": self.p50_ns, "p99": self.p99_ns, "spike_p99": self.spike_p99_ns, "base_p99": self.base_p99_ns},
            "send_lag_p99_ns": self.lag_p99_ns,
        }

    def lines(self, counts: Mapping[str, int]) -> list[str]:
        """A short table, with a note where the generator's own lag is a visible part of the p99."""
        total = sum(counts.values())
        ends = ", ".join(f"{count} {name} ({count / total:.1%})" for name, count in counts.items()) if total else "none"
        right, rightly = ("correct ", " correctly") if self.values_known else ("", "")
        lines = [
            f"response time  p50 {format_duration(self.p50_ns)}, p99 {format_duration(self.p99_ns)} of {self.answered} {right}answers",
            f"statuses       {ends}",
        ]
        if self.spike_p99_ns is not None or self.base_p99_ns is not None:
            lines.insert(
                1, f"in spikes      p99 {format_duration(self.spike_p99_ns)}, outside of them p99 {format_duration(self.base_p99_ns)}"
            )
        if self.in_time is not None and total:
            lines.append(
                f"in time        {self.in_time / total:.2%} of all arrivals were answered{rightly} within {format_duration(self.slo_ns)}"
            )
        if self.lag_p99_ns is not None and self.p99_ns:
            share = self.lag_p99_ns / self.p99_ns
            lines.append(f"send lag       its p99 is {share:.1%} of the response time's")
            if share > _LAG_WORTH_SAYING:
                lines.append(f"note           the p99 includes up to {format_duration(self.lag_p99_ns)} of generator lag")
        return lines


def figures(
    response: Times, in_spike: np.ndarray[Any, np.dtype[np.bool_]] | None, lag_p99_ns: int | None, slo_ns: int | None, values_known: bool
) -> RunFigures:
    """`response`: of each correct answer, ns; `in_spike`: whether it was due in a spike, None where the schedule has none."""
    return RunFigures(
        answered=len(response),
        p50_ns=percentile(response, 50),
        p99_ns=percentile(response, 99),
        spike_p99_ns=None if in_spike is None else percentile(response[in_spike], 99),
        base_p99_ns=None if in_spike is None else percentile(response[~in_spike], 99),
        lag_p99_ns=lag_p99_ns,
        slo_ns=slo_ns,
        values_known=values_known,
        in_time=None if slo_ns is None else int((response <= slo_ns).sum()),
    )
