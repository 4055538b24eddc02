"""A page for the terminal: validity first, then the main table, the comparisons and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.report.page import Page


def render(page: Page, console: Console) -> None:
    """Print the page."""
    for reason in page.invalid:
        console.print(Text(f"INVALID  {reason}", style="bold red"))
    for caveat in page.caveats:
        console.print(Text(f"note     {caveat}", style="yellow"))
    console.print(Text(page.title, style="bold"))
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(page.main.header):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in page.main.rows:
        table.add_row(*row)
    console.print(table)
    if page.main.note:
        console.print(Text(page.main.note))
    for statement in page.statements:
        console.print(Text(f"  {statement}"))
    console.print(Text(f"\n{page.sentence}", style="bold"))
