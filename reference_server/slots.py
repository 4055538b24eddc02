"""One thread a slot: it makes the slot, runs what it is given, checks it, and closes it.

The event loop decides everything (reference_server.pool, reference_server.fleet); a slot thread does only what it is
told and reports back with `call_soon_threadsafe`. Nothing else touches the slot, so no two users of one slot are
possible, and a runtime may keep to one thread what it must.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from bench.clock import now_ns
from bench.errors import BenchError, EngineRefused, one_sentence
from reference_server.engine_source import EngineSource
from reference_server.jobs import Check, Job, Making
from reference_server.phases import Phases
from reference_server.runtimes import DeviceSpoiled, Engine, Slot
from reference_server.shared_core import SHORT_NS, shared_core_of_this_thread


class JobSource(Protocol):
    """Where jobs come from."""

    def take_next(self, slot: SlotThread) -> Job | None:
        """Called by the slot's thread."""
        ...

    def run_ended(self, slot: SlotThread, job: Job, goes_on: bool = False) -> None:
        """Called on the event loop."""
        ...

    def reply_sent(self, slot: SlotThread, job: Job) -> None:
        """The same, where the slot's thread has sent the reply. Called on the event loop."""
        ...


class Mailbox:
    """Tasks for one thread, from any thread.

    It waits on an eventfd (eventfd(2)), since a lock, as in queue.SimpleQueue, costs twice as much here: the thread that a lock
    wakes runs into the GIL of its waker at once and is put to sleep again, four context switches for a hand-over and back
    instead of one. Off Linux a SimpleQueue serves.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Job | Check | None] = SimpleQueue()
        self._count = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE) if hasattr(os, "eventfd") else None

    def put(self, task: Job | Check | None) -> None:
        """Never waits."""
        self._tasks.put(task)
        if self._count is not None:
            os.eventfd_write(self._count, 1)

    def get(self) -> Job | Check | None:
        """Wait for the next task."""
        if self._count is not None:
            os.eventfd_read(self._count)  # one for each task, so the queue below does not wait
        return self._tasks.get()

    def close(self) -> None:
        """Nobody puts or gets any more."""
        if self._count is not None:
            os.close(self._count)
            self._count = None


class SlotOwner(Protocol):
    """What a slot thread reports to. All are called on the event loop."""

    def slot_made(self, slot: SlotThread) -> None: ...
    def making_failed(self, slot: SlotThread, reason: str) -> None: ...
    def check_ended(self, slot: SlotThread, check: Check) -> None: ...
    def slot_released(self, slot: SlotThread) -> None: ...
    def slot_gone(self, slot: SlotThread) -> None: ...
    def device_spoiled(self, reason: str) -> None: ...


class SlotThread:
    """A slot, and the only thread that uses it. With `cold` there is a slot only while a job runs: load, answer, unload.

    `submit`, `stop` and the attributes are for the event loop's thread.
    """

    def __init__(
        self, fleet: SlotOwner, queue: JobSource, source: EngineSource, loop: asyncio.AbstractEventLoop, name: str, *, cold: bool
    ) -> None:
        self.idle_since_ns = 0
        self.making = Making()
        self.cold_loading = False
        self.broken: str | None = None  # why the slot must not be used again
        self.phases = Phases()
        self._fleet = fleet
        self._queue = queue
        self._source = source
        self._loop = loop
        self._cold = cold
        self._tasks = Mailbox()
        self._shared_core = shared_core_of_this_thread()
        self._run_ns = 10 * SHORT_NS  # moving mean
        self._thread = threading.Thread(target=self._serve_cold if cold else self._live, name=name, daemon=True)

    def start(self) -> None:
        """Raises RuntimeError where the process may have no more threads."""
        self._shared_core.part()  # the thread, and all that its engine starts, would be confined too
        try:
            self._thread.start()
        except BaseException:
            self._tasks.close()
            raise

    def submit(self, task: Job | Check) -> None:
        if isinstance(task, Job):
            if task.reply is not None and self._run_ns < SHORT_NS and not self._cold:  # the server's only request: we take turns with it
                assert self._thread.native_id is not None
                self._shared_core.join(self._thread.native_id, task.enqueued_ns)
            else:
                self._shared_core.part()
        self._tasks.put(task)

    def stop(self) -> None:
        """Close the slot after what it has been given. `slot_gone` follows."""
        self._shared_core.part()
        self._tasks.put(None)

    def join(self) -> None:
        """Wait for the thread's end, which is near once it has reported `slot_gone`. Nothing may be submitted after this."""
        self._thread.join()
        self._tasks.close()

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
            self._report(self._fleet.making_failed, self, self._load_reason(error))
            self._report(self._fleet.slot_gone, self)
            return
        self._report(self._fleet.slot_made, self)
        while True:
            task = self._tasks.get()
            if task is None:
                break
            if isinstance(task, Job):
                self._run_until_none_waits(slot, task)
            else:
                task.error = self.broken = self._try_check(slot, every_case=task.every_case)
                self._report(self._fleet.check_ended, self, task)
            del task  # a request's arrays must not live until the next one comes
        self._close(engine, slot)
        self._report(self._fleet.slot_gone, self)

    def _run_until_none_waits(self, slot: Slot, first: Job) -> None:
        """Asking the event loop for each next job would leave the slot idle for two thread switches between any two runs."""
        job: Job | None = first
        while job is not None:
            self._run(slot, job)
            following = None if self.broken is not None else self._queue.take_next(self)
            # While nobody waits, the thread answers the client itself: the way to the event loop is then not before the reply.
            reply = job.reply if following is None and job.answer is not None else None
            if reply is not None and reply.send(job, partial(self._queue.reply_sent, self, job)):
                self._report(reply.settle)
            else:
                self._report(self._queue.run_ended, self, job, following is not None)
            job = following

    def _reason(self, error: Exception) -> str:
        """The error in one sentence; one that spoils the process is also reported as such."""
        reason = one_sentence(error)
        if isinstance(error, DeviceSpoiled):
            self._report(self._fleet.device_spoiled, reason)
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
            self._source.check(slot, every_case=True, phases=self.phases)
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
        self._run_ns += (job.ended_ns - job.started_ns - self._run_ns) >> 3
        if self._run_ns >= SHORT_NS:
            self._shared_core.part()
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
        self._report(self._fleet.slot_gone, self)

    def _run_cold(self, job: Job) -> None:
        began = now_ns()
        opened = None if job.future.cancelled() else self._open_cold(job)
        if opened is not None or job.load_error is not None:
            job.cold_load_ns = now_ns() - began
        if opened is not None:
            self._run(opened[1], job)
        job.started_ns, job.ended_ns = began, now_ns()
        self._report(self._queue.run_ended, self, job)
        if opened is not None:
            self._close(*opened)
        self._report(self._fleet.slot_released, self)

    def _check_cold(self, check: Check) -> None:
        began = now_ns()
        opened = self._open_cold(check)
        if opened is not None:
            check.load_ns = now_ns() - began
            check.error = self._try_check(opened[1], every_case=check.every_case)
            self._close(*opened)
        self._report(self._fleet.check_ended, self, check)

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
