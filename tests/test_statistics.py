"""The statistics, against plain definitions, against scipy, and by simulation."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.statistics import Interval, Shift, median, median_interval, percentile, shift

numbers = st.floats(-1e9, 1e9)


def plain_percentile(values: list[float], percent: int) -> float:
    """The smallest value that at least `percent` % of all do not exceed, counted one by one."""
    return next(v for v in sorted(values) if 100 * sum(w <= v for w in values) >= percent * len(values))


@given(st.lists(numbers, min_size=100, max_size=150), st.integers(1, 99))
def test_a_percentile_is_the_nearest_rank(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == plain_percentile(values, percent)


@pytest.mark.parametrize(("percent", "needed"), [(50, 1), (75, 4), (90, 10), (95, 20), (99, 100), (99.9, 1000), (100, 1)])
def test_no_percentile_is_given_with_fewer_samples_than_it_needs(percent: float, needed: int) -> None:
    assert percentile(range(needed), percent) is not None
    assert percentile(range(needed - 1), percent) is None


def test_percentiles_of_known_lists() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([4, 1, 2, 3], 50) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 1001), 99.9) == 999
    assert percentile(range(1, 101), 100) == 100
    assert percentile([5], 100) == 5


@given(st.lists(numbers, min_size=1, max_size=40))
def test_the_median_lies_in_its_interval(values: list[float]) -> None:
    found = median_interval(values)
    if len(values) < 6:
        assert found is None
        return
    assert found is not None
    assert min(values) <= found.low <= median(values) <= found.high <= max(values)


@pytest.mark.parametrize("n", [*range(6, 40), 100, 999])
def test_the_interval_of_the_median_is_the_narrowest_symmetric_one_of_95_percent(n: int) -> None:
    found = median_interval(range(n))
    assert found is not None
    low, high = int(found.low), int(found.high)
    assert low + high == n - 1
    binomial = scipy.stats.binom(n, 0.5)
    # It misses where the median lies below the low-th or above the high-th value.
    assert 2 * binomial.cdf(low) <= 0.05
    assert 2 * binomial.cdf(low + 1) > 0.05


@pytest.mark.parametrize("n", [6, 10, 20, 37])
def test_the_interval_of_the_median_agrees_with_the_sign_test(n: int) -> None:
    found = median_interval(np.random.default_rng(n).normal(size=n))
    theirs = scipy.stats.quantile_test(np.random.default_rng(n).normal(size=n), q=0, p=0.5).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == (theirs.low, theirs.high)


@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5), (5, 5), (6, 9), (8, 8), (20, 20), (12, 30)])
def test_the_interval_of_the_shift_is_where_the_exact_test_turns(m: int, n: int) -> None:
    """A shift is inside the interval where the two-sided exact Mann-Whitney test at 5 % does not reject it."""
    random = np.random.default_rng([m, n])
    a, b = random.normal(size=m), random.normal(1, 1, size=n)
    found = shift(a, b).interval
    assert found is not None
    step = 1e-9

    def p_value(by: float) -> float:
        return float(scipy.stats.mannwhitneyu(b - by, a, method="exact").pvalue)

    assert p_value(found.low - step) <= 0.05 < p_value(found.low + step)
    assert p_value(found.high + step) <= 0.05 < p_value(found.high - step)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 2), (3, 3), (1, 38), (2, 7)])
def test_too_few_samples_have_no_interval(m: int, n: int) -> None:
    """P(U = 0) = 1 / (m + n choose m) is above 2.5 % for these."""
    assert 1 / math.comb(m + n, m) > 0.025
    found = shift(range(1, m + 1), range(101, n + 101))
    assert found.interval is None
    assert found.ratio_interval is None
    assert not found.distinguishable


def test_the_normal_approximation_takes_over_smoothly() -> None:
    random = np.random.default_rng(5)
    a, b = random.normal(size=51), random.normal(size=51)
    exact, approximate = shift(a[:50], b[:50]).interval, shift(a, b).interval
    assert exact is not None
    assert approximate is not None
    assert approximate.low == pytest.approx(exact.low, abs=0.1)
    assert approximate.high == pytest.approx(exact.high, abs=0.1)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12), st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
def test_swapping_the_samples_turns_the_shift_around(a: list[int], b: list[int]) -> None:
    there, back = shift(a, b), shift(b, a)
    assert there.difference == -back.difference
    assert there.distinguishable == back.distinguishable
    assert there.ratio is not None
    assert back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    if there.interval is not None and back.interval is not None:
        assert (there.interval.low, there.interval.high) == (-back.interval.high, -back.interval.low)
        assert there.interval.low <= there.difference <= there.interval.high


@given(st.lists(st.integers(1, 10**6), min_size=4, max_size=12), st.integers(-(10**6), 10**6))
def test_a_constant_added_is_the_shift(a: list[int], constant: int) -> None:
    found, zero = shift(a, [value + constant for value in a]), shift(a, a)
    assert found.difference == zero.difference + constant
    assert zero.difference == 0
    assert not zero.distinguishable


@given(st.lists(st.integers(1, 10**6), min_size=4, max_size=12), st.sampled_from([2, 4, 0.5]))
def test_a_constant_factor_is_the_ratio(a: list[int], factor: float) -> None:
    assert shift(a, [value * factor for value in a]).ratio == pytest.approx(factor)


def test_no_ratio_where_a_value_is_not_positive() -> None:
    found = shift([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert found.ratio is None
    assert found.ratio_interval is None
    assert found.distinguishable


def test_ties_do_not_make_a_difference() -> None:
    assert shift([5] * 10, [5] * 10) == Shift(
        difference=0, interval=Interval(low=0, high=0), ratio=1, ratio_interval=Interval(low=1, high=1)
    )


def test_intervals_cover_at_least_what_they_say() -> None:
    """2,000 draws of skewed samples: 95 % intervals miss in at most 5 % plus four standard errors, and are not vacuous."""
    random = np.random.default_rng(20260131)
    draws = 2_000
    bound = 0.05 + 4 * math.sqrt(0.05 * 0.95 / draws)
    for m, n in ((6, 6), (20, 20), (10, 30)):
        missed_median = missed_shift = 0
        for _ in range(draws):
            a, b = random.lognormal(0, 1, m), 3 + random.lognormal(0, 1, n)
            middle, apart = median_interval(a), shift(a, b).interval
            assert middle is not None
            assert apart is not None
            missed_median += not middle.low <= 1 <= middle.high
            missed_shift += not apart.low <= 3 <= apart.high
        assert 0 < missed_median / draws <= bound
        assert 0 < missed_shift / draws <= bound


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 6, 60):
            median_interval(range(n))
            shift(range(n), range(n))
            percentile(range(n), 99)
