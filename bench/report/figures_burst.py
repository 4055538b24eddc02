"""Pictures of bursts as SVG: every axis has its unit, every arm its colour and line style, every picture says what was thinned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from bench.report.colours import PART_COLOURS, PART_HATCHES, SPIKE_SHADE, arm_colour, arm_dashes
from bench.report.figure_style import STYLE, log_time_axis, svg_of
from bench.report.page import Picture
from bench.units import format_duration

if TYPE_CHECKING:
    from bench.analysis.experiment import ExperimentSummary
    from bench.analysis.series import ArmSeries

WIDTH = 6.4


def burst_pictures(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> list[Picture]:
    """All pictures that the data carries, the most telling first."""
    makers = (_typical_spike, _over_time, _distribution, _tail, _pool, _memory)
    with mpl.rc_context(STYLE):
        return [picture for maker in makers for picture in [maker(summary, series)] if picture is not None]


def _typical_spike(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> Picture | None:
    drawn = [(index, one, one.profile) for index, one in enumerate(series) if one.profile is not None]
    if not drawn:
        return None
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes = figure.subplots()
    for index, one, profile in drawn:
        time = profile.since_start_ns / 1e9
        style: dict[str, Any] = {"color": arm_colour(index), "linestyle": arm_dashes(index)}
        axes.plot(time, profile.p99_ns / 1e6, linewidth=1.8, label=one.name, **style)
        axes.plot(time, profile.p50_ns / 1e6, linewidth=0.9, alpha=0.7, **style)
    axes.axvspan(0, drawn[0][2].hold_ns / 1e9, color=SPIKE_SHADE, alpha=0.15, linewidth=0, label="spike")
    _slo_line(axes, summary)
    log_time_axis(axes, steps_up_to=20)
    axes.set(xlabel="time since the spike began (s)", ylabel="response time")
    ends = [profile.since_start_ns[~np.isnan(profile.p50_ns)] for _, _, profile in drawn]
    known = [times for times in ends if len(times)]
    if known:  # where spikes come close, there is nothing to draw after the next one began
        axes.set_xlim(min(times[0] for times in known) / 1e9, max(times[-1] for times in known) / 1e9)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, handlelength=2.6)
    spikes = drawn[0][2].spikes
    return Picture(
        name="spike",
        title="What a spike does",
        data=svg_of(figure, _footer(summary, f"; {spikes} spikes of each arm laid over each other")),
        alt=f"Median and P99 of the response time by time since a spike began, for {', '.join(one.name for _, one, _ in drawn)}.",
        caption=(
            f"Response times of all {spikes} spikes of each arm, by the time a request was due. Thick: P99 of each of 48 slices "
            "(the largest where a slice has under 100 answers); thin: median. Shaded: the spike. A curve that stays up after the "
            "shade is a queue that users still stand in."
        ),
    )


def _over_time(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> Picture | None:
    shown = series[:6]
    figure = Figure(figsize=(WIDTH, 1.1 + 1.6 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    scale, unit = _time_unit(max(one.duration_ns for one in shown))
    for index, (axes, one) in enumerate(zip(rows, shown, strict=True)):
        _shade(axes, one, scale)
        colour = arm_colour(index)
        if one.points is not None:
            times, values = one.points
            axes.scatter(times / scale, values / 1e6, s=3, color=colour, alpha=0.6, linewidths=0, rasterized=True)
        else:
            middle = (one.windows["start_ns"] + one.window_ns / 2) / scale
            axes.fill_between(middle, one.windows["p50"] / 1e6, one.windows["largest"] / 1e6, color=colour, alpha=0.25, linewidth=0)
            axes.plot(middle, one.windows["p50"] / 1e6, color=colour, linewidth=1)
        if len(one.failed):
            top = axes.get_xaxis_transform()
            axes.plot(one.failed / scale, np.full(len(one.failed), 0.97), "x", color="#b00020", markersize=4, transform=top, clip_on=False)
        _slo_line(axes, summary)
        log_time_axis(axes, steps_up_to=20)
        axes.set_title(one.name, color=colour, fontweight="bold")
        axes.set_ylabel("response")
    rows[-1].set_xlabel(f"time since the run began ({unit})")
    first = shown[0]
    if first.points is not None:
        how = f"Each dot is one of the {first.arrivals:,} requests of block {first.block + 1}; none is left out."
    else:
        how = (
            f"{first.arrivals:,} requests of block {first.block + 1} in windows of {format_duration(first.window_ns)}: the line is the "
            "median of each window, the band reaches to its slowest request, so that none is hidden."
        )
    return Picture(
        name="over-time",
        title="Response time over time",
        data=svg_of(figure, _footer(summary)),
        alt=f"Response time of every request over the time of one run, a panel for each of {', '.join(one.name for one in shown)}.",
        caption=f"{how} Shaded: spikes. A red cross: arrivals without a correct answer. All panels have one schedule and the same axes.",
    )


def _distribution(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> Picture | None:
    if not any(len(one.response.value) for one in series):
        return None
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes = figure.subplots()
    lowest = 1.0
    for index, one in enumerate(series):
        for curve, width, alpha, label in ((one.response, 1.8, 1.0, one.name), (one.round_trip, 0.9, 0.6, None)):
            if len(curve.value) < 2:
                continue
            slower = 1 - curve.share + (1 - curve.share[-2])  # the share that took as long or longer: 1/n for the slowest
            lowest = min(lowest, float(slower[-1]))
            axes.plot(
                curve.value / 1e6, slower, color=arm_colour(index), linestyle=arm_dashes(index), linewidth=width, alpha=alpha, label=label
            )
    log_time_axis(axes, axes.xaxis, steps_up_to=20)
    axes.set_yscale("log")
    axes.set_ylim(lowest * 0.8, 1.3)
    ticks = [tick for tick in (1, 0.5, 0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6, 1e-7) if tick >= lowest * 0.8]
    axes.set_yticks(ticks, [_percentile_name(tick) for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())
    if summary.slo_ns is not None:
        axes.axvline(summary.slo_ns / 1e6, **_slo_style(summary))
    axes.set(xlabel="response time (thick), round trip (thin)", ylabel="percentile")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, handlelength=2.6)
    return Picture(
        name="distribution",
        title="Distribution, down to the slowest",
        data=svg_of(figure, _footer(summary)),
        alt=f"Percentiles of the response time on a logarithmic tail, for {', '.join(one.name for one in series)}.",
        caption=(
            "Go down to a percentile, then across to the curve: that share of requests was answered by then. Thick: from when a request "
            "was due (corrected); thin: from when it was sent, which most tools show. Correct answers of all runs; at most 2,000 points "
            "a curve, each exact, closer together towards the slowest."
        ),
    )


def _tail(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> Picture | None:
    split = [arm for arm in summary.arms if arm.tail is not None]
    if not split:
        return None
    figure = Figure(figsize=(WIDTH, 1.7 + 0.55 * len(split)), layout="constrained")
    axes = figure.subplots()
    for row, arm in enumerate(split):
        assert arm.tail is not None
        left = 0.0
        for part in arm.tail.parts:
            if part.mean_ns is None or part.share is None:
                continue
            width = max(0.0, part.mean_ns / arm.tail.mean_response_ns)
            bar = axes.barh(
                row,
                width,
                left=left,
                height=0.62,
                color=PART_COLOURS[part.name],
                hatch=PART_HATCHES[part.name],
                edgecolor="white",
                linewidth=0.4,
            )
            if row == 0:
                bar.set_label(part.name.replace("_", " "))
            if width > 0.09:
                axes.text(left + width / 2, row, f"{width:.0%}", ha="center", va="center", fontsize=9, color=_ink(PART_COLOURS[part.name]))
            left += width
    labels = [f"{_short(arm.name)}\n{format_duration(arm.tail.mean_response_ns)}" for arm in split if arm.tail is not None]
    axes.set_yticks(range(len(split)), labels)
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.set_xlabel("share of the mean response time of the slowest 1 %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=7, handlelength=1.2, columnspacing=1.1, fontsize=8.5)
    return Picture(
        name="tail",
        title="What the slowest 1 % wait for",
        data=svg_of(figure, _footer(summary)),
        alt="The mean response time of the slowest 1 % of the requests of each arm, split into what they waited for.",
        caption=(
            "The slowest 1 % of the correct answers, each part averaged over the same requests, so that the parts add up to their mean "
            "response time (beside the arm). Pool: waiting for a free slot; load: for an engine or a slot being loaded; network: all "
            "that HTTP costs on both sides; rest: what no part covers."
        ),
    )


def _pool(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> Picture | None:
    shown = [(index, one, one.timeline) for index, one in enumerate(series) if one.timeline is not None][:6]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH, 1.2 + 1.45 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 2, sharex=True, sharey="col", squeeze=False)
    scale, unit = _time_unit(max(one.duration_ns for _, one, _ in shown))
    for (slots, waiting), (index, one, timeline) in zip(rows, shown, strict=True):
        time = timeline["t_ns"] / scale
        for axes in (slots, waiting):
            _shade(axes, one, scale)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        slots.plot(time, timeline["slots"], color="#444444", linewidth=1.2, drawstyle="steps-post", label="ready")
        slots.fill_between(time, timeline["busy"], step="post", color=arm_colour(index), alpha=0.55, linewidth=0, label="busy")
        slots.plot(time, timeline["loading"], color="black", linewidth=0.9, linestyle=(0, (1, 1)), drawstyle="steps-post", label="loading")
        waiting.fill_between(time, timeline["waiting"], step="post", color=arm_colour(index), alpha=0.55, linewidth=0)
        slots.set_title(one.name, color=arm_colour(index), fontweight="bold")
        slots.set_xlim(0, max(one.duration_ns, 1) / scale)
    rows[0][1].set_title("requests waiting")
    rows[-1][0].set_xlabel(f"time since the run began ({unit})")
    rows[-1][1].set_xlabel(f"time since the run began ({unit})")
    for row in rows:
        row[0].set_ylabel("slots")
        row[1].set_ylabel("requests")
        row[0].set_ylim(0, None)
        row[1].set_ylim(0, None)
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return Picture(
        name="pool",
        title="Pool and queue over time",
        data=svg_of(figure, _footer(summary)),
        alt="Slots that were busy, ready and loading, and requests waiting, over the time of one run of each arm.",
        caption=(
            f"Block {shown[0][1].block + 1}, as the server saw it{_sampled(shown[0][1])}. Shaded: spikes. Busy up to the line of ready "
            "slots: the pool is all in use. Cold-load has a slot only while it works."
        ),
    )


def _memory(summary: ExperimentSummary, series: Sequence[ArmSeries]) -> Picture | None:
    shown = [(i, s, s.timeline) for i, s in enumerate(series) if s.timeline is not None and s.timeline["resident_bytes"].notna().any()]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    scale, unit = _time_unit(max(one.duration_ns for _, one, _ in shown))
    for index, one, timeline in shown:
        for column, label, width in (("resident_bytes", one.name, 1.6), ("device_bytes", f"{one.name}, device", 0.9)):
            if timeline[column].notna().any():
                megabytes = timeline[column] / 1e6
                style = arm_dashes(index)
                axes.plot(timeline["t_ns"] / scale, megabytes, color=arm_colour(index), linestyle=style, linewidth=width, label=label)
    _shade(axes, shown[0][1], scale)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set(xlabel=f"time since the run began ({unit}); before 0 the server starts", ylabel="memory (MB)")
    axes.set_ylim(0, None)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, handlelength=2.6)
    return Picture(
        name="memory",
        title="Memory over time",
        data=svg_of(figure, _footer(summary)),
        alt=f"Memory of the server's process over time, for {', '.join(one.name for _, one, _ in shown)}.",
        caption=(f"Memory of the server's process in block {shown[0][1].block + 1}{_sampled(shown[0][1])}: what it costs to be ready."),
    )


def _footer(summary: ExperimentSummary, more: str = "") -> str:
    head = "NOT VALID: " if summary.invalid else "NOT FINISHED: " if summary.missing_runs else ""
    return f"{head}{summary.title}{more}"


def _sampled(one: ArmSeries) -> str:
    return f" (the largest of every {format_duration(one.sampled_ns)})" if one.sampled_ns else ", every sample of 50 ms"


def _shade(axes: Axes, one: ArmSeries, scale: float) -> None:
    for spike in one.spikes[:300]:
        axes.axvspan(spike.start_ns / scale, spike.end_ns / scale, color=SPIKE_SHADE, alpha=0.15, linewidth=0, zorder=0)


def _slo_line(axes: Axes, summary: ExperimentSummary) -> None:
    if summary.slo_ns is not None:
        axes.axhline(
            summary.slo_ns / 1e6, color="#444444", linewidth=1, linestyle=(0, (1, 2)), label=f"SLO {format_duration(summary.slo_ns)}"
        )


def _slo_style(summary: ExperimentSummary) -> dict[str, Any]:
    return {"color": "#444444", "linewidth": 1, "linestyle": (0, (1, 2)), "label": f"SLO {format_duration(summary.slo_ns)}"}


def _percentile_name(slower: float) -> str:
    return "all" if slower == 1 else "P" + f"{100 * (1 - slower):.6f}".rstrip("0").rstrip(".")


def _time_unit(duration_ns: int) -> tuple[float, str]:
    return (60e9, "min") if duration_ns > 600e9 else (1e9, "s")


def _short(name: str) -> str:
    return name if len(name) <= 22 else name[:21] + "…"


def _ink(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "white"
