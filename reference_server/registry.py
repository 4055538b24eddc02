"""The served models by name: one engine, one pool each, never shared."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import Manifest, read_manifest
from bench.errors import BenchError
from reference_server.jobs import DirectReply, Overloaded
from reference_server.metrics import ModelMetrics
from reference_server.pool import Pool
from reference_server.pool_settings import PoolSettings
from reference_server.runtimes import open_runtime
from reference_server.server_timing import Timing

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXIT_DEVICE_SPOILED = 70  # EX_SOFTWARE of sysexits.h: the process ended because its device can no longer be used


def end_process(reason: str) -> None:
    """End this process at once, without clean-up: a spoiled device may hang or corrupt whatever still touches it."""
    print(f"reference_server: {reason}; the device cannot be used by this process any more, start it again", file=sys.stderr, flush=True)
    os._exit(EXIT_DEVICE_SPOILED)


class ServedModel:
    """One engine and its pool. Everything here is for use on the event loop's thread.

    `on_demand`: it is not loaded at the start, but by `load`, and as often as one likes. Its pool is a new one each time,
    whose counters begin at 0.
    """

    def __init__(
        self,
        engine_dir: Path,
        settings: PoolSettings,
        on_device_spoiled: Callable[[str], None],
        *,
        name: str | None = None,
        on_demand: bool = False,
    ) -> None:
        self.engine_dir = engine_dir
        self._built = read_manifest(engine_dir)
        self.manifest: Manifest = self._built if name is None else dataclasses.replace(self._built, name=name)
        self.on_demand = on_demand
        self.metrics = ModelMetrics()
        runtime = open_runtime(self.manifest.runtime)
        self.device_bytes, self.sm_clock_mhz = runtime.device_bytes, runtime.sm_clock_mhz
        self._settings = settings
        self._on_device_spoiled = on_device_spoiled
        self._changing = asyncio.Lock()  # one load or unload at a time
        self._load: asyncio.Task[None] | None = None
        self.draining = False  # no load begins any more
        self.pool = self._new_pool()

    def _new_pool(self) -> Pool:
        name = self.manifest.name
        return Pool(self.engine_dir, self._built, self._settings, on_device_spoiled=self._on_device_spoiled, name=name)

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be answered: the slots that the mode promises answered their probe."""
        return self.pool.fleet.ready

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None, timing: Timing, reply: DirectReply | None = None
    ) -> Coroutine[Any, Any, dict[str, NDArray[Any]]]:
        """Answer a request whose inputs were checked against the manifest. Fills in `timing` but for `queue_ns`, also on failure.

        Raises Overloaded, LoadFailed, InferenceFailed.
        """
        return self.pool.infer(inputs, outputs, timing, reply)

    async def start(self) -> None:
        """Make the slots that the mode promises. Raises LoadFailed; nothing is left over then."""
        await self.pool.start()

    async def load(self) -> None:
        """Load a model that is there on demand; nothing happens where it is loaded. Raises LoadFailed, Overloaded."""
        async with self._changing:
            if self.pool.fleet.ready:
                return
            if self.draining:
                raise Overloaded(f"model {self.manifest.name} is not loaded, since the server is shutting down", 1)
            await self._renew()
            self._load = asyncio.create_task(self.pool.start())
            try:
                await asyncio.shield(self._load)
            except BaseException:
                if self._load.done():  # else the requester went away, and the load goes on
                    await self._renew()
                raise

    async def unload(self) -> None:
        """Release a model that is there on demand. What it answers now is answered; who waits for it is refused."""
        async with self._changing:
            await self._renew()

    async def _renew(self) -> None:
        old, self.pool = self.pool, self._new_pool()
        await old.close()

    async def close(self) -> None:
        """Shed what waits, let what runs end, release every slot, engine and thread."""
        self.draining = True
        if self._load is not None and not self._load.done():
            self._load.cancel()
            await asyncio.wait((self._load,))
        await self.pool.close()


class Registry:
    """The models by name. Reads the manifests; raises EngineRefused, or BenchError for a name given twice.

    `on_demand` are engines under names of their own, loaded and unloaded as clients ask: one slot each, made as
    `settings` say for the others.

    `on_device_spoiled` is called on the event loop with the reason; without one the process ends with EXIT_DEVICE_SPOILED.
    """

    def __init__(
        self,
        engine_dirs: Sequence[Path],
        settings: PoolSettings,
        *,
        on_demand: Mapping[str, Path] | None = None,
        on_device_spoiled: Callable[[str], None] = end_process,
    ) -> None:
        self.settings = settings
        self.models: dict[str, ServedModel] = {}
        single = dataclasses.replace(settings, mode="warm-pool", size=1, options=settings.runtime_options())
        given = [(ServedModel(engine_dir, settings, on_device_spoiled), engine_dir) for engine_dir in engine_dirs]
        given += [
            (ServedModel(engine_dir, single, on_device_spoiled, name=name, on_demand=True), engine_dir)
            for name, engine_dir in (on_demand or {}).items()
        ]
        for model, engine_dir in given:
            name = model.manifest.name
            if name in self.models:
                raise BenchError(
                    f"{self.models[name].engine_dir} and {engine_dir} are both called {name!r}; "
                    "serve one of them, or build one under another name"
                )
            self.models[name] = model

    def find(self, name: str, version: str | None = None) -> ServedModel | None:
        """The model called `name`, None where there is none or it has another version."""
        model = self.models.get(name)
        return model if model is not None and version in (None, model.manifest.version) else None

    @property
    def ready(self) -> bool:
        """Whether every model is that does not wait to be asked for."""
        return all(model.ready for model in self.models.values() if not model.on_demand)

    def started_phases(self) -> list[dict[str, Any]]:
        """The phases of all slots that there are, each with its `model`, in the order in which they began."""
        phases = [
            {"model": name, **phase}
            for name, model in self.models.items()
            for slot in model.pool.fleet.slots
            for phase in slot.phases.as_dicts()
        ]
        return sorted(phases, key=lambda phase: int(phase["start_ns"]))

    async def start(self) -> None:
        """Start the models one after the other, so that their loads do not slow each other down. Raises LoadFailed; all are closed then."""
        try:
            for model in self.models.values():
                if not model.on_demand:
                    await model.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for model in self.models.values():
            await model.close()
