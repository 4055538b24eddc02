"""The pool of one model: who gets which slot, when, and how long that took.

All decisions are made on the event loop's thread, so the queue needs no locks; slot threads (reference_server.slots)
only do what they are told. Requests wait in the order in which they came, and the one at the head gets the slot that
becomes free first, be it an old one or one that was just made.

What a load caused of a wait: the time in which the pool had no slot and was loading one, and the time in which the
slot that served the request was being made. The rest of the wait is pool wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bench.clock import now_ns
from bench.engine.manifest import Manifest
from bench.errors import BenchError
from reference_server.metrics import Histogram
from reference_server.runtimes import usable_cores
from reference_server.server_timing import Timing
from reference_server.slots import Check, EngineSource, Job, SlotThread

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mode = Literal["cold-load", "lazy", "warm-pool", "elastic"]
Sharing = Literal["engine", "copy"]

# After a load that failed while other slots serve, the next one waits this long: a load that cannot succeed (no memory)
# must not be tried with each request.
_PAUSE_AFTER_FAILURE_NS = 10**9

_TAKEN = object()

_log = logging.getLogger(__name__)


class Overloaded(Exception):
    """Not served now: the queue is full, the wait was too long, or the pool is closing."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class LoadFailed(BenchError):
    """The load that a request, or the start, waited for failed. The message is the reason, one sentence."""


class InferenceFailed(Exception):
    """The runtime raised during this request's run, or cannot run here at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How one model is served. `min`, `max` and `idle_timeout_ns` are elastic's; `size` is for the other modes.

    Raises BenchError for settings that contradict each other.
    """

    mode: Mode = "warm-pool"
    size: int = 1
    min: int = 1
    max: int = 4
    idle_timeout_ns: int = 30 * 10**9
    sharing: Sharing = "engine"
    queue_limit: int | None = None  # requests that may wait for a slot, beyond those a slot is being made for; None: any number
    acquire_timeout_ns: int | None = None  # the longest such wait; None: any time
    health_interval_ns: int = 10 * 10**9  # 0: no background check
    options: Mapping[str, str] = field(default_factory=dict)  # runtime settings, KEY=VALUE
    trust: Path | None = None  # a public key: only engines signed with it are loaded

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise BenchError(f"mode {self.mode!r} is not one of {', '.join(get_args(Mode))}")
        if self.sharing not in get_args(Sharing):
            raise BenchError(f"sharing {self.sharing!r} is not one of {', '.join(get_args(Sharing))}")
        if self.size < 1:
            raise BenchError(f"a pool has at least 1 slot, not {self.size}")
        if not 0 <= self.min <= self.max or self.max < 1:
            raise BenchError(f"an elastic pool has 0 <= min <= max and max >= 1, not min {self.min} and max {self.max}")
        if self.queue_limit is not None and self.queue_limit < 0:
            raise BenchError(f"the queue limit is 0 or more, not {self.queue_limit}")
        if self.acquire_timeout_ns is not None and self.acquire_timeout_ns <= 0:
            raise BenchError("the acquire timeout is longer than 0; leave it out to wait for any time")
        if self.idle_timeout_ns < 0 or self.health_interval_ns < 0:
            raise BenchError("the idle timeout and the health interval are not negative")

    @property
    def ceiling(self) -> int:
        """The most slots that there may be."""
        return self.max if self.mode == "elastic" else self.size

    @property
    def floor(self) -> int:
        """The slots that are there before ready, and kept."""
        return {"elastic": self.min, "warm-pool": self.size, "lazy": 0, "cold-load": self.size}[self.mode]

    def runtime_options(self) -> dict[str, str]:
        """`options`; unless it says otherwise, the slots share the usable cores evenly (`threads`, at least 1 each)."""
        return {"threads": str(max(1, usable_cores() // self.ceiling)), **self.options}


class PoolCounts:
    """What happened in a pool since it was made."""

    __slots__ = ("hits", "load_histogram", "loads_failed", "loads_ok", "misses", "rebuilds", "slot_failures")

    def __init__(self) -> None:
        self.hits = 0  # a slot was free when the request came
        self.misses = 0
        self.loads_ok = 0  # slots made ready (with the engine's load where it was needed), or loads of cold-load
        self.loads_failed = 0
        self.slot_failures = 0  # slots taken out because they failed or did not answer correctly
        self.rebuilds = 0  # loads that replace them
        self.load_histogram = Histogram()  # of the successful loads


class Pool:
    """`await start()`, then `await infer(...)` from any number of tasks, then `await close()`; all on one event loop."""

    def __init__(self, engine_dir: Path, manifest: Manifest, settings: PoolSettings, *, on_device_spoiled: Callable[[str], None]) -> None:
        self.settings = settings
        self.counts = PoolCounts()
        self._name = manifest.name
        self._cold = settings.mode == "cold-load"
        shared = settings.sharing == "engine" and not self._cold
        self._source = EngineSource(engine_dir, manifest, settings.runtime_options(), settings.trust, shared=shared)
        self._shared = shared
        self._on_device_spoiled = on_device_spoiled
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: set[SlotThread] = set()  # made, and not taken out
        self._idle: deque[SlotThread] = deque()  # of these; the last one was used last, and is used next
        self._makers: set[SlotThread] = set()  # being made
        self._replaced: set[SlotThread] = set()  # taken out, to be replaced once they have released what they hold
        self._threads: set[SlotThread] = set()  # all whose thread lives
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        self._ready = False
        self._closing = False
        self._load_error: str | None = None  # why the last load failed
        self._paused_until_ns = 0
        self._barren_ns = 0
        self._barren_since_ns: int | None = None
        self._service_ns = 0  # moving mean, for Retry-After
        self._starting: asyncio.Future[None] | None = None
        self._all_gone: asyncio.Future[None] | None = None
        self._shrink_timer: asyncio.TimerHandle | None = None
        self._health: asyncio.Task[None] | None = None

    # State. Any thread may read it: each is one number, and two of them may be one step apart.

    @property
    def ready(self) -> bool:
        """Whether a request sent now would find a slot, or a load that has not failed so far."""
        if not self._ready or self._closing:
            return False
        if self._cold or (self.settings.floor == 0 and not self._slots):
            return self._load_error is None
        return bool(self._slots)

    @property
    def busy(self) -> int:
        return len(self._slots) - len(self._idle) - self._loading_cold()

    @property
    def idle(self) -> int:
        """Slots that nobody uses. Under cold-load there is no slot while nobody uses it."""
        return 0 if self._cold else len(self._idle)

    @property
    def loading(self) -> int:
        return len(self._makers) + self._loading_cold()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def engine_loads(self) -> int:
        return self._source.engine_loads

    def _loading_cold(self) -> int:
        return sum(slot.cold_loading for slot in tuple(self._slots)) if self._cold else 0

    # Life

    async def start(self) -> None:
        """Make the slots that the mode promises, each having answered every case of the probe. Raises LoadFailed.

        cold-load loads, answers and unloads once; lazy loads nothing. The health check runs from here on.
        """
        self._refuse_after_fork()
        loop = self._loop = asyncio.get_running_loop()
        try:
            if self._cold:
                for number in range(self.settings.size):
                    slot = self._new_thread(f"{self._name}-cold-{number}", cold=True)
                    self._slots.add(slot)
                    self._idle.append(slot)
                await self._check(self._idle[-1], every_case=True)
                if self._load_error is not None:
                    raise LoadFailed(self._load_error)
            elif self.settings.floor:
                self._starting = loop.create_future()
                self._grow()
                await self._starting
        except BaseException:
            await self.close()
            raise
        finally:
            self._starting = None
        self._ready = True
        if self.settings.health_interval_ns:
            self._health = loop.create_task(self._watch())

    async def close(self) -> None:
        """Shed what waits, let what runs end, release every slot, engine and thread. May be called more than once."""
        self._closing = True
        if self._loop is None:
            return
        if self._health is not None:
            self._health.cancel()
            await asyncio.wait([self._health])
            self._health = None
        if self._shrink_timer is not None:
            self._shrink_timer.cancel()
        while (job := self._next_job()) is not None:
            self._refuse(job, Overloaded(f"model {self._name} is closing", 1))
        while self._idle:
            self._take_out(self._idle.pop())
        if self._threads:
            if self._all_gone is None:
                self._all_gone = self._loop.create_future()
            await asyncio.shield(self._all_gone)

    async def infer(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None, timing: Timing) -> dict[str, NDArray[Any]]:
        """Borrow a slot, run, give it back. Fills in `timing` but for `queue_ns`, also where it raises.

        `inputs` were checked against the manifest; they are read until this returns, and after a cancellation until the
        run has ended. Raises Overloaded, LoadFailed, InferenceFailed.
        """
        self._refuse_after_fork()
        loop = self._loop
        if loop is None or self._closing:
            raise Overloaded(f"model {self._name} is {'closing' if self._closing else 'not started'}", 1)
        now = now_ns()
        job = Job(inputs, outputs, loop.create_future(), now, self._barren_clock(now))
        if self._idle:
            self.counts.hits += 1
            self._idle.pop().submit(job)
        else:
            self.counts.misses += 1
            self._enqueue(job, loop)
        try:
            await job.future
        except asyncio.CancelledError:
            self._leave(job)
            raise
        finally:
            _fill(timing, job)
        assert job.answer is not None
        return job.answer.outputs

    def _refuse_after_fork(self) -> None:
        if os.getpid() != self._pid:
            raise InferenceFailed(f"model {self._name} was opened in process {self._pid}; a fork of it has no slots, start a new process")

    # The queue

    def _enqueue(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        waiting = len(self._waiting) + 1
        limit = self.settings.queue_limit
        if limit is not None and waiting - (self._wanted(waiting) - len(self._slots)) > limit:
            raise Overloaded(f"{limit} requests wait for model {self._name} already", self._retry_after_s())
        self._waiting[job] = None
        if self.settings.acquire_timeout_ns is not None:
            job.timer = loop.call_later(self.settings.acquire_timeout_ns / 1e9, self._expire, job)
        self._grow()

    def _expire(self, job: Job) -> None:
        if self._waiting.pop(job, _TAKEN) is _TAKEN:
            return  # a slot thread took it just now
        waited_s = (now_ns() - job.enqueued_ns) / 1e9
        self._refuse(job, Overloaded(f"no slot of model {self._name} became free within {waited_s:.3g} s", self._retry_after_s()))

    def _leave(self, job: Job) -> None:
        """The requester went away: its place is freed at once; a slot that it has comes back when its run ends."""
        if self._waiting.pop(job, _TAKEN) is not _TAKEN:
            self._end_wait(job, now_ns())

    def _next_job(self) -> Job | None:
        """The head of the queue, None where there is none. Slot threads take from it too, so nothing may be asked before."""
        try:
            return self._waiting.popitem(last=False)[0]
        except KeyError:
            return None

    def take_next(self, slot: SlotThread) -> Job | None:
        """Called by the thread of a slot whose run has ended: what it runs next, without a way through the event loop.

        An OrderedDict of objects with the default hash pops in one step under the GIL. Everything else that a job's end
        needs happens in `run_ended`; a job whose requester went away is skipped by the slot thread itself.
        """
        job = None if self._closing else self._next_job()
        if job is not None:
            job.wait_load_ns = self._caused_by_load(job, slot, now_ns())
        return job

    def _end_wait(self, job: Job, now: int) -> None:
        """The job left the queue without a slot."""
        if job.timer is not None:
            job.timer.cancel()
        job.wait_load_ns = self._barren_clock(now) - job.barren_ns
        job.ended_ns = now

    def _refuse(self, job: Job, error: Exception) -> None:
        self._end_wait(job, now_ns())
        if not job.future.done():
            job.future.set_exception(error)

    def _retry_after_s(self) -> int:
        """When the queue of now will have been served, at the pace of late; whole seconds, at least 1 (RFC 9110, 10.2.3)."""
        return max(1, math.ceil(len(self._waiting) * self._service_ns / max(1, len(self._slots)) / 1e9))

    def _give(self, slot: SlotThread) -> None:
        """Give a free slot to whoever is at the head of the queue, or let it idle."""
        while (job := self._next_job()) is not None:
            now = now_ns()
            if job.future.done():  # its requester went away and has not said so yet
                self._end_wait(job, now)
                continue
            if job.timer is not None:
                job.timer.cancel()
            job.wait_load_ns = self._caused_by_load(job, slot, now)
            slot.submit(job)
            return
        self._idle.append(slot)
        self._plan_shrink()

    def _caused_by_load(self, job: Job, slot: SlotThread, now: int) -> int:
        """The part of a wait, until now, in which there was no slot but a load, or in which this slot was being made."""
        barren = self._barren_clock(now)
        if slot.made_ns <= job.enqueued_ns:
            return barren - job.barren_ns
        from_ns, from_barren_ns = max((job.enqueued_ns, job.barren_ns), (slot.making_began_ns, slot.making_began_barren_ns))
        return (from_barren_ns - job.barren_ns) + (slot.made_ns - from_ns) + (barren - slot.made_barren_ns)

    def _barren_clock(self, now: int) -> int:
        """Runs while there is no slot, but one is being made."""
        return self._barren_ns if self._barren_since_ns is None else self._barren_ns + now - self._barren_since_ns

    def _set_barren_clock(self, now: int) -> None:
        self._barren_ns = self._barren_clock(now)
        self._barren_since_ns = now if not self._slots and (self._makers or self._replaced) else None

    # Growing and shrinking

    def _wanted(self, waiting: int) -> int:
        """How many slots there should be, the ones being made included, with this many requests waiting."""
        if now_ns() < self._paused_until_ns and self._slots:
            return len(self._slots) + len(self._makers) + len(self._replaced)
        return max(self.settings.floor, min(self.settings.ceiling, len(self._slots) - len(self._idle) + waiting))

    def _grow(self) -> None:
        """Start the loads that the mode and the requests call for; of a shared engine one, until it is there."""
        missing = self._wanted(len(self._waiting)) - len(self._slots) - len(self._makers) - len(self._replaced)
        if self._shared and not self._source.can_share:
            missing = min(missing, 1 - len(self._makers) - len(self._replaced))
        for _ in range(missing):
            self._make()

    def _make(self) -> None:
        maker = self._new_thread(f"{self._name}-slot")
        maker.making_began_ns = now = now_ns()
        self._makers.add(maker)
        self._set_barren_clock(now)
        maker.making_began_barren_ns = self._barren_clock(now)

    def _new_thread(self, name: str, *, cold: bool = False) -> SlotThread:
        assert self._loop is not None
        slot = SlotThread(self, self._source, self._loop, name, cold=cold)
        self._threads.add(slot)
        slot.start()
        return slot

    def _plan_shrink(self) -> None:
        if self.settings.mode != "elastic" or self._shrink_timer is not None or len(self._slots) <= self.settings.floor:
            return
        assert self._loop is not None
        longest_idle_ns = min(slot.idle_since_ns for slot in self._idle)
        due_ns = longest_idle_ns + self.settings.idle_timeout_ns - now_ns()
        self._shrink_timer = self._loop.call_later(max(0, due_ns) / 1e9, self._shrink)

    def _shrink(self) -> None:
        self._shrink_timer = None
        now = now_ns()
        for slot in tuple(self._idle):
            if len(self._slots) > self.settings.floor and now - slot.idle_since_ns >= self.settings.idle_timeout_ns:
                self._idle.remove(slot)
                self._take_out(slot)
        if self._idle:
            self._plan_shrink()

    def _take_out(self, slot: SlotThread) -> None:
        self._slots.discard(slot)
        self._set_barren_clock(now_ns())
        slot.stop()

    def _replace(self, slot: SlotThread) -> None:
        """The slot failed: take it out, and make another when it has released what it holds."""
        self.counts.slot_failures += 1
        _log.warning("model %s: a slot is replaced, since its probe failed: %s", self._name, slot.broken)
        if not self._closing:
            self._replaced.add(slot)
        self._take_out(slot)

    # Reports of the slot threads

    def slot_made(self, slot: SlotThread) -> None:
        now = now_ns()
        self._makers.discard(slot)
        self._slots.add(slot)
        self._set_barren_clock(now)
        slot.made_ns = slot.idle_since_ns = now
        slot.made_barren_ns = self._barren_clock(now)
        self._load_error = None
        self._paused_until_ns = 0
        self.counts.loads_ok += 1
        self.counts.load_histogram.observe(now - slot.making_began_ns)
        if self._closing:
            self._take_out(slot)
            return
        self._give(slot)
        self._grow()
        if self._starting is not None and not self._starting.done() and len(self._slots) >= self.settings.floor:
            self._starting.set_result(None)

    def making_failed(self, slot: SlotThread, reason: str) -> None:
        now = now_ns()
        self._makers.discard(slot)
        self._note_load_error(reason)
        self._paused_until_ns = now + _PAUSE_AFTER_FAILURE_NS
        self.counts.loads_failed += 1
        if not self._slots and not self._makers and not self._replaced:
            while (job := self._next_job()) is not None:
                self._refuse(job, LoadFailed(reason))
        self._set_barren_clock(now)
        if self._starting is not None and not self._starting.done():
            self._starting.set_exception(LoadFailed(reason))

    def _note_load_error(self, reason: str) -> None:
        if reason != self._load_error:  # once, not with each request that tries again
            _log.warning("model %s: a load failed: %s", self._name, reason)
        self._load_error = reason

    def run_ended(self, slot: SlotThread, job: Job, goes_on: bool = False) -> None:
        """`goes_on`: the slot has taken its next job already."""
        if job.timer is not None:
            job.timer.cancel()
        if goes_on:
            pass
        elif not self._cold:
            slot.idle_since_ns = job.ended_ns
            if slot.broken is not None:
                self._replace(slot)
            elif self._closing:
                self._take_out(slot)
            else:
                self._give(slot)
        elif job.load_error is not None:
            self._note_load_error(job.load_error)
            self.counts.loads_failed += 1
        elif job.answer is not None or job.run_error is not None:  # else its requester went away before the load
            self._cold_loaded(job.cold_load_ns)
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

    def _cold_loaded(self, load_ns: int) -> None:
        self._load_error = None
        self.counts.loads_ok += 1
        self.counts.load_histogram.observe(load_ns)

    def check_ended(self, slot: SlotThread, check: Check) -> None:
        if self._cold:
            if check.load_ns:
                self._cold_loaded(check.load_ns)
            else:
                self.counts.loads_failed += 1
            if check.error is not None:
                self._note_load_error(check.error)
            self.slot_released(slot)
        elif check.error is not None:
            self._replace(slot)
        else:
            self.slot_released(slot)
        if not check.future.done():
            check.future.set_result(None)

    def slot_released(self, slot: SlotThread) -> None:
        if self._closing:
            self._take_out(slot)
        else:
            self._give(slot)

    def slot_gone(self, slot: SlotThread) -> None:
        slot.join()
        self._threads.discard(slot)
        if slot in self._replaced:
            self._replaced.discard(slot)
            if not self._closing:
                self.counts.rebuilds += 1
                self._make()
        if self._all_gone is not None and not self._threads and not self._all_gone.done():
            self._all_gone.set_result(None)

    def device_spoiled(self, reason: str) -> None:
        self._on_device_spoiled(f"model {self._name}: {reason}")

    # Health

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.health_interval_ns / 1e9)
            await self.check_health()

    async def check_health(self) -> None:
        """Run the probe on each idle slot, one at a time; where there is no slot because a load failed, try it again."""
        if self._cold:
            if self._load_error is not None and self._idle:
                await self._check(self._idle[-1], every_case=False)
            return
        self._grow()
        if not self.ready and not self._makers and not self._replaced:
            self._make()
        for slot in tuple(self._idle):
            if slot in self._idle:
                await self._check(slot, every_case=False)

    async def _check(self, slot: SlotThread, *, every_case: bool) -> None:
        assert self._loop is not None
        check = Check(self._loop.create_future(), every_case=every_case)
        self._idle.remove(slot)
        slot.submit(check)
        await check.future


def _fill(timing: Timing, job: Job) -> None:
    """Read the parts off a job that is over, or was left by its requester (its run is then not waited for: 0)."""
    started_ns = job.started_ns
    if not started_ns:  # it never reached a slot
        if job.ended_ns:
            timing.load_ns = job.wait_load_ns
            timing.pool_ns = job.ended_ns - job.enqueued_ns - job.wait_load_ns
        return
    timing.load_ns = job.wait_load_ns + job.cold_load_ns
    timing.pool_ns = started_ns - job.enqueued_ns - job.wait_load_ns
    answer = job.answer
    if answer is not None:
        timing.input_ns = answer.input_ns
        timing.infer_ns = answer.infer_ns
        timing.output_ns = answer.output_ns
    elif job.ended_ns:
        timing.infer_ns = job.ended_ns - started_ns - job.cold_load_ns
