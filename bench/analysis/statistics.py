"""The statistics that every analysis uses: exact percentiles, rank intervals, and the shift between two samples.

Nothing here assumes a distribution; everything takes plain arrays of one unit and gives that unit back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval, both ends included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How much larger the second sample is than the first; `distinguishable` is False where the interval holds none.

    `ratio` is the same as a factor (both samples positive). `interval` and `ratio_interval` are None with too few samples.
    """

    difference: float
    interval: Interval | None
    ratio: float | None
    ratio_interval: Interval | None

    @property
    def distinguishable(self) -> bool:
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


def samples_needed(percent: float) -> int:
    """At least 1/(1 - q) samples must lie around a percentile above the median (p95: 20, p99: 100, p99.9: 1000).

    With fewer it is merely the largest value of a few. The maximum (100) is what it is.
    """
    return math.ceil(round(100 / (100 - percent), 6)) if 50 < percent < 100 else 1


def percentile(values: ArrayLike, percent: float) -> float | None:
    """The exact nearest-rank percentile; None with fewer samples than it needs."""
    return percentiles(values, (percent,))[0]


def percentiles(values: ArrayLike, percents: Sequence[float]) -> tuple[float | None, ...]:
    """Several percentiles of the same values, by the rule of `percentile`, for the price of one sort."""
    ordered = np.sort(np.asarray(values))
    return tuple(
        float(ordered[nearest_rank(len(ordered), percent) - 1]) if len(ordered) >= samples_needed(percent) else None for percent in percents
    )


def nearest_rank(count: int, percent: float) -> int:
    """The rank, from 1, of the percentile among `count` values: the smallest with at least that share at or below it."""
    return max(1, math.ceil(round(count * percent / 100, 9)))


def median(values: ArrayLike) -> float:
    """The median, the mean of the middle two where there are two."""
    return float(np.median(np.asarray(values)))


def median_interval(values: ArrayLike) -> Interval | None:
    """A distribution-free interval of at least 95 % for the median, from order statistics; None below 6 samples.

    Source: David and Nagaraja, Order Statistics, section 7.1 (binomial with p = 1/2).
    """
    ordered = np.sort(np.asarray(values))
    rank = median_rank(len(ordered))
    return Interval(low=float(ordered[rank - 1]), high=float(ordered[len(ordered) - rank])) if rank >= 1 else None


def median_rank(count: int) -> int:
    """The rank, from 1, of the order statistic from below (and from above) that ends the interval of `median_interval`;
    0 where there are too few samples."""
    below, rank = 0.0, 0
    while True:
        below += math.comb(count, rank) / 2**count
        if below > 0.025 or rank > count // 2:
            return rank
        rank += 1


def shift(first: ArrayLike, second: ArrayLike) -> Shift:
    """The Hodges-Lehmann shift from `first` to `second` with its rank-sum interval (both are independent samples).

    The interval is made of the sorted pairwise differences at the ranks where the Mann-Whitney test turns. Source:
    Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, sections 4.2 and 4.3.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    difference, interval = _hodges_lehmann(a, b)
    if (a > 0).all() and (b > 0).all():
        log_ratio, log_interval = _hodges_lehmann(np.log(a), np.log(b))
        ratio = math.exp(log_ratio)
        ratio_interval = Interval(low=math.exp(log_interval.low), high=math.exp(log_interval.high)) if log_interval else None
    else:
        ratio, ratio_interval = None, None
    return Shift(difference=difference, interval=interval, ratio=ratio, ratio_interval=ratio_interval)


def _hodges_lehmann(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, Interval | None]:
    differences = np.sort((b[:, None] - a[None, :]).ravel())
    rank = _mann_whitney_rank(len(a), len(b))
    interval = Interval(low=float(differences[rank - 1]), high=float(differences[len(differences) - rank])) if rank >= 1 else None
    return float(np.median(differences)), interval


@lru_cache
def _mann_whitney_rank(m: int, n: int) -> int:
    """The largest k with P(U < k) <= 0.025; 0 where even k = 1 has more. Exact up to 50 a side, else the normal approximation."""
    if m <= 50 and n <= 50:
        counts = _u_counts(m, n)
        limit, cumulative = sum(counts) * 0.025, 0
        for rank, count in enumerate(counts):
            cumulative += count
            if cumulative > limit:
                return rank
    return max(0, math.floor(m * n / 2 - 1.959964 * math.sqrt(m * n * (m + n + 1) / 12)))


def _u_counts(m: int, n: int) -> list[int]:
    """How many orders of two samples give each value of U: the coefficients of the Gaussian binomial (m + n choose m)."""
    counts = [0] * (m * n + 1)
    counts[0] = 1
    for i in range(1, m + 1):
        for power in range(m * n, n + i - 1, -1):  # times (1 - x^(n+i))
            counts[power] -= counts[power - n - i]
        for power in range(i, m * n + 1):  # over (1 - x^i)
            counts[power] += counts[power - i]
    return counts
