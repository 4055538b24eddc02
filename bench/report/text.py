"""A page for the terminal: validity first, then the main table, the comparisons and the verdict; or the verdict first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.report.page import Page, Table


def render(page: Page, console: Console) -> None:
    """Print the page, its verdict last, where it stands beside the prompt."""
    _notes(page, console)
    console.print(Text(page.title, style="bold"))
    _table(page.main, console)
    for statement in page.statements:
        console.print(Text(f"  {statement}"))
    console.print(Text(f"\n{page.sentence}", style="bold"))


def render_answer(page: Page, console: Console, tables: Sequence[str] = ()) -> None:
    """Print a page that answers a question: the answer first, then the tables, those of the page named by `tables` too."""
    console.print(Text(f"{page.sentence}\n", style="bold"))
    _notes(page, console)
    console.print(Text(page.title, style="bold"))
    _table(page.main, console)
    for statement in page.statements:
        console.print(Text(f"  {statement}"))
    for table in (one for one in page.tables if one.title in tables):
        console.print(Text(f"\n{table.title}", style="bold"))
        _table(table, console)


def _notes(page: Page, console: Console) -> None:
    for reason in page.invalid:
        console.print(Text(f"INVALID  {reason}", style="bold red"))
    for caveat in page.caveats:
        console.print(Text(f"note     {caveat}", style="yellow"))


def _table(content: Table, console: Console) -> None:
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(content.header):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in content.rows:
        table.add_row(*row)
    console.print(table)
    if content.note:
        console.print(Text(content.note))
