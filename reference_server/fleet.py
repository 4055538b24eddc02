"""The slots of one pool: made, grown, checked, replaced, dropped and closed. All on the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bench.clock import now_ns
from bench.errors import one_sentence
from reference_server.engine_source import EngineSource
from reference_server.health import watch
from reference_server.jobs import BarrenClock, Check, LoadFailed
from reference_server.metrics import Histogram
from reference_server.pool_settings import PoolSettings
from reference_server.slots import JobSource, SlotThread

# After a load that failed while other slots serve, the next one waits this long: a load that cannot succeed (no memory)
# must not be tried with each request.
_PAUSE_AFTER_FAILURE_NS = 10**9

_log = logging.getLogger(__name__)


class FleetCounts:
    """What happened to a pool's slots since it was made."""

    __slots__ = ("load_histogram", "loads_failed", "loads_ok", "rebuilds", "slot_failures")

    def __init__(self) -> None:
        self.loads_ok = 0  # slots made ready (with the engine's load where it was needed), or loads of cold-load
        self.loads_failed = 0
        self.slot_failures = 0  # slots taken out because they failed or did not answer correctly
        self.rebuilds = 0  # loads that replace them
        self.load_histogram = Histogram()  # of the successful loads


class Queue(JobSource, Protocol):
    """What the fleet needs of the requests' side."""

    @property
    def waiting(self) -> int: ...

    def give(self, slot: SlotThread) -> None:
        """The slot is free: it gets the next job, or `Fleet.rest`s."""
        ...

    def no_slot_comes(self, reason: str) -> None:
        """A load failed, and there is no other slot for those who wait."""
        ...


class Fleet:
    """`await start()`, `grow()` as requests wait, `await close()`. Under cold-load its slots are the places to load in."""

    def __init__(
        self, name: str, source: EngineSource, settings: PoolSettings, queue: Queue, on_device_spoiled: Callable[[str], None]
    ) -> None:
        self.counts = FleetCounts()
        self.barren_clock = BarrenClock()
        self.slots: set[SlotThread] = set()  # made, and not taken out
        self.resting: deque[SlotThread] = deque()  # of these, those nobody uses; the last one was used last, and is used next
        self.makers: set[SlotThread] = set()  # being made
        self.replaced: set[SlotThread] = set()  # taken out, to be replaced once they have released what they hold
        self.threads: set[SlotThread] = set()  # all whose thread lives
        self.closing = False
        self.source = source
        self._name = name
        self._settings = settings
        self._queue = queue
        self._on_device_spoiled = on_device_spoiled
        self.cold = settings.mode == "cold-load"
        self._one_load_first = settings.sharing == "engine" and not self.cold
        self._started = False
        self.load_error: str | None = None  # why the last load failed
        self._paused_until_ns = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Future[None] | None = None
        self._all_gone: asyncio.Future[None] | None = None
        self._shrink_timer: asyncio.TimerHandle | None = None
        self._health: asyncio.Task[None] | None = None

    # State. Any thread may read it: each is one number, and two of them may be one step apart.

    @property
    def ready(self) -> bool:
        """Whether a request sent now would find a slot, or a load that has not failed so far."""
        if not self._started or self.closing:
            return False
        if self.cold or (self._settings.floor == 0 and not self.slots):
            return self.load_error is None
        return bool(self.slots)

    @property
    def busy(self) -> int:
        return len(self.slots) - len(self.resting) - self._loading_cold()

    @property
    def idle(self) -> int:
        """Slots that nobody uses. Under cold-load there is no slot while nobody uses it."""
        return 0 if self.cold else len(self.resting)

    @property
    def loading(self) -> int:
        return len(self.makers) + self._loading_cold()

    def _loading_cold(self) -> int:
        return sum(slot.cold_loading for slot in tuple(self.slots)) if self.cold else 0

    # Life

    async def start(self) -> None:
        """Make the slots that the mode promises, each having answered every case of the probe. Raises BenchError, mostly LoadFailed.

        cold-load loads, answers and unloads once; lazy loads nothing, and finds only what is wrong with its settings.
        The health check runs from here on.
        """
        loop = self._loop = asyncio.get_running_loop()
        try:
            if self.cold:
                for number in range(self._settings.size):
                    slot = self._new_thread(f"{self._name}-cold-{number}")
                    self.slots.add(slot)
                    self.resting.append(slot)
                await self.check(self.resting[-1], every_case=True)
                if self.load_error is not None:
                    raise LoadFailed(self.load_error)
            elif self._settings.floor:
                self._starting = loop.create_future()
                self.grow(0)
                await self._starting
            else:
                self.source.check_later_load()
        except BaseException:
            await self.close()
            raise
        finally:
            self._starting = None
        self._started = True
        if self._settings.health_interval_ns:
            self._health = loop.create_task(watch(self, self._settings.health_interval_ns))

    async def close(self) -> None:
        """Let what runs end, release every slot, engine and thread. May be called more than once."""
        self.closing = True
        if self._loop is None:
            return
        if self._health is not None:
            self._health.cancel()
            await asyncio.wait([self._health])
            self._health = None
        if self._shrink_timer is not None:
            self._shrink_timer.cancel()
        while self.resting:
            self._take_out(self.resting.pop())
        if self.threads:
            if self._all_gone is None:
                self._all_gone = self._loop.create_future()
            await asyncio.shield(self._all_gone)

    # Growing and shrinking

    def wanted(self, waiting: int) -> int:
        """How many slots there should be, the ones being made included, with this many requests waiting."""
        if now_ns() < self._paused_until_ns and self.slots:
            return len(self.slots) + len(self.makers) + len(self.replaced)
        return max(self._settings.floor, min(self._settings.ceiling, len(self.slots) - len(self.resting) + waiting))

    def grow(self, waiting: int) -> None:
        """Start the loads that the mode and the requests call for; of a shared engine one, until it is there."""
        missing = self.wanted(waiting) - len(self.slots) - len(self.makers) - len(self.replaced)
        if self._one_load_first and not self.source.can_share:
            missing = min(missing, 1 - len(self.makers) - len(self.replaced))
        for _ in range(missing):
            if not self._make():
                break

    def _make(self) -> bool:
        """Whether that could be begun."""
        now = now_ns()  # before the thread begins: its load is not to be longer than what is counted
        try:
            maker = self._new_thread(f"{self._name}-slot")
        except LoadFailed as failed:
            self._making_failed(str(failed))
            return False
        self.makers.add(maker)
        self._set_barren_clock(now)
        maker.making.began_ns, maker.making.began_barren_ns = now, self.barren_clock.read(now)
        return True

    def _new_thread(self, name: str) -> SlotThread:
        """Raises LoadFailed where the process may have no more threads or open files."""
        assert self._loop is not None
        try:
            slot = SlotThread(self, self._queue, self.source, self._loop, name, cold=self.cold)
            slot.start()
        except (OSError, RuntimeError) as error:
            reason = one_sentence(error)
            raise LoadFailed(f"no further slot of model {self._name} can be made ({reason}); raise this process's limits") from None
        self.threads.add(slot)
        return slot

    def _set_barren_clock(self, now: int) -> None:
        self.barren_clock.set(now, runs=not self.slots and bool(self.makers or self.replaced))

    def rest(self, slot: SlotThread) -> None:
        """Nobody needs the slot now."""
        self.resting.append(slot)
        self._plan_shrink()

    def _plan_shrink(self) -> None:
        if self._settings.mode != "elastic" or self._shrink_timer is not None or len(self.slots) <= self._settings.floor:
            return
        assert self._loop is not None
        longest_idle_ns = min(slot.idle_since_ns for slot in self.resting)
        due_ns = longest_idle_ns + self._settings.idle_timeout_ns - now_ns()
        self._shrink_timer = self._loop.call_later(max(0, due_ns) / 1e9, self._shrink)

    def _shrink(self) -> None:
        self._shrink_timer = None
        now = now_ns()
        for slot in tuple(self.resting):
            if len(self.slots) > self._settings.floor and now - slot.idle_since_ns >= self._settings.idle_timeout_ns:
                self.resting.remove(slot)
                self._take_out(slot)
        if self.resting:
            self._plan_shrink()

    def _take_out(self, slot: SlotThread) -> None:
        self.slots.discard(slot)
        self._set_barren_clock(now_ns())
        slot.stop()

    def _replace(self, slot: SlotThread) -> None:
        """The slot failed: take it out, and make another when it has released what it holds."""
        self.counts.slot_failures += 1
        _log.warning("model %s: a slot is replaced, since its probe failed: %s", self._name, slot.broken)
        if not self.closing:
            self.replaced.add(slot)
        self._take_out(slot)

    # Reports of the slot threads

    def slot_made(self, slot: SlotThread) -> None:
        now = now_ns()
        self.makers.discard(slot)
        self.slots.add(slot)
        self._set_barren_clock(now)
        slot.making.ended_ns, slot.making.ended_barren_ns = now, self.barren_clock.read(now)
        slot.idle_since_ns = now
        self._paused_until_ns = 0
        self.loaded(now - slot.making.began_ns)
        if self.closing:
            self._take_out(slot)
            return
        self._queue.give(slot)
        self.grow(self._queue.waiting)
        if self._starting is not None and not self._starting.done() and len(self.slots) >= self._settings.floor:
            self._starting.set_result(None)

    def making_failed(self, slot: SlotThread, reason: str) -> None:
        self.makers.discard(slot)
        self._making_failed(reason)

    def _making_failed(self, reason: str) -> None:
        now = now_ns()
        self.load_failed(reason)
        self._paused_until_ns = now + _PAUSE_AFTER_FAILURE_NS
        if not self.slots and not self.makers and not self.replaced:
            self._queue.no_slot_comes(reason)
        self._set_barren_clock(now)
        if self._starting is not None and not self._starting.done():
            self._starting.set_exception(LoadFailed(reason))

    def loaded(self, duration_ns: int) -> None:
        self.load_error = None
        self.counts.loads_ok += 1
        self.counts.load_histogram.observe(duration_ns)

    def load_failed(self, reason: str) -> None:
        self.counts.loads_failed += 1
        self._note_load_error(reason)

    def _note_load_error(self, reason: str) -> None:
        if self._started and reason != self.load_error:  # a start raises it; later once, not with each request that tries again
            _log.warning("model %s: a load failed: %s", self._name, reason)
        self.load_error = reason

    def run_ended(self, slot: SlotThread, ended_ns: int) -> None:
        """A job's run is over, and the slot has not taken another one."""
        slot.idle_since_ns = ended_ns
        if slot.broken is not None:
            self._replace(slot)
        else:
            self.slot_released(slot)

    def check_ended(self, slot: SlotThread, check: Check) -> None:
        if self.cold:
            if check.load_ns:
                self.loaded(check.load_ns)
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
        if self.closing:
            self._take_out(slot)
        else:
            self._queue.give(slot)

    def slot_gone(self, slot: SlotThread) -> None:
        slot.join()
        self.threads.discard(slot)
        if slot in self.replaced:
            self.replaced.discard(slot)
            if not self.closing:
                self.counts.rebuilds += 1
                self._make()
        if self._all_gone is not None and not self.threads and not self._all_gone.done():
            self._all_gone.set_result(None)

    def device_spoiled(self, reason: str) -> None:
        self._on_device_spoiled(f"model {self._name}: {reason}")

    # Health

    async def check(self, slot: SlotThread, *, every_case: bool = False) -> None:
        """Let a resting slot answer the probe, its smallest case or all of them; one that does not is replaced."""
        assert self._loop is not None
        check = Check(self._loop.create_future(), every_case=every_case)
        self.resting.remove(slot)
        slot.submit(check)
        await check.future

    def load_again(self) -> None:
        """Make the slots that are missing, and one at least where a failed load has left none."""
        self.grow(self._queue.waiting)
        if not self.ready and not self.makers and not self.replaced:
            self._make()
