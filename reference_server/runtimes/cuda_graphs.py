"""CUDA graphs by the driver API, which both bindings share a stream with; pycuda has no calls for them.

CUDA Driver API, "Graph Management" and "Stream Management". A capture in thread-local mode leaves other threads alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from bench.errors import BenchError
from reference_server.runtimes.cuda import CudaError

_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h


def load_driver() -> Any:
    """The driver's library. Raises BenchError where it is missing."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BenchError(f"CUDA graphs need the driver's library: {error}") from None


class CudaGraphs:
    """Captures and launches. Graphs are integers; the context is current in each call."""

    def __init__(self) -> None:
        self._driver = load_driver()

    def capture(self, stream: int, enqueue: Callable[[], None]) -> int:
        """What `enqueue` puts into the stream, recorded and not run. Raises CudaError, or what `enqueue` raises."""
        driver, graph, executable = self._driver, ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cuStreamBeginCapture_v2", driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), _CAPTURE_THREAD_LOCAL))
        try:
            enqueue()
        finally:  # the stream is of no use while it captures
            ended = driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        self._check("cuStreamEndCapture", ended)
        try:
            instantiated = driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
            self._check("cuGraphInstantiateWithFlags", instantiated)
        finally:
            driver.cuGraphDestroy(graph)
        return int(executable.value or 0)

    def launch(self, graph: int, stream: int) -> None:
        self._check("cuGraphLaunch", self._driver.cuGraphLaunch(ctypes.c_void_p(graph), ctypes.c_void_p(stream)))

    def release(self, graph: int) -> None:
        self._check("cuGraphExecDestroy", self._driver.cuGraphExecDestroy(ctypes.c_void_p(graph)))

    def _check(self, call: str, code: int) -> None:
        if code:
            raise CudaError(f"{call} failed with code {code}")
