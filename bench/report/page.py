"""What a report is made of before it is HTML, Markdown or text: the same tables and sentences for all three."""

from __future__ import annotations

import base64
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells are text already, so that every form of the report shows the same digits. note: how to read it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An SVG or a PNG, with what it shows in words (`alt`) and how to read it (`caption`)."""

    name: str
    title: str
    data: bytes
    alt: str
    caption: str

    @property
    def data_uri(self) -> str:
        media = "image/png" if self.data.startswith(b"\x89PNG") else "image/svg+xml"
        return f"data:{media};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One run or experiment. badges: (text, kind) with kind good, bad or plain. invalid and caveats stand before any
    number. main: what a reader must see, beside the first picture. facts and method: pairs of name and text."""

    title: str
    subtitle: str
    badges: tuple[tuple[str, str], ...]
    invalid: tuple[str, ...]
    caveats: tuple[str, ...]
    sentence: str
    main: Table
    statements: tuple[str, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    checks: tuple[Table, ...]
    facts: tuple[tuple[str, str], ...]
    method: tuple[tuple[str, str], ...]
