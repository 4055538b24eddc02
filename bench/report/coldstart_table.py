"""A cold-start summary as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.analysis.phases import ColdStartSummary, LevelSummary, Spread, describe_comparison, requests_worth
from bench.report.colours import PHASE_COLOURS
from bench.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR_WIDTH = 20


def render(summary: ColdStartSummary, subject: str, console: Console) -> None:
    """Print validity first, then the levels, their phases, the comparisons and the answer."""
    for reason in summary.invalid:
        console.print(Text(f"INVALID  {reason}", style="bold red"))
    for caveat in summary.caveats:
        console.print(Text(f"note     {caveat}", style="yellow"))
    console.print(Text(subject, style="bold"))
    console.print(_levels_table(summary))
    main = next((level for level in summary.levels if level.level == "process"), summary.levels[0] if summary.levels else None)
    if main is not None:
        console.print(_phases_table(main))
    if len(summary.levels) > 1:
        console.print(_matrix(summary))
    console.print(_closing(summary))


def _levels_table(summary: ColdStartSummary) -> RenderableType:
    table = _table("until the first correct answer")
    several = len({level.variant for level in summary.levels}) > 1
    for name in (*(("variant",) if several else ()), "level"):
        table.add_column(name, no_wrap=True)
    for name in ("median", "95 % interval", "p95", "before inference", "requests' worth", "resident", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    for level in summary.levels:
        worth = requests_worth(level, summary.level("warm", level.variant))
        table.add_row(
            *((level.variant,) if several else ()),
            level.level,
            *_spread_cells(level.total),
            format_duration(level.before_inference.median) if level.level != "warm" else "-",
            format_count(worth) if worth is not None else "-",
            format_size(level.resident_bytes),
            str(level.total.samples),
        )
    return table


def _phases_table(level: LevelSummary) -> RenderableType:
    title = f"\n{level.variant + ' ' if level.variant else ''}{level.level}: where its time goes"
    table = _table(title)
    table.add_column("phase", no_wrap=True, min_width=16)
    for name in ("median", "95 % interval", "p95", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=_BAR_WIDTH)
    table.add_column("resident", justify="right", no_wrap=True)
    for phase in level.phases:
        share = "after" if phase.share is None else f"{phase.share:.1%}"
        width = 0 if phase.share is None else max(0, round(phase.share * _BAR_WIDTH))
        table.add_row(
            phase.name,
            *_spread_cells(phase.spread),
            share,
            Text("█" * width, style=PHASE_COLOURS.get(phase.name, "#777777")),
            format_size(phase.resident_bytes),
            style="dim" if phase.share is None else None,
        )
    return table


def _matrix(summary: ColdStartSummary) -> RenderableType:
    """The median of each phase, side by side for all levels (the intervals are in summary.json)."""
    table = _table("\nby level, medians (* after the answer)")
    table.add_column("phase", no_wrap=True, min_width=16)
    for level in summary.levels:
        table.add_column(f"{level.variant}\n{level.level}".strip(), justify="right", vertical="bottom", no_wrap=True)
    by_level = [{phase.name: phase for phase in level.phases} for level in summary.levels]
    # A process's phases first: they are in the order in which they happen, and other levels have some of them.
    in_order = sorted(summary.levels, key=lambda level: level.level != "process")
    for name in dict.fromkeys(phase.name for level in in_order for phase in level.phases):
        cells = []
        for phases in by_level:
            phase = phases.get(name)
            cells.append("" if phase is None else format_duration(phase.spread.median) + (" " if phase.in_total else "*"))
        table.add_row(name, *cells)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _spread_cells(spread: Spread) -> tuple[str, str, str]:
    between = f"{format_duration(spread.interval.low)} .. {format_duration(spread.interval.high)}" if spread.interval else "-"
    return format_duration(spread.median), between, format_duration(spread.p95)


def _closing(summary: ColdStartSummary) -> RenderableType:
    lines = [""]
    lines += [f"  {describe_comparison(comparison)}" for comparison in summary.comparisons]
    if summary.floors:
        floors = "; ".join(f"{name}: {format_duration(spread.median)}" for name, spread in summary.floors.items())
        lines.append(f"  floors in the same run: {floors} (medians)")
    text = Text("\n".join(lines))
    text.append(f"\n\n{summary.sentence[:1].upper()}{summary.sentence[1:]}.", style="bold")
    return text
