"""Times as traces write them, turned into int64 ns, a column at once and without a float in between.

Date times give ns since 1970 in UTC; bare numbers give ns on the trace's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.errors import BenchError

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNIT_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
# A count of days of eighteen digits in ns still fits int64.
_MAX_DIGITS = 18
# Numbers are times since 1970 where all lie in 2001-09-09 .. 2286-11-20 in one unit; the four ranges do not touch.
_EPOCH_RANGES = {"s": (10**9, 10**10), "ms": (10**12, 10**13), "us": (10**15, 10**16), "ns": (10**18, 2**63)}
# Below this, numbers are no times since 1970 in any unit: seconds since the start of the trace (three years at most).
_RELATIVE_LIMIT = 10**8

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"
_PLAIN_NUMBER = r"^(?P<sign>[+-]?)(?P<whole>\d*)\.?(?P<part>\d*)$"
_DATE = r"^\d{4}-\d{2}-\d{2}[ Tt]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?"
_ZONE = r" ?([Zz]|UTC|GMT|[+-]\d{2}(:?\d{2})?)$"


def strings(values: Sequence[str]) -> pa.Array:
    """The cells without white space around them."""
    return pc.utf8_trim_whitespace(pa.array(values, pa.string()))


def is_number(text: str) -> bool:
    """Whether the cell is a number."""
    return bool(pc.match_substring_regex(pa.scalar(text.strip()), _NUMBER).as_py())


def is_date_time(text: str) -> bool:
    """Whether the cell is a date with a time, with or without a zone."""
    return bool(pc.match_substring_regex(pa.scalar(text.strip()), _DATE + "(" + _ZONE[:-1] + ")?$").as_py())


def has_zone(text: str) -> bool:
    """Whether the cell is a date with a time and a zone."""
    return is_date_time(text) and bool(pc.match_substring_regex(pa.scalar(text.strip()), _DATE + _ZONE).as_py())


def numbers_to_ns(texts: pa.Array, unit: str) -> tuple[Ints, Mask]:
    """Decimal numbers of `unit` as ns, exact to the last digit of a ns (digits below are cut off), and which could be read."""
    shift = UNIT_DIGITS[unit]
    plain = pc.extract_regex(texts, _PLAIN_NUMBER)
    whole = pc.utf8_ltrim(plain.field("whole"), "0")
    part = plain.field("part")
    some = pc.greater(pc.add(pc.utf8_length(plain.field("whole")), pc.utf8_length(part)), 0)
    fits = pc.less_equal(pc.utf8_length(whole), _MAX_DIGITS + 1 - shift)
    ok = pc.fill_null(pc.and_(pc.and_(pc.is_valid(plain), some), fits), False).to_numpy(zero_copy_only=False)
    # Together whole and part are the digits of the result. Nineteen digits may pass int64: those go through the check below.
    digits = (
        pc.binary_join_element_wise(pc.if_else(ok, whole, "0"), pc.utf8_slice_codeunits(pc.utf8_rpad(part, shift, "0"), 0, shift), "")
        if shift
        else whole
    )
    digits = pc.if_else(pc.and_(pa.array(ok), pc.not_equal(digits, "")), digits, "0")
    unsigned = pc.cast(digits, pa.uint64()).to_numpy(zero_copy_only=False)
    ok &= unsigned < 2**63
    values = np.where(ok, unsigned, 0).astype(np.int64)
    values[pc.fill_null(pc.equal(plain.field("sign"), "-"), False).to_numpy(zero_copy_only=False)] *= -1
    for row in np.flatnonzero(~ok & pc.fill_null(pc.match_substring_regex(texts, "^[^eE]+[eE]"), False).to_numpy(zero_copy_only=False)):
        exact = _with_exponent(texts[int(row)].as_py(), shift)
        if exact is not None:
            values[row], ok[row] = exact, True
    return values, ok


def _with_exponent(text: str, shift: int) -> int | None:
    if not is_number(text):
        return None
    try:
        scaled = Decimal(text).scaleb(shift)
    except InvalidOperation:
        return None
    return int(scaled) if abs(scaled) < 2**63 else None


class NumberClock:
    """Reads a column of bare numbers in one unit for a whole file; the unit is given, or follows the stated rule."""

    def __init__(self, unit: str | None) -> None:
        self._given = unit
        self._rule: str | None = None
        self.unit = unit

    @property
    def note(self) -> str:
        if self._given:
            return f"{self._given} (given)"
        if self._rule == "relative":
            return "s, on the trace's own clock (no unit was given and the numbers are too small for times since 1970; --unit sets another)"
        return f"{self.unit} since 1970 (all numbers lie in the years 2001 to 2286 in that unit; --unit sets another)"

    def read(self, texts: pa.Array, lines: Sequence[int]) -> tuple[Ints, Mask]:
        """ns and which could be read. Raises BenchError where the unit is ambiguous."""
        if self._given is None:
            self._decide(texts, lines)
        return numbers_to_ns(texts, self.unit or "s")

    def _decide(self, texts: pa.Array, lines: Sequence[int]) -> None:
        whole, ok = numbers_to_ns(pc.replace_substring_regex(texts, r"\.\d*$", ""), "ns")
        if not ok.any():
            return
        readable, at = whole[ok], np.flatnonzero(ok)
        if self._rule is None:
            self._rule = _rule_of(int(readable[0]))
            if self._rule is None:
                raise BenchError(f"line {lines[at[0]]}: the unit of {texts[int(at[0])]} is ambiguous: say --unit s, ms, us or ns")
            self.unit = "s" if self._rule == "relative" else self._rule
        low, high = (1 - _RELATIVE_LIMIT, _RELATIVE_LIMIT) if self._rule == "relative" else _EPOCH_RANGES[self._rule]
        outside = (readable < low) | (readable >= high)
        if outside.any():
            row = int(at[outside.argmax()])
            raise BenchError(
                f"line {lines[row]}: the unit is ambiguous, {texts[row]} is no {self.note.split(' (')[0]}, as the earlier numbers are: "
                "say --unit s, ms, us or ns"
            )


def _rule_of(value: int) -> str | None:
    if abs(value) < _RELATIVE_LIMIT:
        return "relative"
    return next((unit for unit, (low, high) in _EPOCH_RANGES.items() if low <= value < high), None)


class DateClock:
    """Reads a column of date times for a whole file: all with a zone, or all without and then in the zone given or UTC."""

    def __init__(self, zone: str | None) -> None:
        self._zone = zone
        self._first: dict[bool, int] = {}
        if zone is not None:
            try:
                pc.assume_timezone(pa.array([0], pa.timestamp("ns")), zone)
            except pa.ArrowException:
                raise BenchError(f"--zone {zone!r} is not known: write a name such as Europe/Berlin or UTC") from None

    @property
    def note(self) -> str:
        if False not in self._first:
            return "times carry their zone"
        mixed = ", the others carry theirs" if True in self._first else ""
        if self._zone is not None:
            return f"times without a zone are in {self._zone} (given){mixed}"
        return "times have no zone, taken as UTC (--zone names another)"

    def read(self, texts: pa.Array, lines: Sequence[int]) -> tuple[Ints, Mask]:
        """ns since 1970 in UTC and which could be read. Raises BenchError where some have a zone and some have not, or a
        local time comes twice or never (the clock changed)."""
        dated = pc.fill_null(pc.match_substring_regex(texts, _DATE), False).to_numpy(zero_copy_only=False)
        zoned = pc.fill_null(pc.match_substring_regex(texts, _DATE + _ZONE), False).to_numpy(zero_copy_only=False)
        values, ok = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
        for with_zone in (False, True):
            rows = np.flatnonzero(dated & (zoned == with_zone))
            if len(rows) == 0:
                continue
            stamps = _parse(_normal(texts.take(pa.array(rows))), pa.timestamp("ns", "UTC") if with_zone else pa.timestamp("ns"))
            readable = pc.is_valid(stamps).to_numpy(zero_copy_only=False)
            rows, stamps = rows[readable], stamps.drop_null()
            if len(rows) == 0:
                continue
            if not with_zone and self._zone is not None:
                stamps = self._in_zone(stamps, [lines[row] for row in rows])
            self._first.setdefault(with_zone, lines[rows[0]])
            values[rows] = pc.cast(stamps, pa.int64()).to_numpy(zero_copy_only=False)
            ok[rows] = True
        if len(self._first) == 2 and self._zone is None:
            raise BenchError(
                f"line {self._first[False]} has a time without a zone and line {self._first[True]} one with a zone: "
                "say the zone of the former with --zone, such as --zone UTC"
            )
        return values, ok

    def _in_zone(self, stamps: pa.Array, lines: Sequence[int]) -> pa.Array:
        try:
            return pc.assume_timezone(stamps, self._zone)
        except pa.ArrowInvalid:
            pass
        for line, stamp in zip(lines, stamps, strict=True):
            try:
                pc.assume_timezone(pa.array([stamp]), self._zone)
            except pa.ArrowInvalid as error:
                what = "comes twice" if "ambiguous" in str(error) else "does not exist"
                raise BenchError(
                    f"line {line}: the local time {stamp.as_py()} {what} in {self._zone}, where the clock changes: "
                    "write the offset into the trace, or read it as UTC with --zone UTC"
                ) from None
        raise AssertionError("a column cannot be converted, but each of its times can")


def _normal(texts: pa.Array) -> pa.Array:
    """In the one spelling that Arrow reads: a dot before the fraction, at most nine digits, no space before the zone."""
    texts = pc.replace_substring(pc.utf8_upper(texts), ",", ".")
    texts = pc.replace_substring_regex(texts, r"(\.\d{9})\d+", r"\1")
    texts = pc.replace_substring_regex(texts, r" ?(UTC|GMT)$", "Z")
    return pc.replace_substring_regex(texts, r"(\d) ([Z+-])", r"\1\2")


def _parse(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast; what cannot be read becomes null. Halves the column where it fails, so that one bad row costs little."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind)
    middle = len(texts) // 2
    return pa.concat_arrays([_parse(texts[:middle], kind), _parse(texts[middle:], kind)])
