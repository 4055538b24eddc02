"""TensorRT: one deserialised engine, N execution contexts with buffers and a stream each.

`tensorrt` 8.6, 10 and 11, `tensorrt_lean` for version-compatible plans, and `tensorrt_rtx` have the calls used here under
the same names. TensorRT tells of most failures by None or False and a line in its log, never by an exception: every
return value is checked, and the log's last error is the reason that is given.

An engine is for the GPU, the compute capability and the library version that it was built with; that is checked against
the manifest before its bytes are read.
"""

from __future__ import annotations

import atexit
import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine.manifest import Manifest
from bench.errors import BenchError, EngineRefused
from reference_server.phases import Phases
from reference_server.runtimes import parse_options
from reference_server.runtimes.cuda import Cuda, CudaError, Gpu, open_cuda, use
from reference_server.runtimes.cuda_graphs import CudaGraphs
from reference_server.runtimes.sm_clock import SmClock
from reference_server.runtimes.tensorrt_library import Library, check_gpu, check_version
from reference_server.runtimes.tensorrt_slot import TensorrtSlot

MODULES = ("tensorrt", "tensorrt_lean", "tensorrt_rtx")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtOptions:
    """Runtime settings. `module` is empty for the one that built the engine, `cuda` for whichever bindings are installed.

    `buffers`: `reuse` allocates a slot's memory once for the largest shapes, `per-request` anew for each request, which shows what
    that costs. `cuda_graphs`: a slot records the work of each shape at its first run, and from then on launches it as one.
    `trust_host_code` lets an unsigned version-compatible plan bring its own code into this process. `threads` is
    accepted so that one command line serves every runtime.
    """

    module: str = ""
    cuda: str = ""
    buffers: str = "reuse"
    cuda_graphs: bool = False
    trust_host_code: bool = False
    threads: int = 1


class TensorrtEngine:
    """The weights on the device. TensorRT allows several threads to make contexts of one engine, and to run them at once."""

    def __init__(
        self, owner: TensorrtRuntime, library: Library, runtime: Any, engine: Any, manifest: Manifest, options: TensorrtOptions
    ) -> None:
        self.manifest = manifest
        self._owner = owner
        self._made_by = runtime  # TensorRT wants it to outlive the engine
        self._library = library
        self._engine = engine
        self._per_request = options.buffers == "per-request"
        self._graphs = CudaGraphs() if options.cuda_graphs else None

    def make_slot(self, phases: Phases) -> TensorrtSlot:
        owner = self._owner
        with use(owner.cuda, f"engine {self.manifest.name}"):
            with phases.phase("slot", owner.device_bytes):
                slot = TensorrtSlot(
                    owner.cuda, self._library, self._engine, self.manifest, per_request=self._per_request, graphs=self._graphs
                )
            try:
                with phases.phase("buffers", owner.device_bytes):
                    slot.allocate()
            except BaseException:
                slot.close()
                raise
        owner.opened.add(slot)
        return slot

    def close(self) -> None:
        with use(self._owner.cuda, f"engine {self.manifest.name}"):
            self._engine = None
            self._made_by = None


class TensorrtRuntime:
    """CUDA and the TensorRT modules of this process, each started once."""

    def __init__(self) -> None:
        self.version = ""
        self._lock = threading.Lock()
        self._cuda: Cuda | None = None
        self._gpu: Gpu | None = None
        self._sm_clock = SmClock()
        self._libraries: dict[str, Library] = {}
        self.opened: weakref.WeakSet[TensorrtSlot | TensorrtEngine] = weakref.WeakSet()

    @property
    def cuda(self) -> Cuda:
        assert self._cuda is not None, "start() comes first"
        return self._cuda

    def check_options(self, manifest: Manifest, options: Mapping[str, str]) -> None:
        _settings(manifest, options)

    def start(self, manifest: Manifest, options: Mapping[str, str], phases: Phases) -> None:
        settings = _settings(manifest, options)
        with self._lock:
            with phases.phase("library"):
                library = self._libraries.get(settings.module) or Library(settings.module)
            self.version = library.version
            check_version(manifest, library)
            with phases.phase("device", self.device_bytes):
                if self._cuda is None:
                    self._cuda, self._gpu = open_cuda(settings.cuda)
                    atexit.register(self._stop)
            assert self._gpu is not None
            check_gpu(manifest, self._gpu)
            if library.runtime is None:
                with phases.phase("runtime", self.device_bytes), use(self.cuda, f"engine {manifest.name}"):
                    library.runtime = library.make_runtime()
            self._libraries[settings.module] = library

    def load(
        self,
        manifest: Manifest,
        engine_dir: Path,
        engine_bytes: bytes,
        options: Mapping[str, str],
        phases: Phases,
        *,
        trusted: bool = False,
    ) -> TensorrtEngine:
        settings = _settings(manifest, options)
        library = self._libraries[settings.module]
        brings_code = manifest.options.get("version_compatible") == "on"
        if brings_code and not (trusted or settings.trust_host_code):
            raise EngineRefused(
                f"engine {manifest.name} is version-compatible: it brings code of its own into this process; "
                "have it signed and say --trust KEY, or where you built it yourself --set trust_host_code=on"
            )
        with use(self.cuda, f"engine {manifest.name}"), phases.phase("deserialise", self.device_bytes):
            runtime = library.runtime
            if brings_code:
                runtime = library.make_runtime()
                runtime.engine_host_code_allowed = True
            engine = runtime.deserialize_cuda_engine(engine_bytes)
        if engine is None:
            path = engine_dir / manifest.engine_file.name
            raise EngineRefused(f"{path} does not load in {library.name} {library.version}: {library.log.last_error()}")
        loaded = TensorrtEngine(self, library, runtime, engine, manifest, settings)
        self.opened.add(loaded)
        return loaded

    def device_bytes(self) -> int | None:
        """Device memory in use, by whoever: CUDA does not tell apart who uses it. None before the device is started."""
        cuda = self._cuda
        if cuda is None:
            return None
        try:
            with cuda.current():
                free, total = cuda.memory()
        except CudaError:
            return None
        return total - free

    def sm_clock_mhz(self) -> int | None:
        """None before the device is started."""
        gpu = self._gpu if self._cuda is not None else None
        return self._sm_clock.read_mhz(gpu.pci_address if gpu is not None else None)

    def measure_floors(self, size: int, phases: Phases) -> None:
        import numpy as np

        cuda = self.cuda
        with cuda.current():
            pointer, stream = cuda.allocate(size), cuda.make_stream()
            pinned = cuda.allocate_pinned(size)
            for name, source in (("pageable", np.zeros(size, np.uint8) + 1), ("pinned", pinned)):  # both have all their pages
                with phases.phase(f"copy_to_device_{name}"):
                    cuda.copy_in(pointer, source, stream)
                    cuda.synchronize(stream)
            cuda.release_pinned(pinned)
            cuda.release_stream(stream)
            cuda.release(pointer)

    def _stop(self) -> None:
        """At the end of the process: TensorRT's objects go before the context that they were made in.

        While a thread still runs a slot nothing is touched: the end of the process frees all.
        """
        left = sorted(self.opened, key=lambda one: isinstance(one, TensorrtEngine))  # slots first
        if any(isinstance(one, TensorrtSlot) and one.busy for one in left):
            return
        for one in left:
            one.close()
        cuda, self._cuda = self._cuda, None
        self._libraries.clear()
        gc.collect()
        if cuda is not None:
            cuda.close()


def _settings(manifest: Manifest, options: Mapping[str, str]) -> TensorrtOptions:
    settings = parse_options(TensorrtOptions, {"module": manifest.options.get("module", "tensorrt"), **options})
    if settings.module not in MODULES:
        raise BenchError(f"runtime setting module={settings.module!r} is not one of {', '.join(MODULES)}")
    if settings.buffers not in ("reuse", "per-request"):
        raise BenchError(f"runtime setting buffers={settings.buffers!r} is not one of reuse, per-request")
    if settings.cuda_graphs and settings.buffers != "reuse":
        raise BenchError("cuda_graphs=on needs buffers=reuse: a graph holds the addresses that it was recorded with")
    return settings


RUNTIME = TensorrtRuntime()
