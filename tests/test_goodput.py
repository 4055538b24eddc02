"""Rates and attainment, by hand: everything that is not a correct answer in time counts against the arm."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rows import requests

from bench.analysis.goodput import goodput
from bench.run_tables import STATUSES

SECOND = 1_000_000_000
STATUS = ["ok", "ok", "ok", "wrong", "error", "shed", "timeout", "not_sent", "lost_worker", "ok"]
RESPONSE = [10, 20, 21, 1, 1, 1, 1, None, None, 5]


def test_by_hand() -> None:
    phase = ["base"] * 9 + ["spike"]
    table = requests(intended=range(10), response=RESPONSE, status=STATUS, phase=phase)
    everything, base, spike = goodput(table, duration_ns=2 * SECOND, slo_ns=20)
    assert everything.counts == {"ok": 4, "wrong": 1, "error": 1, "shed": 1, "timeout": 1, "not_sent": 1, "lost_worker": 1}
    assert (everything.offered_per_s, everything.completed_per_s, everything.goodput_per_s) == (5.0, 2.5, 1.5)
    assert (everything.within_slo, everything.attainment) == (3, 0.3)
    assert everything.ok_share == 0.4
    assert everything.failed_share == pytest.approx(0.3)
    assert everything.shed_share == 0.1
    assert everything.unsent_share == 0.2
    assert (base.phase, base.arrivals, base.within_slo, base.offered_per_s) == ("base", 9, 2, None)
    assert (spike.phase, spike.attainment, spike.goodput_per_s) == ("spike", 1.0, None)


def test_without_an_slo_nothing_is_said_of_it() -> None:
    (found, _) = goodput(requests(intended=[0], response=[1]), duration_ns=SECOND)
    assert (found.attainment, found.within_slo, found.goodput_per_s) == (None, None, None)
    assert found.completed_per_s == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.integers(1, 100)), min_size=1, max_size=60), st.integers(1, 100))
def test_every_arrival_is_counted_once(rows: list[tuple[str, int]], slo: int) -> None:
    status, response = [row[0] for row in rows], [row[1] for row in rows]
    found = goodput(requests(intended=range(len(rows)), response=response, status=status), duration_ns=SECOND, slo_ns=slo)[0]
    assert sum(found.counts.values()) == len(rows)
    assert found.ok_share + found.failed_share + found.shed_share + found.unsent_share == pytest.approx(1)
    assert found.attainment == sum(kind == "ok" and time <= slo for kind, time in rows) / len(rows)
    assert found.attainment <= found.ok_share
