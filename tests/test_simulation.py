"""The simulation against a plain one, request by request in every mode; against recursions; and what must hold of any run."""

from __future__ import annotations

import heapq
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from simulated_by_hand import simulate_by_hand

from bench.capacity.simulation import OK, SHED, TIMEOUT, Replicas, Server, Service, Simulated, Times, simulate
from bench.errors import BenchError

MS = 1_000_000


def ns(*values: int) -> Times:
    return np.array(values, np.int64)


# Small numbers, so that much happens at the same nanosecond.
samples = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(lambda values: ns(*values))
services = st.lists(st.integers(1, 15), min_size=1, max_size=3).map(lambda values: ns(*values))
service = st.builds(Service, levels=st.lists(services, min_size=1, max_size=3).map(tuple), overhead_ns=samples)


@st.composite
def servers(draw: st.DrawFn) -> Server:
    slots = draw(st.integers(1, 4))
    return Server(
        mode=draw(st.sampled_from(["cold-load", "lazy", "warm-pool", "elastic"])),
        slots=slots,
        minimum=draw(st.integers(0, slots)),
        queue_limit=draw(st.sampled_from([None, None, 0, 1, 4])),
        acquire_timeout_ns=draw(st.sampled_from([None, None, 1, 7, 30])),
        idle_timeout_ns=draw(st.sampled_from([None, 0, 3, 20])),
        sharing=draw(st.sampled_from(["engine", "copy"])),
        load_ns=draw(samples),
        slot_ns=draw(samples),
        unload_ns=draw(samples),
    )


@st.composite
def scale_out(draw: st.DrawFn) -> Replicas:
    initial = draw(st.integers(1, 3))
    return Replicas(
        initial=initial,
        maximum=initial + draw(st.sampled_from([0, 1, 3])),
        signal=draw(st.sampled_from(["waiting", "busy"])),
        above=draw(st.sampled_from([0.0, 0.5, 0.8, 2.0])),
        detect_ns=draw(st.integers(0, 10)),
        cooldown_ns=draw(st.integers(0, 20)),
        start_ns=draw(samples),
    )


arrivals = st.lists(st.sampled_from([0, 0, 1, 2, 3, 9, 40]), min_size=1, max_size=60).map(lambda gaps: np.cumsum(gaps).astype(np.int64))


@settings(max_examples=600, deadline=None)
@given(arrivals_ns=arrivals, service=service, server=servers(), replicas=scale_out(), seed=st.integers(0, 2**32))
def test_equals_the_plain_one_request_by_request(
    arrivals_ns: Times, service: Service, server: Server, replicas: Replicas, seed: int
) -> None:
    found = simulate(arrivals_ns, service, server, replicas, seed=seed)
    expected = simulate_by_hand(arrivals_ns, service, server, replicas, seed=seed)
    event(f"{server.mode}, {'scaled out' if found.replicas[-1] > replicas.initial else 'as many as at the start'}")
    for field in fields(Simulated):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name), err_msg=field.name)


def gamma_arrivals(count: int, mean_ns: float, cv: float, seed: int) -> Times:
    return np.cumsum(np.random.default_rng(seed).gamma(1 / cv**2, mean_ns * cv**2, count)).astype(np.int64)


def lognormal(seed: int = 0, size: int = 1000) -> Times:
    return np.random.default_rng(seed).lognormal(np.log(MS), 0.5, size).astype(np.int64)


def test_one_slot_obeys_lindleys_recursion() -> None:
    arrivals_ns = gamma_arrivals(20_000, 1.3 * MS, 2, 1)
    found = simulate(arrivals_ns, Service(levels=(lognormal(),)), Server(mode="warm-pool", slots=1), seed=3)
    wait = 0
    for n in range(1, len(arrivals_ns)):
        wait = max(0, wait + int(found.service_ns[n - 1]) - int(arrivals_ns[n] - arrivals_ns[n - 1]))
        assert found.pool_ns[n] == wait
    assert wait >= 0
    assert (found.response_ns == found.pool_ns + found.service_ns).all()


@pytest.mark.parametrize("slots", [2, 5])
def test_several_slots_obey_the_recursion_of_kiefer_and_wolfowitz(slots: int) -> None:
    arrivals_ns = gamma_arrivals(20_000, 1.3 * MS / slots, 3, 2)
    found = simulate(arrivals_ns, Service(levels=(lognormal(),) * slots), Server(mode="warm-pool", slots=slots), seed=4)
    free_ns = [0] * slots
    for came, wait, takes in zip(arrivals_ns.tolist(), found.pool_ns.tolist(), found.service_ns.tolist(), strict=True):
        begins = max(came, free_ns[0])
        assert wait == begins - came
        heapq.heapreplace(free_ns, begins + takes)


EVERY_MODE = [
    Server(mode="cold-load", slots=3, load_ns=ns(MS), unload_ns=ns(MS // 4), acquire_timeout_ns=8 * MS),
    Server(mode="lazy", slots=4, load_ns=ns(30 * MS), slot_ns=ns(5 * MS), queue_limit=20),
    Server(mode="warm-pool", slots=4, queue_limit=10, acquire_timeout_ns=3 * MS),
    Server(mode="elastic", slots=5, minimum=0, load_ns=ns(30 * MS), slot_ns=ns(5 * MS), idle_timeout_ns=2 * MS),
    Server(mode="elastic", slots=5, minimum=1, slot_ns=ns(5 * MS), load_ns=ns(20 * MS), sharing="copy", idle_timeout_ns=10 * MS),
]
SCALE_OUT = Replicas(initial=1, maximum=3, above=3, detect_ns=5 * MS, cooldown_ns=50 * MS, start_ns=ns(20 * MS, 40 * MS))


@pytest.mark.parametrize("server", EVERY_MODE, ids=lambda server: f"{server.mode}-{server.sharing}")
def test_nothing_is_lost_and_no_slot_is_used_twice(server: Server) -> None:
    arrivals_ns = gamma_arrivals(30_000, 0.3 * MS, 3, 5)
    service = Service(levels=(lognormal(), 2 * lognormal()), overhead_ns=ns(7, 8))
    found = simulate(arrivals_ns, service, server, SCALE_OUT, seed=6)
    served = found.status == OK
    assert set(found.status) <= {OK, SHED, TIMEOUT} and served.any()
    assert ((found.service_ns > 0) == served).all()
    overhead = found.response_ns - found.pool_ns - found.load_ns - found.service_ns
    assert set(overhead.tolist()) == {7, 8}
    assert (found.pool_ns >= 0).all() and (found.load_ns >= 0).all()
    if server.acquire_timeout_ns is not None:
        own_load = server.load_ns[0] if server.mode == "cold-load" else 0
        assert (found.pool_ns + found.load_ns <= server.acquire_timeout_ns + own_load).all()
        assert (found.pool_ns[found.status == TIMEOUT] == server.acquire_timeout_ns).all()
    assert found.replicas.max() == 3 and (np.diff(found.replicas) >= 0).all()
    assert (np.diff(found.change_ns) > 0).all() and found.change_ns[-1] <= found.end_ns
    assert (found.slots <= server.slots * found.replicas).all() and (found.engines <= found.slots).all()
    # In each replica, first come, first served; and never more at a time than there are slots.
    for replica in range(3):
        mine = served & (found.replica == replica)
        ended = arrivals_ns[mine] + found.pool_ns[mine] + found.load_ns[mine] + found.service_ns[mine]
        begun = ended - found.service_ns[mine] - (found.load_ns[mine] if server.mode == "cold-load" else 0)
        assert (np.diff(begun) >= 0).all()
        moments = np.concatenate([ended, begun])
        change = np.concatenate([np.full(len(ended), -1), np.full(len(begun), 1)])
        assert np.cumsum(change[np.lexsort((change, moments))]).max() <= server.slots
    taken = found.service_ns.sum() + (found.load_ns[served].sum() if server.mode == "cold-load" else 0)
    assert taken <= found.held_ns(found.slots)


def test_a_seed_is_a_run() -> None:
    arrivals_ns = gamma_arrivals(3000, 0.3 * MS, 3, 5)
    service = Service(levels=(lognormal(), 2 * lognormal(1)), overhead_ns=lognormal(2))
    first, again, other = (simulate(arrivals_ns, service, EVERY_MODE[3], SCALE_OUT, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(getattr(first, field.name), getattr(again, field.name)) for field in fields(Simulated))
    assert not np.array_equal(first.response_ns, other.response_ns)


def test_a_request_has_the_same_rank_whatever_serves_it() -> None:
    """So that two servers are compared on the same luck: the order of the samples does not matter, and more slots draw the same."""
    arrivals_ns = gamma_arrivals(3000, 0.4 * MS, 2, 5)
    drawn = [
        simulate(arrivals_ns, Service(levels=(times,) * 8), Server(mode="warm-pool", slots=slots), seed=9).service_ns
        for slots, times in [(1, lognormal()), (8, lognormal()), (3, np.flip(lognormal()))]
    ]
    assert np.array_equal(drawn[0], drawn[1]) and np.array_equal(drawn[0], drawn[2])
    assert set(drawn[0].tolist()) <= set(lognormal().tolist()) and len(set(drawn[0].tolist())) > 900


def test_the_level_is_that_of_the_slots_in_use_when_the_run_begins() -> None:
    """And it is kept: the first goes on for 10, though a second begins; beyond the levels the last one grows in proportion."""
    service = Service(levels=(ns(10), ns(100)))
    found = simulate(ns(0, 1, 2, 3, 200, 400), service, Server(mode="warm-pool", slots=4), seed=1)
    assert found.service_ns.tolist() == [10, 100, 150, 200, 100, 10]


def test_lazy_by_hand() -> None:
    """The engine is loaded once (10), then slots are made for those who wait (2 each, side by side); the first serves meanwhile."""
    server = Server(mode="lazy", slots=3, load_ns=ns(10), slot_ns=ns(2), queue_limit=0)
    found = simulate(ns(0, 1, 2, 3, 50), Service(levels=(ns(20),) * 3), server, seed=1)
    assert found.status.tolist() == [OK, OK, OK, SHED, OK]
    # The third arrival's slots are made from 12 on, when the first slot is there, until 14.
    assert found.load_ns.tolist() == [12, 13, 12, 0, 0]
    assert found.pool_ns.tolist() == [0, 0, 0, 0, 0]
    assert found.change_ns.tolist() == [0, 12] and found.slots.tolist() == [1, 3] and found.engines.tolist() == [1, 1]


def test_cold_load_by_hand() -> None:
    """Two places; each is taken for load (10), run (5) and unload (3). The wait for a place is no load."""
    server = Server(mode="cold-load", slots=2, load_ns=ns(10), unload_ns=ns(3))
    found = simulate(ns(0, 0, 1), Service(levels=(ns(5), ns(5))), server, seed=1)
    assert found.load_ns.tolist() == [10, 10, 10]
    assert found.pool_ns.tolist() == [0, 0, 17]
    assert found.response_ns.tolist() == [15, 15, 32]
    assert (found.change_ns.tolist(), found.slots.tolist(), found.end_ns) == ([0, 18, 36], [2, 1, 0], 36)


def test_elastic_by_hand() -> None:
    """One slot is kept. The second request has another made off the path, but the first slot is free sooner and serves it."""
    server = Server(mode="elastic", slots=2, minimum=1, slot_ns=ns(30), idle_timeout_ns=50)
    found = simulate(ns(0, 5, 200), Service(levels=(ns(10),) * 2), server, seed=1)
    assert found.pool_ns.tolist() == [0, 5, 0] and found.load_ns.tolist() == [0, 0, 0]
    # Made at 35; at 70 the first slot has rested for 50 and goes; the one that is kept rests on.
    assert (found.change_ns.tolist(), found.slots.tolist()) == ([0, 5, 70], [1, 2, 1])
    assert found.held_ns(found.slots) == 5 + 2 * 65 + 140


def test_the_engine_goes_with_the_last_slot_and_a_new_load_waits_for_that() -> None:
    """But not while another slot of it is being made, as from 40 to 70, while the first slot is dropped at 55."""
    server = Server(mode="elastic", slots=2, load_ns=ns(10), slot_ns=ns(30), unload_ns=ns(200), idle_timeout_ns=5)
    found = simulate(ns(0, 1, 60, 200), Service(levels=(ns(5), ns(5))), server, seed=1)
    assert found.load_ns.tolist() == [40, 39, 10, 80 + 200 + 10 + 30 - 200] and found.pool_ns.tolist() == [0, 5, 0, 0]
    assert found.change_ns.tolist() == [0, 40, 55, 80, 200]
    assert found.slots.tolist() == [1, 2, 1, 0, 1] and found.engines.tolist() == [1, 1, 1, 0, 1]


def test_scale_out_by_hand() -> None:
    """One at a time waits from 1 on; 10 later a replica is started, which takes 20, and gets what comes from then on."""
    replicas = Replicas(maximum=2, above=0, detect_ns=10, start_ns=ns(20))
    found = simulate(ns(0, 1, 2, 30, 31, 32), Service(levels=(ns(100),)), Server(mode="warm-pool", slots=1), replicas, seed=1)
    assert found.replica.tolist() == [0, 0, 0, 0, 1, 1]
    assert (found.change_ns.tolist(), found.replicas.tolist(), found.slots.tolist()) == ([0, 11], [1, 2], [1, 2])


GOOD = Server(mode="warm-pool", slots=2)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"arrivals_ns": ns()}, "no arrivals"),
        ({"arrivals_ns": ns(3, 2)}, "ascending"),
        ({"arrivals_ns": ns(-1)}, "ascending"),
        ({"service": Service(levels=())}, "at least one busy slot"),
        ({"service": Service(levels=(ns(1), ns()))}, "with 2 busy are none"),
        ({"service": Service(levels=(ns(0),))}, "at least 1 ns"),
        ({"service": Service(levels=(ns(1),), overhead_ns=ns(-1))}, "at least 0 ns"),
        ({"server": replace(GOOD, slots=0)}, "at least 1 slot"),
        ({"server": replace(GOOD, minimum=3)}, "at least 1 slot"),
        ({"server": replace(GOOD, queue_limit=-1)}, "queue limit"),
        ({"server": replace(GOOD, acquire_timeout_ns=0)}, "acquire timeout"),
        ({"server": replace(GOOD, idle_timeout_ns=-1)}, "idle timeout"),
        ({"server": replace(GOOD, mode="warm")}, "'warm'"),
        ({"replicas": Replicas(initial=2)}, "2 of 1"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(changed: dict[str, object], sentence: str) -> None:
    good: dict[str, object] = {"arrivals_ns": ns(0), "service": Service(levels=(ns(1),)), "server": GOOD, "replicas": None}
    with pytest.raises(BenchError, match=sentence):
        simulate(**{**good, **changed}, seed=1)  # type: ignore[arg-type]
