"""What the page says of one arm against another: sentences and tables of comparisons, of loads beside traffic, of means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.analysis.recovery import Between
from bench.analysis.verdict import too_few_words
from bench.report.page import Table
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.experiment import ArmComparison, ExperimentSummary
    from bench.analysis.loads import LoadsBeside
    from bench.analysis.recovery import RecoveryComparison


def describe_comparison(comparison: ArmComparison) -> str:
    """One line on `second` against `first`, with its interval and what the run could have seen."""
    head = f"{comparison.second} against {comparison.first}"
    p99 = comparison.p99
    if p99 is None:
        return f"{head}: no P99 ratio, because {comparison.reason}{_memory_difference(comparison)}"
    line = (
        f"{head}: P99 of a typical spike {format_duration(p99.second_p99_ns)} against {format_duration(p99.first_p99_ns)}, {p99.ratio:.3g}x"
    )
    if p99.ratio_interval is None or p99.difference_interval is None:
        return f"{line} ({too_few_words(p99)}){_memory_difference(comparison)}"
    ends = f"{_signed(p99.difference_interval.low)} to {_signed(p99.difference_interval.high)}"
    line += (
        f" (95 %: {p99.ratio_interval.low:.3g}x to {p99.ratio_interval.high:.3g}x), a difference of {_signed(p99.difference_ns)} "
        f"(95 %: {ends}), over {p99.spikes} spikes"
    )
    if not p99.distinguishable:
        line += "; not distinguishable"
    if p99.smallest_ratio is not None:
        line += f"; a slowdown of {p99.smallest_ratio:.3g}x would have been seen in 4 of 5 such runs"
    if p99.more_spikes:
        line += f"; {p99.more_spikes} more spikes would show this difference"
    if comparison.recovery is not None and comparison.recovery.spikes:
        line += f"; {describe_recovery(comparison.recovery, comparison.first, comparison.second)}"
    return line + _memory_difference(comparison)


def _memory_difference(comparison: ArmComparison) -> str:
    """What it costs; known also where nothing is said of the P99."""
    line = ""
    if comparison.memory_bytes is not None:
        more = "more" if comparison.memory_bytes >= 0 else "less"
        line += f"; {format_size(abs(comparison.memory_bytes))} {more} {comparison.memory_kind} memory"
    if comparison.per_slot is not None:
        what = "one more copy of the engine" if comparison.per_slot.copies else "one more slot"
        if comparison.per_slot.bytes is not None:
            line += f", {format_size(comparison.per_slot.bytes)} for {what}"
        else:
            line += f", not distinguishable for {what}: {comparison.per_slot.reason}"
    return line


def describe_recovery(recovery: RecoveryComparison, first: str, second: str) -> str:
    """The median difference of a spike with its interval, whose ends may be open, and how often each was not in time."""
    middle, ends = recovery.difference, recovery.interval
    line = f"recovery from a spike takes {_between(middle)} longer with {second} (median of {recovery.spikes} spikes"
    if middle.low_ns == middle.high_ns == 0:
        line = f"recovery from a spike takes as long with both (median of {recovery.spikes} spikes"
    elif middle.low_ns is not None and middle.high_ns is not None and middle.low_ns <= 0 <= middle.high_ns:
        shorter = f"at most {format_duration(-middle.low_ns)} shorter" if middle.low_ns else "not shorter"
        longer = f"at most {format_duration(middle.high_ns)} longer" if middle.high_ns else "not longer"
        line = f"recovery from a spike with {second} is {shorter} and {longer} than with {first} (median of {recovery.spikes} spikes"
    if middle.high_ns is not None and middle.high_ns < 0:
        turned = Between(low_ns=-middle.high_ns, high_ns=None if middle.low_ns is None else -middle.low_ns)
        line = f"recovery from a spike takes {_between(turned)} longer with {first} (median of {recovery.spikes} spikes"
        ends = ends and Between(
            low_ns=None if ends.high_ns is None else -ends.high_ns, high_ns=None if ends.low_ns is None else -ends.low_ns
        )
    if ends is None:
        line += ", too few for an interval"
    else:
        low, high = (None if end is None else _signed(end) for end in (ends.low_ns, ends.high_ns))
        line += f", 95 %: {low or 'no lower end is known'} to {high or 'no upper end is known'}"
        line += "" if recovery.distinguishable else ", not distinguishable"
    late = [f"{count} with {name}" for count, name in ((recovery.censored_first, first), (recovery.censored_second, second)) if count]
    line += f"; not in time: {', '.join(late)}, counted as longer than what was seen" if late else ""
    return f"{line}; longer with {first} in {recovery.first_longer}, with {second} in {recovery.second_longer}, equal in " + (
        f"{recovery.equal}, undecided in {recovery.undecided})"
    )


def _between(middle: Between) -> str:
    if middle.low_ns is None and middle.high_ns is None:
        return "an unknown time"
    if middle.low_ns == middle.high_ns:
        return format_duration(middle.low_ns)
    if middle.high_ns is None:
        return f"at least {format_duration(middle.low_ns)}"
    if middle.low_ns is None:
        return f"at most {format_duration(middle.high_ns)}"
    return f"{format_duration(middle.low_ns)} to {format_duration(middle.high_ns)}"


def describe_loads(one: LoadsBeside) -> str:
    """What one more engine's load did to the traffic beside it, and what it took."""
    head = f"{one.alone} while one more engine is loaded"
    if not one.loads:
        return f"{head}: nothing is known, because no load succeeded ({'; '.join(one.errors) or 'none was begun'})"
    line = f"{head} ({one.loads} of {one.planned} loads, {format_duration(one.took_ns)} each in the median)"
    if one.alone_p99_ns is not None and one.during_p99_ns is not None:
        line += f": P99 {format_duration(one.during_p99_ns)} against {format_duration(one.alone_p99_ns)} alone, of the same "
    else:
        line += ": too few for a P99, "
    line += f"{one.arrivals:,} arrivals due meanwhile"
    ratio = one.p99.ratio_interval if one.p99 is not None else None
    if one.p99 is not None and ratio is not None:
        grouped = f", {one.p99.spikes_per_unit} loads at a time" if one.p99.spikes_per_unit > 1 else ""
        line += f"; of a typical load {one.p99.ratio:.3g}x (95 %: {ratio.low:.3g}x to {ratio.high:.3g}x over loads{grouped})"
    if one.extra_ns is not None:
        ends = one.extra_interval
        sure = f"95 %: {_signed(ends.low)} to {_signed(ends.high)} over loads" if ends else "too few loads for an interval"
        line += f"; the same arrival takes {_signed(one.extra_ns)} in the mean ({sure})"
    if one.held_bytes is not None:
        line += f"; the first load of a server leaves {_signed_size(one.held_bytes)} of {one.memory_kind} memory"
    return line


def loads_table(summary: ExperimentSummary) -> Table:
    """One row an arm that had loads beside its traffic."""
    rows = []
    for one in summary.loads_beside:
        ratio = one.p99.ratio_interval if one.p99 is not None else None
        rows.append(
            (
                one.alone,
                f"{one.loads} of {one.planned}",
                f"{format_duration(one.took_ns)} ({format_duration(one.took_longest_ns)})" if one.took_ns is not None else "-",
                f"{one.arrivals:,}",
                format_duration(one.alone_p99_ns),
                format_duration(one.during_p99_ns),
                f"{one.p99.ratio:.3g}x" + (f" ({ratio.low:.3g}x .. {ratio.high:.3g}x)" if ratio else "") if one.p99 is not None else "-",
                _longer_by(one),
                f"{_signed_size(one.held_bytes)} ({_signed_size(one.peak_bytes)})" if one.held_bytes is not None else "-",
            )
        )
    return Table(
        title="A load beside the traffic",
        header=(
            "arm",
            "loads",
            "took (longest)",
            "arrivals meanwhile",
            "P99 alone",
            "P99 meanwhile",
            "of a typical load (95 %)",
            "longer by (95 %)",
            "memory kept (at most)",
        ),
        rows=tuple(rows),
        note=(
            "The arm's engine is loaded once more in its server, under a second name, as each spike begins. Arrivals due meanwhile, "
            "against the same arrivals of the same schedule in the arm without loads; intervals over loads. Memory (the device's where "
            "it is known) beyond what there was just before the first load of each server."
        ),
    )


def _longer_by(one: LoadsBeside) -> str:
    if one.extra_ns is None:
        return "-"
    ends = one.extra_interval
    return _signed(one.extra_ns) + (f" ({_signed(ends.low)} .. {_signed(ends.high)})" if ends else "")


def means_table(summary: ExperimentSummary) -> Table:
    """One row an arm whose server tells no parts of single requests."""
    rows = []
    for arm in summary.arms:
        means = arm.server_means
        if means is not None:
            values = (means.waiting_ns, means.input_ns, means.infer_ns, means.output_ns, means.total_ns)
            told = f"{means.requests:,} requests" if means.absent is None else f"not known: {means.absent}"
            rows.append((arm.name, told, *(format_duration(value) for value in values)))
    return Table(
        title="The server's parts, means of the window",
        header=("arm", "over", "waiting", "input", "inference", "output", "server's own total"),
        rows=tuple(rows),
        note=(
            "From the V2 statistics extension before and after each run, because the server sends no Server-Timing: means over all that it "
            "answered meanwhile, whoever asked. They say nothing of slow requests, nor of spikes. Waiting: for a slot or for a load."
        ),
    )


def _signed(ns: float) -> str:
    return ("+" if ns >= 0 else "-") + format_duration(abs(ns))


def _signed_size(size: float | None) -> str:
    return "-" if size is None else ("+" if size >= 0 else "-") + format_size(abs(size))
