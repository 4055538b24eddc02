"""Loads, growth and failures by the thousand: memory stays where it was, no thread, file or socket is left over."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import uvloop

from reference_server.jobs import LoadFailed
from reference_server.phases import resident_bytes
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry, ServedModel
from reference_server.server_timing import Timing

CYCLES = int(os.environ.get("COLDBURST_SOAK_CYCLES", "1000"))
WARM_IN = CYCLES // 5
MOST_BYTES_A_CYCLE = 10_000
INPUT = {"input": np.ones((1, 1024), np.float32)}
SyntheticFactory = Callable[..., Path]


def resident() -> int:
    now = resident_bytes()
    assert now is not None
    return now


def open_files() -> Counter[str]:
    """What the descriptors of this process point at; sockets and pipes by kind. Without the one that lists them."""
    found = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return Counter(re.sub(r":\[\d+\]", "", str(target)) for target in found if not str(target).endswith("/fd"))


def slope(samples: list[int]) -> float:
    """Bytes a cycle, by Theil-Sen over a thinned series: one page-cache or arena step must not tilt it."""
    thinned = samples[:: max(1, len(samples) // 100)]
    step = max(1, len(samples) // 100)
    slopes = [(b - a) / ((j - i) * step) for i, a in enumerate(thinned) for j, b in enumerate(thinned) if j > i]
    return statistics.median(slopes)


async def settle(model: ServedModel) -> None:
    """Until nothing runs, loads or leaves: each slot's thread holds a descriptor."""
    fleet = model.pool.fleet
    async with asyncio.timeout(30):
        while fleet.busy or fleet.loading or fleet.threads != fleet.slots:
            await asyncio.sleep(0.01)


def soak(engine: Path, settings: PoolSettings, cycle: Callable[[ServedModel], Awaitable[None]]) -> None:
    async def main() -> list[int]:
        model = Registry([engine], settings).models[engine.name]
        await model.start()
        samples: list[int] = []
        for number in range(CYCLES):
            await cycle(model)
            if number >= WARM_IN:
                samples.append(resident())
            if number == WARM_IN:
                await settle(model)
                held = open_files()
        await settle(model)
        assert open_files() <= held
        await model.close()
        return samples

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))  # what uvloop opens once in a process
    resident()  # and this, its file
    threads, files = threading.active_count(), open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        samples = runner.run(main())
    grown = slope(samples)
    print(f"{CYCLES} cycles: {grown:.0f} bytes a cycle, {(samples[-1] - samples[0]) / 1e6:.2f} MB from first to last")
    assert grown < MOST_BYTES_A_CYCLE
    assert threading.active_count() == threads
    assert open_files() <= files


@pytest.mark.parametrize("sharing", ["engine", "copy"])
def test_load_and_unload(synthetic: SyntheticFactory, sharing: str) -> None:
    async def cycle(model: ServedModel) -> None:
        await asyncio.gather(*(model.infer(INPUT, None, Timing()) for _ in range(2)))

    engine = synthetic(engine_bytes=4_000_000, slot_bytes=1_000_000)
    soak(engine, PoolSettings(mode="cold-load", size=2, sharing=sharing), cycle)  # type: ignore[arg-type]


@pytest.mark.parametrize("sharing", ["engine", "copy"])
def test_elastic_up_and_down(synthetic: SyntheticFactory, sharing: str) -> None:
    async def cycle(model: ServedModel) -> None:
        await asyncio.gather(*(model.infer(INPUT, None, Timing()) for _ in range(8)))
        async with asyncio.timeout(30):
            while model.pool.fleet.idle != 1 or model.pool.fleet.loading:
                await asyncio.sleep(0.001)

    engine = synthetic(engine_bytes=4_000_000, slot_bytes=1_000_000, service_ns=5_000_000)
    settings = PoolSettings(mode="elastic", min=1, max=3, idle_timeout_ns=5_000_000, sharing=sharing)  # type: ignore[arg-type]
    soak(engine, settings, cycle)


@pytest.mark.parametrize("mode", ["lazy", "cold-load"])
def test_failing_loads(synthetic: SyntheticFactory, mode: str) -> None:
    failed = 0

    async def cycle(model: ServedModel) -> None:
        nonlocal failed
        outcomes = await asyncio.gather(*(model.infer(INPUT, None, Timing()) for _ in range(3)), return_exceptions=True)
        failed += sum(isinstance(outcome, LoadFailed) for outcome in outcomes)
        if mode == "lazy":  # unload, so that the next cycle loads again
            for slot in tuple(model.pool.fleet.resting):
                model.pool.fleet.resting.remove(slot)
                model.pool.fleet._take_out(slot)
            async with asyncio.timeout(30):
                while model.pool.fleet.threads:
                    await asyncio.sleep(0.001)

    engine = synthetic(engine_bytes=4_000_000, slot_bytes=1_000_000, fail_every_loads=3)
    for attempt in range(2):
        try:
            soak(engine, PoolSettings(mode=mode, size=1), cycle)  # type: ignore[arg-type]
            break
        except LoadFailed:  # the load that makes cold-load ready was the one to fail; the next one is not
            assert attempt == 0
    assert failed >= CYCLES // 3


def test_load_and_unload_of_a_real_runtime(linear_engine: Path) -> None:
    async def cycle(model: ServedModel) -> None:
        x = np.ones((4, 16), np.float32)
        await asyncio.gather(*(model.infer({"x": x}, None, Timing()) for _ in range(2)))

    soak(linear_engine, PoolSettings(mode="cold-load", size=2), cycle)
