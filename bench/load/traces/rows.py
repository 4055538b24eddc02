"""What importers share: what they are told, what they count, and a CSV file as batches of columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.errors import BenchError
from bench.load.traces.source import Source
from bench.load.traces.times import Ints, Mask, strings

BATCH_ROWS = 16_384
_SHOWN_BAD_ROWS = 5
_LONGEST_FIELD = 1 << 24
_MISSING = ("", "-", "nan", "null", "none", "na", "n/a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user decides about reading; None leaves it to the format.

    zone: of times that carry none. unit: of bare numbers. column: of the times, by name or number from 1 (plain only).
    subtract_duration: the log's time is the end of a request, and its duration is logged too.
    """

    zone: str | None = None
    unit: str | None = None
    column: str | None = None
    subtract_duration: bool = False
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What an importer saw on its way, filled in as it reads."""

    rows: int = 0
    blank: int = 0
    other: int = 0
    bad: int = 0
    first_bad: list[tuple[int, str]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    # A format with a clock of its own says where it starts and how long it runs, else the earliest arrival is 0; one whose
    # rows are no arrivals has no order that could be wrong.
    start_ns: int | None = None
    in_file_order: bool = True
    duration_ns: int | None = None

    def refuse(self, line: int, why: str, *, lines: int = 1) -> None:
        """Count a row that cannot be read (or several lines of one), and keep the first few to show."""
        self.bad += lines
        self.rows += lines
        if len(self.first_bad) < _SHOWN_BAD_ROWS:
            self.first_bad.append((line, why))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some arrivals in the order of the file: times in ns (since 1970, or on the trace's clock) and further columns."""

    times_ns: Ints
    columns: dict[str, pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Some rows of a CSV file, as one list of texts a column, and the line of each row."""

    texts: list[tuple[str, ...]]
    lines: NDArray[np.int64]


def split_line(line: str) -> list[str]:
    """The cells of one line, without the space around them."""
    try:
        return [cell.strip() for cell in next(csv.reader([line.lstrip("\ufeff")]), [])]
    except csv.Error:
        return [line]


def csv_columns(source: Source, tally: Tally, *, width: int, header: bool, batch_rows: int = BATCH_ROWS) -> Iterator[Columns]:
    """Read the file in batches. A row that has not `width` cells, or whose quotes do not close, is counted as bad; a header
    that comes again, where files were joined, is passed over."""
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(source.lines(), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    before = 0
    header_row: list[str] | None = None
    again: set[str] = set()
    while True:
        try:
            for row in reader:
                start, before = before + 1, reader.line_num
                if not row or (len(row) == 1 and not row[0].strip()):
                    tally.blank += 1
                elif header and header_row is None:
                    header_row = row
                    again = {row[0], "\ufeff" + row[0]}
                elif row[0] in again and header_row is not None and row[1:] == header_row[1:]:
                    tally.other += 1
                elif len(row) != width:
                    tally.refuse(start, f"{len(row)} cells, not {width}", lines=before - start + 1)
                else:
                    rows.append(row)
                    lines.append(start)
                    if len(rows) == batch_rows:
                        yield Columns(texts=list(zip(*rows, strict=True)), lines=np.array(lines))
                        rows, lines = [], []
            break
        except csv.Error as error:
            start, before = before + 1, reader.line_num
            tally.refuse(start, str(error), lines=max(1, before - start + 1))
    if rows:
        yield Columns(texts=list(zip(*rows, strict=True)), lines=np.array(lines))


class Verdict:
    """Which rows of a batch can be read, and for the others which cell is to blame."""

    def __init__(self) -> None:
        self._causes: list[tuple[Mask, Sequence[str], str]] = []

    def require(self, good: Mask, texts: Sequence[str], what: str) -> None:
        self._causes.append((good, texts, what))

    @property
    def ok(self) -> Mask:
        ok: Mask = np.logical_and.reduce([good for good, _, _ in self._causes])
        return ok

    def why(self, row: int) -> str:
        texts, what = next((texts, what) for good, texts, what in self._causes if not good[row])
        return f"{what} is {texts[row][:40]!r}"


def keep(tally: Tally, columns: Columns, verdict: Verdict, times_ns: Ints, extras: dict[str, pa.Array]) -> Batch:
    """Drop the rows that cannot be read, with their lines and what stood there, and count all."""
    ok = verdict.ok
    bad = np.flatnonzero(~ok)
    for row in bad[: max(0, _SHOWN_BAD_ROWS - len(tally.first_bad))].tolist():
        tally.first_bad.append((int(columns.lines[row]), verdict.why(row)))
    tally.rows += len(ok)
    tally.bad += len(bad)
    if len(bad) == 0:
        return Batch(times_ns=times_ns, columns=extras)
    chosen = pa.array(ok)
    return Batch(times_ns=times_ns[ok], columns={name: column.filter(chosen) for name, column in extras.items()})


def token_columns(columns: Columns, names: Sequence[str], skip: Sequence[int], suffix: str, verdict: Verdict) -> dict[str, pa.Array]:
    """All columns but those at `skip`; those whose name ends in `suffix` must be whole numbers or missing."""
    extras: dict[str, pa.Array] = {}
    for index, name in enumerate(names):
        if index in skip:
            continue
        if name.endswith(suffix):
            extras[name], good = whole_numbers(columns.texts[index])
            verdict.require(good, columns.texts[index], name)
        else:
            extras[name] = guess_free_column(columns.texts[index])
    return extras


def arrivals_from_ends(ends: Ints, durations: Ints, options: Options, tally: Tally) -> Ints:
    """The arrivals of a log that writes the end of a request and its duration: as logged, or with the duration taken off
    where the user asked for it; the tally says which."""
    if options.subtract_duration:
        tally.notes["meaning"] = "arrival = logged end - logged duration (--subtract-duration)"
        return ends - durations
    tally.notes["meaning"] = "arrival = time as logged, which is the end of the request (--subtract-duration takes the logged duration off)"
    return ends


def missing(texts: pa.Array) -> pa.Array:
    """Which cells say that there is no value, as booleans."""
    return pc.is_in(pc.utf8_lower(texts), value_set=pa.array(_MISSING))


def whole_numbers(values: Sequence[str]) -> tuple[pa.Array, Mask]:
    """A column of whole numbers as int64 with nulls where there is no value, and which cells could be read."""
    texts = strings(values)
    none = missing(texts)
    good = pc.or_(none, pc.match_substring_regex(texts, r"^[+-]?\d{1,18}(\.0*)?$"))
    plain = pc.replace_substring_regex(pc.replace_substring_regex(texts, r"\.0*$", ""), r"^\+", "")
    numbers = pc.cast(pc.if_else(pc.and_(good, pc.invert(none)), plain, None), pa.int64())
    return numbers, good.to_numpy(zero_copy_only=False)


def guess_free_column(values: Sequence[str]) -> pa.Array:
    """A column of which nothing is known: whole numbers or decimals where all cells are, else text as it stands."""
    texts = strings(values)
    none = missing(texts)
    given = pc.if_else(none, None, texts)
    if pc.all(pc.or_(none, pc.match_substring_regex(texts, r"^(0|-?[1-9]\d{0,17})$"))).as_py():
        return pc.cast(given, pa.int64())
    if pc.all(pc.or_(none, pc.match_substring_regex(texts, r"^-?(0|[1-9]\d*)\.\d+$|^(0|-?[1-9]\d{0,14})$"))).as_py():
        return pc.cast(given, pa.float64())
    return given.dictionary_encode()


def header_of(source: Source) -> list[str]:
    """The cells of the first line that is not blank."""
    head = source.head()
    if not head:
        raise BenchError(f"{source.path} has no arrivals: it holds blank lines only")
    return [name or f"column_{i + 1}" for i, name in enumerate(split_line(head[0]))]


def named_header(source: Source) -> list[str]:
    """As `header_of`, of a format whose columns are told by name. Raises BenchError where a name is there twice."""
    header = header_of(source)
    if len(set(header)) < len(header):
        twice = next(name for at, name in enumerate(header) if name in header[:at])
        raise BenchError(f"{source.path} has two columns named {twice!r}: rename or leave out one of them")
    return header


def column_index(source: Source, header: Sequence[str], name: str, form: str) -> int:
    """Where a format's column stands. Raises BenchError."""
    if name not in header:
        raise BenchError(f"{source.path} has no column {name}, which the format {form} needs; it has {', '.join(header[:12])}")
    return list(header).index(name)
