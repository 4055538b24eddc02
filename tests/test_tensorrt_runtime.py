"""The TensorRT runtime's own logic on stand-ins for the drivers and for TensorRT. What real ones do is shown by tests/gpu on a GPU."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_ins import Device, GraphDriver, cuda_python_modules, install, nvml_module, pycuda_modules, tensorrt_module

from bench.engine.manifest import (
    PROBE_FILE,
    SCHEMA_VERSION,
    BuildDetails,
    Manifest,
    ShapeRange,
    Tensor,
    describe_file,
    read_manifest,
    write_manifest,
)  # fmt: skip
from bench.engine.probe import read_probe
from bench.errors import BenchError, EngineRefused
from bench.server_timeline import read_server_timeline
from reference_server import runtimes
from reference_server.loader import load_engine, run_probe
from reference_server.metrics import expose
from reference_server.phases import Phases
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry
from reference_server.runtimes import DeviceSpoiled, Engine
from reference_server.runtimes.tensorrt import TensorrtRuntime
from reference_server.timeline import Timeline

FEATURES = 16
WEIGHTS = 1 << 20
CONTEXT = 1 << 16
EngineFactory = Callable[..., Path]


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture(params=["pycuda", "cuda-python"])
def runtime(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> TensorrtRuntime:
    """A runtime of its own on stand-ins, found by the loader."""
    modules = {"pycuda": pycuda_modules, "cuda-python": cuda_python_modules}[request.param](device)
    install(monkeypatch, modules)
    if request.param == "cuda-python":
        monkeypatch.setitem(sys.modules, "pycuda", None)
    install(monkeypatch, {"tensorrt": tensorrt_module(device, "8.6.1"), "tensorrt_lean": tensorrt_module(device, "10.16.1.11")})
    made = TensorrtRuntime()
    monkeypatch.setattr("reference_server.runtimes.tensorrt.RUNTIME", made)
    return made


@pytest.fixture
def build(tmp_path: Path) -> EngineFactory:
    """An engine directory whose plan the stand-in reads."""

    def build(
        *, profiles: tuple[tuple[int, int], ...] = ((1, 8),), dtype: str = "FLOAT", datatype: str = "FP32", 
        plan: Mapping[str, Any] | None = None, content: bytes | None = None, **changes: Any,
    ) -> Path:  # fmt: skip
        directory = tmp_path / f"engine-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        described = {"weights": WEIGHTS, "context": CONTEXT, "dtype": dtype, "profiles": profiles, "features": FEATURES, **(plan or {})}
        (directory / "model.plan").write_bytes(json.dumps(described).encode() if content is None else content)
        given = np.arange(FEATURES, dtype={"FP32": "float32", "INT64": "int64"}[datatype]).reshape(1, FEATURES)
        np.savez(directory / PROBE_FILE, allow_pickle=False, **{"0/input/input": given, "0/output/output": 2 * given})
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name="doubler",
            version="1",
            source_sha256="",
            files=(describe_file(directory / "model.plan"), describe_file(directory / PROBE_FILE)),
            runtime="tensorrt",
            runtime_version="8.6.1",
            precision="fp32",
            device="cuda:9.0",
            device_features=(),
            inputs=(Tensor(name="input", datatype=datatype, dims=("batch", FEATURES)),),
            outputs=(Tensor(name="output", datatype=datatype, dims=("batch", FEATURES)),),
            profiles=tuple({"input": ShapeRange(min=(low, FEATURES), opt=(low, FEATURES), max=(high, FEATURES))} for low, high in profiles),
            options={"module": "tensorrt"},
            tolerance=1e-6,
            parity_error=0.0,
            built_at="",
            build_duration_ns=0,
            host="",
            baseline=None,
            details=BuildDetails(versions={}, gpu="Stand-in"),
        )
        write_manifest(directory, dataclasses.replace(manifest, **changes))
        return directory

    return build


def load(directory: Path, phases: Phases | None = None, **settings: str) -> Engine:
    return load_engine(directory, settings, phases or Phases())


def batch(size: int, dtype: str = "float32") -> dict[str, Any]:
    return {"input": np.random.default_rng(size).integers(-9, 9, (size, FEATURES)).astype(dtype)}


def test_it_is_one_of_the_runtimes() -> None:
    assert isinstance(runtimes.open_runtime("tensorrt"), TensorrtRuntime)


def test_a_cold_start_has_its_phases_and_says_what_each_took_of_the_device(
    runtime: TensorrtRuntime, device: Device, build: EngineFactory
) -> None:
    phases = Phases()
    directory = build()
    engine = load(directory, phases)
    slot = engine.make_slot(phases)
    run_probe(slot, engine.manifest, read_probe(directory, engine.manifest))
    assert [p.name for p in phases.recorded] == [
        "manifest", "imports", "library", "device", "runtime", "read", "verify", "deserialise", "slot", "buffers",
    ]  # fmt: skip
    bytes_after = {p.name: p.device_bytes for p in phases.recorded}
    assert bytes_after["read"] is None
    assert bytes_after["device"] == bytes_after["runtime"] == 0
    assert bytes_after["deserialise"] == WEIGHTS
    assert bytes_after["slot"] == WEIGHTS + CONTEXT
    assert bytes_after["buffers"] == WEIGHTS + CONTEXT + 2 * 8 * FEATURES * 4  # both tensors at the largest batch
    assert runtime.device_bytes() == device.used()
    slot.close()
    engine.close()
    assert device.leaks() == {}


def test_nothing_is_known_of_the_device_before_it_is_started() -> None:
    assert TensorrtRuntime().device_bytes() is None


def test_the_clock_is_that_of_the_gpu_in_use(runtime: TensorrtRuntime, build: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = nvml_module({"0000:1A:00.0": 345, "0000:3B:00.0": 1980})
    install(monkeypatch, {"pynvml": nvml})
    assert runtime.sm_clock_mhz() is None  # no GPU is in use yet
    engine = load(build())
    assert [runtime.sm_clock_mhz() for _ in range(3)] == [1980] * 3
    assert (nvml.calls.count("nvmlInit"), nvml.calls.count("nvmlDeviceGetHandleByPciBusId")) == (1, 1)
    engine.close()
    runtime._stop()
    assert runtime.sm_clock_mhz() is None


def test_the_clock_is_in_the_timeline_and_in_the_metrics(
    runtime: TensorrtRuntime, build: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, {"pynvml": nvml_module({"0000:3B:00.0": 1755})})
    engine, path = build(), tmp_path / "timeline.jsonl"

    async def main() -> bytes:
        registry = Registry([engine], PoolSettings(size=1))
        models = list(registry.models.values())
        timeline = Timeline(path, models)
        timeline.start()
        await registry.start()
        async with asyncio.timeout(60):
            while read_server_timeline(path)[1].column("sm_clock_mhz").null_count == read_server_timeline(path)[1].num_rows:
                await asyncio.sleep(0.01)
        body, _ = await expose(models)
        timeline.close()
        await registry.close()
        return body

    assert b"\ncoldburst_sm_clock_mhz 1755.0\n" in asyncio.run(main())
    rows = read_server_timeline(path)[1].to_pylist()
    assert {row["sm_clock_mhz"] for row in rows} <= {None, 1755}
    assert rows[-1]["sm_clock_mhz"] == 1755 and rows[-1]["device_bytes"] is not None


def test_floors_of_a_load(runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    load(build()).close()
    phases = Phases()
    runtime.measure_floors(1 << 20, phases)
    assert [p.name for p in phases.recorded] == ["copy_to_device_pageable", "copy_to_device_pinned"]
    assert device.leaks() == {}


def test_what_was_left_open_is_closed_at_the_end_of_the_process(runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    engine = load(build())
    slots = [engine.make_slot(Phases()) for _ in range(2)]
    slots[1].busy = True  # type: ignore[attr-defined]
    before = device.used()
    runtime._stop()
    assert device.used() == before  # a thread is still in it: nothing may be taken from under it
    slots[1].busy = False  # type: ignore[attr-defined]
    runtime._stop()
    assert device.leaks() == {}
    assert runtime.device_bytes() is None


def test_one_engine_many_contexts_and_copies(runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    directory = build()
    buffers = 2 * 8 * FEATURES * 4
    engine = load(directory)
    slots = [engine.make_slot(Phases()) for _ in range(4)]
    assert device.used() == WEIGHTS + 4 * (CONTEXT + buffers)
    copies = [load(directory) for _ in range(3)]
    slots += [copy.make_slot(Phases()) for copy in copies]
    assert device.used() == 4 * WEIGHTS + 7 * (CONTEXT + buffers)
    for slot in slots:
        slot.close()
        slot.close()  # a second time does nothing
    for loaded in (engine, *copies):
        loaded.close()
    assert device.leaks() == {}


def test_every_shape_of_every_profile_in_any_order(runtime: TensorrtRuntime, build: EngineFactory) -> None:
    engine = load(build(profiles=((1, 2), (4, 16), (1, 16))))
    slot = engine.make_slot(Phases())
    for size in (1, 16, 2, 2, 3, 4, 1, 16, 3):
        given = batch(size)
        answer = slot.run(given)
        assert np.array_equal(answer.outputs["output"], 2 * given["input"])
        assert min(answer.input_ns, answer.infer_ns, answer.output_ns) >= 0
    with pytest.raises(BenchError, match=r"takes \[1, 16\] to \[2, 16\] or \[4, 16\] to \[16, 16\].*maximum batch is 16"):
        slot.run(batch(17))
    assert np.array_equal(slot.run(batch(2)).outputs["output"], 2 * batch(2)["input"])  # the refused request left nothing behind


def test_the_answer_is_the_callers_own(runtime: TensorrtRuntime, build: EngineFactory) -> None:
    slot = load(build()).make_slot(Phases())
    first = slot.run(batch(2)).outputs["output"]
    kept = first.copy()
    slot.run({"input": batch(2)["input"] + 1})
    assert np.array_equal(first, kept)
    assert slot.run(batch(2), outputs=[]).outputs == {}


@pytest.mark.parametrize("buffers", ["reuse", "per-request"])
def test_buffers(buffers: str, runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    engine = load(build(), buffers=buffers)
    slot = engine.make_slot(Phases())
    held, pinned = device.used(), len(device.pinned)
    device.calls.clear()
    for size in (1, 8, 3):
        assert np.array_equal(slot.run(batch(size)).outputs["output"], 2 * batch(size)["input"])
    allocations = sum(call in ("cuMemAlloc", "cudaMalloc") for call in device.calls)
    assert allocations == (0 if buffers == "reuse" else 6)
    assert pinned == (2 if buffers == "reuse" else 0)
    assert (device.used(), len(device.pinned)) == (held, pinned)
    slot.close()
    engine.close()
    assert device.leaks() == {}


def test_cuda_graphs(runtime: TensorrtRuntime, device: Device, build: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a shape is plain, and each later one a launch; shapes keep their graphs; nothing is left at the end."""
    monkeypatch.setattr("reference_server.runtimes.cuda_graphs.load_driver", lambda: GraphDriver(device))
    engine = load(build(profiles=((1, 4), (5, 64))), cuda_graphs="on")
    slots = [engine.make_slot(Phases()) for _ in range(2)]
    for sizes, launches in (((1, 2, 5), 0), ((5, 2, 1, 1), 4)):
        for slot in slots:
            device.calls.clear()
            for size in sizes:
                given = {"input": np.full((size, FEATURES), size + launches, np.float32)}
                assert np.array_equal(slot.run(given).outputs["output"], 2 * given["input"])
            assert device.calls.count("cuGraphLaunch") == launches
    assert len(device.graphs) == 6
    for size in range(1, 65):
        slots[0].run(batch(size))
    assert len(device.graphs) == 32 + 3  # no more than a slot may keep
    for slot in slots:
        slot.close()
    engine.close()
    assert device.leaks() == {}
    with pytest.raises(BenchError, match="needs buffers=reuse"):
        load(build(), cuda_graphs="on", buffers="per-request")


def test_int64_inputs_of_an_engine_that_takes_int32(runtime: TensorrtRuntime, build: EngineFactory) -> None:
    """TensorRT 8 makes INT32 of INT64: the protocol's datatype stays, and a value that does not fit is refused, not wrapped."""
    slot = load(build(dtype="INT32", datatype="INT64")).make_slot(Phases())
    answer = slot.run(batch(2, "int64")).outputs["output"]
    assert answer.dtype == np.int64
    assert np.array_equal(answer, 2 * batch(2, "int64")["input"])
    too_large = batch(2, "int64")
    too_large["input"][1, 3] = 2**40
    with pytest.raises(BenchError, match="outside -2147483648 to 2147483647"):
        slot.run(too_large)


def test_what_is_not_a_plan_is_refused_in_the_words_of_the_log(runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    with pytest.raises(EngineRefused, match=r"model.plan does not load in tensorrt 8.6.1: .*Magic tag does not match$"):
        load(build(content=b"no plan"))
    assert device.leaks() == {}


@pytest.mark.parametrize(
    ("fails", "reason"), [("context", "no memory for it"), ("shape", "is not in"), ("execute", "it was asked to fail")]
)
def test_a_call_that_fails_without_an_exception_is_one(
    fails: str, reason: str, runtime: TensorrtRuntime, device: Device, build: EngineFactory
) -> None:
    engine = load(build(plan={"fails": fails}))
    with pytest.raises(BenchError, match=reason):
        slot = engine.make_slot(Phases())
        try:
            slot.run(batch(1))
        finally:
            slot.close()
    engine.close()
    assert device.leaks() == {}


def test_a_spoiled_device_is_told_as_such(runtime: TensorrtRuntime, build: EngineFactory) -> None:
    slot = load(build(plan={"fails": "spoil"})).make_slot(Phases())
    with pytest.raises(DeviceSpoiled, match=r"doubler: .*(?i:illegal)"):
        slot.run(batch(1))


def test_too_little_memory_for_a_slot_leaves_nothing(runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    engine = load(build(profiles=((1, 200 << 14),)))
    before = device.used()
    with pytest.raises(BenchError, match="memory"):
        engine.make_slot(Phases())
    assert device.used() == before
    engine.close()
    assert device.leaks() == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"runtime_version": "8.5.3"}, "built by tensorrt 8.5.3, this is tensorrt 8.6.1"),
        ({"options": {"module": "tensorrt_lean"}}, "built by tensorrt_lean 8.6.1, this is tensorrt_lean 10.16.1.11"),
        ({"device": "cuda:8.0"}, r"built on Stand-in \(cuda:8.0\), this is Stand-in \(cuda:9.0\)"),
        ({"details": BuildDetails(versions={}, gpu="Another GPU")}, r"built on Another GPU \(cuda:9.0\), this is Stand-in"),
        ({"runtime_version": "11.4.0", "options": {"module": "tensorrt", "version_compatible": "on"}}, "loads in later versions only"),
    ],
)
def test_engines_of_another_place_are_refused_before_they_are_read(
    changes: dict[str, Any], reason: str, runtime: TensorrtRuntime, build: EngineFactory
) -> None:
    directory = build(**changes)
    (directory / "model.plan").unlink()
    with pytest.raises(EngineRefused, match=reason):
        load(directory)


def test_a_version_compatible_plan_brings_code_only_where_that_is_trusted(
    runtime: TensorrtRuntime, build: EngineFactory, tmp_path: Path
) -> None:
    from bench.engine.signature import make_key, sign_manifest

    directory = build(plan={"host_code": True}, options={"module": "tensorrt", "version_compatible": "on"})
    with pytest.raises(EngineRefused, match=r"brings code of its own.*--trust KEY.*trust_host_code=on"):
        load(directory)
    for settings in ({}, {"module": "tensorrt_lean"}):
        slot = load(directory, trust_host_code="on", **settings).make_slot(Phases())
        assert np.array_equal(slot.run(batch(1)).outputs["output"], 2 * batch(1)["input"])
    public = make_key(tmp_path / "key")
    sign_manifest(directory, tmp_path / "key")
    load_engine(directory, {}, Phases(), trust=public).close()
    plain = build(plan={"host_code": True})  # its manifest does not own up to it, so no code is let in
    with pytest.raises(EngineRefused, match="host code, which is not allowed"):
        load(plain, trust_host_code="on")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"module": "tensorflow"}, "not one of tensorrt, tensorrt_lean, tensorrt_rtx"),
        ({"buffers": "none"}, "not one of reuse, per-request"),
        ({"streams": "2"}, "known are module, cuda, buffers"),
    ],
)
def test_wrong_settings(settings: dict[str, str], reason: str, runtime: TensorrtRuntime, build: EngineFactory) -> None:
    with pytest.raises(BenchError, match=reason):
        load(build(), **settings)


def test_slots_of_one_engine_run_at_once_from_threads_of_their_own(runtime: TensorrtRuntime, device: Device, build: EngineFactory) -> None:
    """As the pool does it: each thread makes, uses and closes its slot; the engine was loaded by another."""
    engine = load(build())
    wrong: list[object] = []

    def serve(number: int) -> None:
        try:
            slot = engine.make_slot(Phases())
            for size in range(1, 9):
                given = {"input": np.full((size, FEATURES), number, np.float32)}
                if not np.array_equal(slot.run(given).outputs["output"], 2 * given["input"]):
                    wrong.append((number, size))
            slot.close()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    engine.close()
    assert device.leaks() == {}


def test_the_manifest_keeps_its_details(build: EngineFactory) -> None:
    details = BuildDetails(
        versions={"tensorrt": "8.6.1"}, gpu="A", driver="580", flags=("FP16",), conversion_errors={"output": 1e-3}, source_nodes=100,
        network_layers=120, engine_layers=40, layer_precisions={"fp16": 40}, precision_evidence="the inspector",
    )  # fmt: skip
    assert read_manifest(build(details=details)).details == details
    assert details.share_fused == pytest.approx(0.6)
    assert dataclasses.replace(details, engine_layers=None).share_fused is None
