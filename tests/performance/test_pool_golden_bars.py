"""The pool's timed bars, on a machine that does nothing else: waits and loads of known length within 2 ms."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import uvloop

from bench.clock import now_ns
from reference_server.pool_settings import Mode, PoolSettings
from reference_server.registry import Registry, ServedModel
from reference_server.server_timing import Timing

MS = 10**6
INPUT = {"input": np.ones((1, 1024), np.float32)}


async def ask(model: ServedModel) -> tuple[int, Timing]:
    asked_ns, timing = now_ns(), Timing()
    await model.infer(INPUT, None, timing)
    return asked_ns, timing


def test_pool_wait_of_the_third_request(synthetic: Callable[..., Path]) -> None:
    async def main() -> list[int]:
        model = Registry([synthetic(service_ns=20 * MS)], PoolSettings(size=2)).models["synthetic"]
        await model.start()
        errors = []
        for _ in range(20):
            first, _, third = await asyncio.gather(*(ask(model) for _ in range(3)))
            errors.append(third[1].pool_ns - (20 * MS - (third[0] - first[0])))
        await model.close()
        return errors

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        errors = runner.run(main())
    print(f"pool wait of the third, off by (ms): median {statistics.median(errors) / MS:.3f}, worst {max(errors) / MS:.3f}")
    assert abs(statistics.median(errors)) <= 2 * MS


def test_load_of_300_ms(synthetic: Callable[..., Path]) -> None:
    async def loads(mode: Mode, requests: int) -> list[int]:
        model = Registry([synthetic(load_ns=300 * MS)], PoolSettings(mode=mode)).models["synthetic"]
        await model.start()
        seen = [(await ask(model))[1].load_ns for _ in range(requests)]
        await model.close()
        return seen

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cold, lazy = runner.run(loads("cold-load", 10)), runner.run(loads("lazy", 10))
    print(f"load of 300 ms (ms): cold-load median {statistics.median(cold) / MS:.2f}, lazy first {lazy[0] / MS:.2f}")
    assert all(300 * MS <= load_ns <= 310 * MS for load_ns in [statistics.median(cold), lazy[0]])
    assert min(cold) >= 300 * MS
    assert lazy[1:] == [0] * 9
