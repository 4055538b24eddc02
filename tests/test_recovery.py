"""Recovery by hand on small runs, censoring, and the median over spikes against an independent survival estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rows import arm, requests
from scipy import stats

from bench.analysis.recovery import (
    Between,
    Recovery,
    Return,
    SpikeRecovery,
    base_p99,
    compare_recovery,
    recovery,
    sensitivity,
    survival_median,
)
from bench.report.burst_comparison import describe_recovery

MS = 1_000_000
SECOND = 1000 * MS
STEP = 20 * MS


def burst(
    slow_until: int, *, end: int = 30 * SECOND, slow: int = 500 * MS, failing: tuple[int, int] | None = None
) -> tuple[object, object]:
    """An arrival every 20 ms. Base until 10 s, spike until 12 s; 10 ms an answer, but `slow` from 10 s to `slow_until`."""
    intended = np.arange(0, end, STEP)
    response = np.where((intended >= 10 * SECOND) & (intended < slow_until), slow, 10 * MS)
    inside = (intended >= 10 * SECOND) & (intended < 12 * SECOND)
    phase = np.where(inside, "spike", np.where(intended < 10 * SECOND, "base", "rest")).tolist()
    status = ["ok"] * len(intended)
    if failing:
        status = ["error" if failing[0] <= at < failing[1] else "ok" for at in intended]
    table = requests(intended=intended, response=response, spike=np.where(inside, 0, -1), phase=phase, status=status)
    return table, arm(table, duration_ns=end, spikes=[(10 * SECOND, 12 * SECOND)])


def test_by_hand() -> None:
    table, one = burst(15 * SECOND)
    assert base_p99(table) == 10 * MS
    found = recovery(one, slo_ns=100 * MS)
    assert found is not None
    assert found.bound_ns == pytest.approx(12 * MS)
    (spike,) = found.spikes
    # Slow arrivals end at 14.98 s; their answers come until 15.48 s, so at 15 s some still wait: the window from 16 s is the first.
    assert spike.recovery == Return(after_ns=4 * SECOND, watched_ns=18 * SECOND)
    assert spike.slo == Return(after_ns=4 * SECOND, watched_ns=18 * SECOND)
    assert spike.excess_ns == pytest.approx(250 * (500 - 12) * MS)
    assert spike.peak_backlog == 25  # one every 20 ms, each there for 500 ms
    assert (spike.failed, found.censored, found.median_ns) == (0, 0, 4 * SECOND)


def test_a_spike_that_hurts_nobody_is_over_at_once() -> None:
    found = recovery(burst(0)[1])
    assert found is not None
    assert (found.spikes[0].recovery.after_ns, found.spikes[0].excess_ns, found.spikes[0].peak_backlog) == (0, 0, 1)


def test_a_spike_that_does_not_end_is_censored_not_dropped() -> None:
    found = recovery(burst(30 * SECOND)[1])
    assert found is not None
    assert len(found.spikes) == found.censored == 1
    assert found.spikes[0].recovery == Return(after_ns=None, watched_ns=18 * SECOND)
    assert found.median_ns is None


def test_back_too_late_to_be_sure_is_censored() -> None:
    """Two whole windows at the end are not three."""
    found = recovery(burst(27 * SECOND)[1])
    assert found is not None
    assert found.censored == 1
    earlier = recovery(burst(26 * SECOND)[1])
    assert earlier is not None
    assert earlier.spikes[0].recovery.after_ns == 15 * SECOND


def test_failed_arrivals_are_not_back() -> None:
    found = recovery(burst(0, failing=(12 * SECOND, 14 * SECOND))[1])
    assert found is not None
    assert found.spikes[0].recovery.after_ns == 2 * SECOND
    assert found.spikes[0].failed == 100


def test_one_slow_answer_among_fifty_is_the_base_itself_two_are_not() -> None:
    table, _ = burst(0)
    spikes = [(10 * SECOND, 12 * SECOND)]
    table.loc[table["intended_ns"] == 13 * SECOND, "response_ns"] = 50 * MS
    one = recovery(arm(table, duration_ns=30 * SECOND, spikes=spikes))
    table.loc[table["intended_ns"] == 13 * SECOND + 10 * STEP, "response_ns"] = 50 * MS
    two = recovery(arm(table, duration_ns=30 * SECOND, spikes=spikes))
    assert one is not None
    assert two is not None
    assert (one.spikes[0].recovery.after_ns, two.spikes[0].recovery.after_ns) == (0, 2 * SECOND)


def test_the_next_spike_ends_the_watch() -> None:
    table, _ = burst(30 * SECOND)
    one = arm(table, duration_ns=30 * SECOND, spikes=[(10 * SECOND, 12 * SECOND), (17 * SECOND, 18 * SECOND)])
    found = recovery(one)
    assert found is not None
    assert [spike.recovery.watched_ns for spike in found.spikes] == [5 * SECOND, 12 * SECOND]
    assert found.censored == 2


def test_without_a_base_there_is_no_recovery() -> None:
    table = requests(intended=range(0, 10_000, 100), response=[1] * 100, phase="spike", spike=0)
    one = arm(table, duration_ns=20_000, spikes=[(0, 10_000)])
    assert recovery(one) is None
    assert sensitivity(one) == ()
    assert recovery(one, base_p99_ns=5, window_ns=1000) is not None


def test_sensitivity_goes_through_all_definitions() -> None:
    found = sensitivity(burst(15 * SECOND)[1])
    assert [(entry.window_ns // MS, entry.eps) for entry in found] == [(w, e) for w in (500, 1000, 2000) for e in (0.1, 0.2, 0.5)]
    # The finer the window, the finer the answer: slow answers came until 15.48 s.
    assert [entry.median_ns for entry in found[::3]] == [3.5 * SECOND, 4 * SECOND, 4 * SECOND]


def test_the_median_counts_the_censored() -> None:
    came, not_yet = Return(after_ns=10, watched_ns=100), Return(after_ns=None, watched_ns=100)
    assert survival_median([came, not_yet, not_yet]) is None
    assert survival_median([came, came, not_yet]) == 10
    assert survival_median([]) is None


entries = st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(entries)
def test_the_median_against_scipy(values: list[tuple[int, bool]]) -> None:
    returns = [Return(after_ns=None if censored else time, watched_ns=time) for time, censored in values]
    came = [time for time, censored in values if not censored]
    expected = None
    if came:
        data = stats.CensoredData(uncensored=came, right=[time for time, censored in values if censored])
        survival = stats.ecdf(data).sf
        reached = np.flatnonzero(survival.probabilities <= 0.5 + 1e-12)
        expected = float(survival.quantiles[reached[0]]) if len(reached) else None
    assert survival_median(returns) == expected


def test_the_definition_is_told_with_the_result() -> None:
    found = recovery(burst(0)[1])
    assert found is not None
    assert (found.window_ns, found.eps, found.windows) == (SECOND, 0.2, 3)


runs = st.lists(st.tuples(st.integers(0, 199), st.one_of(st.none(), st.integers(1, 60)), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(runs, st.integers(1, 30), st.integers(1, 4), st.integers(20, 60))
def test_against_the_definition_read_literally(rows: list[tuple[int, int | None, bool]], window: int, windows: int, bound: int) -> None:
    """A spike from 20 to 50 of 200; bound is 1.2 times the base given. Each time is looked at for itself."""
    rows = sorted(rows, key=lambda row: row[0])
    status = ["ok" if ok and taken is not None else "error" for _, taken, ok in rows]
    table = requests(intended=[row[0] for row in rows], response=[row[1] for row in rows], status=status)
    base = bound / 1.2
    found = recovery(arm(table, duration_ns=200, spikes=[(20, 50)]), base_p99_ns=base, window_ns=window, windows=windows)
    assert found is not None

    def fine(start: int) -> bool:
        inside = [(row, kind) for row, kind in zip(rows, status, strict=True) if start <= row[0] < start + window]
        slow = sum(kind != "ok" or row[1] is None or row[1] > found.bound_ns for row, kind in inside)
        waiting = [
            row for row in rows if row[1] is not None and row[0] + found.bound_ns <= start < row[0] + row[1] and row[1] > found.bound_ns
        ]
        return slow <= (len(inside) >= 20) and not waiting

    starts = [start for start in range(50, 200, window) if start + window <= 200]
    verdicts = [fine(start) for start in starts]
    first = next((starts[i] for i in range(len(starts) - windows + 1) if all(verdicts[i : i + windows])), None)
    assert found.spikes[0].recovery == Return(after_ns=None if first is None else first - 50, watched_ns=150)


def recovered(*returns: Return) -> Recovery:
    spikes = [
        SpikeRecovery(run=0, spike=i, recovery=entry, slo=None, excess_ns=0, failed=0, peak_backlog=0) for i, entry in enumerate(returns)
    ]
    return Recovery(base_p99_ns=1, bound_ns=1.2, window_ns=1, eps=0.2, windows=3, spikes=tuple(spikes))


def test_which_arm_takes_longer_counts_the_censored() -> None:
    quick, slow = Return(after_ns=2, watched_ns=10), Return(after_ns=7, watched_ns=10)
    never, cut_off = Return(after_ns=None, watched_ns=10), Return(after_ns=None, watched_ns=5)
    first = recovered(slow, never, never, cut_off, quick, never, quick)
    second = recovered(quick, quick, slow, slow, quick, never, cut_off)
    found = compare_recovery(first, second)
    assert (found.first_longer, found.second_longer, found.equal, found.undecided) == (3, 1, 1, 2)
    assert found.p_value == pytest.approx(2 * (1 + 4) / 16)


def test_nothing_to_tell_apart() -> None:
    same = recovered(Return(after_ns=2, watched_ns=10))
    found = compare_recovery(same, same)
    assert found.p_value is None and found.interval is None and not found.distinguishable
    assert found.difference == Between(low_ns=0, high_ns=0)


def test_the_difference_by_hand() -> None:
    """Seven differences: the interval is from the smallest to the largest (2 of 2^7 lie outside, 1.6 %)."""
    first = recovered(*(Return(after_ns=10, watched_ns=100) for _ in range(7)))
    second = recovered(*(Return(after_ns=10 + more, watched_ns=100) for more in (3, 9, 5, 20, 7, 1, 8)))
    found = compare_recovery(first, second)
    assert (found.difference, found.interval) == (Between(low_ns=7, high_ns=7), Between(low_ns=1, high_ns=20))
    assert found.distinguishable and (found.censored_first, found.censored_second) == (0, 0)


def test_a_censored_spike_counts_as_longer_than_what_was_seen() -> None:
    first = recovered(*(Return(after_ns=10, watched_ns=100) for _ in range(9)))
    late = [Return(after_ns=None, watched_ns=100)] * 3
    second = recovered(*late, *(Return(after_ns=10 + more, watched_ns=100) for more in (3, 5, 5, 7, 8, 9)))
    found = compare_recovery(first, second)
    # Sorted: 3 5 5 7 8 9 and three of at least 90; the interval of nine goes from the second to the eighth.
    assert found.difference == Between(low_ns=8, high_ns=8)
    assert found.interval == Between(low_ns=5, high_ns=None)
    assert (found.censored_first, found.censored_second) == (0, 3) and found.distinguishable
    backwards = compare_recovery(second, first)
    assert backwards.interval == Between(low_ns=None, high_ns=-5) and backwards.distinguishable
    most = recovered(*([Return(after_ns=None, watched_ns=100)] * 9))
    assert compare_recovery(first, most).difference == Between(low_ns=90, high_ns=None)
    assert compare_recovery(most, most).difference == Between(low_ns=None, high_ns=None)


@pytest.mark.parametrize(
    ("spikes_ms", "said"),
    [
        ([(0, 100)], "takes 100 ms longer with warm"),
        ([(100, 0)], "takes 100 ms longer with cold"),
        ([(50, 50)], "takes as long with both"),
        ([(50, 0), (0, 0), (None, 60)], "with warm is at most 50.0 ms shorter and not longer than with cold"),
        ([(50, 0), (0, 20), (None, 60)], "with warm is at most 50.0 ms shorter and at most 20.0 ms longer than with cold"),
    ],
)
def test_the_difference_in_words(spikes_ms: list[tuple[int | None, int]], said: str) -> None:
    """Spikes by when `cold` and `warm` were back; None: not within the 30 ms that were watched."""
    cold = recovered(*(Return(after_ns=None if c is None else c * MS, watched_ns=30 * MS if c is None else SECOND) for c, _ in spikes_ms))
    warm = recovered(*(Return(after_ns=w * MS, watched_ns=SECOND) for _, w in spikes_ms))
    assert said in describe_recovery(compare_recovery(cold, warm), "cold", "warm")


times = st.integers(0, 30)
seen = st.tuples(times, times)


@settings(max_examples=300, deadline=None)
@given(st.lists(seen, min_size=6, max_size=25), st.integers(5, 25))
def test_whatever_the_unseen_times_are_the_interval_holds_theirs(pairs: list[tuple[int, int]], watched: int) -> None:
    """With all times known there is an interval; that of the same spikes, of which some were cut off, holds it."""

    def cut(after: int) -> Return:
        return Return(after_ns=after if after < watched else None, watched_ns=watched)

    def known(after: int) -> Return:
        return Return(after_ns=after, watched_ns=100)

    whole = compare_recovery(recovered(*(known(a) for a, _ in pairs)), recovered(*(known(b) for _, b in pairs)))
    part = compare_recovery(recovered(*(cut(a) for a, _ in pairs)), recovered(*(cut(b) for _, b in pairs)))
    ordered = sorted(b - a for a, b in pairs)
    rank = max(k for k in range(1, len(pairs)) if sum(math.comb(len(pairs), i) for i in range(k)) / 2 ** len(pairs) <= 0.025)
    assert whole.interval == Between(low_ns=ordered[rank - 1], high_ns=ordered[-rank])
    assert part.interval is not None and whole.interval is not None
    for wide, narrow in ((part.interval, whole.interval), (part.difference, whole.difference)):
        assert wide.low_ns is None or (narrow.low_ns is not None and wide.low_ns <= narrow.low_ns)
        assert wide.high_ns is None or (narrow.high_ns is not None and wide.high_ns >= narrow.high_ns)
