"""What a plan must hold: percentiles of the response time, and the share of arrivals that get their answer in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import BenchError
from bench.slo import Slo, parse_slo
from bench.units import format_duration

PERCENT = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """slos: each must hold, over the answered arrivals (of one phase, where it names one). goodput: the share of all
    arrivals that must be answered within the first SLO's time, so that shedding does not buy a percentile; 0: any."""

    slos: tuple[Slo, ...]
    goodput: float

    @property
    def slo(self) -> Slo:
        """The first one, by which the closest candidate is told."""
        return self.slos[0]

    @property
    def text(self) -> str:
        """Such as `p99 <= 100 ms, 0.99 of all arrivals within 100 ms`."""
        bounds = " and ".join(
            f"{f'{one.phase}.' if one.phase else ''}{one.statistic} <= {format_duration(one.bound_ns)}" for one in self.slos
        )
        if not self.goodput:
            return bounds
        return f"{bounds}, {self.goodput:.4g} of all arrivals within {format_duration(self.slo.bound_ns)}"


def parse_goal(slos: Sequence[str], goodput: float | None) -> Goal:
    """`p99=100ms` or `100ms`, and a share; the share that the first percentile names where none is given. Raises BenchError."""
    gates = tuple(parse_slo(text) for text in slos)
    if not gates:
        raise BenchError("a plan needs to know what is good enough: give --slo, such as --slo p99=100ms")
    if goodput is not None and not 0 < goodput <= 1:
        raise BenchError(f"--goodput {goodput:g} is not a share: write a number above 0 and at most 1, such as 0.999")
    first = gates[0]
    share = PERCENT[first.statistic] / 100 if goodput is None and first.phase is None else goodput
    return Goal(slos=gates, goodput=share if share is not None else 0.0)
