"""Simulated burst experiments whose truth is known: requests of one spike share an effect, and their times have a heavy tail.

Times are in ms. Each model gives both arms of experiments at once, as float32 [experiments, spikes, REQUESTS]; half of
the (logarithmic) effect of a spike is common to both arms, because they got the same schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.analysis.compare import P99Comparison, SpikePairs, compare_pairs

REQUESTS = 200
RANK = math.ceil(0.99 * REQUESTS) - 1
COMMON = 0.5

Times = NDArray[np.float32]
Model = Callable[[np.random.Generator, int, int, float], tuple[Times, Times]]


def _effects(rng: np.random.Generator, experiments: int, spikes: int, deviation: float) -> tuple[Times, Times]:
    common, *own = (rng.standard_normal((experiments, spikes, 1), dtype=np.float32) for _ in range(3))
    first, second = (np.exp(deviation * (math.sqrt(COMMON) * common + math.sqrt(1 - COMMON) * each)) for each in own)
    return first, second


def lognormal(rng: np.random.Generator, experiments: int, spikes: int, factor: float) -> tuple[Times, Times]:
    """Lognormal requests around a lognormal level; the second arm is slower by `factor` throughout."""
    shape = (experiments, spikes, REQUESTS)
    first, second = _effects(rng, experiments, spikes, 0.6)
    return 10 * first * np.exp(0.7 * rng.standard_normal(shape, np.float32)), 10 * factor * second * np.exp(
        0.7 * rng.standard_normal(shape, np.float32)
    )


def pareto(rng: np.random.Generator, experiments: int, spikes: int, factor: float) -> tuple[Times, Times]:
    """A power law with index 3: the third moment is infinite."""
    shape = (experiments, spikes, REQUESTS)
    first, second = _effects(rng, experiments, spikes, 0.6)
    power = np.float32(-1 / 3)
    return 10 * first * (1 - rng.random(shape, np.float32)) ** power, 10 * factor * second * (1 - rng.random(shape, np.float32)) ** power


def queue(rng: np.random.Generator, experiments: int, spikes: int, factor: float) -> tuple[Times, Times]:
    """A constant service and a queue that grows through the spike; only the second arm's queue is longer by `factor`,
    so that the arms differ in shape, not by a common factor."""
    shape = (experiments, spikes, REQUESTS)
    ramp = np.linspace(0, 1, REQUESTS, dtype=np.float32)
    levels = zip(_effects(rng, experiments, spikes, 0.7), (1.0, factor), strict=True)
    first, second = (
        2.5 * rng.standard_gamma(2, shape, np.float32) + 20 * slower * level * ramp * rng.standard_gamma(4, shape, np.float32) / 4
        for level, slower in levels
    )
    return first, second


MODELS: dict[str, Model] = {"lognormal": lognormal, "pareto": pareto, "queue": queue}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """typical: exp(E log P99 of a spike) of the second arm less that of the first, and their ratio; pooled: the
    difference of the P99s of all requests together."""

    typical_difference: float
    typical_ratio: float
    pooled_difference: float
    icc: float
    requests: int


def truth(model: Model, factor: float, spikes: int = 40_000) -> Truth:
    """From 8 million requests an arm (`spikes` of 200), with a seed of its own."""
    rng = np.random.default_rng(20260131)
    first, second = model(rng, 1, spikes, factor)
    typical = [float(np.exp(np.log(p99(arm)).mean())) for arm in (first, second)]
    pooled = [float(np.partition(arm.ravel(), rank)[rank]) for arm in (first, second) for rank in [math.ceil(0.99 * arm.size) - 1]]
    return Truth(
        typical_difference=typical[1] - typical[0] if factor != 1 else 0.0,
        typical_ratio=typical[1] / typical[0] if factor != 1 else 1.0,
        pooled_difference=pooled[1] - pooled[0] if factor != 1 else 0.0,
        icc=min(intraclass_correlation(arm[0]) for arm in (first, second)),
        requests=first.size,
    )


def p99(arm: Times) -> NDArray[np.float64]:
    """Each spike's own P99, [..., spikes]."""
    return np.partition(arm, RANK, axis=-1)[..., RANK].astype(np.float64)


def intraclass_correlation(arm: Times) -> float:
    """One-way analysis of variance, [spikes, requests]."""
    values = arm.astype(np.float64)
    within, between = values.var(axis=1, ddof=1).mean(), values.mean(axis=1).var(ddof=1)
    shared = between - within / values.shape[1]
    return float(shared / (shared + within))


def experiments(model: Model, *, seed: int, spikes: int, count: int, factor: float) -> Iterator[tuple[Times, Times]]:
    """Both arms of one experiment after the other, each [spikes, REQUESTS]."""
    rng = np.random.default_rng(seed)
    done = 0
    while done < count:
        some = min(50, count - done)
        yield from zip(*model(rng, some, spikes, factor), strict=True)
        done += some


def compare(first: Times, second: Times) -> P99Comparison:
    pairs = SpikePairs(first_ns=p99(first), second_ns=p99(second), spikes_per_unit=1, left_out=0, unanswered_first=0, unanswered_second=0)
    return compare_pairs(pairs)


def naive_interval(first: Times, second: Times) -> tuple[float, float]:
    """The difference of the P99s of all requests, as if these were independent: order statistics, then the normal."""
    estimates, errors = [], []
    for arm in (first, second):
        ordered = np.sort(arm.ravel())
        n, reach = len(ordered), 1.96 * math.sqrt(0.99 * 0.01 * arm.size)
        estimates.append(float(ordered[math.ceil(0.99 * n) - 1]))
        low, high = ordered[max(0, math.floor(0.99 * n - reach))], ordered[min(n - 1, math.ceil(0.99 * n + reach))]
        errors.append(float(high - low) / 2)
    difference, error = estimates[1] - estimates[0], math.hypot(*errors)
    return difference - error, difference + error


def bootstrap_interval(first: Times, second: Times, rng: np.random.Generator, resamples: int = 400) -> tuple[float, float]:
    """The plain percentile bootstrap over spikes of the same difference."""
    spikes = len(first)
    weights = rng.multinomial(spikes, np.full(spikes, 1 / spikes), resamples).astype(np.float32)
    found = []
    for arm in (first, second):
        order = np.argsort(-arm.ravel(), kind="stable")[: arm.size // 5]
        above = np.cumsum(np.eye(spikes, dtype=np.float32)[order // REQUESTS], axis=0) @ weights.T
        found.append(arm.ravel()[order][(above <= 0.01 * arm.size + 1e-3).sum(axis=0).clip(max=len(order) - 1)])
    low, high = np.quantile(found[1] - found[0], [0.025, 0.975])
    return float(low), float(high)
