"""What a load does to the runs of another slot beside it, phase by phase: `python results/h200/gpu-tests/load_phases.py ENGINE`.

One line of JSON for each way to load: times in ms of the runs that a phase met, and what the device says of them. `arena` is an
allocator that never gives device memory back. Run it from the repository's root with PYTHONPATH=. on a machine with the engine's GPU.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pycuda.driver as driver

from bench.engine.probe import read_probe
from reference_server.loader import load_engine, run_probe
from reference_server.phases import Phases
from reference_server.runtimes.tensorrt import RUNTIME

LOADS = 12
ALONE_S, PAUSE_S = 1.5, 0.25

engine = Path(sys.argv[1])
served = load_engine(engine, {}, Phases())
library = RUNTIME._libraries["tensorrt"]
case = read_probe(engine, served.manifest)
slot = served.make_slot(Phases())
for _ in range(50):
    slot.run(case.inputs)
stop = threading.Event()
runs: list[tuple[int, int, int]] = []  # start, end, time on the device


class Arena(library.module.IGpuAllocator):
    """Device memory that is kept and given out again, by size."""

    def __init__(self):
        library.module.IGpuAllocator.__init__(self)
        self.kept, self.held, self.calls = {}, {}, 0

    def allocate(self, size, alignment, flags):
        self.calls += 1
        size = -(-size // (1 << 20)) * (1 << 20)
        kept = self.kept.setdefault(size, [])
        if kept:
            return kept.pop()
        block = driver.mem_alloc(size)
        self.held[int(block)] = (size, block)
        return int(block)

    def deallocate(self, pointer):
        if pointer in self.held:
            self.kept[self.held[pointer][0]].append(pointer)
        return True

    free = deallocate

    def reallocate(self, pointer, alignment, size):
        return 0


def traffic():
    while not stop.is_set():
        began = time.monotonic_ns()
        answer = slot.run(case.inputs)
        runs.append((began, time.monotonic_ns(), answer.infer_ns))
        time.sleep(0.001)


def quantile(values, share):
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 2) if ordered else None


def told(windows):
    found = {}
    for name, spans in windows.items():
        met = [(end - start, device) for start, end, device in runs if any(start < last and end > first for first, last in spans)]
        found[name] = {"phase_ms": quantile([last - first for first, last in spans], 0.5), "n": len(met)}
        for what, column in (("", 0), ("device_", 1)):
            times = [row[column] for row in met]
            found[name] |= {f"{what}p50": quantile(times, 0.5), f"{what}p99": quantile(times, 0.99), f"{what}max": quantile(times, 1)}
    return found


def measure(name, allocator=None, close=True):
    runs.clear()
    stop.clear()
    library.runtime = library.make_runtime()
    if allocator is not None:
        library.runtime.gpu_allocator = allocator
    thread, windows, kept = threading.Thread(target=traffic), {}, []
    thread.start()
    began = time.monotonic_ns()
    time.sleep(ALONE_S)
    windows["alone"] = [(began, time.monotonic_ns())]
    for _ in range(LOADS):
        phases, began = Phases(), time.monotonic_ns()
        loaded = load_engine(engine, {}, phases)
        made = loaded.make_slot(phases)
        first = time.monotonic_ns()
        run_probe(made, loaded.manifest, case)
        ended = time.monotonic_ns()
        windows.setdefault("first_run", []).append((first, ended))
        windows.setdefault("whole_load", []).append((began, ended))
        for phase in phases.recorded:
            windows.setdefault(phase.name, []).append((phase.start_ns, phase.end_ns))
        if close:
            time.sleep(0.05)
            began = time.monotonic_ns()
            made.close()
            loaded.close()
            windows.setdefault("unload", []).append((began, time.monotonic_ns()))
        else:
            kept.append((loaded, made))
        time.sleep(PAUSE_S)
    stop.set()
    thread.join()
    print(json.dumps({"variant": name, "env": os.environ.get("CUDA_MODULE_LOADING", ""), **told(windows)}), flush=True)
    for loaded, made in kept:
        made.close()
        loaded.close()


measure("default")
measure("kept open", close=False)
arena = Arena()
measure("arena", arena)
held = sum(size for size, _ in arena.held.values())
print(json.dumps({"arena": {"calls": arena.calls, "new": len(arena.held), "bytes": held}}), flush=True)
measure("default again")
os._exit(0)  # without taking apart what an allocator of ours still holds
