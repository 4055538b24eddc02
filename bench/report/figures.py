"""Pictures of cold starts. Every axis names its unit; phases keep their colours from bench.report.colours."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.report.colours import PHASE_COLOURS
from bench.units import format_duration

if TYPE_CHECKING:
    from bench.analysis.phases import ColdStartSummary, LevelSummary

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it talks about its font cache when it first runs on a machine

_CHARACTER_SHARE = 0.0095  # of the longest bar, that a letter of a label takes


def waterfall(summary: ColdStartSummary, subject: str, target: Path | BinaryIO) -> None:
    """`waterfall_figure` under what it belongs to and what it says; written as PNG."""
    waterfall_figure(summary, f"{subject}\n{_wrapped(summary.sentence)}").savefig(target, dpi=130, format="png")


def waterfall_figure(summary: ColdStartSummary, title: str = "") -> Figure:
    """One bar a level: the trial with the median total, its phases from left to right in the order in which they happen (ms)."""
    levels = [level for level in summary.levels if level.level != "warm"] or list(summary.levels)
    height = 1.6 + 0.95 * len(levels)
    figure = Figure(figsize=(11, height), layout="constrained")
    axes = figure.subplots()
    shown: dict[str, str] = {}
    longest = max((_end_ms(level) for level in levels), default=1.0)
    for row, level in enumerate(levels):
        _draw_level(axes, row, level, longest, shown)
    axes.set_yticks(range(len(levels)), [f"{level.variant}\n{level.level}".strip() for level in levels])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.2)
    axes.set_xlabel("time from the start of the trial to the first correct answer, ms (the trial with the median total)")
    axes.set_title(title.replace("$", r"\$"), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    handles = [Patch(facecolor=colour) for colour in shown.values()]
    figure.legend(handles, [name.replace("_", " ") for name in shown], loc="outside lower center", ncols=8, fontsize=8, frameon=False)
    if not summary.valid:
        figure.text(0.5, 0.5, "INVALID RUN", fontsize=48, color="#d00000", alpha=0.25, ha="center", va="center", rotation=12)
    return figure


def _draw_level(axes: Axes, row: int, level: LevelSummary, longest: float, shown: dict[str, str]) -> None:
    left = 0.0
    for phase in level.phases:
        if not phase.in_total:
            continue
        width = max(0.0, phase.typical_ns / 1e6)
        colour = PHASE_COLOURS.get(phase.name, "#777777")
        axes.barh(row, width, left=left, height=0.62, color=colour, edgecolor="white", linewidth=0.5)
        if width >= longest * 0.002:
            shown.setdefault(phase.name, colour)
        name, duration = phase.name.replace("_", " "), format_duration(phase.typical_ns)
        if width >= longest * _CHARACTER_SHARE * max(len(name), len(duration)):
            axes.text(left + width / 2, row, f"{name}\n{duration}", ha="center", va="center", fontsize=7.5, color=_ink(colour))
        left += width
    label = f"{format_duration(left * 1e6)} ({level.total.samples} trials)"
    axes.text(left + longest * 0.008, row, label, va="center", fontsize=8.5, fontweight="bold")


def _end_ms(level: LevelSummary) -> float:
    return sum(max(0.0, phase.typical_ns) for phase in level.phases if phase.in_total) / 1e6


def _ink(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 120))
