"""Whatever requests, cancellations and failures come in whatever order: no slot is lost or used twice, and the counts add up."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from bench.engine.synthetic_builder import build_synthetic
from reference_server.health import check_health
from reference_server.jobs import InferenceFailed, LoadFailed, Overloaded
from reference_server.pool import Pool
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry
from reference_server.runtimes import Answer
from reference_server.runtimes.synthetic import SyntheticSlot
from reference_server.server_timing import Timing

in_use: Counter[int] = Counter()
used_twice: list[int] = []


@pytest.fixture(autouse=True)
def watched_slots(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every run says that it uses its slot, so that a second user is seen."""
    run = SyntheticSlot.run

    def watched(self: SyntheticSlot, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> Answer:
        in_use[id(self)] += 1
        if in_use[id(self)] != 1:
            used_twice.append(id(self))
        try:
            return run(self, inputs, outputs)
        finally:
            in_use[id(self)] -= 1

    monkeypatch.setattr(SyntheticSlot, "run", watched)
    used_twice.clear()
    yield
    assert used_twice == []


actions = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 5)),
    st.tuples(st.just("cancel"), st.integers(1, 6)),
    st.tuples(st.just("pause"), st.integers(0, 6)),
    st.tuples(st.just("file"), st.sampled_from([0, 1])),
    st.just(("check", 0)),
)
pools = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["cold-load", "lazy", "warm-pool", "elastic"]),
        "size": st.integers(1, 3),
        "min": st.integers(0, 1),
        "max": st.integers(1, 3),
        "idle_timeout_ns": st.sampled_from([0, 1_000_000, 10**9]),
        "sharing": st.sampled_from(["engine", "copy"]),
        "queue_limit": st.sampled_from([None, 0, 1, 4]),
        "acquire_timeout_ns": st.sampled_from([None, 2_000_000]),
    }
)
engines = st.fixed_dictionaries(
    {
        "load_ns": st.sampled_from([0, 1_000_000]),
        "slot_ns": st.sampled_from([0, 500_000]),
        "service_ns": st.sampled_from([0, 300_000, 2_000_000]),
        "fail_every_loads": st.sampled_from([0, 0, 0, 2, 5]),
        "fail_every_runs": st.sampled_from([0, 0, 4, 5]),
        "wrong_every_runs": st.sampled_from([0, 0, 3, 7]),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(declared=engines, chosen=pools, steps=st.lists(actions, min_size=8, max_size=40))
def test_no_slot_is_lost_or_used_twice(declared: dict[str, int], chosen: dict[str, Any], steps: list[tuple[str, int]]) -> None:
    before = threading.active_count()
    with tempfile.TemporaryDirectory() as folder:
        build_synthetic(Path(folder), max_batch=2, input_elements=4, output_elements=4, **declared)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(play(Path(folder), PoolSettings(health_interval_ns=0, **chosen), steps))
    assert threading.active_count() == before
    assert sum(in_use.values()) == 0


async def play(engine: Path, chosen: PoolSettings, steps: list[tuple[str, int]]) -> None:
    model = Registry([engine], chosen).find("synthetic")
    assert model is not None
    pool = model.pool
    try:
        await pool.start()
    except LoadFailed:
        assert pool.fleet.counts.loads_failed >= 1
        assert not pool.fleet.threads
        return
    asked: list[asyncio.Task[str]] = []
    file, away = engine / "engine.json", engine / "away"
    for step, number in steps:
        match step:
            case "ask":
                asked.extend(asyncio.create_task(ask(pool)) for _ in range(number))
            case "cancel" if number <= len(asked):
                asked[-number].cancel()
            case "pause":
                await asyncio.sleep(number * 0.0005)
            case "file" if number and away.exists():
                away.rename(file)
            case "file" if not number and file.exists():
                file.rename(away)
            case "check":
                await check_health(pool.fleet)
        check_state(pool, chosen)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    told = Counter(outcome if isinstance(outcome, str) else type(outcome).__name__ for outcome in outcomes)
    for kind in told:
        event(kind)
    assert set(told) <= {"ok", "Overloaded", "LoadFailed", "InferenceFailed", "CancelledError"}
    never_ran = told["CancelledError"]  # a task that is cancelled before its first step never asked the pool
    assert len(asked) - never_ran <= pool.hits + pool.misses <= len(asked)
    async with asyncio.timeout(60):
        while pool.fleet.busy or pool.fleet.loading or pool.fleet.replaced:
            await asyncio.sleep(0.0005)
    check_state(pool, chosen)
    assert pool.waiting == 0
    assert len(pool.fleet.resting) == len(pool.fleet.slots)
    await pool.close()
    assert not pool.fleet.threads
    assert not pool.fleet.slots
    assert pool.fleet.source._engine is None
    assert pool.fleet.source._takers == 0


def check_state(pool: Pool, chosen: PoolSettings) -> None:
    assert not (pool.fleet.resting and pool._waiting)
    assert len(set(pool.fleet.resting)) == len(pool.fleet.resting)
    assert set(pool.fleet.resting) <= pool.fleet.slots <= pool.fleet.threads
    assert len(pool.fleet.slots) + len(pool.fleet.makers) + len(pool.fleet.replaced) <= chosen.ceiling


async def ask(pool: Pool) -> str:
    given_array = np.arange(4, dtype=np.float32).reshape(1, 4)
    timing = Timing()
    try:
        answer = await pool.infer({"input": given_array}, None, timing)
    except (Overloaded, LoadFailed, InferenceFailed) as error:
        return type(error).__name__
    finally:
        parts = (timing.pool_ns, timing.load_ns, timing.input_ns, timing.infer_ns, timing.output_ns)
        assert all(part >= 0 for part in parts), parts
    assert answer["output"].shape == (1, 4)
    return "ok"
