"""The pool with real threads on the synthetic runtime: who gets which slot, what is counted, what is left over."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from numpy.typing import NDArray

from bench.clock import now_ns
from bench.errors import BenchError
from reference_server.health import check_health
from reference_server.jobs import InferenceFailed, LoadFailed, Overloaded
from reference_server.pool import Pool
from reference_server.pool_settings import PoolSettings
from reference_server.registry import EXIT_DEVICE_SPOILED, Registry
from reference_server.runtimes import Answer, usable_cores
from reference_server.runtimes.synthetic import SyntheticSlot
from reference_server.server_timing import Timing

MS = 10**6
SyntheticFactory = Callable[..., Path]


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


@asynccontextmanager
async def serving(engine_dir: Path, *, start: bool = True, **settings: Any) -> AsyncIterator[Pool]:
    """A started pool without a background check; closed at the end, with all its threads gone."""
    before = threading.active_count()
    settings.setdefault("health_interval_ns", 0)
    pool = Registry([engine_dir], PoolSettings(**settings)).find("synthetic").pool  # type: ignore[union-attr]
    try:
        if start:
            await pool.start()
        yield pool
    finally:
        await pool.close()
        assert threading.active_count() == before


def request(seed: int = 0, batch: int = 1) -> NDArray[Any]:
    return np.random.default_rng(seed).random((batch, 1024), dtype=np.float32)


async def ask(pool: Pool, seed: int = 0, timing: Timing | None = None) -> Timing:
    """One request, its answer checked."""
    timing = Timing() if timing is None else timing
    given = request(seed)
    answer = await pool.infer({"input": given}, None, timing)
    assert np.array_equal(answer["output"], given * 2)
    return timing


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "warm"},
        {"sharing": "none"},
        {"size": 0},
        {"mode": "elastic", "min": 3, "max": 2},
        {"mode": "elastic", "min": 0, "max": 0},
        {"queue_limit": -1},
        {"acquire_timeout_ns": 0},
        {"idle_timeout_ns": -1},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BenchError):
        PoolSettings(**settings)


def test_slots_share_the_usable_cores_unless_told_otherwise() -> None:
    assert PoolSettings(size=1).runtime_options() == {"threads": str(usable_cores())}
    assert PoolSettings(size=1_000).runtime_options() == {"threads": "1"}
    assert PoolSettings(size=2, options={"threads": "7"}).runtime_options() == {"threads": "7"}


@pytest.mark.parametrize(("sharing", "engines"), [("engine", 1), ("copy", 3)])
def test_warm_pool_is_ready_when_every_slot_is(synthetic: SyntheticFactory, sharing: str, engines: int) -> None:
    async def main() -> None:
        async with serving(synthetic(load_ns=20 * MS), start=False, size=3, sharing=sharing) as pool:
            starting = asyncio.create_task(pool.start())
            while not starting.done():
                assert not pool.fleet.ready
                await asyncio.sleep(0.001)
            await starting
            assert pool.fleet.ready
            assert (pool.fleet.idle, pool.fleet.busy, pool.fleet.loading, pool.fleet.source.engine_loads) == (3, 0, 0, engines)
            assert (pool.fleet.counts.loads_ok, pool.fleet.counts.loads_failed) == (3, 0)
            timing = await ask(pool)
            assert timing.load_ns == 0
            assert timing.infer_ns >= 0

    run(main())


def test_a_slot_that_fails_one_of_the_probe_cases_never_becomes_ready(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(wrong_every_runs=2), start=False, size=2) as pool:
            with pytest.raises(LoadFailed, match="output 'output' is off by"):
                await pool.start()
            assert not pool.fleet.ready
            assert pool.fleet.counts.loads_failed >= 1
            with pytest.raises(Overloaded):
                await ask(pool)

    run(main())


def test_requests_are_served_in_the_order_in_which_they_came(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(service_ns=2 * MS), size=1) as pool:
            ended: list[int] = []

            async def one(number: int) -> None:
                await ask(pool, number)
                ended.append(number)

            await asyncio.gather(*(one(number) for number in range(20)))
            assert ended == list(range(20))
            assert (pool.hits, pool.misses) == (1, 19)

    run(main())


@pytest.mark.parametrize("mode", ["warm-pool", "lazy", "cold-load"])
def test_a_full_queue_sheds_exactly_the_rest(synthetic: SyntheticFactory, mode: str) -> None:
    async def main() -> None:
        async with serving(synthetic(service_ns=30 * MS, load_ns=10 * MS), mode=mode, size=2, queue_limit=1) as pool:
            outcomes = await asyncio.gather(*(ask(pool, n) for n in range(7)), return_exceptions=True)
            assert [isinstance(outcome, Timing) for outcome in outcomes] == [True] * 3 + [False] * 4
            for outcome in outcomes[3:]:
                assert isinstance(outcome, Overloaded)
                assert outcome.retry_after_s >= 1
            await ask(pool)

    run(main())


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Where an engine with `gate=gate` stands still while there is a file, so that a state lasts until the test has seen it."""
    return tmp_path / "gate"


def test_a_wait_that_is_too_long_is_ended(synthetic: SyntheticFactory, gate: Path) -> None:
    async def main() -> None:
        async with serving(synthetic(gate=gate), size=1, acquire_timeout_ns=40 * MS) as pool:
            gate.touch()
            first = asyncio.create_task(ask(pool))
            await asyncio.sleep(0)
            timing = Timing()
            with pytest.raises(Overloaded, match="within"):
                await ask(pool, timing=timing)
            assert timing.pool_ns >= 40 * MS
            assert timing.load_ns == timing.infer_ns == 0
            assert pool.waiting == 0
            gate.unlink()
            await first
            assert pool.fleet.idle == 1

    run(main())


def test_a_requester_that_goes_away_frees_its_place(synthetic: SyntheticFactory, gate: Path) -> None:
    async def main() -> None:
        async with serving(synthetic(gate=gate), size=1, queue_limit=1) as pool:
            gate.touch()
            running = asyncio.create_task(ask(pool, 1))
            waits = asyncio.create_task(ask(pool, 2))
            await asyncio.sleep(0)  # both have asked
            assert pool.waiting == 1
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert pool.waiting == 0
            third = asyncio.create_task(ask(pool, 3))
            await asyncio.sleep(0)
            assert pool.waiting == 1  # the queue holds one again
            gate.unlink()
            await asyncio.gather(running, third)

    run(main())


def test_a_run_whose_requester_went_away_ends_before_its_slot_is_used_again(
    synthetic: SyntheticFactory, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int] = []
    run_slot = SyntheticSlot.run

    def noted(self: SyntheticSlot, *arguments: Any) -> Answer:
        began.append(now_ns())
        return run_slot(self, *arguments)

    monkeypatch.setattr(SyntheticSlot, "run", noted)

    async def main() -> None:
        async with serving(synthetic(gate=gate, service_ns=20 * MS), size=1) as pool:
            gate.touch()
            began.clear()
            leaves = asyncio.create_task(ask(pool, 1))
            await until(lambda: len(began) == 1)  # it runs
            leaves.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaves
            assert (pool.fleet.busy, pool.fleet.idle) == (1, 0)
            following = asyncio.create_task(ask(pool, 2))
            await asyncio.sleep(0)
            assert (pool.waiting, pool.misses) == (1, 1)  # it waits for the abandoned run
            gate.unlink()
            await following
            first, second = began
            assert second - first >= 20 * MS
            assert (pool.fleet.busy, pool.fleet.idle) == (0, 1)

    run(main())


def test_lazy_loads_once_for_all_that_wait_and_never_again(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(load_ns=60 * MS, service_ns=30 * MS), mode="lazy", size=3) as pool:
            assert pool.fleet.ready
            assert pool.fleet.source.engine_loads == 0
            timings = await asyncio.gather(*(ask(pool, n) for n in range(5)))
            assert pool.fleet.source.engine_loads == 1
            assert timings[0].load_ns >= 60 * MS
            assert all(timing.load_ns > 0 for timing in timings)
            await until(lambda: pool.fleet.idle == 3)
            later = await asyncio.gather(*(ask(pool, n) for n in range(5)))
            assert [timing.load_ns for timing in later] == [0] * 5
            assert (pool.fleet.source.engine_loads, pool.fleet.counts.loads_ok) == (1, 3)

    run(main())


def test_cold_load_loads_and_unloads_for_each_request(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(load_ns=20 * MS, service_ns=5 * MS), mode="cold-load", size=1) as pool:
            assert pool.fleet.ready
            assert (pool.fleet.idle, pool.fleet.source.engine_loads) == (0, 1)  # the one that made it ready
            timings = await asyncio.gather(*(ask(pool, n) for n in range(3)))
            assert pool.fleet.source.engine_loads == 4
            assert all(timing.load_ns >= 20 * MS for timing in timings)
            assert all(timing.infer_ns >= 5 * MS for timing in timings)
            assert timings[0].pool_ns < timings[1].pool_ns < timings[2].pool_ns  # one at a time

    run(main())


def test_elastic_grows_off_the_path_and_shrinks_to_its_minimum(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        engine = synthetic(service_ns=20 * MS, slot_ns=5 * MS)
        async with serving(engine, mode="elastic", min=1, max=3, idle_timeout_ns=500 * MS) as pool:
            assert pool.fleet.idle == 1
            timings = await asyncio.gather(*(ask(pool, n) for n in range(24)))
            await until(lambda: pool.fleet.idle == 3)
            assert timings[0].load_ns == 0  # found a slot
            assert any(timing.load_ns > 0 for timing in timings)
            await until(lambda: pool.fleet.idle == 1)
            await ask(pool)
            assert pool.fleet.source.engine_loads == 1

    run(main())


def test_elastic_shrinks_to_nothing_and_gives_the_engine_back(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(load_ns=10 * MS), mode="elastic", min=0, max=2, idle_timeout_ns=20 * MS) as pool:
            for loads in (1, 2):
                timing = await ask(pool)
                assert timing.load_ns >= 10 * MS
                assert pool.fleet.source.engine_loads == loads
                await until(lambda: not pool.fleet.threads)
                assert pool.fleet.ready

    run(main())


@pytest.mark.parametrize("mode", ["lazy", "cold-load"])
def test_a_failed_load_is_told_to_all_that_waited_and_tried_again(synthetic: SyntheticFactory, mode: str) -> None:
    async def main() -> None:
        engine = synthetic(load_ns=10 * MS)
        file, away = engine / "engine.json", engine / "away"
        async with serving(engine, mode=mode, size=1) as pool:
            file.rename(away)
            outcomes = await asyncio.gather(*(ask(pool, n) for n in range(3)), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [LoadFailed] * 3
            assert "is missing" in str(outcomes[0])
            assert pool.fleet.counts.loads_failed == (1 if mode == "lazy" else 3)
            assert not pool.fleet.ready
            away.rename(file)
            await ask(pool)
            assert pool.fleet.ready

    run(main())


@pytest.mark.parametrize("mode", ["lazy", "cold-load"])
def test_the_check_tries_a_failed_load_again_where_no_request_does(synthetic: SyntheticFactory, mode: str) -> None:
    async def main() -> None:
        engine = synthetic()
        file, away = engine / "engine.json", engine / "away"
        async with serving(engine, mode=mode, size=1) as pool:
            file.rename(away)
            with pytest.raises(LoadFailed):
                await ask(pool)
            assert not pool.fleet.ready  # so a load balancer sends no request that could try
            away.rename(file)
            await check_health(pool.fleet)
            await until(lambda: pool.fleet.ready)

    run(main())


def test_too_little_memory_is_told_in_a_sentence(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        engine = synthetic(engine_bytes=1 << 60)
        async with serving(engine, start=False) as pool:
            with pytest.raises(LoadFailed, match=f"{engine} does not load: not enough memory"):
                await pool.start()

    run(main())


def test_the_waiters_of_a_load_that_fails_are_served_where_another_slot_lives(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        engine = synthetic(service_ns=20 * MS)
        async with serving(engine, mode="elastic", min=1, max=2, sharing="copy") as pool:
            (engine / "engine.json").unlink()
            await asyncio.gather(*(ask(pool, n) for n in range(4)))
            await until(lambda: not pool.fleet.makers)
            assert pool.fleet.counts.loads_failed == 1  # and not one attempt a request
            assert pool.fleet.ready

    run(main())


def test_a_slot_that_answers_wrongly_is_taken_out_and_replaced(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        # Runs 1 and 2 of each slot are its probe's cases, run 3 is the check.
        async with serving(synthetic(wrong_every_runs=3), size=2) as pool:
            await check_health(pool.fleet)
            await until(lambda: pool.fleet.idle == 2)
            assert (pool.fleet.counts.slot_failures, pool.fleet.counts.rebuilds, pool.fleet.counts.loads_ok) == (2, 2, 4)
            assert pool.fleet.ready

    run(main())


def test_ready_goes_false_when_no_slot_is_left_and_comes_back(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        engine = synthetic(wrong_every_runs=3)
        file, away = engine / "engine.json", engine / "away"
        async with serving(engine, size=1) as pool:
            file.rename(away)
            await check_health(pool.fleet)
            await until(lambda: pool.fleet.counts.loads_failed == 1)
            assert not pool.fleet.ready
            with pytest.raises(LoadFailed):
                await ask(pool)
            away.rename(file)
            await check_health(pool.fleet)
            await until(lambda: pool.fleet.ready)

    run(main())


def test_the_background_check_finds_the_slot(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(wrong_every_runs=4), size=1, health_interval_ns=5 * MS) as pool:
            await until(lambda: pool.fleet.counts.rebuilds >= 2)

    run(main())


def test_a_run_that_fails_is_told_and_a_good_slot_stays(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(fail_every_runs=3), size=1) as pool:
            timing = Timing()
            with pytest.raises(InferenceFailed, match="declared to fail"):
                await ask(pool, timing=timing)
            assert timing.infer_ns > 0
            assert (pool.fleet.idle, pool.fleet.counts.slot_failures) == (1, 0)
            await ask(pool)

    run(main())


def test_closing_sheds_what_waits_and_lets_runs_end(synthetic: SyntheticFactory, gate: Path) -> None:
    async def main() -> None:
        async with serving(synthetic(gate=gate), size=2) as pool:
            gate.touch()
            asking = [asyncio.create_task(ask(pool, n)) for n in range(4)]
            await asyncio.sleep(0)
            assert pool.waiting == 2
            closing = asyncio.create_task(pool.close())
            await asyncio.sleep(0)
            assert pool.waiting == 0
            gate.unlink()
            await closing
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Timing, Timing, Overloaded, Overloaded]
            assert not pool.fleet.ready

    run(main())


def test_closing_while_loading_leaves_nothing(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(load_ns=50 * MS), mode="lazy", size=1) as pool:
            asking = asyncio.create_task(ask(pool))
            await asyncio.sleep(0)
            assert pool.fleet.loading == 1
            await pool.close()
            with pytest.raises(Overloaded):
                await asking

    run(main())


def test_a_spoiled_device_ends_the_process_with_its_own_exit_code(synthetic: SyntheticFactory) -> None:
    engine = synthetic(spoil_every_runs=3)
    program = f"""
import asyncio, numpy as np
from pathlib import Path
from reference_server.registry import Registry
from reference_server.pool_settings import PoolSettings
from reference_server.server_timing import Timing
async def main():
    model = Registry([Path({str(engine)!r})], PoolSettings()).find("synthetic")
    await model.start()
    await model.infer({{"input": np.zeros((1, 1024), np.float32)}}, None, Timing())
    await asyncio.sleep(60)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == EXIT_DEVICE_SPOILED
    assert "model synthetic: synthetic: this run was declared to spoil the device" in done.stderr


def test_a_fork_is_refused(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(), size=1) as pool:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    pool.infer({}, None, Timing()).send(None)
                except InferenceFailed:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0

    run(main())


def test_a_cold_run_that_fails_counts_its_load_and_gives_the_place_back(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        async with serving(synthetic(), mode="cold-load", size=1) as pool:
            timing = Timing()
            with pytest.raises(InferenceFailed):
                await pool.infer({}, None, timing)
            assert timing.load_ns > 0
            assert (pool.fleet.counts.loads_ok, pool.fleet.counts.loads_failed) == (2, 0)
            await ask(pool)
            assert pool.fleet.counts.loads_ok == 3

    run(main())
