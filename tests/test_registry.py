"""Models by name, each with its own pool; and a real runtime behind one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from bench.errors import BenchError, EngineRefused
from reference_server.health import check_health
from reference_server.jobs import LoadFailed
from reference_server.pool_settings import PoolSettings, Sharing
from reference_server.registry import Registry
from reference_server.server_timing import Timing

SyntheticFactory = Callable[..., Path]


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def test_a_name_is_served_once(synthetic: SyntheticFactory) -> None:
    with pytest.raises(BenchError, match="are both called 'twin'"):
        Registry([synthetic(name="twin"), synthetic(name="twin")], PoolSettings())


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match="is not an engine directory"):
        Registry([tmp_path], PoolSettings())


def test_models_are_found_by_name_and_version(synthetic: SyntheticFactory) -> None:
    registry = Registry([synthetic(name="a"), synthetic(name="b")], PoolSettings())
    assert list(registry.models) == ["a", "b"]
    assert registry.find("a") is registry.find("a", "1") is registry.models["a"]
    assert registry.find("a", "2") is None
    assert registry.find("c") is None


def test_models_have_pools_of_their_own(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        slow, quick = synthetic(name="slow", gate=gate), synthetic(name="quick")
        registry = Registry([slow, quick], PoolSettings(size=1))
        assert not registry.ready
        await registry.start()
        assert registry.ready
        gate.touch()
        given = {"input": np.ones((1, 1024), np.float32)}
        running = asyncio.create_task(registry.models["slow"].infer(given, None, Timing()))
        await asyncio.sleep(0)
        await registry.models["quick"].infer(given, None, Timing())
        assert not running.done()
        gate.unlink()
        await running
        await registry.close()
        assert not registry.ready

    run(main())


def test_a_model_that_cannot_start_closes_the_others(synthetic: SyntheticFactory) -> None:
    async def main() -> None:
        before = threading.active_count()
        good, bad = synthetic(name="good"), synthetic(name="bad")
        (bad / "engine.json").write_text("{}")
        registry = Registry([good, bad], PoolSettings(size=2))
        with pytest.raises(LoadFailed, match=r"engine\.json has 2 bytes"):
            await registry.start()
        assert not registry.models["good"].ready
        assert threading.active_count() == before

    run(main())


def test_an_engine_that_was_built_again_is_not_loaded_under_the_old_manifest(synthetic: SyntheticFactory) -> None:
    from bench.engine.synthetic_builder import build_synthetic

    async def main() -> None:
        engine = synthetic(name="model")
        model = Registry([engine], PoolSettings(mode="lazy")).models["model"]
        await model.start()
        build_synthetic(engine, name="model", max_batch=2)
        with pytest.raises(LoadFailed, match="was built again while it was served"):
            await model.infer({"input": np.ones((1, 1024), np.float32)}, None, Timing())
        await model.close()

    run(main())


@pytest.mark.parametrize("sharing", ["engine", "copy"])
def test_onnx_runtime_answers_in_parallel_what_it_answers_alone(linear_engine: Path, sharing: Sharing) -> None:
    async def main() -> None:
        model = Registry([linear_engine], PoolSettings(size=3, sharing=sharing)).models["linear"]
        await model.start()
        assert model.pool.fleet.source.engine_loads == (1 if sharing == "engine" else 3)
        rng = np.random.default_rng(2)
        inputs = [rng.standard_normal((1 + n % 4, 16)).astype(np.float32) for n in range(60)]
        answers = await asyncio.gather(*(model.infer({"x": x}, None, Timing()) for x in inputs))
        weights = await model.infer({"x": np.eye(16, dtype=np.float32)[:4]}, ["y"], Timing())
        assert weights["y"].shape == (4, 8)
        alone = [(await model.infer({"x": x}, None, Timing()))["y"] for x in inputs]
        for answer, expected in zip(answers, alone, strict=True):
            assert np.array_equal(answer["y"], expected)
        assert len({answer["y"].ctypes.data for answer in answers}) == len(answers)  # owned by the caller, not the slot
        await check_health(model.pool.fleet)
        assert (model.pool.fleet.counts.slot_failures, model.pool.fleet.idle) == (0, 3)
        await model.close()

    run(main())


def test_onnx_runtime_loads_and_unloads(linear_engine: Path) -> None:
    async def main() -> None:
        model = Registry([linear_engine], PoolSettings(mode="cold-load", size=2)).models["linear"]
        await model.start()
        timings = [Timing() for _ in range(4)]
        x = np.ones((2, 16), np.float32)
        answers = await asyncio.gather(*(model.infer({"x": x}, None, timing) for timing in timings))
        assert all(np.array_equal(answer["y"], answers[0]["y"]) for answer in answers)
        assert all(timing.load_ns > 0 for timing in timings)
        assert model.pool.fleet.source.engine_loads == 5
        await model.close()

    run(main())
