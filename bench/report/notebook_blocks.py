"""What notebooks show besides text and pictures: the verdict, key figures and tables.

Each is a `Block`, which Jupyter and nbconvert draw alike. The style is inline, because a notebook has no style sheet.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report.page import Picture, Table

ABSENT = "data-absent"  # marks what says only why there is nothing
_TILE = "flex:1 1 9.5rem;padding:.7rem 1rem;border:1px solid #dfe4e9;border-top:3px solid {colour};border-radius:4px;background:#fff"
_FACT = "padding:.18rem .9rem .18rem 0;text-align:left;vertical-align:top"
_NOTE = "font-size:.85rem;line-height:1.45;color:#56636f;max-width:46rem"
_SOFTWARE = ("Python", "packages", "commit", "command")
_PICTURE_WIDTH = "760px"
_NARROW = 30  # characters: a longer text may be broken into lines


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of HTML that a notebook shows."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One number that everybody should see: its value with the unit, what it is, and how sure (interval, samples)."""

    value: str
    label: str
    note: str = ""
    colour: str = "#0072B2"


def verdict(problems: Sequence[str], caveats: Sequence[str] = (), refuted: Sequence[str] = ()) -> Block:
    """Whether the numbers may be used: the reasons against it, what a measurement refutes, and what to keep in mind."""
    colour, tint, sign, head = ("#b3261e", "#fdecea", "✕", "Not valid: do not use these numbers")
    if not problems and refuted:
        head = "Refuted: do not size by this plan"
    elif not problems:
        colour, tint, sign, head = ("#00694d", "#e6f4ef", "✓", "Valid: the run's own checks passed")
    items = "".join(f"<li>{_text(reason)}</li>" for reason in (*problems, *refuted))
    notes = "".join(f"<li>{_text(caveat)}</li>" for caveat in caveats)
    body = f'<div style="font-weight:600;color:{colour}"><span aria-hidden="true">{sign}</span> {head}</div>'
    body += f'<ul style="margin:.3rem 0 0;padding-left:1.4rem">{items}</ul>' if items else ""
    body += f'<div style="margin-top:.4rem">Keep in mind:</div><ul style="margin:0;padding-left:1.4rem">{notes}</ul>' if notes else ""
    return Block(
        f'<div role="note" style="border-left:5px solid {colour};background:{tint};padding:.8rem 1.1rem;margin:.6rem 0;'
        f'border-radius:3px;color:#1b2530">{body}</div>'
    )


def key_figures(figures: Sequence[KeyFigure]) -> Block:
    """The figures in a row, which wraps where the page is narrow."""
    tiles = "".join(
        f'<div style="{_TILE.format(colour=figure.colour)}">'
        f'<div style="font-size:.85rem;line-height:1.3;color:#56636f">{_text(figure.label)}</div>'
        f'<div style="font-size:1.7rem;font-weight:600;line-height:1.35;white-space:nowrap">{_text(figure.value)}</div>'
        f'<div style="font-size:.8rem;line-height:1.3;color:#56636f">{_text(figure.note)}</div></div>'
        for figure in figures
    )
    return Block(f'<div style="display:flex;flex-wrap:wrap;gap:.7rem;margin:.8rem 0;color:#1b2530">{tiles}</div>')


def table(content: Table, *, folded: bool = False, absent: str = "") -> Block:
    """The table with its note below; `folded`, behind its title; where it has no rows, `absent` says why.

    A column with long texts is on the left and may be broken into lines, others on the right. A first cell that says what
    the one above says is grey, so that groups are seen.
    """
    if not content.rows:
        return _absent(absent)
    sides = ["left"] + ["left" if any(len(row[n]) > _NARROW for row in content.rows) else "right" for n in range(1, len(content.header))]
    head = "".join(_cell(name, side, "col") for name, side in zip(content.header, sides, strict=True))
    rows, above = [], ""
    for first, *others in content.rows:
        cells = [
            _cell(first, "left", "row", grey=first == above),
            *(_cell(text, side) for text, side in zip(others, sides[1:], strict=True)),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
        above = first
    note = f'<div style="{_NOTE}">{_text(content.note)}</div>' if content.note else ""
    whole = (
        '<div style="overflow-x:auto;margin:.6rem 0"><table style="border-collapse:collapse;font-size:.9rem;line-height:1.35;'
        f'font-variant-numeric:tabular-nums;color:#1b2530"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{note}'
    )
    title = f'<summary style="cursor:pointer;color:#0b5394">{_text(content.title)}: the numbers</summary>'
    return Block(f'<details style="margin:.6rem 0">{title}{whole}</details>' if folded else whole)


def facts(pairs: Sequence[tuple[str, str]]) -> Block:
    """Names and texts, such as an environment: what every number belongs to. The software is folded away."""
    seen = [pair for pair in pairs if pair[0] not in _SOFTWARE]
    folded = [pair for pair in pairs if pair[0] in _SOFTWARE and pair[1]]
    more = f'<details><summary style="cursor:pointer;color:#0b5394">software</summary>{_pairs(folded)}</details>' if folded else ""
    return Block(_pairs(seen) + more)


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="{_FACT};font-weight:400;color:#56636f;min-width:7em">{_text(name)}</th>'
        f'<td style="{_FACT};white-space:normal;overflow-wrap:anywhere">{_text(text)}</td></tr>'
        for name, text in pairs
        if text
    )
    style = "border-collapse:collapse;font-size:.9rem;line-height:1.4;margin:.6rem 0;color:#1b2530"
    return f'<table style="{style}"><tbody>{rows}</tbody></table>'


def picture(content: Picture | None, *, absent: str = "") -> Block:
    """The picture with how to read it below; where there is none, `absent` says why."""
    if content is None:
        return _absent(absent)
    return Block(
        f'<figure style="margin:.8rem 0;max-width:{_PICTURE_WIDTH}"><img src="{content.data_uri}" alt="{_text(content.alt)}" '
        f'style="width:100%;height:auto;display:block"><figcaption style="{_NOTE}">{_text(content.caption)}</figcaption></figure>'
    )


def _absent(why: str) -> Block:
    return Block(f'<div {ABSENT} style="{_NOTE};font-style:italic">{_text(why)}</div>' if why else "")


def _cell(text: str, side: str, scope: str | None = None, *, grey: bool = False) -> str:
    wrap = "normal" if scope == "col" or len(text) > _NARROW else "nowrap"
    style = f"padding:.32rem .55rem;border-bottom:1px solid #e6eaee;text-align:{side};white-space:{wrap};vertical-align:top"
    if wrap == "normal" and scope != "col":
        style += ";min-width:11em"  # on a narrow screen the table is scrolled, not its words stacked
    if scope == "col":
        style += ";border-bottom:2px solid #97a3ae;vertical-align:bottom;font-weight:600;color:#3b4854"
    elif scope == "row":
        style += ";font-weight:400;color:#6b7783" if grey else ";font-weight:600"
    return f'<th scope="{scope}" style="{style}">{_text(text)}</th>' if scope else f'<td style="{style}">{_text(text)}</td>'


def _text(value: object) -> str:
    return html.escape(str(value))
