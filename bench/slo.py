"""What `--slo` takes, alike in every command: `200ms` or `p99=200ms`, and where phases are told apart `spike.p99=1s`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.errors import BenchError
from bench.units import parse_duration_ns

_FORM = re.compile(r"\s*(?:([a-z_]+)\.)?(p50|p90|p95|p99|p999|max)\s*=\s*(\S.*?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A percentile of the response time, of all arrivals or of one phase, that must not exceed `bound_ns`."""

    text: str
    phase: str | None
    statistic: str
    bound_ns: int


def parse_slo(text: str, what: str = "--slo") -> Slo:
    """A bare time is the P99 of all arrivals. Raises BenchError that shows the form."""
    match = _FORM.fullmatch(f"p99={text}" if "=" not in text else text)
    if match is None:
        raise BenchError(f"{what} {text!r} is not TIME or [PHASE.]p50|p90|p95|p99|p999|max=TIME, such as 200ms, p99=200ms or spike.p99=1s")
    phase, statistic, bound = match.groups()
    bound_ns = parse_duration_ns(bound, what)
    if bound_ns <= 0:
        raise BenchError(f"{what} {text!r} leaves no time at all: write a bound above 0, such as 100ms")
    named = statistic if phase is None else f"{phase}.{statistic}"
    return Slo(text=f"{named}={bound}", phase=phase, statistic=statistic, bound_ns=bound_ns)


def parse_slo_time_ns(text: str, what: str = "--slo") -> int:
    """The time of an SLO where each arrival is in time or is not, whatever the percentile: `200ms`, `p99=200ms`. Raises
    BenchError for another percentile and for a phase, which only bounds on a whole run can have."""
    slo = parse_slo(text, what)
    if slo.phase is not None or slo.statistic != "p99":
        named = "another percentile than p99" if slo.phase is None else "a phase"
        raise BenchError(
            f"{what} {text!r} names {named}, and here it is the response time that counts as good: write it such as {what} 200ms or "
            f"{what} p99=200ms; `bench check` and `bench plan` take the rest"
        )
    return slo.bound_ns
