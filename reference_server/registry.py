"""The served models by name: one engine, one pool each, never shared."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import Manifest
from reference_server.metrics import ModelMetrics
from reference_server.pool import PoolSettings
from reference_server.server_timing import Timing

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXIT_DEVICE_SPOILED = 70  # EX_SOFTWARE of sysexits.h: the process ended because its device can no longer be used


class ServedModel:
    """One engine and its pool. Everything here is for use on the event loop's thread."""

    manifest: Manifest
    metrics: ModelMetrics

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be answered: every slot that the mode promises answered its probe."""
        raise NotImplementedError

    def infer(
        self, inputs: dict[str, NDArray[Any]], outputs: Sequence[str] | None, timing: Timing
    ) -> Coroutine[Any, Any, dict[str, NDArray[Any]]]:
        """Answer a request whose inputs were checked against the manifest. Fills in `timing` but for `queue_ns`, also on failure.

        Raises Overloaded, LoadFailed, InferenceFailed.
        """
        raise NotImplementedError

    async def start(self) -> None:
        """Make the slots that the mode promises. Raises LoadFailed; nothing is left over then."""
        raise NotImplementedError

    async def close(self) -> None:
        """Shed what waits, let what runs end, release every slot, engine and thread."""
        raise NotImplementedError


class Registry:
    """`Registry(engine_dirs, settings)` reads the manifests. Raises EngineRefused, or BenchError for a name given twice."""

    models: dict[str, ServedModel]

    def __init__(
        self, engine_dirs: Sequence[Path], settings: PoolSettings, *, on_device_spoiled: Callable[[str], None] | None = None
    ) -> None:
        raise NotImplementedError

    def find(self, name: str, version: str | None = None) -> ServedModel | None:
        """The model called `name`, None where there is none or it has another version."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether every model is."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the models one after the other. Raises LoadFailed; all are closed then."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
