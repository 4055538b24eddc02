"""Pictures of a cold-start run that return a figure: the levels beside each other, and memory as the process comes up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.report.colours import PHASE_COLOURS
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.cold_start_run import ColdStartRun
    from bench.analysis.phases import LevelSummary

_STYLE: dict[Any, Any] = {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
_WAITING, _READY, _INK = "#D55E00", "#009E73", "#1b2530"


def levels_figure(run: ColdStartRun) -> Figure:
    """Each trial's time to the first correct answer as a dot, the median as a line and its 95 % interval as a band, by level.

    Logarithmic, because a warm slot and a new process lie orders of magnitude apart.
    """
    levels = run.summary.levels
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 0.8 + 0.55 * len(levels)), layout="constrained")
        axes = figure.subplots()
        spread = np.random.default_rng(0)  # only moves dots apart
        for row, level in enumerate(levels):
            colour = _READY if level.level == "warm" else _WAITING
            totals = run.totals[level.variant, level.level] / 1e6
            axes.scatter(totals, row + spread.uniform(-0.16, 0.16, len(totals)), s=14, color=colour, alpha=0.45, linewidth=0, zorder=3)
            if level.total.interval is not None:
                low, high = level.total.interval.low / 1e6, level.total.interval.high / 1e6
                axes.barh(row, high - low, left=low, height=0.62, color=colour, alpha=0.18, linewidth=0)
            median = level.total.median / 1e6
            axes.plot([median, median], [row - 0.31, row + 0.31], color=colour, linewidth=2.4, zorder=4)
            axes.text(1.01, row, format_duration(level.total.median), transform=axes.get_yaxis_transform(), va="center", fontweight="bold")
        axes.set_xscale("log")
        axes.set_yticks(range(len(levels)), [_name(level) for level in levels])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(LogLocator(base=10))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: format_duration(ms * 1e6).replace(".00", "").replace(".0 ", " ")))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("time to the first correct answer (log scale); dots: trials, line: median, band: its 95 % interval")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def memory_figure(level: LevelSummary) -> Figure:
    """Resident memory of the process after each phase, in the order in which they happen (medians, MB)."""
    known = [(phase.name, phase.resident_bytes) for phase in level.phases if phase.in_total and phase.resident_bytes is not None]
    known = [(name, size) for name, size in known if name != "unattributed"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        axes = figure.subplots()
        names, sizes = [name.replace("_", " ") for name, _ in known], [size / 1e6 for _, size in known]
        colours = [PHASE_COLOURS.get(name, "#777777") for name, _ in known]
        axes.bar(range(len(known)), sizes, width=0.72, color=colours)
        before = 0.0
        for index, size in enumerate(sizes):
            grown = size - before
            # What is less than a hundredth of the whole is no step that one could see.
            label = "" if abs(grown) < 0.01 * max(sizes) else f"+{format_size(grown * 1e6)}" if before else format_size(size * 1e6)
            axes.text(index, size, label, ha="center", va="bottom", fontsize=8, color=_INK)
            before = size
        axes.set_xticks(range(len(known)), names, rotation=30, ha="right")
        axes.set_ylabel("resident memory, MB")
        axes.set_ylim(0, max(sizes, default=1.0) * 1.12)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _name(level: LevelSummary) -> str:
    return f"{level.variant} {level.level}".strip()
