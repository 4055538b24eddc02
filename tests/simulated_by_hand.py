"""The simulation once more, the plain way: objects, one heap for everything, the server's own clocks of blame (reference_server.jobs).

It reads like reference_server.pool and reference_server.fleet, so that it can be held against them, and it is slow.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.capacity.simulation import OK, SHED, TIMEOUT, Replicas, Server, Service, Simulated, Times
from reference_server.jobs import BarrenClock, Making

FREE, MADE, READY, SHRINK, EXPIRE, SCALE, ARRIVE = range(7)
OVERHEAD, LOAD, SLOT, UNLOAD, START, SERVICE = range(6)  # what has random numbers of its own
WORD = 2**64 - 1


def split_mix(state: int, index: int) -> int:
    """The upper half of output number `index` of SplitMix64, as its authors' nextLong gives it."""
    z = (state + (index + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return (z ^ (z >> 31)) >> 32


class Request:
    """`enqueued_ns` and `barren_ns` are named as in a Job, since Making.caused reads them."""

    def __init__(self, number: int, came_ns: int) -> None:
        self.number, self.enqueued_ns, self.barren_ns = number, came_ns, 0
        self.status = OK
        self.response = self.pool = self.load = self.service = 0
        self.replica: Pool | None = None


class Slot:
    def __init__(self) -> None:
        self.making, self.idle_since_ns = Making(), 0


class World:
    """The clock, what is to come, and the dice."""

    def __init__(self, service: Service, server: Server, replicas: Replicas, seed: int) -> None:
        self.now, self.number = 0, 0
        self.to_come: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.service, self.server, self.replicas = service, server, replicas
        self.streams = [int(word) for word in np.random.SeedSequence(seed).generate_state(6, np.uint64)]
        self.makings = self.started = self.waiting = self.in_use = 0
        self.ready: list[Pool] = []
        self.starting = 0
        self.over_since: int | None = None
        self.last_start: int | None = None
        self.changes: list[tuple[int, int, int, int]] = []

    def at(self, when: int, kind: int, what: Callable[..., None], *args: Any) -> None:
        self.number += 1
        heapq.heappush(self.to_come, (when, kind, self.number, what, args))

    def draw(self, stream: int, index: int, samples: Times) -> int:
        return int(np.sort(samples)[split_mix(self.streams[stream], index) * len(samples) >> 32])

    # Replicas

    def start_replica(self, at_once: bool = False) -> None:
        index, self.started = self.started, self.started + 1
        if at_once:
            self.replica_ready()
        else:
            self.starting += 1
            self.last_start = self.now
            self.at(self.now + self.draw(START, index, self.replicas.start_ns), READY, self.started_one)

    def started_one(self) -> None:
        self.starting -= 1
        self.replica_ready()

    def replica_ready(self) -> None:
        self.ready.append(Pool(self))

    def arrive(self, request: Request) -> None:
        pool = min(self.ready, key=lambda pool: len(pool.waiting) + pool.in_use)
        request.replica = pool
        pool.infer(request)

    def scale_out(self, since: int) -> None:
        if self.over_since == since and self.started < self.replicas.maximum:
            self.start_replica()
            self.over_since = None

    def look_at_signal(self) -> None:
        if self.started == self.replicas.maximum:
            return
        waiting, in_use = sum(len(pool.waiting) for pool in self.ready), sum(pool.in_use for pool in self.ready)
        if self.replicas.signal == "waiting":
            over = waiting > self.replicas.above * len(self.ready)
        else:
            over = in_use > self.replicas.above * (len(self.ready) * self.server.slots)
        if not over:
            self.over_since = None
        elif self.over_since is None:
            self.over_since = self.now
            due = self.now + self.replicas.detect_ns
            if self.last_start is not None:
                due = max(due, self.last_start + self.replicas.cooldown_ns)
            self.at(due, SCALE, self.scale_out, self.now)

    def note(self) -> None:
        cold, floor = self.server.mode == "cold-load", self.server.floor
        slots = engines = 0
        for pool in self.ready:
            held = pool.in_use if cold else len(pool.slots) + len(pool.makers)
            slots += held
            engines += held if pool.own_engines else min(held, 1)
        slots += self.starting * floor
        engines += self.starting * (floor if self.server.sharing == "copy" else min(floor, 1))
        found = (self.now, self.started, slots, engines)
        if self.changes and self.changes[-1][1:] == found[1:]:
            return
        if self.changes and self.changes[-1][0] == self.now:
            self.changes.pop()
        self.changes.append(found)

    def run(self, requests: list[Request]) -> None:
        for _ in range(self.replicas.initial):
            self.start_replica(at_once=True)
        self.note()
        for request in requests:
            self.at(request.enqueued_ns, ARRIVE, self.arrive, request)
        left = len(requests)
        while left or any(pool.in_use or pool.waiting for pool in self.ready):
            self.now, kind, _, what, args = heapq.heappop(self.to_come)
            what(*args)
            left -= kind == ARRIVE
            self.look_at_signal()
            self.note()


class Pool:
    def __init__(self, world: World) -> None:
        self.world, self.server = world, world.server
        self.cold = self.server.mode == "cold-load"
        self.own_engines = self.cold or self.server.sharing == "copy"
        self.floor = self.server.slots if self.cold else self.server.floor
        self.slots: list[Slot] = [Slot() for _ in range(self.floor)]
        for slot in self.slots:
            slot.idle_since_ns = slot.making.ended_ns = world.now
        self.resting = deque(self.slots)
        self.makers: list[Slot] = []
        self.waiting: deque[Request] = deque()
        self.barren_clock = BarrenClock()
        self.engine_ns: int | None = world.now if self.floor else None  # when it is there
        self.unloaded_ns = 0
        self.shrink_planned = False
        self.in_use = 0

    def infer(self, request: Request) -> None:
        world = self.world
        request.barren_ns = self.barren_clock.read(world.now)
        if self.resting:
            self.submit(self.resting.pop(), request)
            return
        waiting, limit = len(self.waiting) + 1, self.server.queue_limit
        if limit is not None and waiting - (self.wanted(waiting) - len(self.slots)) > limit:
            request.status = SHED
            request.response = world.draw(OVERHEAD, request.number, world.service.overhead_ns)
            return
        self.waiting.append(request)
        if self.server.acquire_timeout_ns is not None:
            world.at(world.now + self.server.acquire_timeout_ns, EXPIRE, self.expire, request)
        self.grow()

    def expire(self, request: Request) -> None:
        if request not in self.waiting:
            return
        self.waiting.remove(request)
        now = self.world.now
        request.status = TIMEOUT
        request.load = self.barren_clock.read(now) - request.barren_ns
        request.pool = now - request.enqueued_ns - request.load
        request.response = now - request.enqueued_ns + self.world.draw(OVERHEAD, request.number, self.world.service.overhead_ns)

    def submit(self, slot: Slot, request: Request, wait_load_ns: int = 0) -> None:
        world, number = self.world, request.number
        self.in_use += 1
        cold_load = world.draw(LOAD, number, self.server.load_ns) if self.cold else 0
        request.pool = world.now - request.enqueued_ns - wait_load_ns
        request.load = wait_load_ns + cold_load
        levels = world.service.levels
        request.service = world.draw(SERVICE, number, levels[min(self.in_use, len(levels)) - 1])
        if self.in_use > len(levels):
            request.service = request.service * self.in_use // len(levels)
        ended = world.now + cold_load + request.service
        request.response = ended - request.enqueued_ns + world.draw(OVERHEAD, number, world.service.overhead_ns)
        world.at(ended + (world.draw(UNLOAD, number, self.server.unload_ns) if self.cold else 0), FREE, self.run_ended, slot)

    def run_ended(self, slot: Slot) -> None:
        self.in_use -= 1
        slot.idle_since_ns = self.world.now
        self.give(slot)

    def give(self, slot: Slot) -> None:
        if self.waiting:
            request = self.waiting.popleft()
            self.submit(slot, request, slot.making.caused(request, self.barren_clock.read(self.world.now)))  # type: ignore[arg-type]
        else:
            self.resting.append(slot)
            self.plan_shrink()

    # The fleet

    def wanted(self, waiting: int) -> int:
        return max(self.floor, min(self.server.slots, len(self.slots) - len(self.resting) + waiting))

    def grow(self) -> None:
        missing = self.wanted(len(self.waiting)) - len(self.slots) - len(self.makers)
        can_share = self.engine_ns is not None and self.engine_ns <= self.world.now
        if not self.own_engines and not can_share:
            missing = min(missing, 1 - len(self.makers))
        for _ in range(missing):
            self.make()

    def make(self) -> None:
        world, now = self.world, self.world.now
        index, world.makings = world.makings, world.makings + 1
        taken = world.draw(SLOT, index, self.server.slot_ns)
        if self.own_engines:
            taken += world.draw(LOAD, index, self.server.load_ns)
        elif self.engine_ns is None:
            self.engine_ns = max(now, self.unloaded_ns) + world.draw(LOAD, index, self.server.load_ns)
            taken += self.engine_ns - now
        slot = Slot()
        self.makers.append(slot)
        self.set_barren_clock()
        slot.making.began_ns, slot.making.began_barren_ns = now, self.barren_clock.read(now)
        world.at(now + taken, MADE, self.slot_made, slot)

    def slot_made(self, slot: Slot) -> None:
        now = self.world.now
        self.makers.remove(slot)
        self.slots.append(slot)
        self.set_barren_clock()
        slot.making.ended_ns, slot.making.ended_barren_ns = now, self.barren_clock.read(now)
        slot.idle_since_ns = now
        self.give(slot)
        self.grow()

    def set_barren_clock(self) -> None:
        self.barren_clock.set(self.world.now, runs=not self.slots and bool(self.makers))

    def plan_shrink(self) -> None:
        idle = self.server.idle_timeout_ns
        if self.server.mode != "elastic" or idle is None or self.shrink_planned or len(self.slots) <= self.floor:
            return
        self.shrink_planned = True
        self.world.at(max(self.world.now, min(slot.idle_since_ns for slot in self.resting) + idle), SHRINK, self.shrink)

    def shrink(self) -> None:
        self.shrink_planned = False
        now, idle = self.world.now, self.server.idle_timeout_ns
        assert idle is not None
        for slot in tuple(self.resting):
            if len(self.slots) > self.floor and now - slot.idle_since_ns >= idle:
                self.resting.remove(slot)
                self.slots.remove(slot)
                if not self.slots and not self.makers:
                    self.engine_ns = None
                    self.unloaded_ns = now + self.world.draw(UNLOAD, self.world.makings, self.server.unload_ns)
                self.set_barren_clock()
        if self.resting:
            self.plan_shrink()


def simulate_by_hand(arrivals_ns: Times, service: Service, server: Server, replicas: Replicas, *, seed: int) -> Simulated:
    """What bench.capacity.simulation.simulate must give, entry by entry."""
    world = World(service, server, replicas, seed)
    requests = [Request(number, int(came)) for number, came in enumerate(arrivals_ns)]
    world.run(requests)
    steps = np.array(world.changes, np.int64).T
    return Simulated(
        response_ns=np.array([request.response for request in requests]),
        pool_ns=np.array([request.pool for request in requests]),
        load_ns=np.array([request.load for request in requests]),
        service_ns=np.array([request.service for request in requests]),
        status=np.array([request.status for request in requests], np.uint8),
        replica=np.array([world.ready.index(request.replica) for request in requests if request.replica], np.int32),
        change_ns=steps[0],
        replicas=steps[1],
        slots=steps[2],
        engines=steps[3],
        end_ns=world.now,
    )
