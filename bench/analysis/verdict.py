"""The answer in one sentence, as careful as the numbers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.analysis.compare import FEWEST_UNITS
from bench.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.compare import P99Comparison
    from bench.analysis.experiment import ArmComparison, ArmSummary, ExperimentSummary

_PART_WORDS = {
    "send_lag": "the generator",
    "network": "network and HTTP",
    "queue": "the queue",
    "pool": "a slot",
    "load": "a load",
    "compute": "inference itself",
    "rest": "what no part covers",
}


def verdict(summary: ExperimentSummary) -> str:
    """One sentence for a person who reads nothing else; it starts with why there is none where the runs are not valid."""
    if summary.invalid:
        more = f" (and {len(summary.invalid) - 1} more)" if len(summary.invalid) > 1 else ""
        return f"Not valid, so no number here may be used: {summary.invalid[0]}{more}."
    where = f"On {summary.device}, " if summary.device else ""
    parts = [_against(comparison, summary, number == 0) for number, comparison in enumerate(summary.comparisons)] or [
        _alone(arm, summary) for arm in summary.arms
    ]
    count = summary.missing_runs
    missing = f"Not finished, so not valid yet: {count} {'run is' if count == 1 else 'runs are'} missing. " if count else ""
    text = where + "; ".join(parts)
    return f"{missing}{text[:1].upper()}{text[1:]}."


def too_few_words(p99: P99Comparison, what: str = "spikes") -> str:
    """Why there is no interval, and what it takes: `12 spikes make 4 groups with enough answers for a P99; ...`."""
    count = p99.spikes
    if p99.spikes_per_unit == 1:
        return f"{count} {what if count != 1 else what[:-1]}, too few for an interval: {p99.spikes_for_interval} are needed"
    groups = f"{p99.units} group{'s' if p99.units != 1 else ''}"
    return (
        f"{count} {what} make {groups} with enough answers for a P99, too few for an interval: {FEWEST_UNITS} groups are needed, "
        f"{p99.spikes_for_interval} such {what}"
    )


def unstable_words(arm: ArmSummary) -> str:
    """What stands in place of a P99 for an arm that cannot hold its base."""
    every = arm.share(None)
    attained = f", {every.attainment:.1%} within the SLO" if every is not None and every.attainment is not None else ""
    return f"unstable: P99 grows with the length of the run{attained}, {growth_words(arm)}"


def growth_words(arm: ArmSummary) -> str:
    """By how much the backlog grows, how sure that is, and in how many of the runs it did."""
    slope, ends = arm.backlog_slope_per_s, arm.backlog_slope_interval
    if slope is None or ends is None:
        return "whether its backlog grows is not known"
    runs = f"in {arm.growing_runs} of {len(arm.backlog)} runs" if len(arm.backlog) > 1 else "in its run"
    return f"its backlog grows {runs}, by {slope:.3g} requests each second (95 %: {ends.low:.3g} to {ends.high:.3g})"


def _alone(arm: ArmSummary, summary: ExperimentSummary) -> str:
    every = arm.phase(None)
    if arm.unstable and every is not None and every.answered:
        return f"{arm.name} is {unstable_words(arm)}"
    spike = arm.phase("spike") or every
    assert every is not None and spike is not None
    value, name = (spike.response.p99, "P99") if spike.response.p99 is not None else (spike.response.maximum, "largest")
    when = "in a spike" if spike.phase == "spike" else "over all arrivals"
    if value is None:
        return f"{arm.name} answered nothing{' correctly' if summary.values_known else ''}"
    share = arm.share(None)
    attained, right = "", " correctly" if summary.values_known else ""
    if share is not None and share.attainment is not None:
        attained = f", {share.attainment:.2%} of all arrivals were answered{right} within {format_duration(summary.slo_ns)}"
    return f"{arm.name} has a {name} response time of {format_duration(value)} {when}{_tail_words(arm)}{_recovery_words(arm)}{attained}"


def _against(comparison: ArmComparison, summary: ExperimentSummary, with_tail: bool) -> str:
    first, second = (next(arm for arm in summary.arms if arm.name == name) for name in (comparison.first, comparison.second))
    p99 = comparison.p99
    if p99 is not None and second.name in {one.arm for one in summary.loads_beside}:
        return _with_loads(comparison, p99)
    if p99 is None:
        unstable = [arm for arm in (first, second) if arm.unstable]
        if unstable:
            return "; ".join(f"{arm.name} is {unstable_words(arm)}" for arm in unstable) + _steady(first, second)
        return f"{second.name} and {first.name} cannot be compared over spikes ({comparison.reason})"
    spikes = p99.spikes
    between = f"{format_duration(p99.first_p99_ns)} with {first.name}, {format_duration(p99.second_p99_ns)} with {second.name}"
    typical = f"the P99 of a typical spike is {between}"
    if p99.ratio_interval is None:
        return f"{typical} ({too_few_words(p99)})"
    interval = f"95 % interval {p99.ratio_interval.low:.3g}x to {p99.ratio_interval.high:.3g}x, {spikes} spikes"
    if not p99.distinguishable:
        needed = f", {p99.more_spikes} more spikes would tell" if p99.more_spikes else ""
        sees = f"; this run would have seen {p99.smallest_ratio:.3g}x" if p99.smallest_ratio is not None else ""
        return f"{typical}: not distinguishable ({interval}{sees}{needed})"
    memory = ""
    if comparison.memory_bytes is not None:
        more = "more" if comparison.memory_bytes >= 0 else "less"
        memory = f"; {second.name} holds {format_size(abs(comparison.memory_bytes))} {more} {comparison.memory_kind} memory"
    if p99.ratio < 1:  # a reader takes "20 times lower" in at once, and "0.05x" not
        low, high = 1 / p99.ratio_interval.high, 1 / p99.ratio_interval.low
        ends = f"{format_count(low)} to {format_count(high)} times"
        times = f"{format_count(1 / p99.ratio)} times lower (95 % interval {ends}, {spikes} spikes)"
    else:
        times = f"{format_count(p99.ratio)} times higher ({interval})"
    return f"{typical}, {times}{_slo_words(first, second, summary)}{_tail_words(first, named=True) if with_tail else ''}{memory}"


def _with_loads(comparison: ArmComparison, p99: P99Comparison) -> str:
    """An arm with loads beside its traffic against the same one without: both are one way to serve."""
    spikes = p99.spikes
    times = f"{format_duration(p99.second_p99_ns)} instead of {format_duration(p99.first_p99_ns)}, {p99.ratio:.3g}x"
    ends = p99.ratio_interval
    sure = f"95 % interval {ends.low:.3g}x to {ends.high:.3g}x, {spikes} loads" if ends else too_few_words(p99, "loads")
    clear = "" if p99.distinguishable or ends is None else "; not distinguishable"
    return f"with one more engine loaded in each spike of {comparison.first}, the P99 of a typical one is {times} ({sure}{clear})"


def _slo_words(first: ArmSummary, second: ArmSummary, summary: ExperimentSummary) -> str:
    shares = [
        found.attainment for arm in (first, second) for found in [arm.share(None)] if found is not None and found.attainment is not None
    ]
    if len(shares) < 2:
        return ""
    return f"; {shares[0]:.1%} against {shares[1]:.1%} of all arrivals are answered within {format_duration(summary.slo_ns)}"


def _steady(first: ArmSummary, second: ArmSummary) -> str:
    holds = [arm for arm in (first, second) if not arm.unstable]
    spikes = [(arm.name, phase.response.p99) for arm in holds for phase in [arm.phase("spike")] if phase is not None]
    return "".join(f"; {name} holds it, with a P99 of {format_duration(value)} in spikes" for name, value in spikes if value is not None)


def _tail_words(arm: ArmSummary, *, named: bool = False) -> str:
    parts = [part for part in (arm.tail.parts if arm.tail else ()) if part.share is not None]
    if not parts:
        return ""
    largest = max(parts, key=lambda part: part.share or 0)
    return f"; the slowest 1 %{' of ' + arm.name if named else ''} waits {largest.share:.0%} of its time for {_PART_WORDS[largest.name]}"


def _recovery_words(arm: ArmSummary) -> str:
    if arm.recovery is None or not arm.recovery.spikes:
        return ""
    censored = f" ({arm.recovery.censored} of {len(arm.recovery.spikes)} not before the next spike)" if arm.recovery.censored else ""
    took = arm.recovery.median_ns
    return f"; it recovers {format_duration(took)} after a spike{censored}" if took is not None else f"; it does not recover{censored}"
