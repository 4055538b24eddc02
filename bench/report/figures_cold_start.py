"""Pictures of a cold-start run: how far the levels lie apart, where the time goes, and memory as the process comes up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.report.colours import PHASE_COLOURS
from bench.report.figure_style import STYLE, svg_of
from bench.report.figures import waterfall_figure
from bench.report.page import Picture
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.cold_start_run import ColdStartRun
    from bench.analysis.phases import ColdStartSummary, LevelSummary

_STYLE: dict[Any, Any] = {**STYLE, "axes.grid": False}
_WAITING, _READY, _INK = "#D55E00", "#009E73", "#1b2530"
_VISIBLE_STEP = 0.01  # of the largest: a smaller one has no label


def levels_picture(run: ColdStartRun) -> Picture:
    """Each trial's time to the first correct answer, by level. Logarithmic, because a warm slot and a new process lie
    orders of magnitude apart."""
    levels = run.summary.levels
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 0.9 + 0.5 * len(levels)), layout="constrained")
        axes = figure.subplots()
        spread = np.random.default_rng(0)  # only moves dots apart
        for row, level in enumerate(levels):
            colour = _READY if level.level == "warm" else _WAITING
            totals = run.totals[level.variant, level.level] / 1e6
            axes.scatter(totals, row + spread.uniform(-0.16, 0.16, len(totals)), s=16, color=colour, alpha=0.5, linewidth=0, zorder=3)
            if level.total.interval is not None:
                low, high = level.total.interval.low / 1e6, level.total.interval.high / 1e6
                axes.barh(row, high - low, left=low, height=0.62, color=colour, alpha=0.18, linewidth=0)
            median = level.total.median / 1e6
            axes.plot([median, median], [row - 0.31, row + 0.31], color=colour, linewidth=2.4, zorder=4)
            axes.text(1.01, row, format_duration(level.total.median), transform=axes.get_yaxis_transform(), va="center", fontweight="bold")
        axes.set_xscale("log")
        axes.set_yticks(range(len(levels)), [f"{level.variant} {level.level}".strip() for level in levels])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(LogLocator(base=10))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: format_duration(ms * 1e6).replace(".00", "").replace(".0 ", " ")))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("time to the first correct answer (log scale)")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        data = svg_of(figure)
    return Picture(
        name="levels",
        title="How far apart the levels lie",
        data=data,
        alt="Time to the first correct answer of every trial, by level, on a logarithmic axis, with medians on the right.",
        caption=(
            "Each dot is one trial, the line is the median, the band its 95 % interval. From one grid line to the next it is ten "
            "times as long."
        ),
    )


def waterfall_picture(summary: ColdStartSummary) -> Picture:
    """The phases of each cold level, from left to right."""
    return Picture(
        name="waterfall",
        title="Where a cold start's time goes",
        data=svg_of(waterfall_figure(summary)),
        alt="One bar for each level of cold start, made of its phases in the order in which they happen.",
        caption=(
            "The phases of one trial of each level, the one with the median total, until the first correct answer, as they happen. What no "
            "phase covers is shown too, as unattributed; a run with more than 3 % of it is not valid."
        ),
    )


def memory_picture(level: LevelSummary) -> Picture | None:
    """Resident memory of the process after each phase, in the order in which they happen. None where it is not known."""
    known = [(phase.name, phase.resident_bytes / 1e6) for phase in level.phases if phase.in_total and phase.resident_bytes is not None]
    known = [(name, size) for name, size in known if name != "unattributed"]
    if not known:
        return None
    largest = max(size for _, size in known)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.3), layout="constrained")
        axes = figure.subplots()
        axes.bar(
            range(len(known)), [size for _, size in known], width=0.72, color=[PHASE_COLOURS.get(name, "#777777") for name, _ in known]
        )
        before = 0.0
        for index, (_, size) in enumerate(known):
            grown = size - before
            if abs(grown) >= _VISIBLE_STEP * largest:
                label = format_size(size * 1e6) if index == 0 else f"{'+' if grown > 0 else '−'}{format_size(abs(grown) * 1e6)}"
                axes.text(index, size + 0.015 * largest, label, ha="center", va="bottom", fontsize=9, color=_INK)
            before = size
        axes.set_xticks(range(len(known)), [name.replace("_", " ") for name, _ in known], rotation=30, ha="right", rotation_mode="anchor")
        axes.set_ylabel("resident memory, MB")
        axes.set_ylim(0, largest * 1.14)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        data = svg_of(figure)
    return Picture(
        name="memory",
        title="Memory as the process comes up",
        data=data,
        alt="Resident memory of the process after each phase of its start, in MB.",
        caption=f"Resident memory after each phase, medians of {level.total.samples} trials; steps of 1 % or more are labelled.",
    )
