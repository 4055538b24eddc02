"""What all pictures of a page look alike in: lines, letters, axes of time, and how a figure becomes an SVG."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "coldburst",
}


def svg_of(figure: Figure, note: str = "") -> bytes:
    """The figure as an SVG without a date, so that the same numbers give the same bytes."""
    if note:
        figure.supxlabel(note, fontsize=8, color="#666666", x=0.01, ha="left")
    FigureCanvasSVG(figure)
    target = io.BytesIO()
    figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return target.getvalue()


def log_time_axis(axes: Axes, axis: Axis | None = None, *, steps_up_to: float = 100) -> None:
    """Make the axis (else the y axis) of times in ms logarithmic, its ticks with the unit that fits: 10 ms, 1 s.

    Ticks stand at 1, 2 and 5 of each decade, where the view is wider than `steps_up_to` at 1 alone; so call it when the limits
    are as they will be.
    """
    axis = axis or axes.yaxis
    low, high = axis.get_data_interval()
    if 0 < low == high:  # nothing but the line of an SLO
        (axes.set_xlim if axis is axes.xaxis else axes.set_ylim)(low / 10, high * 10)
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > max(low, 1e-9) * steps_up_to else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda ms, _: _plain_duration(ms * 1e6)))
    axis.set_minor_formatter(NullFormatter())


def _plain_duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size * 0.999:
            return f"{ns / size:g} {unit}"
    return f"{ns:.0f} ns"
