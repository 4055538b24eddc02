"""The backlog by counting, and arms that keep up or do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rows import arm, requests

from bench.analysis.backlog import backlog, backlog_over_time

SECOND = 1_000_000_000


def single_server(rate: float, capacity: float, seconds: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals evenly at `rate`, served one after the other at `capacity`: intended and response, ns."""
    intended = np.arange(int(rate * seconds)) * int(SECOND / rate)
    service = int(SECOND / capacity)
    done = np.empty(len(intended), np.int64)
    free = 0
    for i, at in enumerate(intended.tolist()):
        free = max(free, at) + service
        done[i] = free
    return intended, done - intended


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.integers(1, 30))), min_size=1, max_size=40))
def test_by_counting(rows: list[tuple[int, int | None]]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    table = requests(intended=[row[0] for row in rows], response=[row[1] for row in rows])
    at = np.arange(90)
    expected = [sum(begin <= t < begin + taken for begin, taken in rows if taken is not None) for t in at]
    assert backlog_over_time(table, 0, at).tolist() == expected


def test_an_arm_that_cannot_keep_up() -> None:
    intended, response = single_server(rate=100, capacity=80, seconds=30)
    (found,) = backlog(arm(requests(intended=intended, response=response), duration_ns=30 * SECOND))
    assert found.unstable
    assert found.slope_per_s == pytest.approx(20, rel=0.05)
    assert found.slope_interval is not None
    assert found.slope_interval.low <= 20 <= found.slope_interval.high
    assert found.at_end == pytest.approx(600 - 15, abs=20)


def test_an_arm_that_keeps_up() -> None:
    intended, response = single_server(rate=100, capacity=130, seconds=30)
    (found,) = backlog(arm(requests(intended=intended, response=response), duration_ns=30 * SECOND))
    assert not found.unstable
    assert found.slope_per_s == 0
    assert found.peak == 1


def test_a_spike_that_is_worked_off_is_not_unstable() -> None:
    base, peak = np.arange(0, 30 * SECOND, SECOND // 50), np.arange(20 * SECOND, 22 * SECOND, SECOND // 300)
    intended = np.sort(np.concatenate([base, peak]))
    response = np.where((intended >= 20 * SECOND) & (intended < 24 * SECOND), 2 * SECOND, SECOND // 100)
    (found,) = backlog(arm(requests(intended=intended, response=response), duration_ns=30 * SECOND, spikes=[(20 * SECOND, 22 * SECOND)]))
    assert found.peak > 500
    assert not found.unstable
