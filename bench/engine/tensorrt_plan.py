"""Builds one TensorRT plan, in a process of its own: `python -m bench.engine.tensorrt_plan MODULE`.

The CUDA context, the builder's memory and whatever may crash in it end with the process. MODULE is `tensorrt` or
`tensorrt_rtx`. JSON lines: it prints `library` (version, and whether networks are strongly typed), reads one request
(`PlanRequest` as an object), prints `progress` lines, and at the end `built`. A refusal is one sentence on standard
error and exit code 2.

One path serves 8.6, 10.8 and later, and 11: what a version has is asked with hasattr, and bits are never written as
numbers, since their meaning moved (1 << 1 is STRONGLY_TYPED on 10 and PREFER_JIT_PYTHON_PLUGINS on 11).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clock import now_ns
from bench.engine.tensorrt_log import make_log
from bench.errors import EXIT_WRONG_INPUT, BenchError, one_sentence

MODULES = ("tensorrt", "tensorrt_rtx")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to build. `profiles`: for each, the smallest, most frequent and largest shape by input. Paths are strings for JSON."""

    graph: str
    plan: str
    precision: str
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]]
    workspace_bytes: int | None
    timing_cache: str | None
    optimization_level: int | None
    version_compatible: bool


def main(arguments: list[str] | None = None) -> int:
    """Serve one request. Returns the exit code."""
    (module,) = sys.argv[1:] if arguments is None else arguments
    try:
        trt = import_tensorrt(module)
        if module == "tensorrt" and find_gpu() is None:
            raise BenchError("TensorRT builds on the GPU that an engine is for, and there is none here; --module tensorrt_rtx needs none")
        send({"event": "library", "version": trt.__version__, "typed": is_typed(trt)})
        line = sys.stdin.readline()
        if line:
            plan = Plan(trt, module, PlanRequest(**json.loads(line)))
            send({"event": "built", **plan.build()})
            sys.stderr.flush()
            os._exit(0)  # everything is written; what the library would take down now, it may take down in the wrong order
    except (BenchError, MemoryError, OSError) as error:
        print(one_sentence(error), file=sys.stderr)
        return EXIT_WRONG_INPUT
    return 0


def send(event: Mapping[str, Any]) -> None:
    """One line, written at once, past whatever a library prints."""
    os.write(1, (json.dumps(event) + "\n").encode())


def import_tensorrt(module: str) -> Any:
    """Raises BenchError where it is not installed, or its libraries are not found."""
    if module not in MODULES:
        raise BenchError(f"--module {module} builds no engines: choose one of {', '.join(MODULES)}")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        package = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}[module]
        raise BenchError(f"{module} cannot be imported ({error}); install it with `pip install {package}`") from None


def is_typed(trt: Any) -> bool:
    """Whether the graph alone decides every type: since 10, and always in 11."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


class Plan:
    """One build, step by step."""

    def __init__(self, trt: Any, module: str, request: PlanRequest) -> None:
        self._trt = trt
        self._module = module
        self._request = request
        self._log = make_log(trt)
        self._typed = is_typed(trt)
        self._flags: list[str] = []
        self._kept: list[Any] = []  # what TensorRT holds plain pointers to

    def build(self) -> dict[str, Any]:
        """Write the plan; what there is to know of it. Raises BenchError."""
        trt, request = self._trt, self._request
        builder = trt.Builder(self._log)
        if builder is None:
            raise BenchError(f"TensorRT does not start here: {self._log.last_error()}")
        network = builder.create_network(self._network_flags())
        send({"event": "progress", "text": "parsing the graph"})
        self._parse(network)
        config = builder.create_builder_config()
        cache = self._configure(builder, network, config)
        # They live as long as this process: 8.6 crashes where a timing cache is taken down after its configuration.
        self._kept += [builder, network, config, cache]
        send({"event": "progress", "text": "building the engine (TensorRT times its tactics: this takes a while)"})
        serialized = builder.build_serialized_network(network, config)
        if serialized is None:
            raise BenchError(f"TensorRT cannot build {request.graph}: {self._log.last_error()}")
        Path(request.plan).write_bytes(serialized)
        if cache is not None and request.timing_cache is not None:
            try:
                _replace(Path(request.timing_cache), bytes(cache.serialize()))
            except OSError as error:  # the engine is worth more
                send({"event": "progress", "text": f"the timing cache was not written: {error}"})
        facts = {
            "flags": self._flags,
            "network_layers": network.num_layers,
            "library_version": library_version(self._module),
            "gpu": find_gpu(),
        }
        send({"event": "progress", "text": "looking into the engine"})
        return {**facts, **self._inspect(serialized)}

    def _network_flags(self) -> int:
        flags = self._trt.NetworkDefinitionCreationFlag
        name = "STRONGLY_TYPED" if self._typed else "EXPLICIT_BATCH"
        self._flags.append(name)
        return 1 << int(getattr(flags, name))

    def _parse(self, network: Any) -> None:
        parser = self._trt.OnnxParser(network, self._log)
        self._kept.append(parser)  # it owns the weights that the network points to, until the engine is built
        if parser.parse_from_file(self._request.graph):
            return
        reasons = [_describe(parser.get_error(i), self._request.graph) for i in range(parser.num_errors)]
        raise BenchError(f"TensorRT cannot take the graph: {'; '.join(reasons[:3]) or self._log.last_error()}")

    def _configure(self, builder: Any, network: Any, config: Any) -> Any:
        """Options, flags and profiles. Returns the timing cache in use, None where there is none."""
        trt, request = self._trt, self._request
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # else the inspector knows names only
        if request.workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_bytes)
        if request.optimization_level is not None:
            config.builder_optimization_level = request.optimization_level
        if request.version_compatible:
            self._set_flag(config, "VERSION_COMPATIBLE")
        if not self._typed:
            self._configure_untyped(config)
        if hasattr(trt, "IProgressMonitor") and hasattr(config, "progress_monitor"):
            monitor = make_progress_monitor(trt)
            self._kept.append(monitor)
            config.progress_monitor = monitor
        for number, shapes in enumerate(request.profiles):
            profile = builder.create_optimization_profile()
            for index in range(network.num_inputs):
                tensor = network.get_input(index)
                if tensor.is_shape_tensor:
                    raise BenchError(
                        f"input {tensor.name!r} decides shapes by its values, which is not supported; make it a constant of the model"
                    )
                profile.set_shape(tensor.name, *(tuple(shape) for shape in shapes[tensor.name]))
            if config.add_optimization_profile(profile) < 0:
                raise BenchError(f"TensorRT refuses profile {number + 1}: {self._log.last_error()}; other shapes: --shape")
        if request.timing_cache is None:
            return None
        path = Path(request.timing_cache)
        cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
        if cache is None or not config.set_timing_cache(cache, False):
            raise BenchError(
                f"{path} is not a timing cache of this TensorRT and GPU: {self._log.last_error()}; name another --timing-cache"
            )
        return cache

    def _configure_untyped(self, config: Any) -> None:
        """8.6: precision by flags, and two switches that later versions have on for good.

        Several contexts may share a profile only with PROFILE_SHARING_0806. Tactics of cuBLAS and cuDNN are left out, as they are by
        default since 10: their libraries are over 1 GB that a cold start would load.
        """
        trt, precision = self._trt, self._request.precision
        if precision in ("fp16", "int8"):
            self._set_flag(config, "FP16")
        if precision == "int8":
            self._set_flag(config, "INT8")
        if hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806"):
            config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
            self._flags.append("PROFILE_SHARING_0806")
        sources = [name for name in ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS") if hasattr(trt.TacticSource, name)]
        config.set_tactic_sources(sum(1 << int(getattr(trt.TacticSource, name)) for name in sources))
        self._flags += sources

    def _set_flag(self, config: Any, name: str) -> None:
        flag = getattr(self._trt.BuilderFlag, name, None)
        if flag is None:
            raise BenchError(f"{self._module} {self._trt.__version__} has no {name}")
        config.set_flag(flag)
        self._flags.append(name)

    def _inspect(self, serialized: Any) -> dict[str, Any]:
        """Loads the engine, which also proves that it can be loaded here. Formats are known to a context with shapes only."""
        trt = self._trt
        unknown = {"runs_here": False, "engine_layers": None, "layers": None}
        if find_gpu() is None:
            return unknown
        runtime = trt.Runtime(self._log)
        if self._request.version_compatible:
            runtime.engine_host_code_allowed = True  # its code was made a moment ago, by this process
        engine = runtime.deserialize_cuda_engine(serialized)
        if engine is None:
            if self._module == "tensorrt_rtx":  # it may have been built for another GPU than this one
                return unknown
            raise BenchError(f"TensorRT does not load the engine that it built: {self._log.last_error()}")
        layers, text = engine.num_layers or None, None
        inspector = engine.create_engine_inspector()
        context = engine.create_execution_context()
        if inspector is not None and context is not None:  # a plan with its own runtime may have neither to give
            for name, shapes in self._request.profiles[0].items():
                context.set_input_shape(name, tuple(shapes[1]))
            inspector.execution_context = context
            text = inspector.get_engine_information(trt.LayerInformationFormat.JSON) or None
        del inspector, context, engine, runtime  # in this order
        return {"runs_here": True, "engine_layers": layers, "layers": text}


def make_progress_monitor(trt: Any) -> Any:
    """Prints a `progress` line for the step that the build is at, once a second at most."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._steps: dict[str, int] = {}
            self._told_ns = now_ns()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            if now_ns() - self._told_ns >= 10**9:
                self._told_ns = now_ns()
                send({"event": "progress", "text": f"{phase_name.lower()}, {step + 1} of {self._steps.get(phase_name, step + 1)}"})
            return True  # False would cancel the build

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Monitor()


def _describe(error: Any, graph: str) -> str:
    """A parser error with its node: named since 10, by its number before."""
    if hasattr(error, "node_name") and error.node_name():
        where = f"node {error.node_name()!r} ({error.node_operator()})"
    else:
        import onnx

        nodes = onnx.load(graph, load_external_data=False).graph.node
        number = error.node()
        where = f"node {nodes[number].name or number!r} ({nodes[number].op_type})" if 0 <= number < len(nodes) else "the graph"
    reason = " ".join(error.desc().split())[:200]
    if reason in ("", "false"):  # what it says of an operator that it does not know
        reason = "TensorRT does not take this operator"
    return f"{where}: {reason} ({error.code().name})"


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def library_version(module: str) -> str | None:
    """The version of the TensorRT library that this process loaded, which is not always that of the Python bindings.

    `getInferLibVersion` (NvInferRuntimeBase.h) gives major * 10000 + minor * 100 + patch; TensorRT before 10 counted majors in thousands.
    """
    stem = {"tensorrt": "libnvinfer.so", "tensorrt_rtx": "libtensorrt_rtx.so"}[module]
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
            path = next(line.split()[-1] for line in stream if Path(line.split()[-1]).name.startswith(stem))
        number = int(ctypes.CDLL(path).getInferLibVersion())
    except (OSError, StopIteration, AttributeError, IndexError):
        return None
    major, rest = divmod(number, 1000 if module == "tensorrt" and number < 100_000 else 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def find_gpu() -> dict[str, str] | None:
    """The first GPU that CUDA shows this process: name and compute capability, by the driver API without making a context."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetName(name, 256, device):
        return None
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h
    if cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device) or cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device):
        return None
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return {
        "name": name.value.decode(errors="replace"),
        "compute_capability": f"{major.value}.{minor.value}",
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
    }


if __name__ == "__main__":
    sys.exit(main())
