"""A page as Markdown for a pull request: the verdict, what is wrong, the main table; no pictures."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.page import Page, Table


def render(pages: Sequence[Page]) -> str:
    """The pages one after the other."""
    return "\n".join(_page(page) for page in pages)


def _page(page: Page) -> str:
    badges = " ".join(f"`{text}`" for text, _ in page.badges)
    lines = [f"### {_plain(page.title)}", "", f"{badges} {_plain(page.subtitle)}", ""]
    lines += [f"- **Not valid either:** {_plain(reason)}" for reason in page.invalid[1:]] + ([""] if page.invalid[1:] else [])
    lines += [f"**{_plain(page.sentence)}**", "", *_table(page.main), ""]
    lines += [f"- {_plain(statement)}" for statement in page.statements] + ([""] if page.statements else [])
    if page.caveats:
        lines += [
            "<details><summary>Before you use a number</summary>",
            "",
            *(f"- {_plain(caveat)}" for caveat in page.caveats),
            "",
            "</details>",
            "",
        ]
    return "\n".join(lines)


def _table(table: Table) -> list[str]:
    head = "| " + " | ".join(_plain(cell) or " " for cell in table.header) + " |"
    rule = "|---|" + "---:|" * (len(table.header) - 1)
    rows = ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in table.rows]
    return [head, rule, *rows, *(["", _plain(table.note)] if table.note else [])]


def _plain(text: str) -> str:
    """Text that Markdown takes as it is."""
    for sign in ("\\", "|", "*", "_", "<", "`"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
