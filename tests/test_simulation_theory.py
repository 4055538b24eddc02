"""The simulation against what queueing theory knows exactly, within four standard errors of the simulated figure, and against its bounds.

The standard errors are of batch means: 40 parts of a run, each far longer than a busy period, are taken as independent.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.capacity.simulation import Replicas, Server, Service, Times, simulate

MS = 1_000_000
N = 200_000
PARTS = 40


def exponential_quantiles(mean_ns: float, count: int = 50_000) -> Times:
    """Samples whose mean is the exponential's to 1e-5, so that what is drawn from them is exponential but for the far tail."""
    return (-np.log1p(-(np.arange(count) + 0.5) / count) * mean_ns).astype(np.int64) + 1


def poisson(mean_ns: float, seed: int) -> Times:
    return np.cumsum(np.random.default_rng(seed).exponential(mean_ns, N)).astype(np.int64)


def waits(arrivals_ns: Times, times: Times, slots: int, seed: int) -> Times:
    found = simulate(arrivals_ns, Service(levels=(times,) * slots), Server(mode="warm-pool", slots=slots), seed=seed)
    return found.pool_ns[N // 20 :]  # the pool began empty


def agree(values: NDArray[np.generic], expected: float) -> None:
    parts = np.array([part.mean() for part in np.array_split(values, PARTS)])
    error = parts.std(ddof=1) / math.sqrt(PARTS)
    assert abs(parts.mean() - expected) < 4 * error, f"{parts.mean()} ± {error}, in theory {expected}"
    assert error < 0.1 * expected  # else this shows little


def erlang_c(slots: int, load: float) -> float:
    """The share of M/M/c arrivals that wait; `load` in erlangs (Erlang 1917), through the recursion of Erlang B."""
    blocked = 1.0
    for k in range(1, slots + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked / (1 - load / slots * (1 - blocked))


@pytest.mark.parametrize(("slots", "utilisation"), [(1, 0.7), (4, 0.8), (8, 0.9), (16, 0.7)])
def test_exponential_service_is_erlang_c(slots: int, utilisation: float) -> None:
    wait_ns = waits(poisson(MS / (slots * utilisation), slots), exponential_quantiles(MS), slots, 7)
    waiting = erlang_c(slots, slots * utilisation)
    spare = slots * (1 - utilisation) / MS  # slots' rate less the arrivals', per ns
    agree(wait_ns > 0, waiting)
    agree(wait_ns, waiting / spare)
    for multiple in (0.5, 1, 2):  # those that wait do so for an exponential time
        agree(wait_ns > multiple / spare, waiting * math.exp(-multiple))


def test_a_full_queue_is_erlang_b() -> None:
    """M/M/c/c: nobody may wait. Then only the mean of the service counts, so a constant one does as well."""
    slots, load = 5, 4.0
    blocked = 1.0
    for k in range(1, slots + 1):
        blocked = load * blocked / (k + load * blocked)
    for times in (exponential_quantiles(MS), np.array([MS])):
        found = simulate(
            poisson(MS / load, 3), Service(levels=(times,) * slots), Server(mode="warm-pool", slots=slots, queue_limit=0), seed=5
        )
        agree(found.status[N // 20 :] != 0, blocked)


@pytest.mark.parametrize("utilisation", [0.5, 0.8])
def test_constant_service_is_m_d_1(utilisation: float) -> None:
    wait_ns = waits(poisson(MS / utilisation, 11), np.array([MS]), 1, 1)
    agree(wait_ns, utilisation * MS / (2 * (1 - utilisation)))
    agree(wait_ns > 0, utilisation)
    # Erlang 1909: P(wait <= t) for t below one service time is (1 - rho) exp(rho t).
    agree(wait_ns > MS // 2, 1 - (1 - utilisation) * math.exp(utilisation / 2))


@pytest.mark.parametrize(
    "times",
    [
        np.random.default_rng(1).lognormal(0, 0.8, 2000) * MS,
        np.array([MS / 10] * 19 + [10 * MS]),
        np.random.default_rng(2).gamma(4, MS / 4, 2000),
    ],
    ids=["lognormal", "two-point", "gamma"],
)
def test_any_service_is_pollaczek_and_khinchine(times: NDArray[np.float64]) -> None:
    times_ns = times.astype(np.int64)
    utilisation = 0.6
    rate = utilisation / times_ns.mean()
    wait_ns = waits(poisson(1 / rate, 13), times_ns, 1, 1)
    agree(wait_ns, rate * (times_ns.astype(float) ** 2).mean() / (2 * (1 - utilisation)))


@pytest.mark.parametrize("cv", [0.5, 2.0, 4.0])
def test_any_arrivals_are_under_kingmans_bound_and_near_it_when_busy(cv: float) -> None:
    """G/G/1 (Kingman 1962): the mean wait is at most rate (var(gap) + var(service)) / (2 (1 - rho)), and gets there as rho nears 1."""
    times_ns, utilisation = exponential_quantiles(MS), 0.9
    mean_ns = MS / utilisation
    arrivals_ns = np.cumsum(np.random.default_rng(17).gamma(1 / cv**2, mean_ns * cv**2, N)).astype(np.int64)
    bound = (cv**2 * mean_ns**2 + float(times_ns.var())) / mean_ns / (2 * (1 - utilisation))
    mean_wait = waits(arrivals_ns, times_ns, 1, 1).mean()
    assert 0.6 * bound < mean_wait < 1.1 * bound  # the bound is of the expectation; a run's mean varies by some percent


def test_burstiness_costs_what_the_planning_note_says() -> None:
    """Four slots at 70 % with constant service: the P99 wait of bursty arrivals is more than ten times that of Poisson ones."""
    p99 = {}
    for cv in (1, 4):
        mean_ns = MS / (4 * 0.7)
        arrivals_ns = np.cumsum(np.random.default_rng(19).gamma(1 / cv**2, mean_ns * cv**2, N)).astype(np.int64)
        p99[cv] = float(np.quantile(waits(arrivals_ns, np.array([MS]), 4, 1), 0.99)) / MS
    assert 1.2 < p99[1] < 1.7 and p99[4] > 10 * p99[1]


@pytest.mark.parametrize("mode", ["cold-load", "elastic", "lazy"])
def test_loads_of_no_time_make_every_mode_a_warm_pool(mode: str) -> None:
    arrivals_ns, service = poisson(MS / 3.2, 23), Service(levels=(exponential_quantiles(MS),) * 4)
    warm = simulate(arrivals_ns, service, Server(mode="warm-pool", slots=4), seed=2)
    other = simulate(arrivals_ns, service, Server(mode=mode, slots=4, idle_timeout_ns=MS), seed=2)  # type: ignore[arg-type]
    assert np.array_equal(warm.response_ns, other.response_ns)


def test_replicas_behind_a_balancer_are_worse_than_one_pool_and_better_than_a_coin() -> None:
    """Two replicas with two slots, least outstanding requests first: between M/M/4 and two M/M/2, each with half the arrivals."""
    arrivals_ns, service = poisson(MS / 3.2, 29), Service(levels=(exponential_quantiles(MS),) * 4)
    two = simulate(arrivals_ns, service, Server(mode="warm-pool", slots=2), Replicas(initial=2, maximum=2), seed=2).pool_ns.mean()
    one_pool, coin = (erlang_c(slots, 0.8 * slots) * MS / (slots * 0.2) for slots in (4, 2))
    assert 1.02 * one_pool < two < 0.9 * coin


def test_littles_law_of_the_queue() -> None:
    """Held exactly in any run: the time integral of the number that wait is the sum of their waits."""
    arrivals_ns = poisson(MS / 3.6, 31)
    found = simulate(arrivals_ns, Service(levels=(exponential_quantiles(MS),) * 4), Server(mode="warm-pool", slots=4), seed=2)
    begun = arrivals_ns + found.pool_ns
    moments = np.concatenate([arrivals_ns, begun])
    order = np.argsort(moments, kind="stable")
    waiting = np.cumsum(np.concatenate([np.ones(N, np.int64), np.full(N, -1)])[order])
    assert int(waiting[:-1] @ np.diff(moments[order])) == int(found.pool_ns.sum())
