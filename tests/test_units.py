"""Quantities as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.units import format_duration, format_size, parse_duration_ns, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1ns", 1),
        ("2us", 2_000),
        ("2 µs", 2_000),
        ("300ms", 300_000_000),
        (" 1.5 s ", 1_500_000_000),
        (".5s", 500_000_000),
        ("1e3ms", 1_000_000_000),
        ("1.5min", 90_000_000_000),
        ("2m", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("0", 0),
        ("0.0", 0),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "5", "ms", "5 parsecs", "-5ms", "1,5s", "5MS", "nan s", "inf s", "1 2s", "0x10s"])
def test_what_is_not_a_duration_is_refused_with_its_name_and_a_right_one(text: str) -> None:
    with pytest.raises(BenchError, match="300ms") as refused:
        parse_duration_ns(text, "--timeout")
    assert "--timeout" in str(refused.value)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("602112", 602_112), ("16GiB", 16 * 2**30), ("64 MB", 64_000_000), ("1.5kb", 1_500), ("2KiB", 2_048), ("0", 0), ("10 B", 10)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "5TB", "-1", "5 ms"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="is not a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"), (0, "0 ns"), (999, "999 ns"), (1_000, "1.00 us"), (31_400_000, "31.4 ms"), (-31_400_000, "-31.4 ms"),
        (2_000_000_000, "2.00 s"), (123_456_000_000, "123 s"), (999_999, "1.00 ms"), (9_999, "10.0 us"), (999_999_999, "1.00 s"),
    ],
)  # fmt: skip
def test_a_duration_is_shown_with_three_digits(ns: int | None, text: str) -> None:
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("size", "text"), [(None, "-"), (0, "0 B"), (102_000_000, "102 MB"), (1_500, "1.50 kB"), (2e9, "2.00 GB"), (999_999, "1.00 MB")]
)
def test_a_size_is_shown_with_three_digits(size: float | None, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(min_value=1, max_value=10**14))
def test_what_is_shown_reads_back_within_its_digits(ns: int) -> None:
    shown = format_duration(ns)
    assert len(shown.split()[0].replace(".", "")) >= 1
    assert abs(parse_duration_ns(shown) - ns) <= 0.005001 * ns


@given(st.integers(min_value=0, max_value=2**50))
def test_nanoseconds_are_read_exactly(ns: int) -> None:
    assert parse_duration_ns(f"{ns}ns") == ns


@pytest.mark.parametrize("text", ["1e300h", "1e999s", "1e999ns", "9" * 400 + "s", "99999999h"])
def test_a_time_that_no_clock_can_hold_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="is longer than 100 years") as refused:
        parse_duration_ns(text, "--timeout")
    assert len(str(refused.value)) < 200
    assert parse_duration_ns("876000h") < 2**63


@pytest.mark.parametrize("text", ["1e999", "1e30GiB", "9" * 5000])
def test_a_size_that_no_memory_can_hold_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match=r"is more than 2\^62 bytes"):
        parse_size_bytes(text)
