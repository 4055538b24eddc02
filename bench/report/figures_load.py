"""Figures of a schedule: when the arrivals come, and how unevenly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.load.arrivals import duration_text
from bench.load.describe import arrival_figures, rate_over_time
from bench.load.profile import SECOND_NS
from bench.load.schedule import Schedule
from bench.units import format_duration

_BLUE, _ORANGE, _GREY = "#2b6cb0", "#dd6b20", "#718096"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
}
_MOST_WINDOWS = 400
_NICE_WINDOWS_NS = [unit * step for unit in (10**6, 10**7, 10**8, SECOND_NS) for step in (1, 2, 5)] + [
    SECOND_NS * seconds for seconds in (10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)
]


def plot_schedule(schedule: Schedule, path: Path, title: str) -> None:
    """Write a PNG: the offered rate over time with the spikes shaded, and the gaps against those of a Poisson process."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        top, bottom = figure.subplots(2, 1, height_ratios=[3, 2])
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        _draw_rate(top, schedule)
        _draw_gaps(bottom, schedule)
        figure.savefig(path, dpi=130)


def _draw_rate(axes: Axes, schedule: Schedule) -> None:
    if schedule.duration_ns == 0:
        axes.set_title("Offered rate")
        axes.text(0.5, 0.5, f"{len(schedule):,} at one time: there is no rate", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    duration = schedule.duration_ns
    least = duration // _MOST_WINDOWS
    window = next((nice for nice in _NICE_WINDOWS_NS if nice >= least), max(least, 1))
    windows = max(1, -(-duration // window))
    rates = rate_over_time(schedule.intended_ns, windows * window, windows)
    scale, unit = (3600, "h") if duration > 4 * 3600 * SECOND_NS else (60, "min") if duration > 600 * SECOND_NS else (1, "s")
    edges = np.arange(windows + 1) * (window / SECOND_NS / scale)
    axes.stairs(rates, edges, fill=True, color=_BLUE, alpha=0.35)
    axes.stairs(rates, edges, color=_BLUE, linewidth=0.9, label=f"offered, in windows of {duration_text(window)}")
    flat = "decay" not in pc.unique(schedule.table.column("phase")).to_pylist()
    for spike in schedule.spikes[:500]:
        start, end = (ns / SECOND_NS / scale for ns in (spike.start_ns, spike.end_ns))
        label = f"spikes ({len(schedule.spikes)})" if spike is schedule.spikes[0] else None
        axes.axvspan(start, end, color=_ORANGE, alpha=0.15, linewidth=0, label=label, zorder=0)
        if flat:
            axes.hlines(spike.peak_rate, start, end, color=_ORANGE, linewidth=1.4, label="planned peak" if label else "_")
    axes.axhline(len(schedule) / (duration / SECOND_NS), color=_GREY, linewidth=0.9, linestyle=(0, (5, 3)), label="mean")
    axes.set(
        xlim=(0, duration / SECOND_NS / scale),
        ylim=(0, None),
        xlabel=f"time since the start ({unit})",
        ylabel="arrivals per second",
        title="Offered rate",
    )
    axes.legend(loc="lower left", bbox_to_anchor=(0.3, 1.0), ncols=4, frameon=False, borderaxespad=0.2)


def _draw_gaps(axes: Axes, schedule: Schedule) -> None:
    figures = arrival_figures(schedule.intended_ns)
    gaps = np.sort(np.diff(schedule.intended_ns))
    axes.set_title("Gaps between arrivals: the share that is longer")
    positive = gaps[gaps > 0]
    if len(positive) == 0:
        axes.text(0.5, 0.5, "all arrivals at one time", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    longer = 1 - np.arange(1, len(gaps) + 1) / len(gaps)
    shown = np.unique(np.linspace(len(gaps) - len(positive), len(gaps) - 1, 2000).astype(np.int64))
    low, high = float(positive[0]), float(positive[-1])
    axes.plot(gaps[shown], longer[shown], color=_BLUE, linewidth=1.5, drawstyle="steps-post", label="this schedule")
    assert figures.gap_mean_ns is not None
    grid = np.geomspace(max(min(low, figures.gap_mean_ns / 100), 1), max(high, figures.gap_mean_ns * 10), 300)
    axes.plot(
        grid, np.exp(-grid / figures.gap_mean_ns), color=_GREY, linewidth=1, linestyle=(0, (5, 3)), label="Poisson at the same mean rate"
    )
    axes.set_xscale("log")
    # A clock that stepped a few ns must not stretch the axis over empty decades.
    axes.set(xlim=(max(figures.gap_mean_ns / 1000, grid[0]), grid[-1]), ylim=(0, 1.02), xlabel="gap")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ns, _: format_duration(ns).replace(".00", "").replace(".0", "")))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    shape = [
        f"cv {figures.gap_cv:.2f}" if figures.gap_cv is not None else "",
        f"dispersion (1 s) {figures.dispersion_1s:.2f}" if figures.dispersion_1s is not None else "",
    ]
    if figures.zero_gaps:
        shape.append(f"{figures.zero_gaps / len(gaps):.0%} of the gaps are 0")
    axes.text(0.99, 0.62, "\n".join(filter(None, shape)), transform=axes.transAxes, ha="right", va="top", color=_GREY)
    axes.legend(frameon=False, loc="upper right")
