"""What a user is told of a trace that was read: what was decided on the way, and whether its clock is too coarse."""

from __future__ import annotations

from typing import Any

from bench.load.traces.transform import Ints, smallest_gap
from bench.units import format_duration

_COARSE_NS = 100_000_000


def coarse_tick_ns(times_ns: Ints) -> int | None:
    """The smallest gap between two times (sorted), where several arrivals have the same time and no gap is under 100 ms; else None."""
    if not (times_ns[1:] == times_ns[:-1]).any() or times_ns[0] == times_ns[-1]:
        return None
    tick = smallest_gap(times_ns)
    return tick if tick >= _COARSE_NS else None


def how_it_was_read(about: Any) -> list[str]:
    """What was decided on the way from the file to the arrivals."""
    lines = [
        f"format      {about['format']}, told by {about['format_told_by']}"
        + ("" if about["format_told_by"] == "the option" else " (--format overrides)")
    ]
    if about["compression"] != "none" or about["encoding"] != "utf-8":
        lines.append(f"file        {about['compression']}, {about['encoding']}")
    lines.append(f"unit        {about['unit']}; origin {about['origin']}")
    lines += [f"{key if len(key) < 11 else '':<12}{note if len(key) < 11 else f'{key}: {note}'}" for key, note in about["notes"].items()]
    others = f", {about['rows_of_other_kinds']:,} of other kinds" if about["rows_of_other_kinds"] else ""
    lines.append(
        f"rows        {about['rows']:,} read, {about['rows_bad']:,} of them unreadable and left out, "
        f"blank lines: {about['lines_blank']:,}{others}"
    )
    lines += [f"            line {bad['line']}: {bad['why']}" for bad in about["first_bad"]]
    if about["rows_out_of_order"]:
        lines.append(
            f"order       {about['rows_out_of_order']:,} rows out of order (backward steps: {about['backward_steps']:,}), sorted stably"
        )
    for step in about["transformations"]:
        shown = ", ".join(f"{key.removesuffix('_ns')} {_shown(key, value)}" for key, value in step.items() if key != "step")
        lines.append(f"{step['step']:<12}{shown}")
    return lines


def _shown(key: str, value: Any) -> str:
    if key.endswith("_ns"):
        return "the end" if value is None else format_duration(value)
    return f"{value:,}" if isinstance(value, int) else f"{value}"
