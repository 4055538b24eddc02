"""What a burst experiment says, as tables and sentences for people. Every number comes from its `ExperimentSummary`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.analysis.verdict import unstable_words
from bench.report.colours import arm_colour
from bench.report.notebook_blocks import KeyFigure
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.experiment import ArmSummary, ExperimentSummary, Subject
    from bench.analysis.latency import Latency

PART_MEANING = {
    "send_lag": "the generator's own lateness",
    "network": "HTTP and the network, both ways",
    "queue": "accepted, not yet handed to the pool",
    "pool": "waiting for a free slot",
    "load": "waiting for an engine or a slot to be loaded",
    "compute": "input copy, inference, output copy",
    "rest": "what no part covers",
}
_MEMORY_PER_DECISION = 0.05  # a difference below this share is not worth a sentence


def facts_table(subject: Subject, summary: ExperimentSummary) -> pd.DataFrame:
    """Engine, device, host, load and software that the numbers belong to."""
    record, load = subject.record, summary.load
    host = record.get("environment") or {}
    cpu, memory, system = (host.get(part) or {} for part in ("cpu", "memory", "system"))
    gpus = ", ".join(gpu.get("name", "GPU") for gpu in host.get("gpus") or ()) or "none"
    facts = {"engine": summary.title, "device": summary.device or "not known: the server was not started here"}
    if {"base_per_s", "peak_per_s", "hold_ns", "rest_ns", "count", "blocks"} <= load.keys():
        facts["load"] = (
            f"{load['count']} spikes from {load['base_per_s']:.3g} to {load['peak_per_s']:.3g} requests/s, "
            f"{format_duration(load['hold_ns'])} long, {format_duration(load['rest_ns'])} apart on average, in {load['blocks']} blocks, "
            "the same arrivals for every arm"
        )
    facts["arms"] = ", ".join(f"{arm.name} ({arm.runs} of {arm.planned} runs)" for arm in summary.arms)
    facts["arrivals"] = f"{sum(arm.latency[0].arrivals for arm in summary.arms):,}, none left out"
    if cpu:
        facts["host"] = f"{cpu.get('model')}, {cpu.get('usable_cores')} usable cores, {format_size(memory.get('total_bytes'))} of memory, GPU: {gpus}"
        facts["system"] = f"{system.get('os')}, Linux {system.get('kernel')}, Python {(host.get('software') or {}).get('python')}"
    facts["run"] = f"{summary.subject}, {record.get('created', '')}, coldburst {record.get('coldburst_version')}"
    frame = pd.DataFrame({"": facts}).rename_axis("")
    frame.attrs["text"] = ("",)
    return frame


def validity_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row a run: what was delivered against what was asked for."""
    rows = {
        one.run: {
            "arm": one.arm,
            "arrivals": f"{one.validity.arrivals:,}",
            "send lag p99": format_duration(one.validity.lag_p99_ns),
            "send lag max": format_duration(one.validity.lag_max_ns),
            "gaps differ by (KS)": f"{one.validity.ks_distance:.3f}" if one.validity.ks_distance is not None else "-",
            "verdict": "valid" if one.validity.valid else "not valid",
        }
        for one in summary.validity
    }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")
    frame.attrs["text"] = ("arm", "verdict")
    return frame


def key_figures_of(summary: ExperimentSummary) -> list[KeyFigure]:
    """The P99 in spikes of each arm, and its ratio to the first arm's."""
    found = []
    for index, arm in enumerate(summary.arms):
        spike = arm.phase("spike") or arm.phase(None)
        assert spike is not None
        value, label = ("unstable", "cannot hold the base rate") if arm.unstable else (format_duration(spike.response.p99), "P99 in spikes")
        note = f"{spike.answered:,} answers"
        found.append(KeyFigure(value=value, label=f"{arm.name}: {label}", note=note, colour=arm_colour(index)))
    for comparison in summary.comparisons[:2]:
        p99 = comparison.p99
        if p99 is None:
            continue
        interval = p99.ratio_interval
        spikes = p99.units * p99.spikes_per_unit
        note = f"{interval.low:.3g}x to {interval.high:.3g}x (95 %), {spikes} spikes" if interval else f"{spikes} spikes: too few for an interval"
        found.append(
            KeyFigure(value=f"{p99.ratio:.3g}x", label=f"P99 of a spike, {comparison.second} against {comparison.first}", note=note, colour="#56636f")
        )
    return found


def arms_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row an arm: what users waited, and what it cost."""
    rows = {}
    for arm in summary.arms:
        spike, share = arm.phase("spike") or arm.phase(None), arm.share(None)
        assert spike is not None and share is not None
        resident = arm.resident
        rows[arm.name] = {
            "P50 in spikes": format_duration(spike.response.p50),
            "P99 in spikes": "unstable" if arm.unstable else format_duration(spike.response.p99),
            "largest": format_duration(spike.response.maximum),
            "within the SLO": f"{share.attainment:.2%}" if share.attainment is not None else "no SLO given",
            "goodput, 1/s": f"{share.goodput_per_s:.3g}" if share.goodput_per_s is not None else "-",
            "failed": f"{share.failed_share:.2%}",
            "shed": f"{share.shed_share:.2%}",
            "until ready": format_duration(arm.ready_ns),
            "slots": "-" if resident is None else resident.slots,
            "memory, median": format_size(resident.median if resident else None),
            "arrivals": f"{share.arrivals:,}",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")
    return frame.drop(columns=[name for name in ("goodput, 1/s",) if (frame[name] == "-").all()])


def phases_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row an arm and phase: response time beside the round trip, which starts late when a request was sent late."""
    rows = [
        {
            "arm": arm.name,
            "phase": one.phase or "all",
            "P50": format_duration(one.response.p50),
            "P90": format_duration(one.response.p90),
            "P99": format_duration(one.response.p99),
            "P99.9": format_duration(one.response.p999),
            "largest": format_duration(one.response.maximum),
            "round trip P99": format_duration(one.round_trip.p99),
            "answered": f"{one.answered:,} of {one.arrivals:,}",
        }
        for arm in summary.arms
        for one in _in_order(arm)
    ]
    return pd.DataFrame(rows).set_index(["arm", "phase"])


def tail_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row a part, one column an arm: the mean of the part over the slowest 1 %, with its interval over spikes."""
    columns: dict[str, dict[str, str]] = {"what it is": {name.replace("_", " "): meaning for name, meaning in PART_MEANING.items()}}
    for arm in summary.arms:
        if arm.tail is None:
            continue
        cells = {}
        for part in arm.tail.parts:
            between = f" ({format_duration(part.interval.low)} .. {format_duration(part.interval.high)})" if part.interval else ""
            share = f", {part.share:.0%}" if part.share is not None else ""
            cells[part.name.replace("_", " ")] = "not told" if part.mean_ns is None else f"{format_duration(part.mean_ns)}{between}{share}"
        cells["mean response"] = f"{format_duration(arm.tail.mean_response_ns)}, {arm.tail.split:,} requests"
        columns[arm.name] = cells
    frame = pd.DataFrame(columns).reindex([*columns["what it is"], "mean response"]).fillna("").rename_axis("part")
    frame.attrs["text"] = ("what it is",)
    return frame


def pool_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row an arm: what requests found when they came."""
    rows = {
        arm.name: {
            "mean wait for a slot": format_duration(arm.pool.mean_pool_wait_ns),
            "P99 of that wait": format_duration(arm.pool.pool_wait_p99_ns),
            "waited for a load": f"{arm.pool.loaded_share:.1%}" if arm.pool.loaded_share is not None else "not told",
            "mean wait for a load": format_duration(arm.pool.mean_load_wait_ns),
            "P99 of that": format_duration(arm.pool.load_wait_p99_ns),
            "answers that tell": f"{arm.pool.known:,}",
        }
        for arm in summary.arms
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def recovery_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row an arm: how long a spike hurts after its end. Empty where no arm's base has enough answers for a P99."""
    rows = {}
    for arm in summary.arms:
        found = arm.recovery
        if found is None:
            continue
        spikes = found.spikes
        rows[arm.name] = {
            "median recovery": "none in half of the spikes" if found.median_ns is None else format_duration(found.median_ns),
            "not before the next spike": f"{found.censored} of {len(spikes)}",
            "back within": format_duration(found.bound_ns),
            "SLO back after": format_duration(found.slo_median_ns) if summary.slo_ns is not None else "no SLO given",
            "largest backlog": f"{max((one.peak_backlog for one in spikes), default=0):,} requests",
            "spikes": len(spikes),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def comparisons_table(summary: ExperimentSummary) -> pd.DataFrame:
    """One row a pair of arms: the P99 of a typical spike, its ratio with the interval over spikes, and what the run could see."""
    rows: dict[str, dict[str, Any]] = {}
    for comparison in summary.comparisons:
        p99 = comparison.p99
        name = f"{comparison.second} against {comparison.first}"
        if p99 is None:
            rows[name] = {"verdict": comparison.reason}
            continue
        interval = p99.ratio_interval
        decided = "differs" if p99.distinguishable else "not distinguishable"
        rows[name] = {
            comparison_column(0): format_duration(p99.first_p99_ns),
            comparison_column(1): format_duration(p99.second_p99_ns),
            "ratio": f"{p99.ratio:.3g}x",
            "95 % interval": f"{interval.low:.3g}x .. {interval.high:.3g}x" if interval else "-",
            "smallest it could see": f"{p99.smallest_ratio:.3g}x" if p99.smallest_ratio is not None else "-",
            "spikes": p99.units * p99.spikes_per_unit,
            "memory": f"{'+' if comparison.resident_bytes >= 0 else '−'}{format_size(abs(comparison.resident_bytes))}"
            if comparison.resident_bytes is not None
            else "-",
            "verdict": decided if interval else "too few spikes for an interval (5 at least)",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").fillna("-").rename_axis("pair")
    frame.attrs["text"] = ("verdict",)
    return frame


def comparison_column(index: int) -> str:
    return ("P99 of a spike, the latter", "the former")[index]


def decisions(summary: ExperimentSummary) -> str:
    """Markdown: what follows for somebody who runs the service. Where the run is not valid: only what to mend."""
    return "\n".join(f"- {line}" for line in _decisions(summary))


def _decisions(summary: ExperimentSummary) -> Iterator[str]:
    if summary.invalid:
        yield "**Nothing yet: the run is not valid.** Mend what is said at the top, and run it again. What follows shows only how it would read."
    for arm in summary.arms:
        if arm.unstable:
            yield f"**{arm.name} cannot carry this load**: it is {unstable_words(arm)}. Give it more slots, or keep the engine loaded."
    yield from _meeting_the_slo(summary)
    for comparison in summary.comparisons:
        p99 = comparison.p99
        if p99 is None or p99.ratio_interval is None:
            continue
        if p99.distinguishable:
            better, worse = (comparison.second, comparison.first) if p99.ratio < 1 else (comparison.first, comparison.second)
            factor = p99.ratio if p99.ratio >= 1 else 1 / p99.ratio
            yield f"**{better} is the better one in a spike**: the P99 with {worse} is {factor:.3g} times as long.{_price(summary, better, worse)}"
        else:
            more = f" About {p99.more_spikes} more spikes would tell." if p99.more_spikes else ""
            yield (
                f"**{comparison.second} and {comparison.first} cannot be told apart** in {p99.units * p99.spikes_per_unit} spikes; "
                f"take the one that costs less.{_price(summary, comparison.second, comparison.first)}{more}"
            )
    if any(c.p99 is not None and c.p99.ratio_interval is None for c in summary.comparisons):
        yield "**Run more spikes before you decide between arms**: under five there is no interval, and a ratio alone may be chance."
    for arm in summary.arms:
        largest = max((p for p in (arm.tail.parts if arm.tail else ()) if p.share is not None), key=lambda p: p.share or 0.0, default=None)
        if largest is not None and largest.share is not None:
            yield f"**In the tail of {arm.name}, {largest.share:.0%} is {PART_MEANING[largest.name]}.** {_REMEDY[largest.name]}"


_REMEDY = {
    "send_lag": "That is the generator's, not the server's: run it on a machine of its own before you judge the server.",
    "network": "A faster engine will not help; look at connections, payload size, and what runs beside the server.",
    "queue": "The server takes in more than it hands on; look at its queue limit.",
    "pool": "More slots help as long as the device can run them at once; if it cannot, only a second replica or a lower peak does.",
    "load": "Keep the engine loaded (warm-pool), or load it before traffic comes.",
    "compute": "Waiting is not the matter; only a faster engine, lower precision or a faster device is.",
    "rest": "The server does not tell enough to say more.",
}


def _meeting_the_slo(summary: ExperimentSummary) -> Iterator[str]:
    if summary.slo_ns is None:
        yield "**Say what is good enough**: without an SLO (`--slo 200ms`) this can only say which arm is better, not whether one suffices."
        return
    slo = format_duration(summary.slo_ns)
    shares = {arm.name: share.attainment for arm in summary.arms for share in [arm.share(None)] if share and share.attainment is not None}
    held = [name for name, share in shares.items() if share >= 0.99]
    told = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    if held:
        yield f"**99 % of all arrivals within {slo}: {', '.join(held)}** ({told})."
    elif shares:
        best = max(shares, key=lambda name: shares[name])
        yield f"**No arm answers 99 % of all arrivals within {slo}**; {best} comes closest ({told})."


def _price(summary: ExperimentSummary, one: str, other: str) -> str:
    """What `one` holds in memory beyond `other`."""
    first, second = (next(arm for arm in summary.arms if arm.name == name).resident for name in (one, other))
    if first is None or second is None:
        return ""
    more = first.median - second.median
    if abs(more) < _MEMORY_PER_DECISION * second.median:
        return f" They hold the same memory within {_MEMORY_PER_DECISION:.0%} ({format_size(first.median)} and {format_size(second.median)})."
    return f" It holds {format_size(abs(more))} {'more' if more > 0 else 'less'} memory ({format_size(first.median)} against {format_size(second.median)})."


def _in_order(arm: ArmSummary) -> list[Latency]:
    """The phases as the schedule has them, all arrivals together last."""
    return [*arm.latency[1:], arm.latency[0]] if len(arm.latency) > 2 else [arm.latency[0]]
