"""The split of the slowest requests, by hand, and that its parts add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rows import requests
from scipy import stats

from bench.analysis.load_run import PARTS
from bench.analysis.tail import TailSplit, cluster_of, tail_split

US = 1000
NAMES = ["send_lag", "network", "queue", "pool", "load", "compute", "rest"]


def means(found: TailSplit | None) -> dict[str, float | None]:
    assert found is not None
    assert [part.name for part in found.parts] == NAMES
    return {part.name: part.mean_ns for part in found.parts}


def test_by_hand() -> None:
    # 198 quick ones, and two slow ones: the slowest 1 % of 200.
    parts = {part: [1.0 * US] * 198 for part in PARTS}
    for part, values in {"queue": (10, 20), "pool": (30, 50), "load": (0, 100), "input": (1, 1), "infer": (5, 7), "output": (2, 2)}.items():
        parts[part] = [*parts[part], *(float(value * US) for value in values)]
    table = requests(intended=range(200), response=[20 * US] * 198 + [100 * US, 300 * US], lag=[0] * 198 + [10 * US, 30 * US], parts=parts)
    found = tail_split(table)
    assert found is not None
    assert (found.requests, found.split, found.threshold_ns, found.mean_response_ns, found.impossible) == (2, 2, 100 * US, 200 * US, 0)
    # network: 90 - 48 = 42 and 270 - 180 = 90
    assert means(found) == {
        "send_lag": 20 * US,
        "network": 66 * US,
        "queue": 15 * US,
        "pool": 40 * US,
        "load": 50 * US,
        "compute": 9 * US,
        "rest": 0,
    }
    assert found.parts[3].share == pytest.approx(0.2)


def test_a_server_that_tells_nothing() -> None:
    found = tail_split(requests(intended=range(100), response=range(1, 101), lag=0.5))
    assert means(found) == {"send_lag": 0.5, "network": None, "queue": None, "pool": None, "load": None, "compute": None, "rest": 99.5}


def test_a_server_that_tells_a_part_only() -> None:
    found = tail_split(requests(intended=range(100), response=range(1, 101), parts={"queue": [7.0] * 100}))
    assert means(found) == {"send_lag": 0, "network": None, "queue": 7, "pool": None, "load": None, "compute": None, "rest": 93}


def test_requests_without_parts_are_counted_not_averaged() -> None:
    parts: dict[str, list[float | None]] = {part: [10.0] * 199 + [None] for part in PARTS}
    found = tail_split(requests(intended=range(200), response=[100] * 198 + [1000, 5000], parts=parts))
    assert found is not None
    assert (found.requests, found.split, found.mean_response_ns) == (2, 1, 1000)
    assert means(found)["network"] == 940


def test_server_parts_beyond_the_round_trip_are_counted() -> None:
    found = tail_split(requests(intended=range(100), response=[1] * 99 + [100 * US], parts={part: [20.0 * US] * 100 for part in PARTS}))
    assert found is not None
    assert found.impossible == 1


def test_failed_requests_are_not_in_the_tail() -> None:
    table = requests(intended=range(101), response=[*range(1, 101), 10**9], status=["ok"] * 100 + ["timeout"])
    found = tail_split(table)
    assert found is not None
    assert (found.requests, found.mean_response_ns) == (1, 100)


def test_none_with_too_few() -> None:
    assert tail_split(requests(intended=range(99), response=range(1, 100))) is None


def test_what_shares_a_fate() -> None:
    table = requests(intended=[0, 1, 2, 3, 4, 5, 0, 99], response=[1] * 8, spike=[-1, 0, 0, -1, 1, -1, -1, -1], run=[0] * 6 + [1] * 2)
    clusters = cluster_of(table).tolist()
    assert clusters[1] == clusters[2] == clusters[3]
    assert clusters[4] == clusters[5]
    assert len(set(clusters)) == 5


def test_the_interval_is_over_spikes() -> None:
    # Six spikes of 100 all of which are in the band (the other 59,400 are quick): equal sizes, so it is a t interval of their means.
    rng = np.random.default_rng(5)
    levels = rng.integers(50, 500, 6).astype(float)
    spike = np.repeat(np.r_[0:6], 10_000)
    slow = np.tile(np.r_[np.full(100, True), np.full(9900, False)], 6)
    response = np.where(slow, 10_000 + levels[spike], 5.0)
    found = tail_split(requests(intended=range(60_000), response=response, lag=np.where(slow, levels[spike], 0), spike=spike))
    assert found is not None
    interval = found.parts[0].interval
    assert interval is not None
    reach = stats.t.ppf(0.975, 5) * levels.std(ddof=1) / math.sqrt(6)
    assert (interval.low, interval.high) == (pytest.approx(levels.mean() - reach), pytest.approx(levels.mean() + reach))


@settings(max_examples=30, deadline=None)
@given(st.integers(100, 400), st.integers(0, 2**32 - 1), st.sets(st.sampled_from(PARTS)))
def test_the_parts_add_up(count: int, seed: int, told: set[str]) -> None:
    rng = np.random.default_rng(seed)
    parts = {part: rng.integers(0, 1000, count).astype(float) for part in told}
    lag = rng.integers(0, 100, count).astype(float)
    response = lag + sum(parts.values(), np.zeros(count)) + rng.integers(0, 50, count)
    found = tail_split(requests(intended=range(count), response=response, lag=lag, parts=parts))
    assert found is not None
    assert found.requests == count - math.ceil(round(count * 0.99, 6)) or (found.requests == 1 and count == 100)
    assert sum(part.mean_ns for part in found.parts if part.mean_ns is not None) == pytest.approx(found.mean_response_ns)
    assert found.parts[-1].mean_ns is not None
    assert found.parts[-1].mean_ns >= -1e-9
