"""What notebooks show besides text and pictures: the verdict, key figures and tables.

Each is a `Block`, which Jupyter and nbconvert draw alike. The style is inline, because a notebook has no style sheet.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_TILE = "flex:1 1 9.5rem;padding:.7rem 1rem;border:1px solid #dfe4e9;border-top:3px solid {colour};border-radius:4px;background:#fff"
_CELL = "padding:.32rem .9rem;border-bottom:1px solid #e6eaee;text-align:{side};white-space:{wrap};vertical-align:top"
_NARROW = 34  # characters: a longer text may be broken into lines


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


def verdict(problems: Sequence[str], caveats: Sequence[str] = ()) -> Block:
    """Whether the numbers may be used: the reasons against it, and what to keep in mind."""
    colour, tint, sign, head = ("#b3261e", "#fdecea", "✕", "Not valid: do not use these numbers")
    if not problems:
        colour, tint, sign, head = ("#00694d", "#e6f4ef", "✓", "Valid: the run's own checks passed")
    items = "".join(f"<li>{_text(reason)}</li>" for reason in problems)
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


def table(frame: pd.DataFrame) -> Block:
    """The table as it is, its index on the left; text columns marked by `frame.attrs["text"]` are on the left too."""
    text = set(frame.attrs.get("text", ()))
    names = [name or "" for name in frame.index.names]
    head = [_head(name, "left") for name in names] + [_head(name, "left" if name in text else "right") for name in frame.columns]
    rows = []
    for label, values in zip(frame.index, frame.itertuples(index=False, name=None), strict=True):
        labels = label if isinstance(label, tuple) else (label,)
        cells = [f'<th scope="row" style="{_style("left", str(one))};font-weight:600">{_text(one)}</th>' for one in labels]
        for name, value in zip(frame.columns, values, strict=True):
            cells.append(f'<td style="{_style("left" if name in text else "right", str(value))}">{_text(value)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return Block(
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;margin:.6rem 0;font-size:.9rem;line-height:1.35;'
        f'font-variant-numeric:tabular-nums;color:#1b2530"><thead><tr>{"".join(head)}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _head(name: str, side: str) -> str:
    style = f"{_CELL.format(side=side, wrap='normal')};border-bottom:2px solid #97a3ae;vertical-align:bottom;font-weight:600;color:#3b4854"
    return f'<th scope="col" style="{style}">{_text(name)}</th>'


def _style(side: str, value: str) -> str:
    return _CELL.format(side=side, wrap="normal" if len(value) > _NARROW else "nowrap")


def _text(value: object) -> str:
    return html.escape(str(value))
