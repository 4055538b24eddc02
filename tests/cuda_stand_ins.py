"""Stand-ins for pycuda's driver, cuda-python's runtime, nvidia-ml-py and TensorRT, for machines without a GPU.

Device memory is host memory, so a pointer is a real address. They are strict where the real ones are: a call without a
current context fails, a context left on a thread's stack is seen, memory is counted, a spoiled context stays spoiled.
"""

from __future__ import annotations

import ctypes
import enum
import json
import sys
import threading
import time
import types
from typing import Any

import numpy as np

TOTAL = 300 << 20


class Device:
    """What lies under both bindings."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: set[int] = set()
        self.events: dict[int, int] = {}
        self.spoiled = False
        self.capturing: list[Any] | None = None
        self.graphs: dict[int, list[Any]] = {}
        self.calls: list[str] = []
        self.lock = threading.Lock()
        self.number = 0

    def next_number(self) -> int:
        with self.lock:
            self.number += 1
            return self.number << 8

    def used(self) -> int:
        return sum(len(block) for block in self.memory.values())

    def allocate(self, size: int) -> int | None:
        with self.lock:
            if self.used() + size > TOTAL:
                return None
            block = (ctypes.c_uint8 * size)()
            self.memory[ctypes.addressof(block)] = block
            return ctypes.addressof(block)

    def leaks(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("memory", "pinned", "streams", "events", "graphs") if getattr(self, name)}


def pycuda_modules(device: Device) -> dict[str, types.ModuleType]:
    driver = types.ModuleType("pycuda.driver")
    stacks = threading.local()

    class Error(Exception):
        pass

    class LogicError(Error):
        pass

    class OutOfMemory(Error):
        pass

    def check(call: str) -> None:
        device.calls.append(call)
        if not getattr(stacks, "depth", 0):
            raise LogicError(f"{call} failed: invalid device context")
        if device.spoiled:
            raise LogicError(f"{call} failed: an illegal memory access was encountered")

    class Context:
        def push(self) -> None:
            stacks.depth = getattr(stacks, "depth", 0) + 1

        @staticmethod
        def pop() -> None:
            stacks.depth -= 1

        @staticmethod
        def synchronize() -> None:
            check("cuCtxSynchronize")

    class CudaDevice:
        def __init__(self, number: int) -> None:
            assert number == 0

        def name(self) -> str:
            return "Stand-in"

        def compute_capability(self) -> tuple[int, int]:
            return 9, 0

        def pci_bus_id(self) -> str:
            return "0000:3B:00.0"

        def retain_primary_context(self) -> Context:
            return Context()

    class Allocation:
        def __init__(self, size: int) -> None:
            check("cuMemAlloc")
            address = device.allocate(size)
            if address is None:
                raise OutOfMemory("cuMemAlloc failed: out of memory")
            self.address = address

        def __int__(self) -> int:
            return self.address

        def free(self) -> None:
            check("cuMemFree")
            del device.memory[self.address]

    class Pinned(bytearray):
        def free(self) -> None:
            check("cuMemFreeHost")
            del device.pinned[id(self)]

    class Held(np.ndarray):  # pycuda's arrays have their allocation as base; numpy would put a memoryview there
        base: Any = None

    def pagelocked_empty(size: int, dtype: Any) -> Any:
        check("cuMemHostAlloc")
        pinned = Pinned(size)
        device.pinned[id(pinned)] = pinned
        array = np.frombuffer(pinned, dtype).view(Held)
        array.base = pinned
        return array

    class Stream:
        def __init__(self, flags: int) -> None:
            check("cuStreamCreate")
            assert flags == 1
            self.handle = device.next_number()
            device.streams.add(self.handle)

        def synchronize(self) -> None:
            check("cuStreamSynchronize")

        def __del__(self) -> None:
            device.streams.discard(self.handle)

    class Event:
        def __init__(self) -> None:
            check("cuEventCreate")
            device.events[id(self)] = 0

        def record(self, stream: Stream) -> None:
            check("cuEventRecord")
            device.events[id(self)] = time.perf_counter_ns()

        def time_since(self, other: Event) -> float:
            return (device.events[id(self)] - device.events[id(other)]) / 1e6

        def __del__(self) -> None:
            device.events.pop(id(self), None)

    def copy_in(pointer: int, array: Any, stream: Stream) -> None:
        check("cuMemcpyHtoDAsync")
        ctypes.memmove(pointer, array.ctypes.data, array.nbytes)

    def copy_out(array: Any, pointer: int, stream: Stream) -> None:
        check("cuMemcpyDtoHAsync")
        ctypes.memmove(array.ctypes.data, pointer, array.nbytes)

    def mem_get_info() -> tuple[int, int]:
        check("cuMemGetInfo")
        return TOTAL - device.used(), TOTAL

    named = {
        "Error": Error, "MemoryError": OutOfMemory, "Context": Context, "Device": CudaDevice, "Stream": Stream, "Event": Event,
        "init": lambda: None, "mem_alloc": Allocation, "mem_get_info": mem_get_info, "pagelocked_empty": pagelocked_empty,
        "memcpy_htod_async": copy_in, "memcpy_dtoh_async": copy_out, "depth": lambda: getattr(stacks, "depth", 0),
    }  # fmt: skip
    for name, value in named.items():
        setattr(driver, name, value)
    package = types.ModuleType("pycuda")
    package.driver = driver  # type: ignore[attr-defined]
    return {"pycuda": package, "pycuda.driver": driver}


def cuda_python_modules(device: Device) -> dict[str, types.ModuleType]:
    runtime = types.ModuleType("cuda.bindings.runtime")
    current = threading.local()

    class cudaError_t(enum.IntEnum):
        cudaSuccess = 0
        cudaErrorMemoryAllocation = 2
        cudaErrorIllegalAddress = 700

    class cudaMemcpyKind(enum.IntEnum):
        cudaMemcpyHostToDevice = 1
        cudaMemcpyDeviceToHost = 2

    def call(name: str) -> Any:
        def decorate(function: Any) -> Any:
            def called(*arguments: Any) -> tuple[Any, ...]:
                device.calls.append(name)
                assert getattr(current, "device", None) == 0, f"{name} before cudaSetDevice in this thread"
                if device.spoiled:
                    return (cudaError_t.cudaErrorIllegalAddress, *([None] * bool(function(*arguments))))
                given = function(*arguments)
                return (
                    given if isinstance(given, tuple) and given and isinstance(given[0], cudaError_t) else (cudaError_t.cudaSuccess, *given)
                )

            called.__name__ = name
            setattr(runtime, name, called)
            return function

        return decorate

    def cudaSetDevice(number: int) -> tuple[Any]:
        current.device = number
        return (cudaError_t.cudaSuccess,)

    @call("cudaMalloc")
    def _(size: int) -> tuple[Any, ...]:
        address = device.allocate(size)
        return (cudaError_t.cudaErrorMemoryAllocation, None) if address is None else (address,)

    @call("cudaFree")
    def _(pointer: int) -> tuple[Any, ...]:
        if pointer:
            del device.memory[pointer]
        return ()

    @call("cudaMallocHost")
    def _(size: int) -> tuple[Any, ...]:
        block = (ctypes.c_uint8 * size)()
        device.pinned[ctypes.addressof(block)] = block
        return (ctypes.addressof(block),)

    @call("cudaFreeHost")
    def _(pointer: int) -> tuple[Any, ...]:
        del device.pinned[pointer]
        return ()

    @call("cudaStreamCreateWithFlags")
    def _(flags: int) -> tuple[Any, ...]:
        assert flags == 1
        stream = device.next_number()
        device.streams.add(stream)
        return (stream,)

    @call("cudaStreamDestroy")
    def _(stream: int) -> tuple[Any, ...]:
        device.streams.remove(stream)
        return ()

    @call("cudaMemcpyAsync")
    def _(target: int, source: int, size: int, kind: int, stream: int) -> tuple[Any, ...]:
        ctypes.memmove(target, source, size)
        return ()

    @call("cudaEventCreate")
    def _() -> tuple[Any, ...]:
        event = device.next_number()
        device.events[event] = 0
        return (event,)

    @call("cudaEventDestroy")
    def _(event: int) -> tuple[Any, ...]:
        del device.events[event]
        return ()

    @call("cudaEventRecord")
    def _(event: int, stream: int) -> tuple[Any, ...]:
        device.events[event] = time.perf_counter_ns()
        return ()

    @call("cudaEventElapsedTime")
    def _(start: int, end: int) -> tuple[Any, ...]:
        return ((device.events[end] - device.events[start]) / 1e6,)

    @call("cudaMemGetInfo")
    def _() -> tuple[Any, ...]:
        return TOTAL - device.used(), TOTAL

    @call("cudaGetDeviceProperties")
    def _(number: int) -> tuple[Any, ...]:
        return (types.SimpleNamespace(name=b"Stand-in\0", major=9, minor=0, pciDomainID=0, pciBusID=0x3B, pciDeviceID=0),)

    for name in ("cudaStreamSynchronize", "cudaDeviceSynchronize"):

        @call(name)
        def _(*stream: int) -> tuple[Any, ...]:
            return ()

    for name, value in {
        "cudaError_t": cudaError_t, "cudaMemcpyKind": cudaMemcpyKind, "cudaStreamNonBlocking": 1, "cudaSetDevice": cudaSetDevice,
    }.items():  # fmt: skip
        setattr(runtime, name, value)
    package, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    package.bindings = bindings  # type: ignore[attr-defined]
    bindings.runtime = runtime  # type: ignore[attr-defined]
    return {"cuda": package, "cuda.bindings": bindings, "cuda.bindings.runtime": runtime}


class GraphDriver:
    """The calls of libcuda that record and launch graphs. A code other than 0 is a failure."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:
        assert stream.value in self.device.streams
        assert mode == 1
        self.device.capturing = []
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        number = self.device.next_number()
        assert self.device.capturing is not None
        self.device.graphs[number], self.device.capturing = self.device.capturing, None
        graph._obj.value = number
        return 0

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> int:
        number = self.device.next_number()
        self.device.graphs[number] = self.device.graphs[graph.value]
        executable._obj.value = number
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        del self.device.graphs[graph.value]
        return 0

    def cuGraphExecDestroy(self, executable: Any) -> int:
        del self.device.graphs[executable.value]
        return 0

    def cuGraphLaunch(self, executable: Any, stream: Any) -> int:
        self.device.calls.append("cuGraphLaunch")
        for work in self.device.graphs[executable.value]:
            work()
        return 0


def nvml_module(clocks: dict[str, int]) -> types.ModuleType:
    """nvidia-ml-py on a host that has GPUs at these PCI addresses, in this order; a clock of 0 is not told."""
    nvml = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def call(function: Any) -> None:
        def called(*arguments: Any) -> Any:
            nvml.calls.append(function.__name__)  # type: ignore[attr-defined]
            if function.__name__ != "nvmlInit" and "nvmlInit" not in nvml.calls:  # type: ignore[attr-defined]
                raise NVMLError("Uninitialized")
            return function(*arguments)

        setattr(nvml, function.__name__, called)

    @call
    def nvmlInit() -> None:
        pass

    @call
    def nvmlDeviceGetCount() -> int:
        return len(clocks)

    @call
    def nvmlDeviceGetHandleByIndex(index: int) -> str:
        return list(clocks)[index]

    @call
    def nvmlDeviceGetHandleByPciBusId(address: str) -> str:
        short = address[-12:].upper()  # the domain may have four digits or eight
        if short not in clocks:
            raise NVMLError("Not Found")
        return short

    @call
    def nvmlDeviceGetClockInfo(device: str, kind: int) -> int:
        assert kind == 1
        if not clocks[device]:
            raise NVMLError("Not Supported")
        return clocks[device]

    nvml.calls, nvml.NVML_CLOCK_SM, nvml.NVMLError = [], 1, NVMLError  # type: ignore[attr-defined]
    return nvml


def install(monkeypatch: Any, modules: dict[str, types.ModuleType]) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def tensorrt_module(device: Device, version: str) -> types.ModuleType:
    """Engines of one INT32 or FLOAT input `input` [batch, n] and one output `output` = 2 * input. A plan is JSON.

    {"weights": bytes on the device, "context": bytes for each context, "dtype": ..., "profiles": [[min, max], ...] of the batch,
    "features": n, "fails": what is to fail: context, shape, execute, spoil}
    """
    trt = types.ModuleType("tensorrt")

    class Severity(enum.IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2

    class ILogger:
        pass

    ILogger.Severity = Severity  # type: ignore[attr-defined]

    class DataType(enum.Enum):
        FLOAT = 0
        INT32 = 3

    class Context:
        def __init__(self, engine: Engine) -> None:
            self.engine = engine
            self.block = device.allocate(engine.plan["context"])
            self.shape: tuple[int, ...] = (-1, engine.plan["features"])
            self.profile = 0
            self.addresses: dict[str, int] = {}

        def __del__(self) -> None:
            device.memory.pop(self.block, None)

        def set_optimization_profile_async(self, number: int, stream: int) -> bool:
            assert stream in device.streams
            self.profile = number
            self.shape = (-1, self.engine.plan["features"])
            return True

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            low, high = self.engine.plan["profiles"][self.profile]
            if self.engine.fails == "shape" or not low <= shape[0] <= high:
                self.engine.log.log(Severity.ERROR, f"set_input_shape: {shape[0]} is not in [{low}, {high}]")
                return False
            self.shape = shape
            return True

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self.shape

        def set_tensor_address(self, name: str, pointer: int) -> bool:
            self.addresses[name] = pointer
            return True

        def execute_async_v3(self, *, stream_handle: int) -> bool:
            assert stream_handle in device.streams
            device.calls.append("execute_async_v3")
            if self.engine.fails == "execute":
                self.engine.log.log(Severity.ERROR, "enqueueV3: it was asked to fail")
                return False
            if self.engine.fails == "spoil":
                device.spoiled = True
            if device.capturing is not None:
                shape = self.shape
                device.capturing.append(lambda: self.compute(shape))
            else:
                self.compute(self.shape)
            return True

        def compute(self, shape: tuple[int, ...]) -> None:
            count = int(np.prod(shape))
            kind = ctypes.c_float if self.engine.plan["dtype"] == "FLOAT" else ctypes.c_int32
            given = np.ctypeslib.as_array((kind * count).from_address(self.addresses["input"]))
            np.ctypeslib.as_array((kind * count).from_address(self.addresses["output"]))[:] = 2 * given

    class Engine:
        def __init__(self, log: Any, plan: dict[str, Any]) -> None:
            self.log, self.plan, self.fails = log, plan, plan.get("fails")
            self.block = device.allocate(plan["weights"])

        def __del__(self) -> None:
            device.memory.pop(self.block, None)

        def get_tensor_dtype(self, name: str) -> DataType:
            return DataType[self.plan["dtype"]]

        def create_execution_context(self) -> Context | None:
            if self.fails == "context":
                self.log.log(Severity.ERROR, "createExecutionContext: no memory for it")
                return None
            return Context(self)

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, log: Any) -> None:
            self.log = log

        def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
            try:
                read = json.loads(plan)
            except ValueError:
                self.log.log(Severity.ERROR, "Serialization assertion magicTagRead == kMAGIC_TAG failed.\nMagic tag does not match")
                return None
            if read.get("host_code") and not self.engine_host_code_allowed:
                self.log.log(Severity.ERROR, "the plan brings host code, which is not allowed")
                return None
            return Engine(self.log, read)

    for name, value in {"__version__": version, "ILogger": ILogger, "Runtime": Runtime, "DataType": DataType}.items():
        setattr(trt, name, value)
    return trt
