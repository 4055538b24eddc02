"""A slot of TensorRT: an execution context with a stream, buffers, and the shapes and profile of the request at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.clock import now_ns
from bench.engine.manifest import DATATYPES, Manifest, Tensor, check_request_shapes
from bench.errors import BenchError
from reference_server.runtimes import Answer
from reference_server.runtimes.cuda import Cuda, CudaError, use
from reference_server.runtimes.cuda_graphs import CudaGraphs
from reference_server.runtimes.tensorrt_library import Library

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_GRAPHS = 32  # of a slot: each holds device memory, and shapes may be many
_DTYPES = {  # TensorRT's names of data types -> numpy's
    "FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64", "BOOL": "bool", "UINT8": "uint8",
}  # fmt: skip


@dataclass(slots=True)
class Buffer:
    """One tensor's memory: on the device, and page-locked on the host. Both in the engine's own datatype."""

    pointer: int
    host: NDArray[Any]  # uint8


class TensorrtSlot:
    """An execution context with its own stream and buffers. One request at a time, from any thread."""

    def __init__(
        self, cuda: Cuda, library: Library, engine: Any, manifest: Manifest, *, per_request: bool, graphs: CudaGraphs | None
    ) -> None:
        self._cuda = cuda
        self._library = library
        self._manifest = manifest
        self._per_request = per_request
        self._graphs = graphs
        self._captured: dict[tuple[int, ...], int] = {}  # by the inputs' shapes
        self._tensors = {t.name: t for t in (*manifest.inputs, *manifest.outputs)}
        self._dtypes = {name: _numpy_dtype(engine, name) for name in self._tensors}
        self._buffers: dict[str, Buffer] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}  # the inputs' shapes that the context was told last
        self._all_shapes: dict[str, tuple[int, ...]] = {}  # every tensor's under those
        self._profile = 0
        self._stream = 0
        self._events: list[int] = []
        self.busy = False
        self._context = engine.create_execution_context()
        if self._context is None:
            raise BenchError(f"TensorRT makes no execution context of engine {manifest.name}: {library.log.last_error()}")

    def allocate(self) -> None:
        """The stream, and the buffers for the largest shape of every tensor in any profile (unless they are made for each request)."""
        self._stream = self._cuda.make_stream()
        self._events += (self._cuda.make_event() for _ in range(3))
        if self._per_request:
            return
        sizes = dict.fromkeys(self._tensors, 0)
        for number in reversed(range(len(self._manifest.profiles))):  # so that the first one is left selected
            largest = {name: shape.max for name, shape in self._manifest.profiles[number].items()}
            self._set_shapes(number, largest)
            for name, shape in self._all_shapes.items():
                sizes[name] = max(sizes[name], math.prod(shape) * self._dtypes[name].itemsize)
        self._make_buffers(sizes)

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> Answer:
        self.busy = True
        try:
            with use(self._cuda, f"engine {self._manifest.name}"):
                return self._run(inputs, outputs)
        finally:
            self.busy = False

    def _run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None) -> Answer:
        """The parts of the time: device time from event to event; what the host adds before the last copy counts as input."""
        import numpy as np

        cuda, stream = self._cuda, self._stream
        input_end, infer_end, output_end = self._events
        started = now_ns()
        self._select_shapes({name: value.shape for name, value in inputs.items()})
        shapes = self._all_shapes
        wanted = [t for t in self._manifest.outputs if outputs is None or t.name in outputs]
        with self._request_buffers(shapes):
            for tensor in self._manifest.inputs:
                view = self._view(tensor.name, shapes[tensor.name])
                _put(tensor, inputs[tensor.name], view)
                cuda.copy_in(self._buffers[tensor.name].pointer, view, stream)
            cuda.record(input_end, stream)
            if not self._launch_graph():
                self._enqueue()
            cuda.record(infer_end, stream)
            views = {t.name: self._view(t.name, shapes[t.name]) for t in wanted}
            for name, view in views.items():
                cuda.copy_out(view, self._buffers[name].pointer, stream)
            cuda.record(output_end, stream)
            cuda.synchronize(stream)
            synchronized = now_ns()
            answer = {t.name: np.array(views[t.name], dtype=DATATYPES[t.datatype]) for t in wanted}
        done = now_ns()
        infer_ns = cuda.elapsed_ns(input_end, infer_end)
        output_ns = cuda.elapsed_ns(infer_end, output_end) + done - synchronized
        input_ns = max(0, done - started - infer_ns - output_ns)
        self._capture_graph()
        return Answer(outputs=answer, input_ns=input_ns, infer_ns=infer_ns + now_ns() - done, output_ns=output_ns)

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(stream_handle=self._stream):
            raise CudaError(f"TensorRT does not run engine {self._manifest.name}: {self._library.log.last_error()}")

    def _launch_graph(self) -> bool:
        """Whether the work of these shapes was recorded, and was launched now."""
        graph = self._captured.get(self._shape_key()) if self._graphs is not None else None
        if self._graphs is None or graph is None:
            return False
        self._graphs.launch(graph, self._stream)
        return True

    def _capture_graph(self) -> None:
        """After a run of these shapes without one: what TensorRT does only the first time must not get into the graph."""
        if self._graphs is not None and len(self._captured) < MOST_GRAPHS and self._shape_key() not in self._captured:
            self._captured[self._shape_key()] = self._graphs.capture(self._stream, self._enqueue)

    def _shape_key(self) -> tuple[int, ...]:
        return tuple(size for shape in self._shapes.values() for size in shape)

    def _select_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Tell the context the request's shapes, and the first profile that takes them. Raises BenchError with the allowed range."""
        if shapes == self._shapes:
            return
        for number, profile in enumerate(self._manifest.profiles):
            if all(profile[name].holds(shape) for name, shape in shapes.items()):
                self._set_shapes(number, shapes)
                return
        check_request_shapes(self._manifest, shapes)

    def _set_shapes(self, profile: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises BenchError, also for an output whose shape depends on values."""
        context, log = self._context, self._library.log
        self._shapes = {}
        if profile != self._profile:
            if not context.set_optimization_profile_async(profile, self._stream):
                raise BenchError(f"TensorRT does not select profile {profile}: {log.last_error()}")
            self._cuda.synchronize(self._stream)
            self._profile = profile
        for name, shape in shapes.items():
            if not context.set_input_shape(name, tuple(shape)):
                raise BenchError(f"TensorRT does not take shape {list(shape)} of input {name!r}: {log.last_error()}")
        self._all_shapes = {name: tuple(context.get_tensor_shape(name)) for name in self._tensors}
        for name, shape in self._all_shapes.items():
            if any(size < 0 for size in shape):
                raise BenchError(
                    f"output {name!r} of engine {self._manifest.name} has a shape that depends on values, which is not supported"
                )
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}

    def _view(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        dtype = self._dtypes[name]
        view: NDArray[Any] = self._buffers[name].host[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        return view

    def _make_buffers(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            pointer = self._cuda.allocate(max(size, 1))
            try:
                self._buffers[name] = Buffer(pointer, self._cuda.allocate_pinned(max(size, 1)))
            except BaseException:
                self._cuda.release(pointer)
                raise
            if not self._context.set_tensor_address(name, pointer):
                raise BenchError(f"TensorRT does not take the memory of tensor {name!r}: {self._library.log.last_error()}")

    def _release_buffers(self) -> None:
        while self._buffers:
            _, buffer = self._buffers.popitem()
            self._cuda.release(buffer.pointer)
            self._cuda.release_pinned(buffer.host)

    @contextmanager
    def _request_buffers(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
        if not self._per_request:
            yield
            return
        try:
            self._make_buffers({name: math.prod(shape) * self._dtypes[name].itemsize for name, shape in shapes.items()})
            yield
        finally:
            self._cuda.synchronize(self._stream)  # a run that failed half-way may still be using them
            self._release_buffers()

    def close(self) -> None:
        with use(self._cuda, f"engine {self._manifest.name}"):
            if self._stream:
                self._cuda.synchronize(self._stream)
            while self._captured and self._graphs is not None:
                self._graphs.release(self._captured.popitem()[1])
            self._context = None
            self._release_buffers()
            while self._events:
                self._cuda.release_event(self._events.pop())
            if self._stream:
                self._cuda.release_stream(self._stream)
                self._stream = 0


def _numpy_dtype(engine: Any, name: str) -> Any:
    import numpy as np

    datatype = engine.get_tensor_dtype(name).name
    if datatype not in _DTYPES:
        raise BenchError(f"tensor {name!r} is {datatype}, which numpy does not have")
    return np.dtype(_DTYPES[datatype])


def _put(tensor: Tensor, value: NDArray[Any], view: NDArray[Any]) -> None:
    """Copy a request's input into the buffer. TensorRT 8 takes INT64 inputs as INT32. Raises BenchError for values that do not fit."""
    import numpy as np

    if value.dtype.itemsize > view.dtype.itemsize and value.dtype.kind in "iu" and value.size:
        limits = np.iinfo(view.dtype)
        if value.min() < limits.min or value.max() > limits.max:
            raise BenchError(
                f"input {tensor.name!r} holds a value outside {limits.min} to {limits.max}, the range of the engine's {view.dtype}"
            )
    np.copyto(view, value, casting="unsafe")
