"""Percentiles by phase, against numpy's own inverted CDF and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rows import requests

from bench.analysis.latency import ecdf, latency, windowed

MS = 1_000_000


def test_percentiles_are_of_correct_answers() -> None:
    # 1..1000 ms answered, and as many that failed at once: those must not make it look faster.
    times = [*(i * MS for i in range(1, 1001)), *([10] * 1000)]
    table = requests(intended=range(2000), response=times, lag=5, status=["ok"] * 1000 + ["error"] * 1000)
    (everything, base) = latency(table)
    assert everything.phase is None
    assert base.phase == "base"
    assert (everything.arrivals, everything.answered, everything.answered_share) == (2000, 1000, 0.5)
    found = everything.response
    assert (found.p50, found.p90, found.p95, found.p99, found.p999, found.maximum) == (
        500 * MS,
        900 * MS,
        950 * MS,
        990 * MS,
        999 * MS,
        1000 * MS,
    )
    assert everything.round_trip.p99 == 990 * MS - 5
    assert base.response == found


def test_none_with_too_few() -> None:
    (found, _) = latency(requests(intended=range(99), response=range(1, 100)))
    assert found.response.p99 is None
    assert found.response.p95 == 95
    assert found.response.maximum == 99


def test_nothing_answered() -> None:
    (found, _) = latency(requests(intended=[1], response=[None], status="not_sent"))
    assert (found.answered, found.response.p50, found.response.maximum) == (0, None, None)


def test_phases_apart() -> None:
    found = latency(requests(intended=range(4), response=[1, 2, 30, 40], phase=["base", "base", "spike", "spike"]))
    assert [(entry.phase, entry.response.p50) for entry in found] == [(None, 2), ("base", 1), ("spike", 30)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=400))
def test_against_numpy(times: list[int]) -> None:
    (found, _) = latency(requests(intended=range(len(times)), response=times))
    for percent, needed, value in ((50, 1, found.response.p50), (90, 10, found.response.p90), (99, 100, found.response.p99)):
        expected = np.percentile(times, percent, method="inverted_cdf") if len(times) >= needed else None
        assert value == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=300), st.integers(10, 400))
def test_every_point_of_the_curve_is_exact(values: list[int], points: int) -> None:
    curve = ecdf([*values, float("nan")], points)
    assert len(curve.value) <= max(points, 1) + 1
    assert curve.share[-1] == 1
    for value, share in zip(curve.value, curve.share, strict=True):
        below, at_or_below = np.mean(np.array(values) < value), np.mean(np.array(values) <= value)
        assert below < share <= at_or_below + 1e-12


def test_the_curve_reaches_the_last_values() -> None:
    curve = ecdf(range(1, 100_001), 200)
    assert len(curve.value) <= 200
    assert set(range(99_990, 100_001)) >= set(curve.value[-5:].astype(int))
    assert curve.value[-1] == 100_000


def test_windows_of_time() -> None:
    table = requests(intended=[0, 5, 9, 10, 31], response=[7, 9, 8, None, 3], status=["ok", "ok", "error", "not_sent", "ok"])
    found = windowed(table, 0, 10)
    assert found["start_ns"].tolist() == [0, 10, 20, 30]
    assert found["arrivals"].tolist() == [3, 1, 0, 1]
    assert found["answered"].tolist() == [2, 0, 0, 1]
    np.testing.assert_array_equal(found["response_ns"], [9, np.nan, np.nan, 3])


def test_windows_of_a_run_without_arrivals() -> None:
    assert windowed(requests(intended=[1], response=[1]), 5, 10).empty


def test_the_first_percentile_is_exact_on_large_integers() -> None:
    exact = 2**52 + 1
    assert latency(requests(intended=[0], response=[exact]))[0].response.p50 == pytest.approx(exact, abs=0)
