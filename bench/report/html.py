"""Pages as one HTML file that needs no network, no script and no other file: for a mail, a wiki, a review."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.report.page import Page, Picture, Table

_LONG_CELL = 22
_LETTERS_IN_HALF = 58
_STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --line: #d9dee3; --wash: #f5f7f9; --good: #00664a; --bad: #a3001d; }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; color: var(--ink);
  background: #fff; }
main, header.top, nav { max-width: 1240px; margin: 0 auto; padding: 0 20px; }
nav { padding-top: 14px; }
nav a { margin-right: 18px; }
header.top { padding-top: 20px; }
h1 { font-size: 20px; line-height: 1.3; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 8px; padding-top: 10px; border-top: 1px solid var(--line); }
h3 { font-size: 15px; margin: 18px 0 4px; overflow-wrap: anywhere; }
p { margin: 6px 0; }
.sub { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: 1px 9px; border-radius: 10px; font-size: 13px; font-weight: 600; border: 1px solid var(--soft);
  color: var(--soft); margin: 8px 8px 0 0; }
.badge.good { border-color: var(--good); color: var(--good); }
.badge.bad { border-color: var(--bad); color: #fff; background: var(--bad); }
.verdict { font-size: 18px; line-height: 1.4; margin: 14px 0; padding: 12px 16px; background: var(--wash); border-left: 4px solid #0072b2;
  overflow-wrap: anywhere; }
.verdict.bad { border-left-color: var(--bad); }
.invalid { color: var(--bad); font-weight: 600; overflow-wrap: anywhere; }
.first { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 4px 28px; align-items: start; }
.pictures { columns: 2; column-gap: 28px; }
.pictures figure { break-inside: avoid; padding-bottom: 14px; }
.pictures h3 { margin-top: 0; }
.first.wide { grid-template-columns: minmax(0, 1fr); }
figure { margin: 0 0 6px; }
figure img { width: 100%; height: auto; display: block; }
.first.wide img[src^="data:image/svg"] { max-width: 760px; }
figcaption { color: var(--soft); font-size: 13px; }
/* A shade at the edge behind which there is more: white covers it where one has scrolled to the end. */
.scroll { overflow-x: auto; background:
  linear-gradient(to left, #fff 50%, transparent) right / 44px 100% no-repeat local,
  linear-gradient(to left, rgb(27 31 36 / 24%), transparent) right / 16px 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 14px; margin: 6px 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 0 3px 16px; border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 8em; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--soft); white-space: normal; vertical-align: bottom; }
.first thead th { color: var(--ink); }
td.long { white-space: normal; min-width: 11em; }
.first table { width: 100%; }
.text td, .text th { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.text td:nth-child(n+2) { min-width: 12em; }
.note { color: var(--soft); font-size: 13px; max-width: 75em; }
dl { display: grid; grid-template-columns: minmax(8em, 14em) minmax(0, 1fr); gap: 4px 18px; margin: 8px 0; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: 8px 0; } summary { cursor: pointer; }
ul { padding-left: 20px; margin: 6px 0; } li { margin: 3px 0; overflow-wrap: anywhere; }
footer { max-width: 1240px; margin: 30px auto; padding: 10px 20px; color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); }
@media (max-width: 820px) {
  .first, dl { grid-template-columns: minmax(0, 1fr); }
  .pictures { columns: 1; }
  dd { margin-bottom: 6px; }
  main, header.top, nav { padding-left: 14px; padding-right: 14px; }
  .verdict { font-size: 16px; padding: 10px 12px; }
  .first table { font-size: 13px; } th, td { padding-left: 10px; }
  th:first-child, td:first-child { min-width: 6em; }
  .scroll th:first-child { position: sticky; left: 0; background: #fff; }
}
@media print { details > * { display: block; } }
"""


def render(pages: Sequence[Page], version: str) -> str:
    """One document; several pages follow each other under a list of links."""
    title = pages[0].title if len(pages) == 1 else f"{len(pages)} runs"
    links = "".join(f'<a href="#run-{n}">{escape(page.subtitle)}</a>' for n, page in enumerate(pages)) if len(pages) > 1 else ""
    body = "\n".join(_page(page, number) for number, page in enumerate(pages))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"{f'<nav>{links}</nav>' if links else ''}\n{body}\n"
        f"<footer>Made by coldburst {escape(version)}. How to read this page: docs/report.md.</footer>\n</body>\n</html>\n"
    )


def _page(page: Page, number: int) -> str:
    badges = "".join(f'<span class="badge {kind}">{escape(text)}</span>' for text, kind in page.badges)
    # The verdict names the first reason itself.
    invalid = "".join(f'<p class="invalid">Not valid either: {escape(reason)}</p>' for reason in page.invalid[1:4])
    if len(page.invalid) > 4:
        invalid += f'<p class="invalid">and {len(page.invalid) - 4} more, below</p>'
    first_picture = page.pictures[:1]
    parts = [
        f'<header class="top" id="run-{number}">\n<h1>{escape(page.title)}</h1>',
        f'<div class="sub">{escape(page.subtitle)}</div>\n{badges}\n</header>',
        "<main>",
        f'<p class="verdict{" bad" if page.invalid else ""}">{escape(page.sentence)}</p>',
        invalid,
        f'<div class="first{" wide" if _wide(page.main) else ""}"><div>{_table(page.main, heading="")}</div>',
        "".join(_figure(picture) for picture in first_picture) + "</div>",
        _list("Comparisons", page.statements),
        _list("Before you use a number", page.caveats),
        f'<h2>Pictures</h2>\n<div class="pictures">{"".join(_figure(p) for p in page.pictures[1:])}</div>' if page.pictures[1:] else "",
        "<h2>All numbers</h2>" if page.tables else "",
        *(_table(table, heading="h3") for table in page.tables if table.rows),
        _checks(page),
        f"<h2>Environment</h2>\n{_pairs(page.facts)}",
        f"<h2>Method</h2>\n{_pairs(page.method)}",
        "</main>",
    ]
    return "\n".join(part for part in parts if part)


def _figure(picture: Picture) -> str:
    return (
        f'<figure id="{escape(picture.name)}"><h3>{escape(picture.title)}</h3>'
        f'<img src="{picture.data_uri}" alt="{escape(picture.alt)}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
    )


def _table(table: Table, *, heading: str, kind: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join('<tr><th scope="row">' + escape(row[0]) + "</th>" + "".join(map(_cell, row[1:])) + "</tr>\n" for row in table.rows)
    title = f"<{heading}>{escape(table.title)}</{heading}>" if heading else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'{title}<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _wide(table: Table) -> bool:
    """Whether the table needs the page's whole width: half of it has room for so many letters beside the first column."""
    columns = zip(table.header, *table.rows, strict=True)
    next(columns)
    widths = [max((*(len(piece) for piece in head.replace("-", "- ").split()), *map(len, cells)), default=0) for head, *cells in columns]
    return sum(2 + min(width, _LONG_CELL) for width in widths) > _LETTERS_IN_HALF


def _cell(text: str) -> str:
    """A number stays with its unit; only what is long may break, into a few lines."""
    return f'<td class="long">{escape(text)}</td>' if len(text) > _LONG_CELL else f"<td>{escape(text)}</td>"


def _checks(page: Page) -> str:
    if not page.checks:
        return ""
    failed = [table for table in page.checks if any(row[-1].startswith("INVALID") for row in table.rows)]
    said = f"{len(failed)} of {len(page.checks)} runs are not valid." if failed else f"All {len(page.checks)} runs are valid."
    tables = "".join(
        f"<details{' open' if table in failed else ''}><summary>{escape(table.title)}</summary>"
        f"{_table(table, heading='', kind='text')}</details>"
        for table in page.checks
    )
    return f"<h2>Validity</h2><p>{said} What was delivered against what was asked for, and the generator's own health:</p>{tables}"


def _list(title: str, entries: Sequence[str]) -> str:
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(entry)}</li>' for entry in entries)}</ul>" if entries else ""


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs if text) + "</dl>"
