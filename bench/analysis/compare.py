"""Two arms that got the same schedule: how much slower is the second in a spike, and how sure is that?

The unit is the spike, because the requests of one spike share its fate. What is estimated is the P99 of a typical
spike: each spike's own exact P99, and of those the geometric mean over spikes. The ratio of two arms is the geometric
mean of the paired ratios; the difference is the difference of the two typical P99s. Both come from the same pairs, so
they do not disagree about whether there is a difference (but for the last digit of an end at 0).

Why not the P99 of all requests together: it is made by the few worst spikes. With 20 spikes, a strong effect shared by
a spike's requests and a heavy tail, its bootstrap interval holds the truth in 75 to 92 of 100 experiments instead of
95. The logarithm of a spike's P99 is nearly symmetric, and what spikes have in common in both arms leaves the pair.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from bench.analysis.statistics import Interval, nearest_rank, samples_needed
from bench.errors import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PERCENT = 99.0
POWER = 0.8
FEWEST_UNITS = 5  # a t interval from fewer spikes is too wide to say anything, and leans on normality alone
_MOST_SPIKES = 100_000
_GRID, _CROSS = 1000, 21


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikePairs:
    """The P99 of every spike that both arms had: float64 [n], ns. `spikes_per_unit` is above 1 where single spikes had
    too few answers for a P99, so that neighbours were put together (`group_spikes`); the last group has the `remainder`
    too. `left_out` counts spikes that have no pair, or in which one arm answered nothing."""

    first_ns: NDArray[np.float64]
    second_ns: NDArray[np.float64]
    spikes_per_unit: int
    left_out: int
    unanswered_first: float
    unanswered_second: float
    remainder: int = 0

    @property
    def spikes(self) -> int:
        """In all groups together."""
        return len(self.first_ns) * self.spikes_per_unit + self.remainder


@dataclass(frozen=True, slots=True, kw_only=True)
class P99Comparison:
    """`second` against `first`. The typical P99 is the geometric mean over spikes. Intervals are None below 5 units, which
    `spikes` make in groups of `spikes_per_unit`.

    smallest_ratio: the smallest slowdown (above 1) that 80 % of such experiments would see; smallest_difference_ns: the
    same, beside the first arm's typical P99. more_spikes: how many more it takes to see a difference of the measured
    size in 80 % of experiments: 0 where it was seen, None where that would be above 100,000. serial_correlation: of the
    log ratios of neighbours; far from 0 says that spikes came too close to be independent. unanswered_*: the share of
    the spikes' arrivals without a correct answer; they have no response time and are missing from the P99.
    """

    units: int
    spikes: int
    spikes_per_unit: int
    left_out: int
    first_p99_ns: float
    second_p99_ns: float
    difference_ns: float
    difference_interval: Interval | None
    ratio: float
    ratio_interval: Interval | None
    p_value: float | None
    smallest_ratio: float | None
    smallest_difference_ns: float | None
    more_spikes: int | None
    serial_correlation: float | None
    unanswered_first: float
    unanswered_second: float

    @property
    def distinguishable(self) -> bool:
        """The interval of the ratio does not hold 1: the verdict."""
        return self.ratio_interval is not None and not self.ratio_interval.low <= 1 <= self.ratio_interval.high

    @property
    def spikes_for_interval(self) -> int:
        """How many spikes like these an interval needs."""
        return FEWEST_UNITS * self.spikes_per_unit


def pair_spikes(first: pd.DataFrame, second: pd.DataFrame) -> SpikePairs:
    """Pair the spikes of two arms by (run, spike): columns run, spike (negative outside), ok, response_ns as made by
    `bench.analysis.load_run`. Raises BenchError where no spike is in both, or together they have too few answers."""
    one, two = _by_spike(first), _by_spike(second)
    shared = sorted(one.keys() & two.keys())
    if not shared:
        raise BenchError("the two arms have no spike in common: compare runs of one experiment, or of the same schedule")
    # A spike in which an arm answered nothing (its server was gone) has no P99 at all; it shows in `unanswered`.
    keys = [key for key in shared if len(one[key][0]) and len(two[key][0])]
    left_out = len(one.keys() | two.keys()) - len(keys)
    grouped = group_spikes(*([len(arm[key][0]) for key in keys] for arm in (one, two)))
    if grouped is None:
        needed = samples_needed(PERCENT)
        raise BenchError(f"the spikes have under {needed} answers together, too few for a P99: use longer spikes or a higher rate")
    per_unit, edges = grouped
    groups = [keys[start:end] for start, end in itertools.pairwise(edges)]
    first_ns, second_ns = (np.array([_p99(np.concatenate([arm[key][0] for key in group])) for group in groups]) for arm in (one, two))
    unanswered = [1 - sum(len(arm[key][0]) for key in shared) / sum(arm[key][1] for key in shared) for arm in (one, two)]
    return SpikePairs(
        first_ns=first_ns,
        second_ns=second_ns,
        spikes_per_unit=per_unit,
        remainder=len(keys) - len(groups) * per_unit,
        left_out=left_out,
        unanswered_first=unanswered[0],
        unanswered_second=unanswered[1],
    )


def group_spikes(*answers: Sequence[int]) -> tuple[int, list[int]] | None:
    """The fewest neighbouring spikes that together have enough answers for a P99, wherever one looks and in every arm.

    answers: of each arm, how many each spike has. Returns that number and the edges of the groups, of which a last one that
    is too small joins the one before; None where even all spikes together have too few.
    """
    needed, count = samples_needed(PERCENT), len(answers[0])
    for size in range(1, count + 1):
        edges = [*range(0, count - size + 1, size), count]
        if all(sum(arm[start:end]) >= needed for start, end in itertools.pairwise(edges) for arm in answers):
            return size, edges
    return None


def compare_p99(first: pd.DataFrame, second: pd.DataFrame) -> P99Comparison:
    """Compare the spikes' P99 of two arms' requests. Raises BenchError as `pair_spikes` does."""
    return compare_pairs(pair_spikes(first, second))


def compare_pairs(pairs: SpikePairs) -> P99Comparison:
    """The comparison from the spikes' own P99s: paired t on their logarithms. Raises BenchError where one is not above 0."""
    if (pairs.first_ns <= 0).any() or (pairs.second_ns <= 0).any():
        raise BenchError("a spike has a P99 that is not above 0 ns, so no ratio can be told: its records are damaged")
    first, second = np.log(pairs.first_ns), np.log(pairs.second_ns)
    n, ratios = len(first), second - first
    first_p99, second_p99, shift = math.exp(first.mean()), math.exp(second.mean()), float(ratios.mean())
    ratio_interval = difference_interval = p_value = smallest = more = None
    if n >= FEWEST_UNITS:
        error = float(ratios.std(ddof=1)) / math.sqrt(n)
        reach = float(stdtrit(n - 1, 0.975)) * error
        ratio_interval = Interval(low=math.exp(shift - reach), high=math.exp(shift + reach))
        difference_interval = _difference_interval(first, second)
        p_value = float(2 * stdtr(n - 1, -abs(shift) / error)) if error > 0 else float(shift == 0)
        smallest = math.exp(_detectable(n) * error * math.sqrt(n))
        seen = not ratio_interval.low <= 1 <= ratio_interval.high
        wanted = n if seen else _units_needed(shift, error * math.sqrt(n))
        more = None if wanted is None else max(0, wanted - n) * pairs.spikes_per_unit
    return P99Comparison(
        units=n,
        spikes=pairs.spikes,
        spikes_per_unit=pairs.spikes_per_unit,
        left_out=pairs.left_out,
        first_p99_ns=first_p99,
        second_p99_ns=second_p99,
        difference_ns=second_p99 - first_p99,
        difference_interval=difference_interval,
        ratio=math.exp(shift),
        ratio_interval=ratio_interval,
        p_value=p_value,
        smallest_ratio=smallest,
        smallest_difference_ns=None if smallest is None else (smallest - 1) * first_p99,
        more_spikes=more,
        serial_correlation=_serial_correlation(ratios),
        unanswered_first=pairs.unanswered_first,
        unanswered_second=pairs.unanswered_second,
    )


def spikes_needed(pairs: SpikePairs, ratio: float) -> int | None:
    """How many spikes in all let 80 % of experiments see a slowdown by `ratio`; None: above 100,000, or too few to tell."""
    if len(pairs.first_ns) < FEWEST_UNITS:
        return None
    spread = float(np.log(pairs.second_ns / pairs.first_ns).std(ddof=1))
    units = _units_needed(math.log(ratio), spread)
    return None if units is None else units * pairs.spikes_per_unit


def _by_spike(frame: pd.DataFrame) -> dict[tuple[int, int], tuple[NDArray[np.float64], int]]:
    """(run, spike) -> the response times of its correct answers, and its arrivals."""
    inside = frame["spike"].to_numpy() >= 0
    run, spike = frame["run"].to_numpy()[inside].astype(np.int64), frame["spike"].to_numpy()[inside].astype(np.int64)
    ok, response = frame["ok"].to_numpy()[inside], frame["response_ns"].to_numpy()[inside].astype(np.float64)
    order = np.lexsort((spike, run))
    run, spike, ok, response = run[order], spike[order], ok[order], response[order]
    if not len(run):
        return {}
    starts = np.flatnonzero(np.r_[True, (np.diff(run) != 0) | (np.diff(spike) != 0)])
    ends = np.r_[starts[1:], len(run)]
    return {(int(run[s]), int(spike[s])): (response[s:e][ok[s:e]], int(e - s)) for s, e in zip(starts, ends, strict=True)}


def _p99(values: NDArray[np.float64]) -> float:
    rank = nearest_rank(len(values), PERCENT) - 1
    return float(np.partition(values, rank)[rank])


def _difference_interval(first: NDArray[np.float64], second: NDArray[np.float64]) -> Interval:
    """The interval of exp(mean(second)) - exp(mean(first)), of paired logarithms.

    The generalised interval (Weerahandi 1993; Krishnamoorthy and Mathew 2003 for lognormal means): the two means have a
    bivariate t distribution around the measured ones, and its quantiles of the difference are the ends. The difference
    is 2 exp(g) sinh(r/2) with r the log ratio and g the log of the geometric mean of both, so it is below 0 exactly
    where r is. The distribution is laid out on a grid (r by its quantiles, g given r by its), so nothing is random.
    """
    n = len(first)
    ratios, middles = second - first, (first + second) / 2
    r, g = float(ratios.mean()), float(middles.mean())
    covariance = np.cov(ratios, middles) / n
    error = math.sqrt(max(0.0, float(covariance[0, 0])))
    slope = float(covariance[0, 1] / covariance[0, 0]) if covariance[0, 0] > 0 else 0.0
    left = math.sqrt(max(0.0, float(covariance[1, 1]) - slope * float(covariance[0, 1])))
    quantiles, crossing = _grid(n - 1)
    # A bivariate t given its first coordinate: t with one degree more, wider the further out the first one lies.
    spread = np.sqrt((n - 1 + quantiles**2) / n)
    log_middle = g + slope * error * quantiles[:, None] + left * spread[:, None] * crossing[None, :]
    differences = (2 * np.exp(log_middle) * np.sinh((r + error * quantiles) / 2)[:, None]).ravel()
    tail = round(0.025 * len(differences))
    ends = np.partition(differences, [tail - 1, tail, -tail - 1, -tail])
    return Interval(low=float(ends[tail - 1] + ends[tail]) / 2, high=float(ends[-tail - 1] + ends[-tail]) / 2)


@lru_cache
def _grid(freedom: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return (
        np.asarray(stdtrit(freedom, (np.arange(_GRID) + 0.5) / _GRID)),
        np.asarray(stdtrit(freedom + 1, (np.arange(_CROSS) + 0.5) / _CROSS)),
    )


def _detectable(units: int) -> float:
    """The smallest true shift that 80 % of experiments see, in standard deviations of one pair."""
    return float(stdtrit(units - 1, 0.975) + stdtrit(units - 1, POWER)) / math.sqrt(units)


def _units_needed(shift: float, deviation: float) -> int | None:
    """The fewest units that see `shift` with 80 % power; None above the most that anybody would run."""
    if abs(shift) <= 0 or _detectable(_MOST_SPIKES) * deviation > abs(shift):
        return None
    low, high = FEWEST_UNITS, _MOST_SPIKES
    while low < high:
        middle = (low + high) // 2
        if _detectable(middle) * deviation <= abs(shift):
            high = middle
        else:
            low = middle + 1
    return low


def _serial_correlation(values: NDArray[np.float64]) -> float | None:
    """Lag-1 autocorrelation; None with under 10 values, or where they do not differ."""
    centred = values - values.mean()
    total = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / total if len(centred) >= 10 and total > 0 else None
