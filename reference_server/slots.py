"""One thread a slot: it makes the slot, runs what it is given, checks it, and closes it. Engines are shared or not.

The event loop decides everything (reference_server.pool); a slot thread does only what it is told and reports back
with `call_soon_threadsafe`. Nothing else touches the slot, so no two users of one slot are possible, and a runtime
may keep to one thread what it must.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from bench.clock import now_ns
from bench.engine.manifest import Manifest
from bench.engine.probe import count_probe_cases, read_probe
from bench.errors import BenchError, EngineRefused, one_sentence
from reference_server.loader import load_engine, run_probe
from reference_server.phases import Phases
from reference_server.runtimes import Answer, DeviceSpoiled, Engine, Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Job:
    """One request on its way through the pool. The loop fills in the upper fields, the slot thread the lower ones."""

    __slots__ = (
        "answer", "barren_ns", "cold_load_ns", "ended_ns", "enqueued_ns", "future", "inputs", "load_error", "outputs",
        "run_error", "started_ns", "timer", "wait_load_ns",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Sequence[str] | None,
        future: asyncio.Future[None],
        enqueued_ns: int,
        barren_ns: int,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.future = future
        self.enqueued_ns = enqueued_ns
        self.barren_ns = barren_ns  # the pool's clock of slotless loading, when the job was enqueued
        self.wait_load_ns = 0  # the part of the wait that a load caused
        self.timer: asyncio.TimerHandle | None = None
        self.started_ns = 0  # 0: never reached a slot
        self.ended_ns = 0
        self.cold_load_ns = 0  # the load that this job did itself
        self.answer: Answer | None = None
        self.load_error: str | None = None
        self.run_error: str | None = None


class Check:
    """Ask a slot thread to run the probe: its smallest case, or all of them."""

    __slots__ = ("error", "every_case", "future", "load_ns")

    def __init__(self, future: asyncio.Future[None], *, every_case: bool) -> None:
        self.future = future
        self.every_case = every_case
        self.error: str | None = None
        self.load_ns = 0


class SlotOwner(Protocol):
    """What a slot thread reports to. All but `take_next` are called on the event loop."""

    def take_next(self, slot: SlotThread) -> Job | None:
        """Called by the slot's thread."""
        ...

    def slot_made(self, slot: SlotThread) -> None: ...
    def making_failed(self, slot: SlotThread, reason: str) -> None: ...
    def run_ended(self, slot: SlotThread, job: Job, goes_on: bool = False) -> None: ...
    def check_ended(self, slot: SlotThread, check: Check) -> None: ...
    def slot_released(self, slot: SlotThread) -> None: ...
    def slot_gone(self, slot: SlotThread) -> None: ...
    def device_spoiled(self, reason: str) -> None: ...


class EngineSource:
    """Where slot threads get their engines. With `shared` the first taker loads, the others get the same one.

    A shared engine is closed when its last taker gives it back; the next one then loads it anew.
    """

    def __init__(self, engine_dir: Path, manifest: Manifest, options: Mapping[str, str], trust: Path | None, *, shared: bool) -> None:
        self.manifest = manifest
        self.engine_dir = engine_dir
        self._options = options
        self._trust = trust
        self._shared = shared
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._takers = 0
        self.engine_loads = 0  # engines really loaded, for the metrics

    @property
    def can_share(self) -> bool:
        """Whether the next taker gets an engine that is loaded already."""
        return self._engine is not None

    def take(self, phases: Phases) -> Engine:
        """Raises BenchError, or what the runtime raises, where the load fails; nothing is held then."""
        if not self._shared:
            return self._load(phases)
        with self._lock:  # the others wait here for the one load
            if self._engine is None:
                self._engine = self._load(phases)
            self._takers += 1
            return self._engine

    def give_back(self, engine: Engine) -> None:
        if not self._shared:
            engine.close()
            return
        with self._lock:
            self._takers -= 1
            if self._takers == 0:
                self._engine = None
                engine.close()

    def open_slot(self, phases: Phases) -> tuple[Engine, Slot]:
        """An engine and a slot of it. Where it raises, neither is left."""
        engine = self.take(phases)
        try:
            return engine, engine.make_slot(phases)
        except BaseException:
            self.give_back(engine)
            raise

    def close_slot(self, engine: Engine, slot: Slot) -> None:
        try:
            slot.close()
        finally:
            self.give_back(engine)

    def check(self, slot: Slot, *, every_case: bool) -> None:
        """Run the probe's cases, read anew from the disk. Raises WrongAnswer, EngineRefused or what the runtime raises."""
        for case in range(count_probe_cases(self.engine_dir) if every_case else 1):
            run_probe(slot, self.manifest, read_probe(self.engine_dir, self.manifest, case))

    def _load(self, phases: Phases) -> Engine:
        engine = load_engine(self.engine_dir, self._options, phases, trust=self._trust)
        self.engine_loads += 1
        if engine.manifest != self.manifest:
            engine.close()
            raise EngineRefused(f"{self.engine_dir} was built again while it was served; restart the server to serve the new engine")
        return engine


class SlotThread:
    """A slot, and the only thread that uses it. With `cold` there is a slot only while a job runs: load, answer, unload.

    `submit`, `stop` and the attributes are for the event loop's thread.
    """

    def __init__(self, owner: SlotOwner, source: EngineSource, loop: asyncio.AbstractEventLoop, name: str, *, cold: bool = False) -> None:
        self.idle_since_ns = 0
        self.making_began_ns = now_ns()
        self.making_began_barren_ns = 0  # the pool's clock of slotless loading at the same moment, and when it was made
        self.made_ns = 0
        self.made_barren_ns = 0
        self.cold_loading = False
        self.broken: str | None = None  # why the slot must not be used again
        self.phases = Phases()
        self._owner = owner
        self._source = source
        self._loop = loop
        self._cold = cold
        self._tasks: SimpleQueue[Job | Check | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve_cold if cold else self._live, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, task: Job | Check) -> None:
        self._tasks.put(task)

    def stop(self) -> None:
        """Close the slot after what it has been given. `slot_gone` follows."""
        self._tasks.put(None)

    def join(self) -> None:
        self._thread.join()

    # What follows runs in the slot's thread.

    def _report(self, method: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(method, *args)
        except RuntimeError:  # the loop was closed over our head, nobody is left to be told
            self._tasks.put(None)

    def _live(self) -> None:
        try:
            engine, slot = self._make()
        except Exception as error:
            self._report(self._owner.making_failed, self, self._load_reason(error))
            self._report(self._owner.slot_gone, self)
            return
        self._report(self._owner.slot_made, self)
        while True:
            task = self._tasks.get()
            if task is None:
                break
            if isinstance(task, Job):
                self._run_until_none_waits(slot, task)
            else:
                task.error = self.broken = self._try_check(slot, every_case=task.every_case)
                self._report(self._owner.check_ended, self, task)
            del task  # a request's arrays must not live until the next one comes
        self._close(engine, slot)
        self._report(self._owner.slot_gone, self)

    def _run_until_none_waits(self, slot: Slot, first: Job) -> None:
        """Asking the event loop for each next job would leave the slot idle for two thread switches between any two runs."""
        job: Job | None = first
        while job is not None:
            self._run(slot, job)
            following = None if self.broken is not None else self._owner.take_next(self)
            self._report(self._owner.run_ended, self, job, following is not None)
            job = following

    def _reason(self, error: Exception) -> str:
        """The error in one sentence; one that spoils the process is also reported as such."""
        reason = one_sentence(error)
        if isinstance(error, DeviceSpoiled):
            self._report(self._owner.device_spoiled, reason)
        return reason

    def _load_reason(self, error: Exception) -> str:
        """Our own errors name the engine already; others do not."""
        reason = self._reason(error)
        if isinstance(error, BenchError):
            return reason
        return f"{self._source.engine_dir} does not load: {'not enough memory' if isinstance(error, MemoryError) else reason}"

    def _close(self, engine: Engine, slot: Slot) -> None:
        try:
            self._source.close_slot(engine, slot)
        except Exception as error:  # there is nobody whom it could be told, and the slot is not used again
            self._reason(error)

    def _make(self) -> tuple[Engine, Slot]:
        engine, slot = self._source.open_slot(self.phases)
        try:
            with self.phases.phase("probe"):
                self._source.check(slot, every_case=True)
        except BaseException:
            self._source.close_slot(engine, slot)
            raise
        return engine, slot

    def _run(self, slot: Slot, job: Job) -> None:
        job.started_ns = now_ns()
        if job.future.cancelled():
            job.ended_ns = job.started_ns
            return
        try:
            job.answer = slot.run(job.inputs, job.outputs)
        except Exception as error:
            job.run_error = self._reason(error)
        job.ended_ns = now_ns()
        if job.run_error is not None and not self._cold:
            # The request or the slot may be at fault: the probe tells which, before the slot serves anyone again.
            self.broken = self._try_check(slot, every_case=False)

    def _try_check(self, slot: Slot, *, every_case: bool) -> str | None:
        """Why the slot does not answer correctly, None where it does."""
        try:
            self._source.check(slot, every_case=every_case)
        except EngineRefused:
            return None  # the probe's file is gone or changed: that says nothing about the slot
        except Exception as error:
            return self._reason(error)
        return None

    def _serve_cold(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                break
            if isinstance(task, Job):
                self._run_cold(task)
            else:
                self._check_cold(task)
            del task
        self._report(self._owner.slot_gone, self)

    def _run_cold(self, job: Job) -> None:
        began = now_ns()
        opened = None if job.future.cancelled() else self._open_cold(job)
        job.cold_load_ns = now_ns() - began
        if opened is not None:
            self._run(opened[1], job)
        job.started_ns, job.ended_ns = began, now_ns()
        self._report(self._owner.run_ended, self, job)
        if opened is not None:
            self._close(*opened)
        self._report(self._owner.slot_released, self)

    def _check_cold(self, check: Check) -> None:
        began = now_ns()
        opened = self._open_cold(check)
        if opened is not None:
            check.load_ns = now_ns() - began
            check.error = self._try_check(opened[1], every_case=check.every_case)
            self._close(*opened)
        self._report(self._owner.check_ended, self, check)

    def _open_cold(self, task: Job | Check) -> tuple[Engine, Slot] | None:
        self.cold_loading = True
        try:
            return self._source.open_slot(Phases())
        except Exception as error:
            reason = self._load_reason(error)
        finally:
            self.cold_loading = False
        if isinstance(task, Job):
            task.load_error = reason
        else:
            task.error = reason
        return None
