"""One case on a real GPU, in a process of its own: `python cases.py CASE ENGINE [KEY=VALUE ...]`. Prints its facts as one JSON line."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine.manifest import read_manifest, write_manifest
from bench.engine.probe import count_probe_cases, read_probe
from bench.errors import BenchError, EngineRefused
from reference_server.loader import load_engine, run_probe
from reference_server.phases import Phases
from reference_server.runtimes import DeviceSpoiled, open_runtime, parse_settings

Facts = dict[str, Any]


def device_bytes() -> int:
    used = open_runtime("tensorrt").device_bytes()
    assert used is not None
    return used


def load(engine: Path, settings: Mapping[str, str], phases: Phases | None = None) -> Any:
    return load_engine(engine, {k: v for k, v in settings.items() if k not in ("other", "save")}, phases or Phases())


def answers(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Every case of the probe, checked, and all answers in the file `save`; the digest is of the smallest case's, bit for bit."""
    loaded = load(engine, settings)
    slot = loaded.make_slot(Phases())
    saved = {}
    for number in range(count_probe_cases(engine)):
        answer = run_probe(slot, loaded.manifest, read_probe(engine, loaded.manifest, number))
        saved |= {f"{number}/{name}": value for name, value in answer.outputs.items()}
    if "save" in settings:
        np.savez(settings["save"], allow_pickle=False, **saved)
    case = read_probe(engine, loaded.manifest)
    outputs = slot.run(case.inputs).outputs
    durations = []
    for _ in range(200):
        began = time.perf_counter_ns()
        slot.run(case.inputs)
        durations.append(time.perf_counter_ns() - began)
    used = device_bytes()
    slot.close()
    loaded.close()
    digest = hashlib.sha256(b"".join(outputs[name].tobytes() for name in sorted(outputs))).hexdigest()
    return {"digest": digest, "p50_us": sorted(durations)[100] / 1e3, "rate_per_s": 200e9 / sum(durations), "device_bytes": used}


def shapes(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Two profiles, batches in any order, on two contexts at once; outside of them the allowed ranges are named."""
    loaded = load(engine, settings)
    slots = [loaded.make_slot(Phases()) for _ in range(2)]
    case = read_probe(engine, loaded.manifest)  # a batch of 1, so that every row of a batch must answer the same
    name, wanted = next(iter(case.expected.items()))
    for size in (1, 16, 2, 3, 1, 8, 16, 1):
        for slot in slots:
            given = np.repeat(case.inputs["input"], size, axis=0)
            answer = slot.run({"input": given}).outputs[name]
            assert answer.shape == (size, wanted.shape[1])
            assert np.allclose(answer, wanted, rtol=0, atol=5e-3 * np.abs(wanted).max())
    try:
        slots[0].run({"input": np.zeros((17, 64), np.float32)})
    except BenchError as error:
        refusal = str(error)
    else:
        raise AssertionError("a batch of 17 was taken")
    for slot in slots:
        slot.close()
    loaded.close()
    return {"refusal": refusal}


def memory(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Four slots of one engine, and four engines: weights + 4 slots, and 4 x (weights + slot)."""
    warm = load(engine, settings)
    slot = warm.make_slot(Phases())
    run_probe(slot, warm.manifest, read_probe(engine, warm.manifest))
    slot.close()
    warm.close()
    found: Facts = {"bytes": warm.manifest.engine_bytes}
    for sharing in ("engine", "copy"):
        base = device_bytes()
        split = [base]
        engines, slots = [], []
        for number in range(4):
            if sharing == "copy" or number == 0:
                engines.append(load(engine, settings))
                split.append(device_bytes())
            slots.append(engines[-1].make_slot(Phases()))
            run_probe(slots[-1], warm.manifest, read_probe(engine, warm.manifest))
            split.append(device_bytes())
        for one in slots:
            one.close()
        for loaded in engines:
            loaded.close()
        found[sharing] = {
            "steps": [after - before for before, after in itertools.pairwise(split)],
            "total": split[-1] - base,
            "left": device_bytes() - base,
        }
    phases = Phases()
    loaded = load(engine, settings, phases)
    slot = loaded.make_slot(phases)
    found["phases"] = {p.name: [(p.end_ns - p.start_ns) / 1e6, p.device_bytes] for p in phases.recorded}
    slot.close()
    loaded.close()
    return found


def churn(engine: Path, settings: Mapping[str, str]) -> Facts:
    """300 cycles of load, slots, run, unload, each fifth one a load that fails: device memory returns to where it was."""
    bad = _broken_copy(engine, lambda plan: plan[: len(plan) // 2])

    def cycle(number: int) -> None:
        if number % 5 == 4:
            try:
                load(bad, settings)
            except EngineRefused:
                return
            raise AssertionError("half a plan was loaded")
        loaded = load(engine, settings)
        slots = [loaded.make_slot(Phases()) for _ in range(1 + number % 3)]
        for slot in slots:
            run_probe(slot, loaded.manifest, read_probe(engine, loaded.manifest))
            slot.close()
        loaded.close()

    for number in range(20):
        cycle(number)
    base, seen = device_bytes(), []
    for number in range(300):
        cycle(number)
        if number % 50 == 49:
            seen.append(device_bytes() - base)
    assert seen[-1] <= 2 << 20, seen
    return {"growth": seen}


def threads(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Rates from 1 to 8 slots with a thread each, as the pool has them; every answer is checked."""
    loaded = load(engine, settings)
    case = read_probe(engine, loaded.manifest)
    rates: dict[int, float] = {}
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            slot = loaded.make_slot(Phases())
            for _ in range(300):
                run_probe(slot, loaded.manifest, case)
            slot.close()
        except BaseException as error:
            errors.append(error)

    for count in (1, 2, 4, 8):
        workers = [threading.Thread(target=serve) for _ in range(count)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not errors, errors
        rates[count] = 300 * count / (time.perf_counter() - began)
    loaded.close()
    return {"rates_per_s": rates}


def buffers(engine: Path, settings: Mapping[str, str]) -> Facts:
    """What allocating for each request costs."""
    found = {}
    for kind in ("reuse", "per-request"):
        loaded = load(engine, {**settings, "buffers": kind})
        slot = loaded.make_slot(Phases())
        case = read_probe(engine, loaded.manifest)
        durations = []
        for _ in range(300):
            began = time.perf_counter_ns()
            run_probe(slot, loaded.manifest, case)
            durations.append(time.perf_counter_ns() - began)
        found[kind] = {"p50_us": sorted(durations)[150] / 1e3, "p99_us": sorted(durations)[296] / 1e3}
        slot.close()
        loaded.close()
    return {"buffers": found}


def graphs(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Each shape's work launched as one graph: the same answers, and what it saves."""
    found, outputs = {}, {}
    for kind in ("off", "on"):
        loaded = load(engine, {**settings, "cuda_graphs": kind})
        slots = [loaded.make_slot(Phases()) for _ in range(2)]
        for slot in slots:
            for _ in range(3):
                for number in range(count_probe_cases(engine)):
                    run_probe(slot, loaded.manifest, read_probe(engine, loaded.manifest, number))
        case = read_probe(engine, loaded.manifest)
        durations = []
        for _ in range(300):
            began = time.perf_counter_ns()
            answer = slots[0].run(case.inputs)
            durations.append(time.perf_counter_ns() - began)
        outputs[kind] = b"".join(answer.outputs[name].tobytes() for name in sorted(answer.outputs))
        found[kind] = {"p50_us": sorted(durations)[150] / 1e3, "p99_us": sorted(durations)[296] / 1e3, "infer_us": answer.infer_ns / 1e3}
        for slot in slots:
            slot.close()
        loaded.close()
    assert outputs["off"] == outputs["on"]
    return {"cuda_graphs": found}


def clock(engine: Path, settings: Mapping[str, str]) -> Facts:
    """The SM clock of the GPU in use while it works: plausible, whether it is found by its PCI address, and what asking takes."""
    import pynvml

    from bench.gpus import read_gpus

    runtime = open_runtime("tensorrt")
    began = time.perf_counter_ns()
    assert runtime.sm_clock_mhz() is None  # no GPU is in use yet, but the library is open from here on
    opened_ns = time.perf_counter_ns() - began
    loaded = load(engine, settings)
    slot = loaded.make_slot(Phases())
    case = read_probe(engine, loaded.manifest)
    idle, working, took = runtime.sm_clock_mhz(), [], []
    for _ in range(500):
        slot.run(case.inputs)
        began = time.perf_counter_ns()
        working.append(runtime.sm_clock_mhz())
        took.append(time.perf_counter_ns() - began)
    assert idle is not None
    assert all(mhz is not None and 100 <= mhz <= 3000 for mhz in working), working
    gpu = runtime._gpu  # type: ignore[attr-defined]
    pynvml.nvmlInit()
    try:
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_address))
    except pynvml.NVMLError as error:
        by_address = str(error)  # a container may hide it
    else:
        by_address = "found"
        assert (name.decode() if isinstance(name, bytes) else name) == gpu.name, (name, gpu)
    slot.close()
    loaded.close()
    took.sort()
    return {
        "pci_address": gpu.pci_address,
        "by_address": by_address,
        "opened_ms": opened_ns / 1e6,
        "asked_us": {"p50": took[250] / 1e3, "p99": took[495] / 1e3, "largest": took[-1] / 1e3},
        "clock_mhz": {"idle": idle, "lowest": min(working), "highest": max(working)},
        "largest_mhz": [one.sm_clock_max_mhz for one in read_gpus() or ()],
    }


def _broken_copy(engine: Path, change: Any, **manifest_changes: Any) -> Path:
    """A copy whose manifest vouches for the changed bytes, so that only TensorRT can refuse them."""
    import dataclasses

    from bench.engine.manifest import describe_file

    target = Path(tempfile.mkdtemp()) / "engine"
    shutil.copytree(engine, target)
    manifest = read_manifest(engine)
    plan = target / manifest.engine_file.name
    plan.write_bytes(change(plan.read_bytes()))
    files = (describe_file(plan), *manifest.files[1:])
    write_manifest(target, dataclasses.replace(manifest, files=files, **manifest_changes))
    return target


def refusals(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Plans that must not be loaded, each refused in one sentence; afterwards a good one still loads."""
    manifest = read_manifest(engine)
    subjects = {
        "truncated": _broken_copy(engine, lambda plan: plan[: len(plan) // 2]),
        "no plan": _broken_copy(engine, lambda plan: b"not a plan at all" * 100),
        "empty": _broken_copy(engine, lambda plan: b""),
        "other version": _broken_copy(engine, lambda plan: plan, runtime_version="8.5.3"),
        "other device": _broken_copy(engine, lambda plan: plan, device="cuda:8.0"),
    }
    said = {}
    for name, directory in subjects.items():
        try:
            load(directory, settings)
        except EngineRefused as error:
            said[name] = str(error)
        else:
            raise AssertionError(f"{name} was loaded")
    loaded = load(engine, settings)
    slot = loaded.make_slot(Phases())
    run_probe(slot, manifest, read_probe(engine, manifest))
    slot.close()
    loaded.close()
    return {"refusals": said}


def worker_exception(engine: Path, settings: Mapping[str, str]) -> Facts:
    """A thread that fails with a slot in its hands."""
    loaded = load(engine, settings)

    def work() -> None:
        loaded.make_slot(Phases()).run(read_probe(engine, loaded.manifest).inputs)
        raise RuntimeError("in the worker")

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    return {}


def leaves_all_open(engine: Path, settings: Mapping[str, str]) -> Facts:
    """Nothing is closed: the end of the process has to cope."""
    loaded = load(engine, settings)
    kept = [loaded.make_slot(Phases()) for _ in range(3)]
    for slot in kept:
        run_probe(slot, loaded.manifest, read_probe(engine, loaded.manifest))
    globals()["_kept"] = (loaded, kept)
    return {}


def terminated(engine: Path, settings: Mapping[str, str]) -> Facts:
    """SIGTERM while four threads run."""
    loaded = load(engine, settings)
    case = read_probe(engine, loaded.manifest)

    def serve() -> None:
        slot = loaded.make_slot(Phases())
        while True:
            slot.run(case.inputs)

    for _ in range(4):
        threading.Thread(target=serve, daemon=True).start()
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
    return {}


_STORE_TO_NULL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spoil() { .reg .u64 p; .reg .u32 v; mov.u64 p, 0; mov.u32 v, 1; st.global.u32 [p], v; ret; }
\0"""


def spoiled(engine: Path, settings: Mapping[str, str]) -> Facts:
    """A kernel that writes to address 0: the next run says DeviceSpoiled, and the process can still end by itself."""
    import pycuda.driver as driver

    loaded = load(engine, {**settings, "cuda": "pycuda"})
    slot = loaded.make_slot(Phases())
    case = read_probe(engine, loaded.manifest)
    slot.run(case.inputs)
    with open_runtime("tensorrt").cuda.current():  # type: ignore[attr-defined]
        module = driver.module_from_buffer(_STORE_TO_NULL)
        module.get_function("spoil")(block=(1, 1, 1), grid=(1, 1))
    try:
        slot.run(case.inputs)
    except DeviceSpoiled as error:
        print(error, flush=True)
        os._exit(70)  # what the server does
    raise AssertionError("the run after an illegal write succeeded")


def _timed(run: Any) -> Facts:
    durations = []
    ready = time.monotonic_ns()
    for _ in range(300):
        began = time.perf_counter_ns()
        run()
        durations.append(time.perf_counter_ns() - began)
    return {"ready_ns": ready, "p50_us": sorted(durations)[150] / 1e3, "p99_us": sorted(durations)[296] / 1e3}


def warm_ours(engine: Path, settings: Mapping[str, str]) -> Facts:
    loaded = load(engine, settings)
    slot = loaded.make_slot(Phases())
    case = read_probe(engine, loaded.manifest)
    slot.run(case.inputs)
    facts = _timed(lambda: slot.run(case.inputs))
    slot.close()
    loaded.close()
    return facts


def warm_bare(engine: Path, settings: Mapping[str, str]) -> Facts:
    """The least that gives the same answer: one engine, one context, pinned buffers, both copies."""
    import pycuda.driver as driver
    import tensorrt as trt

    driver.init()
    context = driver.Device(0).retain_primary_context()
    context.push()
    logger = trt.Logger(trt.Logger.ERROR)
    runtime = trt.Runtime(logger)
    loaded = runtime.deserialize_cuda_engine((engine / "model.plan").read_bytes())
    execution = loaded.create_execution_context()
    stream = driver.Stream(1)
    with np.load(engine / "probe.npz") as archive:
        arrays = {key.split("/", 2)[2]: archive[key] for key in archive.files if key.startswith("0/")}
    hosts, pointers, copied = {}, {}, {}
    for index in range(loaded.num_io_tensors):
        name = loaded.get_tensor_name(index)
        hosts[name] = driver.pagelocked_empty(arrays[name].shape, arrays[name].dtype)
        pointers[name] = driver.mem_alloc(arrays[name].nbytes)
        copied[name] = loaded.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        if copied[name]:
            execution.set_input_shape(name, arrays[name].shape)
        execution.set_tensor_address(name, int(pointers[name]))

    def run() -> None:
        for name, is_input in copied.items():
            if is_input:
                np.copyto(hosts[name], arrays[name])
                driver.memcpy_htod_async(pointers[name], hosts[name], stream)
        assert execution.execute_async_v3(stream.handle)
        for name, is_input in copied.items():
            if not is_input:
                driver.memcpy_dtoh_async(hosts[name], pointers[name], stream)
        stream.synchronize()
        for name, is_input in copied.items():
            if not is_input:
                hosts[name].copy()

    run()
    facts = _timed(run)
    execution = loaded = runtime = stream = None  # before the context
    for name in pointers:
        pointers[name].free()
    hosts.clear()
    context.pop()
    return facts


CASES = {
    "answers": answers,
    "shapes": shapes,
    "memory": memory,
    "churn": churn,
    "threads": threads,
    "buffers": buffers,
    "graphs": graphs,
    "clock": clock,
    "refusals": refusals,
    "worker-exception": worker_exception,
    "leaves-all-open": leaves_all_open,
    "terminated": terminated,
    "spoiled": spoiled,
    "warm-ours": warm_ours,
    "warm-bare": warm_bare,
}


def main() -> None:
    """Run the case and print its facts."""
    case, engine, *settings = sys.argv[1:]
    try:
        print(json.dumps(CASES[case](Path(engine), parse_settings(settings))), flush=True)
    except BenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
