"""A million arrivals in less than three seconds of one core, whatever the server does with them; compiling comes on top, once."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bench.capacity import events
from bench.capacity.simulation import Replicas, Server, Service, Times, simulate

N, SLOTS, MEAN_NS = 1_000_000, 8, 5_000_000


def ns(value: float) -> Times:
    return np.array([value], np.int64)


@pytest.mark.parametrize(
    ("server", "replicas"),
    [
        (Server(mode="warm-pool", slots=SLOTS), Replicas()),
        (Server(mode="warm-pool", slots=SLOTS, queue_limit=100, acquire_timeout_ns=4 * MEAN_NS), Replicas()),
        (Server(mode="cold-load", slots=SLOTS, load_ns=ns(MEAN_NS / 10)), Replicas()),
        (Server(mode="lazy", slots=SLOTS, load_ns=ns(10**9)), Replicas()),
        (Server(mode="elastic", slots=SLOTS, minimum=1, slot_ns=ns(MEAN_NS), idle_timeout_ns=MEAN_NS), Replicas()),
        (Server(mode="warm-pool", slots=1), Replicas(initial=1, maximum=16, above=2, detect_ns=10**9, start_ns=ns(10**10))),
    ],
    ids=["warm-pool", "limits", "cold-load", "lazy", "elastic", "scale-out"],
)
def test_a_million_arrivals_in_three_seconds(server: Server, replicas: Replicas) -> None:
    rng = np.random.default_rng(1)
    arrivals_ns = np.cumsum(rng.gamma(0.25, 4 * MEAN_NS / (0.8 * SLOTS), N)).astype(np.int64)
    times = rng.lognormal(np.log(MEAN_NS) - 0.125, 0.5, 10_000).astype(np.int64)
    service = Service(levels=(times,) * SLOTS, overhead_ns=times // 20)
    simulate(arrivals_ns[:2], service, server, replicas, seed=1)  # compiles
    taken = []
    for seed in range(3):
        start = time.process_time()
        simulate(arrivals_ns, service, server, replicas, seed=seed)
        taken.append(time.process_time() - start)
    print(f"{server.mode}, up to {replicas.maximum} replicas: {N:,} arrivals in {min(taken):.2f} s of one core")
    assert min(taken) < 3
    assert len(events.run.signatures) == 1
