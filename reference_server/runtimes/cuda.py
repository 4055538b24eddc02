"""CUDA from Python: device memory, pinned memory, streams, copies and events, through pycuda or through cuda-python.

One seam over both. The primary context is used throughout, the one that TensorRT uses too. pycuda keeps a stack of
contexts a thread and aborts a process that ends with one on it, so every use is inside `with cuda.current()`, which
pushes and pops; `pycuda.autoinit` would make a second context, current in the importing thread alone. cuda-python's
runtime API selects the primary context by itself.

Pointers, streams and events are integers: what TensorRT takes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bench.errors import BenchError
from reference_server.runtimes import DeviceSpoiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINDINGS = ("pycuda", "cuda-python")


class CudaError(BenchError):
    """A CUDA call failed. Whether the context survived it, `Cuda.healthy` tells."""


class OutOfDeviceMemory(BenchError):
    """The device has no room for what was asked; nothing else is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The device in use. `compute_capability` is "9.0" and the like, `pci_address` "00000000:3B:00.0" and the like."""

    name: str
    compute_capability: str
    pci_address: str


class Cuda(Protocol):
    """What the TensorRT runtime needs of CUDA, in any thread; raises CudaError or OutOfDeviceMemory.

    All but `open`, `healthy` and `close` are called inside `current()`.
    """

    name: str

    def open(self) -> Gpu:
        """Import the bindings and retain the first device's primary context. Raises BenchError where there is no usable device."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Make the context current in this thread, for a while. May be nested."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device, whoever uses the rest."""
        ...

    def allocate(self, size: int) -> int: ...
    def release(self, pointer: int) -> None: ...

    def allocate_pinned(self, size: int) -> NDArray[Any]:
        """Page-locked host memory, as uint8 [size]."""
        ...

    def release_pinned(self, array: NDArray[Any]) -> None: ...

    def make_stream(self) -> int:
        """A stream that does not wait for the default one."""
        ...

    def release_stream(self, stream: int) -> None: ...

    def copy_in(self, pointer: int, array: NDArray[Any], stream: int) -> None:
        """From the host, C-contiguous, in stream order."""
        ...

    def copy_out(self, array: NDArray[Any], pointer: int, stream: int) -> None:
        """To the host, C-contiguous, in stream order."""
        ...

    def make_event(self) -> int: ...
    def release_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...

    def elapsed_ns(self, start: int, end: int) -> int:
        """Device time between two recorded events that were waited for (its resolution is about 0.5 us)."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait for all work of the stream; other threads run meanwhile."""
        ...

    def healthy(self) -> bool:
        """Whether the context still works: errors that spoil it (an illegal address, say) come back from every later call."""
        ...

    def close(self) -> None:
        """Give the context back, outside `current()`. Nothing may be left that was made in it."""
        ...


def open_cuda(wanted: str = "") -> tuple[Cuda, Gpu]:
    """pycuda where it is installed, else cuda-python; `wanted` insists on one. Raises BenchError."""
    if wanted not in ("", *BINDINGS):
        raise BenchError(f"runtime setting cuda={wanted!r} is not one of {', '.join(BINDINGS)}")
    missing = []
    for kind in (Pycuda, CudaPython):
        if wanted in ("", kind.name):
            cuda: Cuda = kind()
            try:
                return cuda, cuda.open()
            except ImportError as error:
                missing.append(f"{kind.name}: {error}")
    raise BenchError(f"no CUDA bindings can be imported ({'; '.join(missing)}); install the extra `gpu` or `gpu-nocompile`")


@contextlib.contextmanager
def use(cuda: Cuda, what: str) -> Iterator[None]:
    """Make the context current; where a CUDA error has spoiled it for good, say so by DeviceSpoiled, with `what` was going on."""
    try:
        with cuda.current():
            yield
    except CudaError as error:
        if cuda.healthy():
            raise
        raise DeviceSpoiled(f"{what}: {error}") from None


class Pycuda:
    """pycuda frees what its objects own when they die, so each is held here under its address until it is released."""

    name = "pycuda"

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._driver: Any = None
        self._context: Any = None

    def open(self) -> Gpu:
        import pycuda.driver as driver

        self._driver = driver
        try:
            driver.init()
            device = driver.Device(0)
            self._context = device.retain_primary_context()
            major, minor = device.compute_capability()
            with self.current():
                return Gpu(name=device.name(), compute_capability=f"{major}.{minor}", pci_address=device.pci_bus_id())
        except driver.Error as error:
            raise BenchError(f"there is no usable GPU: {error}") from None

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        self._call(self._context.push)
        try:
            yield
        finally:
            self._context.pop()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._driver.MemoryError as error:
            raise OutOfDeviceMemory(f"the GPU has no memory left: {error}") from None
        except self._driver.Error as error:
            raise CudaError(str(error)) from None

    def memory(self) -> tuple[int, int]:
        free, total = self._call(self._driver.mem_get_info)
        return int(free), int(total)

    def allocate(self, size: int) -> int:
        allocation = self._call(self._driver.mem_alloc, size)
        self._held[int(allocation)] = allocation
        return int(allocation)

    def release(self, pointer: int) -> None:
        self._call(self._held.pop(pointer).free)

    def allocate_pinned(self, size: int) -> NDArray[Any]:
        import numpy as np

        array: NDArray[Any] = self._call(self._driver.pagelocked_empty, size, np.uint8)
        return array

    def release_pinned(self, array: NDArray[Any]) -> None:
        allocation: Any = array.base
        self._call(allocation.free)

    def make_stream(self) -> int:
        stream = self._call(self._driver.Stream, 1)  # CU_STREAM_NON_BLOCKING of cuda.h
        self._held[int(stream.handle)] = stream
        return int(stream.handle)

    def release_stream(self, stream: int) -> None:
        del self._held[stream]

    def copy_in(self, pointer: int, array: NDArray[Any], stream: int) -> None:
        self._call(self._driver.memcpy_htod_async, pointer, array, self._held[stream])

    def copy_out(self, array: NDArray[Any], pointer: int, stream: int) -> None:
        self._call(self._driver.memcpy_dtoh_async, array, pointer, self._held[stream])

    def make_event(self) -> int:
        event = self._call(self._driver.Event)
        number = id(event)  # unique while the event is held
        self._held[number] = event
        return number

    def release_event(self, event: int) -> None:
        del self._held[event]

    def record(self, event: int, stream: int) -> None:
        self._call(self._held[event].record, self._held[stream])

    def elapsed_ns(self, start: int, end: int) -> int:
        return round(float(self._call(self._held[end].time_since, self._held[start])) * 1e6)

    def synchronize(self, stream: int) -> None:
        self._call(self._held[stream].synchronize)

    def healthy(self) -> bool:
        try:
            with self.current():
                self._call(self._driver.Context.synchronize)
        except CudaError:
            return False
        return True

    def close(self) -> None:
        self._held.clear()
        self._context = None


class CudaPython:
    """The runtime API: `cuda.bindings.runtime`, which older packages call `cuda.cudart`. Calls give (error, value...)."""

    name = "cuda-python"

    def __init__(self) -> None:
        self._cudart: Any = None

    def open(self) -> Gpu:
        try:
            from cuda.bindings import runtime as cudart
        except ImportError:
            from cuda import cudart

        self._cudart = cudart
        try:
            with self.current():
                self._call(cudart.cudaFree, 0)  # makes the primary context, which is otherwise made by the first use
                properties = self._call(cudart.cudaGetDeviceProperties, 0)
        except CudaError as error:
            raise BenchError(f"there is no usable GPU: {error}") from None
        name = properties.name.decode(errors="replace") if isinstance(properties.name, bytes) else str(properties.name)
        return Gpu(
            name=name.rstrip("\0"),
            compute_capability=f"{properties.major}.{properties.minor}",
            pci_address=f"{properties.pciDomainID:08X}:{properties.pciBusID:02X}:{properties.pciDeviceID:02X}.0",
        )

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        self._call(self._cudart.cudaSetDevice, 0)
        yield

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        error, *values = function(*arguments)
        codes = self._cudart.cudaError_t
        if error != codes.cudaSuccess:
            text = f"{function.__name__} failed: {error.name}"
            if error == codes.cudaErrorMemoryAllocation:
                raise OutOfDeviceMemory(f"the GPU has no memory left: {text}")
            raise CudaError(text)
        return values[0] if len(values) == 1 else tuple(values)

    def memory(self) -> tuple[int, int]:
        free, total = self._call(self._cudart.cudaMemGetInfo)
        return int(free), int(total)

    def allocate(self, size: int) -> int:
        return int(self._call(self._cudart.cudaMalloc, size))

    def release(self, pointer: int) -> None:
        self._call(self._cudart.cudaFree, pointer)

    def allocate_pinned(self, size: int) -> NDArray[Any]:
        import numpy as np

        address = int(self._call(self._cudart.cudaMallocHost, size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def release_pinned(self, array: NDArray[Any]) -> None:
        self._call(self._cudart.cudaFreeHost, array.ctypes.data)

    def make_stream(self) -> int:
        return int(self._call(self._cudart.cudaStreamCreateWithFlags, self._cudart.cudaStreamNonBlocking))

    def release_stream(self, stream: int) -> None:
        self._call(self._cudart.cudaStreamDestroy, stream)

    def copy_in(self, pointer: int, array: NDArray[Any], stream: int) -> None:
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call(self._cudart.cudaMemcpyAsync, pointer, array.ctypes.data, array.nbytes, kind, stream)

    def copy_out(self, array: NDArray[Any], pointer: int, stream: int) -> None:
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call(self._cudart.cudaMemcpyAsync, array.ctypes.data, pointer, array.nbytes, kind, stream)

    def make_event(self) -> int:
        return int(self._call(self._cudart.cudaEventCreate))

    def release_event(self, event: int) -> None:
        self._call(self._cudart.cudaEventDestroy, event)

    def record(self, event: int, stream: int) -> None:
        self._call(self._cudart.cudaEventRecord, event, stream)

    def elapsed_ns(self, start: int, end: int) -> int:
        return round(float(self._call(self._cudart.cudaEventElapsedTime, start, end)) * 1e6)

    def synchronize(self, stream: int) -> None:
        self._call(self._cudart.cudaStreamSynchronize, stream)

    def healthy(self) -> bool:
        try:
            with self.current():
                self._call(self._cudart.cudaDeviceSynchronize)
        except CudaError:
            return False
        return True

    def close(self) -> None:
        """The runtime API gives the primary context back when the process ends."""
