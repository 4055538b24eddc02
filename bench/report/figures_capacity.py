"""Pictures for a capacity planner: service times by busy slots, the load against what each arm can answer, memory and what it buys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.report.capacity_text import headroom, held_bytes, spike_p99_ns
from bench.report.colours import SPIKE_SHADE, arm_colour
from bench.report.figure_style import STYLE, log_time_axis, svg_of
from bench.report.page import Picture
from bench.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.analysis.curve import CurveSummary
    from bench.analysis.experiment import ExperimentSummary

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_BASE, _PEAK = "#444444", "#b3261e"
_WIDTH = 7.6


def headroom_picture(summary: ExperimentSummary) -> Picture | None:
    """What each arm can answer as a bar, base and peak as lines. None where no capacity was measured."""
    found = headroom(summary)
    if not found:
        return None
    colours = {arm.name: arm_colour(index) for index, arm in enumerate(summary.arms)}
    base, peak = found[0].base_per_s, found[0].peak_per_s
    longest = max(peak, *(one.capacity_per_s for one in found))
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(_WIDTH, 1.4 + 0.48 * len(found)), layout="constrained")
        axes = figure.subplots()
        for row, one in enumerate(found):
            axes.barh(row, one.capacity_per_s, height=0.6, color=colours[one.arm], alpha=0.85)
            label = f"{format_count(one.capacity_per_s)}/s"
            axes.text(1.01, row, label, transform=axes.get_yaxis_transform(), va="center", fontweight="bold")
        axes.axvspan(base, peak, color=SPIKE_SHADE, alpha=0.15, linewidth=0, zorder=0)
        axes.axvline(base, color=_BASE, linewidth=1.3, linestyle=(0, (5, 2)), label=f"base, {base:,.3g}/s")
        axes.axvline(peak, color=_PEAK, linewidth=1.6, label=f"peak, {peak:,.3g}/s")
        axes.set_yticks(range(len(found)), [one.arm for one in found])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.03)
        axes.set_xlabel("requests a second")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2)
        data = svg_of(figure, summary.title)
    return Picture(
        name="headroom",
        title="Load against capacity",
        data=data,
        alt=f"Capacity of {', '.join(one.arm for one in found)} as bars, with the base and the peak rate as lines.",
        caption=(
            "Bars: answers a second in closed loop, measured before the spikes. An arm whose bar ends left of the peak's line cannot "
            "keep up in a spike: its queue grows until the spike is over. One that ends left of the base's line never catches up."
        ),
    )


def frontier_picture(summary: ExperimentSummary) -> Picture | None:
    """Memory held against the P99 in spikes, and against the share within the SLO. None where no memory is known."""
    known = [(index, arm, held) for index, arm in enumerate(summary.arms) for held in [held_bytes(arm)] if held is not None]
    if not known:
        return None
    attained = [
        every.attainment for _, arm, _ in known for every in [arm.share(None)] if every is not None and every.attainment is not None
    ]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH if not attained else 9.2, 3.7), layout="constrained")
        panels = figure.subplots(1, 2 if attained else 1, squeeze=False)[0]
        for index, arm, held in known:
            style: dict[str, Any] = {
                "color": arm_colour(index),
                "marker": _MARKERS[index % len(_MARKERS)],
                "markersize": 10,
                "linestyle": "",
            }
            p99, every = spike_p99_ns(arm), arm.share(None)
            name = arm.name if p99 is not None else f"{arm.name} (no P99)"
            panels[0].plot([held / 1e6], [p99 / 1e6 if p99 is not None else float("nan")], label=name, **style)
            if attained and every is not None and every.attainment is not None:
                panels[1].plot([held / 1e6], [every.attainment * 100], clip_on=False, **style)
        _p99_axis(panels[0], summary)
        if attained:
            panels[1].set_ylabel(f"% of all arrivals within {format_duration(summary.slo_ns)}")
            low = min(attained) * 100
            panels[1].set_ylim(max(0.0, low - max(0.5, (100 - low) * 0.15)), 100)
            panels[1].axhline(99, color=_BASE, linewidth=1, linestyle=(0, (1, 2)))
            panels[1].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g} %"))
        for axes in panels:
            axes.set_xlim(0, max(held for *_, held in known) / 1e6 * 1.1)
            axes.set_xlabel("memory held at its peak, MB")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
        data = svg_of(figure, summary.title)
    return Picture(
        name="frontier",
        title="Memory and what it buys",
        data=data,
        alt="Each arm as a point: memory held against the P99 in spikes, and against the share of arrivals within the SLO.",
        caption=(
            "One point an arm. Left: lower is better, so the arm to take lies below and to the left; one above and to the right of "
            "another buys nothing. Right: higher is better; the dotted line is 99 %. Memory counts from zero, so that a small "
            "difference looks small."
            if attained
            else "One point an arm: the arm to take lies below and to the left; one above and to the right of another buys nothing."
        ),
    )


def curve_picture(summary: CurveSummary) -> Picture:
    """Service time percentiles, and throughput, by the number of busy slots; beside each what independent servers would show."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained")
        times, rates = figure.subplots(1, 2)
        for index, batch in enumerate(summary.batches):
            _draw_batch(times, rates, summary, batch, arm_colour(index))
        times.set_ylabel("time in the slot (ms)")
        rates.set_ylabel("requests answered a second")
        rates.axvline(summary.useful_slots, color=_PEAK, linewidth=1.2, linestyle=(0, (4, 2)), label=f"of use: {summary.useful_slots}")
        for axes in (times, rates):
            axes.set_xlabel("busy slots")
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3 if len(summary.batches) == 1 else 2, borderaxespad=0.3)
        data = svg_of(figure, summary.title)
    last = summary.of_batch(summary.batches[0])[-1]
    return Picture(
        name="curve",
        title="Service time and throughput by busy slots",
        data=data,
        alt=(
            f"Percentiles of the service time and throughput for 1 to {last.busy} busy slots; {summary.useful_slots} are of use, "
            f"at {last.busy} the median is {last.slowdown:.2f} times that of the fewest."
        ),
        caption=(
            "Left: how long a request occupies its slot; on independent servers it would stay on the dotted line. Right: answers a second "
            "of all slots, the bars from the slowest to the fastest round; independent servers would follow the dotted line. Where the "
            "curve goes flat, a further slot only makes the others slower."
        ),
    )


def _draw_batch(times: Axes, rates: Axes, summary: CurveSummary, batch: int, colour: str) -> None:
    levels = summary.of_batch(batch)
    several, busy = len(summary.batches) > 1, [level.busy for level in levels]
    name = f"batch {batch}, " if several else ""
    p50, p95, p99 = (
        [float("nan") if value is None else value / 1e6 for value in values]
        for values in zip(*((one.service_p50_ns, one.service_p95_ns, one.service_p99_ns) for one in levels), strict=True)
    )
    times.fill_between(busy, p50, p99, color=colour, alpha=0.12, linewidth=0)
    times.plot(busy, p99, color=colour, linewidth=1, marker="^", markersize=4, label=f"{name}P99")
    if not several:
        times.plot(busy, p95, color=colour, linewidth=1, linestyle=(0, (4, 2)), marker="s", markersize=3.5, label="P95")
    times.plot(busy, p50, color=colour, linewidth=2, marker="o", markersize=5, label=f"{name}median")
    times.plot([busy[0], busy[-1]], [p50[0], p50[0]], color=_BASE, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    measured = [level.throughput_per_s for level in levels]
    spread = [
        [rate - one.low_per_s for rate, one in zip(measured, levels, strict=True)],
        [one.high_per_s - rate for rate, one in zip(measured, levels, strict=True)],
    ]
    rates.errorbar(
        busy,
        measured,
        yerr=[[max(0.0, off) for off in side] for side in spread],
        color=colour,
        linewidth=2,
        marker="o",
        markersize=5,
        capsize=3,
        elinewidth=1,
        label=f"{name}measured",
    )
    top, slope = max(level.high_per_s for level in summary.levels) * 1.25, measured[0] / busy[0]
    ideal = [slots for slots in busy if slots * slope <= top] or busy[:1]
    end = min(busy[-1], top / slope) if slope else busy[-1]
    label = "independent servers" if batch == summary.batches[-1] else None
    rates.plot([ideal[0], end], [ideal[0] * slope, end * slope], color=_BASE, linewidth=1, linestyle=(0, (1, 2)), label=label, zorder=1)


def _p99_axis(axes: Axes, summary: ExperimentSummary) -> None:
    values = [value / 1e6 for arm in summary.arms for value in [spike_p99_ns(arm)] if value is not None]
    axes.set_ylabel("P99 of the response in spikes")
    if values:
        bounds = [*values, *([summary.slo_ns / 1e6] if summary.slo_ns is not None else [])]
        axes.set_ylim(min(bounds) / 1.6, max(bounds) * 1.6)
    if summary.slo_ns is not None:
        axes.axhline(summary.slo_ns / 1e6, color=_BASE, linewidth=1, linestyle=(0, (1, 2)), label=f"SLO {format_duration(summary.slo_ns)}")
    log_time_axis(axes)
