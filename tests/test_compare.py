"""Two arms over spikes: the pairs by hand, the intervals against other ways to get them, and what they cover."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rows import requests
from scipy import stats
from spike_simulation import MODELS, compare, experiments, naive_interval, truth

from bench.analysis.compare import SpikePairs, compare_p99, compare_pairs, pair_spikes, spikes_needed
from bench.analysis.verdict import too_few_words
from bench.errors import BenchError


def pairs(first: object, second: object, per_unit: int = 1) -> SpikePairs:
    return SpikePairs(
        first_ns=np.asarray(first, np.float64),
        second_ns=np.asarray(second, np.float64),
        spikes_per_unit=per_unit,
        left_out=0,
        unanswered_first=0,
        unanswered_second=0,
    )


def spikes(tops: list[int], *, size: int = 200, runs: int = 1, failed: int = 0) -> pd.DataFrame:
    """Spikes (and as much base beside) whose exact P99 is the given top: all but two answers are at it or below it."""
    response, spike, run, status = [], [], [], []
    for index, top in enumerate(tops):
        response += [*range(1, size - 2), top, 10**9, 10**9, *([5 * 10**9] * size)]
        spike += [index] * size + [-1] * size
        run += [index % runs] * (2 * size)
        status += ["ok"] * size + ["ok"] * (size - failed) + ["error"] * failed
    return requests(intended=range(len(spike)), response=response, spike=spike, run=run, status=status)


def test_pairs_by_hand() -> None:
    found = pair_spikes(spikes([1000, 2000, 3000]), spikes([5000, 4000]))
    assert found.first_ns.tolist() == [1000, 2000]
    assert found.second_ns.tolist() == [5000, 4000]
    assert (found.spikes_per_unit, found.left_out) == (1, 1)


def test_the_same_spike_of_another_run_is_another_spike() -> None:
    found = pair_spikes(spikes([1000, 2000, 3000, 4000], runs=2), spikes([10, 20, 30, 40], runs=2, size=100).assign(response_ns=7.0))
    # Runs in order: run 0 has the spikes 0 and 2, run 1 has 1 and 3.
    assert found.first_ns.tolist() == [1000, 3000, 2000, 4000]
    assert found.second_ns.tolist() == [7, 7, 7, 7]


def test_small_spikes_are_put_together() -> None:
    # 40 answers a spike: three neighbours have 120, enough; the seventh joins the last three.
    table = requests(intended=range(280), response=range(1, 281), spike=np.repeat(np.r_[0:7], 40))
    found = pair_spikes(table, table)
    assert (found.spikes_per_unit, found.remainder, found.spikes) == (3, 1, 7)
    said = too_few_words(compare_pairs(found))
    assert said.startswith("7 spikes make 2 groups with enough answers") and said.endswith("5 groups are needed, 15 such spikes")
    assert found.first_ns.tolist() == [119, 279]  # rank 119 of 120; rank 159 of the 160 from 121 on
    with pytest.raises(BenchError, match="too few for a P99"):
        pair_spikes(table.iloc[:99], table.iloc[:99])


def test_arms_of_other_schedules_are_refused() -> None:
    with pytest.raises(BenchError, match="no spike in common"):
        pair_spikes(spikes([1000]), requests(intended=range(200), response=range(1, 201)))


def test_what_was_not_answered_is_told() -> None:
    table = spikes([1000] * 6)
    worse = table.copy()
    lost = (worse["spike"] >= 0) & (worse["response_ns"] <= 50)
    worse["ok"] &= ~lost
    found = compare_p99(table, worse)
    assert found.unanswered_first == 0
    assert found.unanswered_second == pytest.approx(0.25)


def test_a_spike_without_any_answer_is_left_out_but_told() -> None:
    table = spikes([1000, 2000, 3000])
    gone = table.assign(ok=table["ok"] & (table["spike"] != 1))
    found = pair_spikes(table, gone)
    assert found.first_ns.tolist() == [1000, 3000]
    assert (found.left_out, found.spikes_per_unit) == (1, 1)
    assert found.unanswered_second == pytest.approx(1 / 3)


def test_ratio_interval_is_the_paired_t_of_the_logarithms() -> None:
    first, second = [10.0, 12, 9, 20, 14, 11], [15.0, 16, 15, 33, 20, 19]
    found = compare_pairs(pairs(first, second))
    logs = np.log(np.array(second) / np.array(first))
    expected = stats.ttest_1samp(logs, 0)
    low, high = expected.confidence_interval(0.95)
    assert found.ratio == pytest.approx(stats.gmean(second) / stats.gmean(first))
    assert found.ratio_interval is not None
    assert (found.ratio_interval.low, found.ratio_interval.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.difference_ns == pytest.approx(stats.gmean(second) - stats.gmean(first))
    assert found.distinguishable
    assert found.more_spikes == 0


def test_difference_interval_against_drawing_it() -> None:
    rng = np.random.default_rng(8)
    level = rng.normal(3, 0.8, 12)
    first, second = np.exp(level + rng.normal(0, 0.3, 12)), np.exp(1.1 + 0.7 * level + rng.normal(0, 0.4, 12))
    logs = np.log(np.stack([first, second]))
    draws = 400_000
    wide = np.sqrt(11 / rng.chisquare(11, draws))
    means = logs.mean(axis=1)[:, None] + np.linalg.cholesky(np.cov(logs) / 12) @ rng.standard_normal((2, draws)) * wide
    low, high = np.quantile(np.exp(means[1]) - np.exp(means[0]), [0.025, 0.975])
    found = compare_pairs(pairs(first, second)).difference_interval
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(low, rel=0.02), pytest.approx(high, rel=0.02))


def test_the_smallest_detectable_difference_is_detected_in_eighty_percent() -> None:
    rng = np.random.default_rng(3)
    ratio = compare_pairs(pairs(np.exp(rng.normal(0, 1, 30)), np.ones(30))).smallest_ratio
    assert ratio is not None
    # With the deviation taken as the true one (1 here would be the population's), many experiments at that ratio:
    deviation = math.log(ratio) / ((stats.t.ppf(0.975, 29) + stats.t.ppf(0.8, 29)) / math.sqrt(30))
    shifts = rng.normal(math.log(ratio), deviation, (4000, 30))
    seen = stats.ttest_1samp(shifts, 0, axis=1).pvalue < 0.05
    assert 0.77 <= seen.mean() <= 0.83


def test_how_many_more_spikes() -> None:
    rng = np.random.default_rng(4)
    noise = rng.normal(0, 0.5, 20)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    found = compare_pairs(pairs(np.ones(20), np.exp(0.1 + 0.5 * noise), per_unit=2))
    assert not found.distinguishable
    total = spikes_needed(pairs(np.ones(20), np.exp(0.5 * noise)), math.exp(0.1))
    assert total is not None
    assert found.more_spikes == (total - 20) * 2
    # The textbook's normal approximation: (1.96 + 0.84)^2 (s / d)^2 = 196.
    assert 196 <= total <= 200


def test_no_number_of_spikes_shows_what_is_not_there() -> None:
    noise = np.array([-0.5, 0.5] * 5)
    found = compare_pairs(pairs(np.ones(10), np.exp(noise)))
    assert not found.distinguishable
    assert found.more_spikes is None
    assert found.serial_correlation == pytest.approx(-0.9)


def test_equal_arms_are_not_distinguishable() -> None:
    found = compare_pairs(pairs(range(1, 11), range(1, 11)))
    assert (found.ratio, found.difference_ns, found.p_value, found.distinguishable) == (1, 0, 1, False)


def test_few_spikes_have_no_interval() -> None:
    found = compare_pairs(pairs([1, 2, 3, 4], [2, 3, 4, 5]))
    assert (found.ratio_interval, found.difference_interval, found.smallest_ratio, found.distinguishable) == (None, None, None, False)
    assert found.ratio == pytest.approx((120 / 24) ** 0.25)
    assert too_few_words(found) == "4 spikes, too few for an interval: 5 are needed"


def test_times_that_cannot_be() -> None:
    with pytest.raises(BenchError, match="not above 0"):
        compare_pairs(pairs([0, 1, 1, 1, 1], [1, 1, 1, 1, 1]))


times = st.lists(st.tuples(st.floats(1e3, 1e10), st.floats(1e3, 1e10)), min_size=5, max_size=40)


@settings(max_examples=60, deadline=None)
@given(times)
def test_turned_round_it_says_the_opposite(values: list[tuple[float, float]]) -> None:
    first, second = zip(*values, strict=True)
    one, other = compare_pairs(pairs(first, second)), compare_pairs(pairs(second, first))
    assert one.distinguishable == other.distinguishable
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert one.difference_interval is not None
    assert other.difference_interval is not None
    scale = max(one.first_p99_ns, one.second_p99_ns)
    assert one.difference_interval.low == pytest.approx(-other.difference_interval.high, rel=1e-6, abs=1e-6 * scale)
    assert one.difference_interval.low - 1e-6 * scale <= one.difference_ns <= one.difference_interval.high + 1e-6 * scale


@settings(max_examples=60, deadline=None)
@given(times)
def test_difference_and_ratio_agree(values: list[tuple[float, float]]) -> None:
    found = compare_pairs(pairs(*zip(*values, strict=True)))
    assert found.ratio_interval is not None
    assert found.difference_interval is not None
    if found.ratio_interval.low > 1.01:
        assert found.difference_interval.low > 0
    if found.ratio_interval.low < 0.99:
        assert found.difference_interval.low < 0


# 300 experiments at a true 95 %: three standard errors are 3.8 points.
@pytest.mark.parametrize(("model", "factor", "count"), [("lognormal", 1.0, 20), ("pareto", 1.3, 60), ("queue", 8.0, 20)])
def test_coverage_in_small(model: str, factor: float, count: int) -> None:
    """A part of `tests/soak/test_comparison_coverage.py`. The interval over requests fails the same test: that is why
    the spike is the unit."""
    true = truth(MODELS[model], factor, spikes=5000)
    assert true.icc >= 0.3
    covered = seen = naive = 0
    for first, second in experiments(MODELS[model], seed=44, spikes=count, count=300, factor=factor):
        found = compare(first, second)
        assert found.difference_interval is not None
        covered += found.difference_interval.low <= true.typical_difference <= found.difference_interval.high
        seen += found.distinguishable
        low, high = naive_interval(first, second)
        naive += low <= true.pooled_difference <= high
    assert 0.912 <= covered / 300 <= 0.988
    assert naive / 300 < 0.75
    if factor == 1:
        assert 0.912 <= 1 - seen / 300 <= 0.988
    else:
        assert seen / 300 >= 0.8
