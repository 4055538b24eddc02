"""The pool of one model: who gets which slot, when, and how long that took.

Requests wait in the order in which they came, and the one at the head gets the slot that becomes free first, be it an
old one or one that was just made. Decisions are made on the event loop's thread, with one exception that is one atomic
step: a slot thread whose run has ended takes the head of the queue itself (`take_next`). So the queue needs no locks.
The slots themselves are `reference_server.fleet`'s.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.clock import now_ns
from bench.engine.manifest import Manifest
from bench.units import format_duration
from reference_server.engine_source import EngineSource
from reference_server.fleet import Fleet
from reference_server.jobs import DirectReply, InferenceFailed, Job, LoadFailed, Overloaded, fill_timing
from reference_server.pool_settings import PoolSettings
from reference_server.server_timing import Timing
from reference_server.shared_core import shared_core_of_this_thread
from reference_server.slots import SlotThread

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TAKEN = object()


class Pool:
    """`await start()`, then `await infer(...)` from any number of tasks, then `await close()`; all on one event loop.

    `name`: what it is called where that is not the manifest's name.
    """

    def __init__(
        self,
        engine_dir: Path,
        manifest: Manifest,
        settings: PoolSettings,
        *,
        on_device_spoiled: Callable[[str], None],
        name: str | None = None,
    ) -> None:
        self._name = manifest.name if name is None else name
        shared = settings.sharing == "engine" and settings.mode != "cold-load"
        source = EngineSource(engine_dir, manifest, settings.runtime_options(), settings.trust, shared=shared)
        self.fleet = Fleet(self._name, source, settings, self, on_device_spoiled)
        self.hits = 0  # a slot was free when the request came
        self.misses = 0
        self._cold = settings.mode == "cold-load"
        self._queue_limit = settings.queue_limit
        self._acquire_timeout_ns = settings.acquire_timeout_ns
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared_core = shared_core_of_this_thread()
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        self._service_ns = 0  # moving mean, for Retry-After

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot. Any thread may ask."""
        return len(self._waiting)

    async def start(self) -> None:
        """Make the slots that the mode promises, as `Fleet.start` says; requests may come and wait from now on. Raises LoadFailed."""
        self._refuse_after_fork()
        self._loop = asyncio.get_running_loop()
        try:
            await self.fleet.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Shed what waits, let what runs end, release every slot, engine and thread. May be called more than once."""
        self.fleet.closing = True
        while (job := self._next_job()) is not None:
            self._refuse(job, Overloaded(f"model {self._name} is closing", 1))
        await self.fleet.close()

    async def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None, timing: Timing, reply: DirectReply | None = None
    ) -> dict[str, NDArray[Any]]:
        """Borrow a slot, run, give it back. Fills in `timing` but for `queue_ns`, also where it raises.

        `inputs` were checked against the manifest; they are read until this returns, and after a cancellation until the
        run has ended. `reply`: how the slot's thread may answer the client itself. Raises Overloaded, LoadFailed, InferenceFailed.
        """
        self._refuse_after_fork()
        loop, fleet = self._loop, self.fleet
        if loop is None or fleet.closing:
            raise Overloaded(f"model {self._name} is {'not loaded' if loop is None else 'closing'}", 1)
        now = now_ns()
        job = Job(inputs, outputs, loop.create_future(), now, fleet.barren_clock.read(now), reply)
        if fleet.resting:
            self.hits += 1
            fleet.resting.pop().submit(job)
        else:
            self.misses += 1
            self._shared_core.part()
            self._enqueue(job, loop)
        try:
            await job.future
        except asyncio.CancelledError:
            self._leave(job)
            raise
        finally:
            fill_timing(timing, job)
        assert job.answer is not None
        return job.answer.outputs

    def _refuse_after_fork(self) -> None:
        if os.getpid() != self._pid:
            raise InferenceFailed(f"model {self._name} was opened in process {self._pid}; a fork of it has no slots, start a new process")

    # The queue

    def _enqueue(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        waiting, limit = len(self._waiting) + 1, self._queue_limit
        # Those for whom a slot is being made are not in the way of others.
        if limit is not None and waiting - (self.fleet.wanted(waiting) - len(self.fleet.slots)) > limit:
            raise Overloaded(f"{limit} requests wait for model {self._name} already", self._retry_after_s())
        self._waiting[job] = None
        if self._acquire_timeout_ns is not None:
            job.timer = loop.call_later(self._acquire_timeout_ns / 1e9, self._expire, job)
        self.fleet.grow(len(self._waiting))

    def _expire(self, job: Job) -> None:
        assert self._acquire_timeout_ns is not None and self._loop is not None
        left_ns = job.enqueued_ns + self._acquire_timeout_ns - now_ns()
        if left_ns > 0:  # the loop's timers count whole milliseconds from the start of its turn, so they may be early
            job.timer = self._loop.call_later(math.ceil(left_ns / 1e6) / 1e3, self._expire, job)
            return
        if self._waiting.pop(job, _TAKEN) is _TAKEN:
            return  # a slot thread took it just now
        limit = format_duration(self._acquire_timeout_ns)
        self._refuse(job, Overloaded(f"no slot of model {self._name} became free within {limit}", self._retry_after_s()))

    def _leave(self, job: Job) -> None:
        """The requester went away: its place is freed at once; a slot that it has comes back when its run ends."""
        if self._waiting.pop(job, _TAKEN) is not _TAKEN:
            self._end_wait(job, now_ns())

    def _next_job(self) -> Job | None:
        """The head of the queue, None where there is none. Slot threads take from it too, so nothing may be asked before."""
        if not self._waiting:
            return None  # as nearly always, and without an exception
        try:
            return self._waiting.popitem(last=False)[0]
        except KeyError:
            return None

    def take_next(self, slot: SlotThread) -> Job | None:
        """Called by the thread of a slot whose run has ended: what it runs next, without a way through the event loop.

        An OrderedDict of objects with the default hash pops in one step under the GIL. The barren clock stands still
        while this slot is there. Everything else that a job's end needs happens in `run_ended`; a job whose requester
        went away is skipped by the slot thread itself.
        """
        job = None if self.fleet.closing else self._next_job()
        if job is not None:
            job.wait_load_ns = slot.making.caused(job, self.fleet.barren_clock.read(now_ns()))
        return job

    def give(self, slot: SlotThread) -> None:
        """Give a free slot to whoever is at the head of the queue, or let it rest."""
        while (job := self._next_job()) is not None:
            now = now_ns()
            if job.future.done():  # its requester went away and has not said so yet
                self._end_wait(job, now)
                continue
            if job.timer is not None:
                job.timer.cancel()
            job.wait_load_ns = slot.making.caused(job, self.fleet.barren_clock.read(now))
            slot.submit(job)
            return
        self.fleet.rest(slot)

    def no_slot_comes(self, reason: str) -> None:
        """A load failed, and there is no other slot for those who wait: tell them."""
        while (job := self._next_job()) is not None:
            self._refuse(job, LoadFailed(reason))

    def _end_wait(self, job: Job, now: int) -> None:
        """The job left the queue without a slot."""
        if job.timer is not None:
            job.timer.cancel()
        job.wait_load_ns = self.fleet.barren_clock.read(now) - job.barren_ns
        job.ended_ns = now

    def _refuse(self, job: Job, error: Exception) -> None:
        self._end_wait(job, now_ns())
        if not job.future.done():
            job.future.set_exception(error)

    def _retry_after_s(self) -> int:
        """When the queue of now will have been served, at the pace of late; whole seconds, at least 1 (RFC 9110, 10.2.3)."""
        return max(1, math.ceil(len(self._waiting) * self._service_ns / max(1, len(self.fleet.slots)) / 1e9))

    def run_ended(self, slot: SlotThread, job: Job, goes_on: bool = False) -> None:
        """A slot thread reports; `goes_on`: it has taken its next job already. Under cold-load it is still unloading."""
        if job.timer is not None:
            job.timer.cancel()
        if self._cold:
            if job.load_error is not None:
                self.fleet.load_failed(job.load_error)
            elif job.cold_load_ns:  # else its requester went away before the load
                self.fleet.loaded(job.cold_load_ns)
        elif not goes_on:
            self.fleet.run_ended(slot, job.ended_ns)
        if job.answer is not None:
            self._service_ns += (job.ended_ns - job.started_ns - self._service_ns) >> 3
        if job.future.done():
            return
        if job.answer is not None:
            job.future.set_result(None)
        elif job.load_error is not None:
            job.future.set_exception(LoadFailed(job.load_error))
        else:
            job.future.set_exception(InferenceFailed(f"model {self._name}: {job.run_error}"))

    def reply_sent(self, slot: SlotThread, job: Job) -> None:
        """A slot thread's run has ended, and it has answered the client."""
        self.run_ended(slot, job)
        assert job.reply is not None
        job.reply.finish()
