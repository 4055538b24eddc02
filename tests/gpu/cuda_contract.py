"""What both CUDA bindings must do alike. test_cuda runs it on stand-ins; on a GPU: `python -m gpu.cuda_contract pycuda OUT.json`."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import numpy as np

from bench.errors import BenchError
from reference_server.runtimes.cuda import Cuda, OutOfDeviceMemory, open_cuda

BLOCK = 64 << 20  # large enough that the driver takes it from the device and gives it back


def round_trip(cuda: Cuda, size: int = 1 << 20, seed: int = 0) -> None:
    """Bytes go to the device and come back the same, through pinned memory, and are ordered by the stream."""
    with cuda.current():
        stream = cuda.make_stream()
        pointer = cuda.allocate(size)
        there, back = cuda.allocate_pinned(size), cuda.allocate_pinned(size)
        assert there.dtype == np.uint8
        assert there.shape == (size,)
        there[:] = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        back[:] = 0
        cuda.copy_in(pointer, there, stream)
        cuda.copy_out(back, pointer, stream)
        cuda.synchronize(stream)
        assert np.array_equal(there, back)
        part = back[: size // 2].view(np.float32).reshape(2, -1)  # as the runtime uses it: typed and shaped views
        part[:] = 0
        cuda.copy_out(part, pointer + size // 2, stream)
        cuda.synchronize(stream)
        assert np.array_equal(part.reshape(-1).view(np.uint8), there[size // 2 :])
        cuda.release_pinned(there)
        cuda.release_pinned(back)
        cuda.release(pointer)
        cuda.release_stream(stream)


def pageable_memory_works_too(cuda: Cuda) -> None:
    with cuda.current():
        stream, pointer = cuda.make_stream(), cuda.allocate(4096)
        there, back = np.arange(1024, dtype=np.float32), np.zeros(1024, dtype=np.float32)
        cuda.copy_in(pointer, there, stream)
        cuda.copy_out(back, pointer, stream)
        cuda.synchronize(stream)
        assert np.array_equal(there, back)
        cuda.release(pointer)
        cuda.release_stream(stream)


def events_measure_what_lies_between(cuda: Cuda) -> None:
    with cuda.current():
        stream, pointer = cuda.make_stream(), cuda.allocate(BLOCK)
        data = cuda.allocate_pinned(BLOCK)
        events = [cuda.make_event() for _ in range(3)]
        assert len(set(events)) == 3
        cuda.record(events[0], stream)
        cuda.copy_in(pointer, data, stream)
        cuda.record(events[1], stream)
        cuda.record(events[2], stream)
        cuda.synchronize(stream)
        assert cuda.elapsed_ns(events[0], events[1]) > cuda.elapsed_ns(events[1], events[2]) >= 0
        for event in events:
            cuda.release_event(event)
        cuda.release_pinned(data)
        cuda.release(pointer)
        cuda.release_stream(stream)


def memory_is_taken_and_given_back(cuda: Cuda) -> None:
    round_trip(cuda)  # what the driver keeps for itself at the first use
    with cuda.current():
        free, total = cuda.memory()
        assert 0 < free <= total
        pointers = [cuda.allocate(BLOCK) for _ in range(4)]
        assert len(set(pointers)) == 4
        taken = free - cuda.memory()[0]
        assert taken >= 4 * BLOCK
        for pointer in pointers:
            cuda.release(pointer)
        assert cuda.memory() == (free, total)


def too_much_memory_is_refused_and_nothing_else_breaks(cuda: Cuda) -> None:
    with cuda.current():
        before, total = cuda.memory()
        try:
            cuda.allocate(2 * total)
        except OutOfDeviceMemory as error:
            assert "memory" in str(error)
        else:
            raise AssertionError("twice the device's memory was given")
        assert cuda.memory()[0] == before
    assert cuda.healthy()
    round_trip(cuda)


def any_thread_may_use_it(cuda: Cuda) -> None:
    """Also objects that another thread made, and also after a thread that failed inside."""
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(5):
                round_trip(cuda, seed=seed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors

    made: list[int] = []

    def make_and_fail() -> None:
        try:
            with cuda.current():
                made.extend((cuda.allocate(4096), cuda.make_stream(), cuda.make_event()))
                raise BenchError("inside")
        except BenchError:
            pass

    thread = threading.Thread(target=make_and_fail)
    thread.start()
    thread.join()
    pointer, stream, event = made
    with cuda.current():
        cuda.record(event, stream)
        cuda.synchronize(stream)
        cuda.release(pointer)
        cuda.release_event(event)
        cuda.release_stream(stream)


def it_may_be_nested(cuda: Cuda) -> None:
    with cuda.current():
        with cuda.current():
            pointer = cuda.allocate(4096)
        cuda.release(pointer)
    assert cuda.healthy()


CONTRACT = (
    round_trip, pageable_memory_works_too, events_measure_what_lies_between, memory_is_taken_and_given_back,
    too_much_memory_is_refused_and_nothing_else_breaks, any_thread_may_use_it, it_may_be_nested,
)  # fmt: skip


def main() -> None:
    """Run the contract on this machine's GPU. The process's exit code belongs to the result: pycuda aborts where a context is left."""
    name, out = sys.argv[1], Path(sys.argv[2])
    cuda, gpu = open_cuda(name)
    passed = []
    for check in CONTRACT:
        check(cuda)
        passed.append(check.__name__)
    cuda.close()
    out.write_text(json.dumps({"bindings": name, "gpu": gpu.name, "compute_capability": gpu.compute_capability, "passed": passed}) + "\n")


if __name__ == "__main__":
    main()
