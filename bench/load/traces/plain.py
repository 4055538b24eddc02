"""A column of times: date times, or bare numbers in the unit given or by the rule of NumberClock. Other columns are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bench.errors import BenchError
from bench.load.traces.rows import Batch, Options, Tally, Verdict, csv_columns, guess_free_column, header_of, keep, named_header
from bench.load.traces.source import Source
from bench.load.traces.times import DateClock, NumberClock, is_date_time, is_number, strings

_NAME = re.compile(r"[A-Za-z_][\w .-]*")


def matches(head: Sequence[Sequence[str]]) -> bool:
    """One column in all lines, with a time in the first or the second; a header alone has no arrivals, whatever it is."""
    if any(len(row) != 1 for row in head):
        return False
    return any(_is_time(row[0]) for row in head[:2]) or (len(head) == 1 and _NAME.fullmatch(head[0][0]) is not None)


def read(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """The first line is a header where no cell of it is a time. The first readable time tells dates from numbers."""
    first = header_of(source)
    has_header = not any(_is_time(cell) for cell in first)
    if has_header:
        first = named_header(source)
    at = _time_column(source, first, has_header, options.column)
    names = first if has_header else [f"column_{i + 1}" for i in range(len(first))]
    clock: DateClock | NumberClock | None = None
    for columns in csv_columns(source, tally, width=len(first), header=has_header):
        if clock is None:
            example = next((text for text in columns.texts[at] if _is_time(text)), "")
            clock = DateClock(options.zone) if is_date_time(example) else NumberClock(options.unit) if example else None
        if clock is None:
            for line, text in zip(columns.lines.tolist(), columns.texts[at], strict=True):
                tally.refuse(line, f"time is {text[:40]!r}")
            continue
        verdict = Verdict()
        times, ok = clock.read(strings(columns.texts[at]), columns.lines.tolist())
        verdict.require(ok, columns.texts[at], "time")
        tally.notes["zone" if isinstance(clock, DateClock) else "unit"] = clock.note
        extras = {name: guess_free_column(columns.texts[i]) for i, name in enumerate(names) if i != at}
        yield keep(tally, columns, verdict, times, extras)


def _is_time(text: str) -> bool:
    return is_number(text) or is_date_time(text)


def _time_column(source: Source, first: Sequence[str], has_header: bool, column: str | None) -> int:
    if column is None:
        if len(first) == 1:
            return 0
        raise BenchError(f"{source.path} has {len(first)} columns: say which one holds the times with --column NAME or NUMBER")
    if has_header and column in first:
        return list(first).index(column)
    if column.isascii() and column.isdigit() and len(column) < 10 and 1 <= int(column) <= len(first):
        return int(column) - 1
    raise BenchError(f"{source.path} has no column {column!r}; it has {', '.join(first[:12])}")
