"""What a server of known times does with given arrivals: an event simulation of the reference server's pools.

It follows reference_server.pool and reference_server.fleet decision by decision (docs/server.md):

- One FIFO queue a replica. A request that finds a resting slot takes the one used last; others wait.
- `queue_limit` counts those that wait beyond the slots that are being made for them; one more is shed at once.
  `acquire_timeout_ns` ends a wait; at the very same nanosecond a slot that becomes free comes first.
- warm-pool has all its slots from the start. lazy and elastic make one slot for each request that waits, up to `slots`; a
  shared engine is loaded once, and until it is there one slot is made, not several. A slot that is made serves the head
  of the queue, for whomever it was begun. elastic starts with `minimum` slots and drops one that rested for `idle_timeout_ns`;
  with the last slot the engine goes. cold-load has `slots` places, each of which loads, answers and unloads for each request.
- The arrivals are spread over the replicas that are ready: to the one with the fewest requests (waiting or in a slot), the
  first of these where several have as few. A request stays where it was sent.

Not in it: health checks, loads and runs that fail, clients that go away, and loads that slow down each other or the runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bench.capacity import state
from bench.errors import BenchError

Times = NDArray[np.int64]
Mode = Literal["cold-load", "lazy", "warm-pool", "elastic"]
Sharing = Literal["engine", "copy"]
Signal = Literal["waiting", "busy"]

OK, SHED, TIMEOUT = 0, 1, 2
_NEVER = np.iinfo(np.int64).max


def _none() -> Times:
    return np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Service:
    """How long a slot is taken by a request, in ns: measured samples, one array for each number k of busy slots.

    levels[k-1] are the samples with k slots of the replica busy. A run draws its time when it takes its slot, from the level
    of the slots in use then, its own included (under cold-load the places in use, which load, run or unload), and
    keeps it, whatever begins or ends meanwhile. With more slots busy than there are levels, the last level's time is taken times
    k / len(levels): the device is assumed to be full there, so that its throughput grows no more.
    `overhead_ns` (HTTP, decoding, hops) is added to the response and never takes a slot; it is also what a refusal takes.
    """

    levels: tuple[Times, ...]
    overhead_ns: Times = field(default_factory=_none)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Server:
    """One replica. Times in ns; `load_ns`, `slot_ns` and `unload_ns` are samples.

    slots: the most slots that there may be (the pool size; elastic's max; under cold-load the places to load in).
    minimum: elastic's slots that are there from the start, and kept. idle_timeout_ns: elastic only; None: none is dropped.
    queue_limit, acquire_timeout_ns: None is no limit.
    load_ns: loading the engine alone; under cold-load engine and slot, as each request does it.
    slot_ns: making a slot of a loaded engine, its warm-up included. With sharing `copy` each slot takes both.
    unload_ns: under cold-load how long a place stays taken after the answer; else how long the engine takes to go with
    the last slot, since a new load waits for that.
    """

    mode: Mode
    slots: int
    minimum: int = 0
    queue_limit: int | None = None
    acquire_timeout_ns: int | None = None
    idle_timeout_ns: int | None = None
    sharing: Sharing = "engine"
    load_ns: Times = field(default_factory=_none)
    slot_ns: Times = field(default_factory=_none)
    unload_ns: Times = field(default_factory=_none)

    @property
    def floor(self) -> int:
        """The slots that are there from the start, and kept; under cold-load there are none but places."""
        return {"elastic": self.minimum, "warm-pool": self.slots}.get(self.mode, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replicas:
    """How many servers there are at the start, and the rule by which more are started, one at a time, up to `maximum`.

    The rule looks at a signal: `waiting`, the requests that wait a ready replica (mean), or `busy`, the share of the slots
    that the ready replicas may have which is in use. Once it has been over `above` without a break for `detect_ns`, and
    `cooldown_ns` have passed since the last start, one is started, and it is ready (with the slots its mode promises) after a time
    drawn from `start_ns`. Each further start needs the signal over `above` for another `detect_ns`. None is ever stopped.
    """

    initial: int = 1
    maximum: int = 1
    signal: Signal = "waiting"
    above: float = 0.0
    detect_ns: int = 0
    cooldown_ns: int = 0
    start_ns: Times = field(default_factory=_none)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """What happened: one entry an arrival, in their order, and what was held, as steps. Times in ns.

    response_ns: from the arrival until the answer; of a request that was not served, until the refusal.
    pool_ns, load_ns: the wait for a slot, and the part of it that a load caused (not in pool_ns), split as the server does it
    (reference_server.jobs); under cold-load load_ns is the request's own load. service_ns: in the slot; 0: not served.
    status: OK, SHED (the queue was full) or TIMEOUT (no slot within acquire_timeout_ns; a server answers 503 to both).
    replica: where it was sent.
    change_ns[j]: from then until change_ns[j+1] (the last: until end_ns) there were replicas[j] (also those that are starting),
    slots[j] (also those that are being made, or loaded, or unloaded under cold-load), and engines[j] loaded for them.
    end_ns: when the last request had left, and nothing was in use.
    """

    response_ns: Times
    pool_ns: Times
    load_ns: Times
    service_ns: Times
    status: NDArray[np.uint8]
    replica: NDArray[np.int32]
    change_ns: Times
    replicas: Times
    slots: Times
    engines: Times
    end_ns: int

    def held_ns(self, count: Times) -> int:
        """The time integral of `replicas`, `slots` or `engines`: slot-nanoseconds, and so on."""
        return int(count @ np.diff(self.change_ns, append=self.end_ns))


def simulate(arrivals_ns: Times, service: Service, server: Server, replicas: Replicas | None = None, *, seed: int) -> Simulated:
    """Send `arrivals_ns` (ascending, from 0 on) to the replicas and let all of them be answered or refused.

    Every time is drawn with replacement from its samples, on its own. The n-th arrival has the same rank among the samples of
    whatever level it draws from, also with other servers: two simulations with one seed differ by the servers, not by luck.
    Raises BenchError for settings or samples that make no sense.
    """
    replicas = Replicas() if replicas is None else replicas
    arrivals = _checked_arrivals(arrivals_ns)
    _check_settings(server, replicas)
    levels = [_samples(level, f"the service times with {k} busy", least=1) for k, level in enumerate(service.levels, 1)]
    if not levels:
        raise BenchError("a service has times for at least one busy slot")
    from bench.capacity import events  # numba takes a while to import, and a command that fails before needs none of it

    drawn = [
        _samples(service.overhead_ns, "the overheads"),
        _samples(server.load_ns, "the load times"),
        _samples(server.slot_ns, "the times to make a slot"),
        _samples(server.unload_ns, "the unload times"),
        _samples(replicas.start_ns, "the times to ready"),
        *levels,
    ]
    cold = server.mode == "cold-load"
    shape = (replicas.maximum, server.slots)
    world = state.State(
        arrivals_ns=arrivals,
        samples=np.concatenate(drawn),
        starts=np.cumsum([0, *map(len, drawn)]),
        streams=np.random.SeedSequence(seed).generate_state(len(events.STREAMS), np.uint64),
        rules=state.rules(
            cold=cold,
            one_load_first=server.sharing == "engine" and not cold,
            elastic=server.mode == "elastic" and server.idle_timeout_ns is not None,
            floor=server.slots if cold else server.floor,
            ceiling=server.slots,
            queue_limit=_NEVER if server.queue_limit is None else server.queue_limit,
            acquire_timeout_ns=-1 if server.acquire_timeout_ns is None else server.acquire_timeout_ns,
            idle_timeout_ns=server.idle_timeout_ns or 0,
            initial=replicas.initial,
            maximum=replicas.maximum,
            by_waiting=replicas.signal == "waiting",
            above=float(replicas.above),
            detect_ns=replicas.detect_ns,
            cooldown_ns=replicas.cooldown_ns,
        ),
        totals=np.zeros(1, state.TOTALS),
        request=np.zeros(len(arrivals), state.REQUEST),
        replica=np.zeros(replicas.maximum, state.REPLICA),
        slot=np.zeros(shape, state.SLOT),
        resting=np.zeros(shape, np.int64),
        spare=np.zeros(shape, np.int64),
    )
    steps, end_ns = events.run(world)
    request = world.request
    return Simulated(
        response_ns=request["response_ns"].copy(),
        pool_ns=request["pool_ns"].copy(),
        load_ns=request["load_ns"].copy(),
        service_ns=request["service_ns"].copy(),
        status=request["status"].astype(np.uint8),
        replica=request["replica"].copy(),
        change_ns=steps[:, 0].copy(),
        replicas=steps[:, 1].copy(),
        slots=steps[:, 2].copy(),
        engines=steps[:, 3].copy(),
        end_ns=int(end_ns),
    )


def _checked_arrivals(arrivals_ns: Times) -> Times:
    arrivals = np.ascontiguousarray(arrivals_ns, np.int64)
    if arrivals.ndim != 1 or arrivals.size == 0:
        raise BenchError("there are no arrivals to simulate")
    if arrivals[0] < 0 or (np.diff(arrivals) < 0).any():
        raise BenchError("the arrivals to simulate are not in ascending order from 0 on")
    return arrivals


def _samples(given: Times, what: str, *, least: int = 0) -> Times:
    """Sorted, so that a request's rank is the same whatever it draws from. Raises BenchError."""
    samples = np.sort(np.asarray(given, np.int64))
    if samples.ndim != 1 or not 0 < samples.size < 2**32:
        raise BenchError(f"{what} are {'none' if samples.size == 0 else 'not one list of times'}; a simulation draws from at least one")
    if samples[0] < least:
        raise BenchError(f"{what} hold {samples[0]} ns; they are at least {least} ns")
    return samples


def _check_settings(server: Server, replicas: Replicas) -> None:
    if server.mode not in get_args(Mode) or server.sharing not in get_args(Sharing) or replicas.signal not in get_args(Signal):
        raise BenchError(f"mode {server.mode!r}, sharing {server.sharing!r} or signal {replicas.signal!r} is not one there is")
    if server.slots < 1 or not 0 <= server.minimum <= server.slots:
        raise BenchError(f"a server has at least 1 slot and 0 to that many kept, not {server.slots} and {server.minimum}")
    if server.queue_limit is not None and server.queue_limit < 0:
        raise BenchError(f"the queue limit is 0 or more, not {server.queue_limit}")
    if server.acquire_timeout_ns is not None and server.acquire_timeout_ns <= 0:
        raise BenchError("the acquire timeout is longer than 0; leave it out to wait for any time")
    if min(server.idle_timeout_ns or 0, replicas.detect_ns, replicas.cooldown_ns, replicas.above) < 0:
        raise BenchError("the idle timeout, the threshold of the scale-out rule, its detection and its cooldown are not negative")
    if not 1 <= replicas.initial <= replicas.maximum:
        raise BenchError(f"there is at least 1 replica, and at most the maximum: not {replicas.initial} of {replicas.maximum}")
