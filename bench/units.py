"""Quantities as people write them, and back: durations in ns, sizes in bytes, rates per second."""

from __future__ import annotations

import re

from bench.errors import BenchError

_DURATION_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SIZE_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
MAX_DURATION_NS = 100 * 31_557_600 * 10**9  # a hundred years, which all clocks and system calls can hold
MAX_SIZE_BYTES = 2**62
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")


def parse_duration_ns(text: str, what: str = "duration") -> int:
    """`300ms`, `2s`, `1.5min` in ns, at most 100 years. A bare number has no unit and is refused, except 0. Raises BenchError."""
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2) if match else ""
    if match and float(match.group(1)) == 0 and not unit:
        return 0
    if not match or unit not in _DURATION_NS:
        raise BenchError(f"{what} {_shown(text)} is not a time: write a number with ns, us, ms, s, min or h, such as 300ms")
    ns = float(match.group(1)) * _DURATION_NS[unit]
    if ns > MAX_DURATION_NS:
        raise BenchError(f"{what} {_shown(text)} is longer than 100 years, the longest time that is taken")
    return round(ns)


def parse_size_bytes(text: str, what: str = "size") -> int:
    """`602112`, `16GiB`, `64 MB` in bytes, at most 2^62. Raises BenchError."""
    match = _QUANTITY.fullmatch(text)
    if not match or match.group(2).lower() not in _SIZE_BYTES:
        raise BenchError(f"{what} {_shown(text)} is not a size: write bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    size = float(match.group(1)) * _SIZE_BYTES[match.group(2).lower()]
    if size > MAX_SIZE_BYTES:
        raise BenchError(f"{what} {_shown(text)} is more than 2^62 bytes, the largest size that is taken")
    return round(size)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."


def format_duration(ns: float | None) -> str:
    """Three significant digits with the unit that fits: `31.4 ms`; `-` when not known."""
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size * _ROUNDS_UP:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def format_size(size: float | None) -> str:
    """Decimal units, three significant digits: `102 MB`; `-` when not known."""
    if size is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale * _ROUNDS_UP:
            return f"{_three_digits(size / scale)} {unit}"
    return f"{size:.0f} B"


_ROUNDS_UP = 0.9995  # what rounds to 1000 of a unit is shown as 1.00 of the next


def format_count(value: float) -> str:
    """A plain number with three significant digits and no exponent: `0.51`, `8.29`, `31.4`, `1,360`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 9.995 else f"{value:.1f}" if magnitude < 99.95 else f"{value:.0f}"
