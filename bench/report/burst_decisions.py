"""What a burst experiment means for somebody who runs the service: the figures to see first, and what to decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.analysis.verdict import growth_words, too_few_words, unstable_words
from bench.report.colours import arm_colour
from bench.report.notebook_blocks import KeyFigure
from bench.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.experiment import ArmComparison, ArmSummary, ExperimentSummary

GOOD_SHARE = 0.99
_SAME_MEMORY = 0.05  # a smaller difference is not worth a sentence of its own
_WAITS_FOR = {
    "send_lag": ("the load generator's own lateness", "Run the generator on a machine of its own before you judge the server."),
    "network": ("HTTP and the network", "A faster engine will not help; look at connections, payload, and what runs beside the server."),
    "queue": ("the queue before the pool", "The server takes in more than it hands on; look at its queue limit."),
    "pool": (
        "the wait for a free slot",
        "More slots help while the device can run them at once; then only a second replica or a lower peak.",
    ),
    "load": ("the wait for an engine or a slot to be loaded", "Keep it loaded (warm-pool), or load it before traffic comes."),
    "compute": ("the inference itself", "Nobody waits in line; only a faster engine, a lower precision or a faster device helps."),
    "rest": ("what no part covers", "Let the server send Server-Timing to see more."),
}


def key_figures_of(summary: ExperimentSummary) -> list[KeyFigure]:
    """The P99 in spikes of each arm, and its ratio to the first arm's."""
    found = []
    for index, arm in enumerate(summary.arms):
        spike = arm.phase("spike") or arm.latency[0]
        note = f"{spike.answered:,} answers, {arm.runs} run{'s' if arm.runs > 1 else ''}"
        value, label = format_duration(spike.response.p99), "P99 in spikes" if spike.phase else "P99"
        if arm.unstable:
            value, label = "unstable", "cannot hold the base rate"
        elif spike.response.p99 is None:
            value, label = format_duration(spike.response.maximum), "largest in spikes (too few for a P99)"
        found.append(KeyFigure(value=value, label=f"{arm.name}: {label}", note=note, colour=arm_colour(index)))
    for comparison in summary.comparisons:
        p99 = comparison.p99
        if p99 is not None:
            interval = p99.ratio_interval
            sure = f"{interval.low:.3g}x to {interval.high:.3g}x (95 %), {p99.spikes} spikes" if interval else too_few_words(p99)
            label = f"{comparison.second} against {comparison.first}, P99 of a spike"
            found.append(KeyFigure(value=f"{p99.ratio:.3g}x", label=label, note=sure, colour="#56636f"))
    return found


def decisions(summary: ExperimentSummary) -> str:
    """Markdown: what follows. Where the run is not valid, that comes first."""
    return "\n".join(f"- {line}" for line in _decisions(summary))


def _decisions(summary: ExperimentSummary) -> Iterator[str]:
    if summary.invalid:
        yield "**Nothing yet: the run is not valid.** Mend what is said at the top, and run it again; the rest shows how it would read."
    for arm in summary.arms:
        if arm.unstable:
            yield f"**{arm.name} cannot carry this load**: it is {unstable_words(arm)}. Give it more slots, or keep the engine loaded."
        elif arm.doubtful:
            yield f"**{arm.name} may not carry this load**: {growth_words(arm)}. Run longer blocks, or a lower base, to know."
    yield slo_decision(summary)
    for comparison in summary.comparisons:
        yield from _between(comparison, summary)
    short = next((one.p99 for one in summary.comparisons if one.p99 is not None and one.p99.ratio_interval is None), None)
    if short is not None:
        yield f"**Run more spikes before you choose between arms**, because a ratio alone may be chance: {too_few_words(short)}."
    for arm in summary.arms:
        yield from _tail_of(arm)


def slo_decision(summary: ExperimentSummary) -> str:
    """Which arms answer 99 % of all arrivals within the SLO, as one line of Markdown."""
    if summary.slo_ns is None:
        return (
            "**Say what is good enough**: without an SLO (`--slo 200ms`) the run can tell which arm is better, not whether it suffices. "
            "It may be given now; the requests are all there."
        )
    slo = format_duration(summary.slo_ns)
    shares = {arm.name: every.attainment for arm in summary.arms for every in [arm.share(None)] if every and every.attainment is not None}
    told = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    held = [name for name, share in shares.items() if share >= GOOD_SHARE]
    if held:
        return f"**{GOOD_SHARE:.0%} of all arrivals are answered within {slo} by {', '.join(held)}** (all arms: {told})."
    best = max(shares, key=lambda name: shares[name])
    return f"**No arm answers {GOOD_SHARE:.0%} of all arrivals within {slo}**; {best} comes closest (all arms: {told})."


def _between(comparison: ArmComparison, summary: ExperimentSummary) -> Iterator[str]:
    p99 = comparison.p99
    if p99 is None or p99.ratio_interval is None:
        return
    spikes = p99.spikes
    if p99.distinguishable:
        better, worse = (comparison.second, comparison.first) if p99.ratio < 1 else (comparison.first, comparison.second)
        factor, ends = p99.ratio, (p99.ratio_interval.low, p99.ratio_interval.high)
        if factor < 1:
            factor, ends = 1 / factor, (1 / ends[1], 1 / ends[0])
        yield (
            f"**{better} is better in a spike**: the P99 with {worse} is {format_count(factor)} times as long "
            f"(95 % interval {format_count(ends[0])} to {format_count(ends[1])}, {spikes} spikes).{_price(summary, better, worse)}"
        )
        return
    more = f" About {p99.more_spikes:,} more spikes would tell." if p99.more_spikes else ""
    yield (
        f"**{comparison.second} and {comparison.first} cannot be told apart** in {spikes} spikes: take the one that costs less."
        f"{_price(summary, comparison.second, comparison.first)}{more}"
    )


def _price(summary: ExperimentSummary, one: str, other: str) -> str:
    """What `one` holds in memory beyond `other`."""
    first, second = (next(arm for arm in summary.arms if arm.name == name).held for name in (one, other))
    if first is None or second is None or first.kind != second.kind:
        return ""
    sizes = f"{format_size(first.median)} against {format_size(second.median)}"
    if abs(first.median - second.median) < _SAME_MEMORY * second.median:
        return f" It holds about the same {first.kind} memory ({sizes})."
    return f" It holds {'more' if first.median > second.median else 'less'} {first.kind} memory: {sizes}."


def _tail_of(arm: ArmSummary) -> Iterator[str]:
    parts = [part for part in (arm.tail.parts if arm.tail else ()) if part.share is not None]
    if parts:
        largest = max(parts, key=lambda part: part.share or 0.0)
        what, remedy = _WAITS_FOR[largest.name]
        yield f"**The slowest 1 % of {arm.name} spend {largest.share:.0%} of their time in {what}.** {remedy}"
