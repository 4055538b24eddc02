"""A TensorRT module in this process, and whether an engine may be loaded by it on this GPU."""

from __future__ import annotations

import importlib
from typing import Any

from bench.engine.manifest import Manifest
from bench.engine.tensorrt_log import make_log
from bench.errors import BenchError, EngineRefused
from reference_server.runtimes.cuda import Gpu


class Library:
    """One imported TensorRT module with its logger and its `Runtime`, which must outlive the engines made by it."""

    def __init__(self, name: str) -> None:
        try:
            self.module = importlib.import_module(name)
        except (ImportError, OSError) as error:
            raise BenchError(f"{name} cannot be imported ({error}); install it, or choose another with --set module=...") from None
        self.name = name
        self.version: str = self.module.__version__
        self.log = make_log(self.module)
        self.runtime: Any = None

    def make_runtime(self) -> Any:
        """Raises BenchError where TensorRT does not start."""
        runtime = self.module.Runtime(self.log)
        if runtime is None:
            raise BenchError(f"{self.name} does not start here: {self.log.last_error()}")
        return runtime


def check_version(manifest: Manifest, library: Library) -> None:
    """The same module and version, or for a version-compatible plan a later one. Raises EngineRefused naming both."""
    built_by = manifest.options.get("module", "tensorrt")
    sides = f"engine {manifest.name} was built by {built_by} {manifest.runtime_version}, this is {library.name} {library.version}"
    if manifest.options.get("version_compatible") == "on" and {built_by, library.name} <= {"tensorrt", "tensorrt_lean"}:
        if _numbers(library.version) < _numbers(manifest.runtime_version):
            raise EngineRefused(f"{sides}: a version-compatible engine loads in later versions only")
        return
    if (built_by, manifest.runtime_version) != (library.name, library.version):
        raise EngineRefused(f"{sides}; build it again{', or with --version-compatible' if built_by == 'tensorrt' else ''}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def check_gpu(manifest: Manifest, gpu: Gpu) -> None:
    """Raises EngineRefused naming both sides. An engine that was built without a GPU is left to TensorRT to judge."""
    here = f"cuda:{gpu.compute_capability}"
    built_on = manifest.details.gpu if manifest.details is not None else None
    if manifest.device not in ("cuda", here) or built_on not in (None, gpu.name):
        raise EngineRefused(
            f"engine {manifest.name} was built on {built_on or 'a GPU'} ({manifest.device}), this is {gpu.name} ({here}); build it here"
        )
