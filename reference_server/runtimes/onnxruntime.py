"""ONNX Runtime on the CPU: one session is an engine, a slot is an IO binding with its own buffers.

`InferenceSession.run_with_iobinding` releases the GIL and may be called from several threads on one session
(https://onnxruntime.ai/docs/api/python/api_summary.html), so N slots share one session's weights. Each session has one
intra-op thread pool; spinning is off, since slots that spin take the cores from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.clock import now_ns
from bench.engine.manifest import DATATYPES, Manifest, Tensor, axis_sizes, check_cpu, check_runtime_version
from bench.engine.onnxruntime_library import import_onnxruntime
from bench.errors import BenchError, EngineRefused
from reference_server.phases import Phases
from reference_server.runtimes import Answer, parse_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOAD_OPTIMIZATION = {"none": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtOptions:
    """Settings of a session. `threads` = 0 is ONNX Runtime's own choice (one a core).

    `load_optimization` optimises the graph at the load: `none`, since the engine was optimised when it was built.
    """

    threads: int = 1
    spinning: bool = False
    load_optimization: str = "none"
    memory_pattern: bool = True


class OrtSlot:
    """Input and output buffers for the largest shapes, bound to the session by address; any allowed shape fits in them.

    An output whose shape does not follow from the inputs' is left to ONNX Runtime to allocate.
    """

    def __init__(self, session: Any, manifest: Manifest) -> None:
        self._session = session
        self._manifest = manifest
        self._binding = session.io_binding()
        self._buffers: dict[str, NDArray[Any]] = {}

    def allocate(self) -> None:
        import numpy as np

        manifest = self._manifest
        largest = {t.name: _most_elements([p[t.name].max for p in manifest.profiles]) for t in manifest.inputs}
        for tensor in manifest.inputs:
            if tensor.datatype != "BYTES":
                self._buffers[tensor.name] = np.zeros(largest[tensor.name], DATATYPES[tensor.datatype])
        for tensor in manifest.outputs:
            shapes = [_resolve(tensor, axis_sizes(manifest.inputs, {n: r.max for n, r in p.items()})) for p in manifest.profiles]
            if tensor.datatype != "BYTES" and all(shape is not None for shape in shapes):
                self._buffers[tensor.name] = np.zeros(_most_elements([s for s in shapes if s is not None]), DATATYPES[tensor.datatype])

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> Answer:
        import numpy as np

        started = now_ns()
        manifest, binding = self._manifest, self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        for tensor in manifest.inputs:
            value = inputs[tensor.name]
            buffer = self._buffers.get(tensor.name)
            if buffer is None:
                binding.bind_cpu_input(tensor.name, value)
                continue
            view = buffer[: value.size].reshape(value.shape)
            np.copyto(view, value)
            binding.bind_input(tensor.name, "cpu", 0, view.dtype, view.shape, view.ctypes.data)
        wanted = [t for t in manifest.outputs if outputs is None or t.name in outputs]
        sizes = axis_sizes(manifest.inputs, {name: value.shape for name, value in inputs.items()})
        views: dict[str, NDArray[Any]] = {}
        for tensor in wanted:
            shape = _resolve(tensor, sizes)
            buffer = self._buffers.get(tensor.name)
            if buffer is None or shape is None:
                binding.bind_output(tensor.name, "cpu")
                continue
            views[tensor.name] = view = buffer[: math.prod(shape)].reshape(shape)
            binding.bind_output(tensor.name, "cpu", 0, view.dtype, shape, view.ctypes.data)
        copied = now_ns()
        self._session.run_with_iobinding(binding)
        inferred = now_ns()
        if len(views) == len(wanted):
            answer = {name: view.copy() for name, view in views.items()}
        else:
            given = dict(zip((t.name for t in wanted), binding.get_outputs(), strict=True))
            answer = {t.name: views[t.name].copy() if t.name in views else given[t.name].numpy() for t in wanted}
        done = now_ns()
        return Answer(outputs=answer, input_ns=copied - started, infer_ns=inferred - copied, output_ns=done - inferred)

    def close(self) -> None:
        self._binding = self._session = None
        self._buffers = {}


class OrtEngine:
    """One session; its weights are shared by all slots."""

    def __init__(self, session: Any, manifest: Manifest) -> None:
        self.manifest = manifest
        self._session = session

    def make_slot(self, phases: Phases) -> OrtSlot:
        with phases.phase("slot"):
            slot = OrtSlot(self._session, self.manifest)
        with phases.phase("buffers"):
            slot.allocate()
        return slot

    def close(self) -> None:
        self._session = None


class OrtRuntime:
    """`version` is known once the runtime was started."""

    version = ""

    def check_options(self, manifest: Manifest, options: Mapping[str, str]) -> None:
        _settings(options)

    def start(self, manifest: Manifest, options: Mapping[str, str], phases: Phases) -> None:
        with phases.phase("library"):
            onnxruntime = import_onnxruntime()
        with phases.phase("device"):
            onnxruntime.set_default_logger_severity(3)  # makes ONNX Runtime's process-wide environment
            self.version = onnxruntime.__version__

    def device_bytes(self) -> int | None:
        return None

    def sm_clock_mhz(self) -> int | None:
        return None

    def measure_floors(self, size: int, phases: Phases) -> None:
        """There is no device to copy to."""

    def load(
        self,
        manifest: Manifest,
        engine_dir: Path,
        engine_bytes: bytes,
        options: Mapping[str, str],
        phases: Phases,
        *,
        trusted: bool = False,
    ) -> OrtEngine:
        onnxruntime = import_onnxruntime()
        check_runtime_version(manifest, onnxruntime.__version__)
        check_cpu(manifest)
        settings = _settings(options)
        with phases.phase("deserialise"):
            session_options = onnxruntime.SessionOptions()
            session_options.intra_op_num_threads = settings.threads
            session_options.inter_op_num_threads = 1
            session_options.enable_mem_pattern = settings.memory_pattern
            session_options.graph_optimization_level = getattr(
                onnxruntime.GraphOptimizationLevel, _LOAD_OPTIMIZATION[settings.load_optimization]
            )
            session_options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spinning else "0")
            # A model with weights in files of their own finds them beside it, so it is loaded by path.
            source: bytes | str = engine_bytes if len(manifest.engine_files) == 1 else str(engine_dir / manifest.engine_file.name)
            try:
                session = onnxruntime.InferenceSession(source, session_options, providers=["CPUExecutionProvider"])
            except Exception as error:  # ONNX Runtime raises many kinds of its own, all of them a refusal to load
                raise EngineRefused(f"{engine_dir / manifest.engine_file.name} does not load in onnxruntime: {error}") from None
            # The Python class keeps the bytes, to build the session anew with other providers: as much again as the weights,
            # for as long as the engine lives. Here is one provider, so nothing would ever ask for them.
            if hasattr(session, "_model_bytes"):
                session._model_bytes = None
        return OrtEngine(session, manifest)


def _most_elements(shapes: Sequence[Sequence[int]]) -> int:
    return max(math.prod(shape) for shape in shapes)


def _resolve(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The tensor's shape with every named axis filled in, None where an axis is not known."""
    shape: list[int] = []
    for dim in tensor.dims:
        size = dim if isinstance(dim, int) else sizes.get(dim)
        if size is None:
            return None
        shape.append(size)
    return tuple(shape)


def _settings(options: Mapping[str, str]) -> OrtOptions:
    settings = parse_options(OrtOptions, options)
    if settings.load_optimization not in _LOAD_OPTIMIZATION:
        known = ", ".join(_LOAD_OPTIMIZATION)
        raise BenchError(f"runtime setting load_optimization={settings.load_optimization!r} is not one of {known}")
    return settings


RUNTIME = OrtRuntime()
