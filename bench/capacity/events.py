"""The event loop of the simulation, compiled: bench.capacity.simulation says what it does, this module how.

Events wait in a heap (a slot becomes free, a slot is made, a replica is ready, idle slots are looked at). Arrivals are walked in
order, and so are timeouts, since one that waits longer expires earlier. What happens at the same nanosecond happens in
the order of the kinds below, then timeouts, then a scale-out, then an arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

FREE, MADE, READY, SHRINK = range(4)
_ORDER_BITS = 56  # below the kind in an event's rank: the number of the event
_NEVER = int(np.iinfo(np.int64).max)
_OK, _SHED, _TIMEOUT = 0, 1, 2

STREAMS = ("overhead", "load", "slot", "unload", "start", "service")
_OVERHEAD, _LOAD, _SLOT, _UNLOAD, _START, _SERVICE = range(len(STREAMS))


def _compiled(function: Callable[..., Any]) -> Any:
    """Compiled once and kept beside the source or in the user's cache; where neither can be written, compiled in each process."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)


_GAMMA, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@_compiled
def _draw(s, stream, index, level):  # type: ignore[no-untyped-def]
    """One of the samples: the index-th number of the stream says which. SplitMix64 (Steele, Lea, Flood 2014), reached by its counter."""
    z = s.streams[stream] + _GAMMA * np.uint64(index + 1)
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    z = z ^ (z >> _31)
    first, end = s.starts[stream + level], s.starts[stream + level + 1]
    return s.samples[first + np.int64(((z >> _32) * np.uint64(end - first)) >> _32)]


@_compiled
def _service(s, request, busy):  # type: ignore[no-untyped-def]
    levels = len(s.starts) - 1 - _SERVICE
    drawn = _draw(s, _SERVICE, request, min(busy, levels) - 1)
    return drawn if busy <= levels else drawn * busy // levels


@_compiled
def _push(s, heap, t, kind, r, slot):  # type: ignore[no-untyped-def]
    total = s.totals[0]
    total.events += 1
    heapq.heappush(heap, (t, (np.int64(kind) << _ORDER_BITS) + total.events, np.int64(r), np.int64(slot)))


# The clock of slotless loading, and whose fault a wait was: reference_server.jobs.


@_compiled
def _barren(s, r, t):  # type: ignore[no-untyped-def]
    replica = s.replica[r]
    return replica.barren_ns if replica.barren_since_ns < 0 else replica.barren_ns + t - replica.barren_since_ns


@_compiled
def _set_barren(s, r, t):  # type: ignore[no-untyped-def]
    replica = s.replica[r]
    replica.barren_ns = _barren(s, r, t)
    replica.barren_since_ns = t if replica.slots == 0 and replica.making > 0 else -1


@_compiled
def _caused(s, r, slot, request, t):  # type: ignore[no-untyped-def]
    """The part of the request's wait until now that a load caused, given that this slot serves it."""
    made = s.slot[r, slot]
    came, came_barren, barren = s.arrivals_ns[request], s.request[request].barren_ns, _barren(s, r, t)
    if made.ended_ns <= came:
        return barren - came_barren
    from_ns, from_barren = came, came_barren
    if made.began_ns > came:
        from_ns, from_barren = made.began_ns, made.began_barren_ns
    return (from_barren - came_barren) + (made.ended_ns - from_ns) + (barren - made.ended_barren_ns)


# Slots.


@_compiled
def _begin(s, heap, t, r, slot, request):  # type: ignore[no-untyped-def]
    """The slot takes the request; all its times are known now."""
    rule, total, replica = s.rules[0], s.totals[0], s.replica[r]
    replica.in_use += 1
    total.in_use += 1
    came = s.arrivals_ns[request]
    load, after = np.int64(0), np.int64(0)
    if rule.cold:
        load, after = _draw(s, _LOAD, request, 0), _draw(s, _UNLOAD, request, 0)
        total.held_slots += 1
        total.held_engines += 1
        s.request[request].load_ns, s.request[request].pool_ns = load, t - came
    elif t > came:
        caused = _caused(s, r, slot, request, t)
        s.request[request].load_ns, s.request[request].pool_ns = caused, t - came - caused
    service = _service(s, request, replica.in_use)
    s.request[request].service_ns = service
    ended = t + load + service
    s.request[request].response_ns = ended - came + _draw(s, _OVERHEAD, request, 0)
    _push(s, heap, ended + after, FREE, r, slot)


@_compiled
def _give(s, heap, t, r, slot):  # type: ignore[no-untyped-def]
    """A free slot goes to the head of the queue, or rests."""
    replica = s.replica[r]
    if replica.waiting > 0:
        _begin(s, heap, t, r, slot, _leave(s, r))
        return
    s.resting[r, replica.resting] = slot
    replica.resting += 1
    _plan_shrink(s, heap, t, r)


@_compiled
def _leave(s, r):  # type: ignore[no-untyped-def]
    """Take the head of the queue out of it."""
    replica = s.replica[r]
    request = replica.head
    replica.head = s.request[request].following
    replica.waiting -= 1
    s.totals[0].waiting -= 1
    s.request[request].following = -1
    return request


@_compiled
def _wanted(s, r, waiting):  # type: ignore[no-untyped-def]
    rule, replica = s.rules[0], s.replica[r]
    return max(rule.floor, min(rule.ceiling, replica.slots - replica.resting + waiting))


@_compiled
def _grow(s, heap, t, r):  # type: ignore[no-untyped-def]
    rule, total, replica = s.rules[0], s.totals[0], s.replica[r]
    missing = _wanted(s, r, replica.waiting) - replica.slots - replica.making
    if rule.one_load_first and replica.engine_ns > t:
        missing = min(missing, 1 - replica.making)
    for _ in range(missing):
        replica.spare -= 1
        slot = s.spare[r, replica.spare]
        made_ns = t + _draw(s, _SLOT, total.makings, 0)
        if not rule.one_load_first:
            made_ns += _draw(s, _LOAD, total.makings, 0)
            total.held_engines += 1
        elif replica.engine_ns > t:
            wait_ns = max(t, replica.unloaded_ns) - t
            load_ns = _draw(s, _LOAD, total.makings, 0)
            replica.engine_ns = t + wait_ns + load_ns
            made_ns += wait_ns + load_ns
            total.held_engines += 1
        total.makings += 1
        total.held_slots += 1
        replica.making += 1
        _set_barren(s, r, t)
        making = s.slot[r, slot]
        making.began_ns, making.began_barren_ns = t, _barren(s, r, t)
        _push(s, heap, made_ns, MADE, r, slot)


@_compiled
def _made(s, heap, t, r, slot):  # type: ignore[no-untyped-def]
    replica, making = s.replica[r], s.slot[r, slot]
    replica.making -= 1
    replica.slots += 1
    _set_barren(s, r, t)
    making.ended_ns, making.ended_barren_ns, making.idle_since_ns = t, _barren(s, r, t), t
    _give(s, heap, t, r, slot)
    _grow(s, heap, t, r)


@_compiled
def _freed(s, heap, t, r, slot):  # type: ignore[no-untyped-def]
    total, replica = s.totals[0], s.replica[r]
    replica.in_use -= 1
    total.in_use -= 1
    if s.rules[0].cold:
        total.held_slots -= 1
        total.held_engines -= 1
    s.slot[r, slot].idle_since_ns = t
    _give(s, heap, t, r, slot)


@_compiled
def _plan_shrink(s, heap, t, r):  # type: ignore[no-untyped-def]
    rule, replica = s.rules[0], s.replica[r]
    if rule.elastic and replica.shrink_planned == 0 and replica.slots > rule.floor:
        replica.shrink_planned = 1
        due_ns = s.slot[r, s.resting[r, 0]].idle_since_ns + rule.idle_timeout_ns
        _push(s, heap, max(t, due_ns), SHRINK, r, 0)


@_compiled
def _shrink(s, heap, t, r):  # type: ignore[no-untyped-def]
    """Drop what has rested long enough; those that rested longest come first."""
    rule, total, replica = s.rules[0], s.totals[0], s.replica[r]
    replica.shrink_planned = 0
    dropped = 0
    while (
        dropped < replica.resting
        and replica.slots > rule.floor
        and t - s.slot[r, s.resting[r, dropped]].idle_since_ns >= rule.idle_timeout_ns
    ):
        s.spare[r, replica.spare] = s.resting[r, dropped]
        replica.spare += 1
        replica.slots -= 1
        total.held_slots -= 1
        if not rule.one_load_first:
            total.held_engines -= 1
        elif replica.slots == 0 and replica.making == 0:
            replica.engine_ns = _NEVER
            replica.unloaded_ns = t + _draw(s, _UNLOAD, total.makings, 0)
            total.held_engines -= 1
        dropped += 1
    if dropped:
        _set_barren(s, r, t)
        replica.resting -= dropped
        for k in range(replica.resting):
            s.resting[r, k] = s.resting[r, k + dropped]
    if replica.resting:
        _plan_shrink(s, heap, t, r)


# Replicas.


@_compiled
def _start(s):  # type: ignore[no-untyped-def]
    """One more replica; from now on it holds what it will have when it is ready. Its number."""
    rule, total = s.rules[0], s.totals[0]
    total.started += 1
    if not rule.cold:
        total.held_slots += rule.floor
        total.held_engines += min(rule.floor, 1) if rule.one_load_first else rule.floor
    return total.started - 1


@_compiled
def _ready(s, t, r):  # type: ignore[no-untyped-def]
    rule, replica = s.rules[0], s.replica[r]
    s.totals[0].ready += 1
    replica.head, replica.tail, replica.barren_since_ns = -1, -1, -1
    replica.engine_ns = t if rule.floor > 0 else _NEVER
    replica.slots = replica.resting = rule.floor
    for k in range(rule.floor):
        s.resting[r, k] = k
        s.slot[r, k].idle_since_ns = s.slot[r, k].began_ns = s.slot[r, k].ended_ns = t
    for k in range(rule.floor, rule.ceiling):
        s.spare[r, replica.spare] = k
        replica.spare += 1


@_compiled
def _over(s):  # type: ignore[no-untyped-def]
    """Whether the signal of the scale-out rule is over its threshold."""
    rule, total = s.rules[0], s.totals[0]
    if rule.by_waiting:
        return total.waiting > rule.above * total.ready
    return total.in_use > rule.above * (total.ready * rule.ceiling)


# Requests.


@_compiled
def _least_loaded(s):  # type: ignore[no-untyped-def]
    ready = s.totals[0].ready
    if ready == 1:
        return 0
    chosen, fewest = 0, s.replica[0].waiting + s.replica[0].in_use
    for r in range(1, ready):
        found = s.replica[r].waiting + s.replica[r].in_use
        if found < fewest:
            chosen, fewest = r, found
    return chosen


@_compiled
def _arrive(s, heap, t, request):  # type: ignore[no-untyped-def]
    rule, r = s.rules[0], _least_loaded(s)
    replica = s.replica[r]
    s.request[request].replica = r
    s.request[request].barren_ns = _barren(s, r, t)
    if replica.resting > 0:
        replica.resting -= 1
        _begin(s, heap, t, r, s.resting[r, replica.resting], request)
        return
    waiting = replica.waiting + 1
    if waiting - (_wanted(s, r, waiting) - replica.slots) > rule.queue_limit:
        s.request[request].status = _SHED
        s.request[request].response_ns = _draw(s, _OVERHEAD, request, 0)
        return
    if replica.waiting == 0:
        replica.head = request
    else:
        s.request[replica.tail].following = request
    replica.tail = request
    replica.waiting = waiting
    s.totals[0].waiting += 1
    _grow(s, heap, t, r)


@_compiled
def _expire(s, t, request):  # type: ignore[no-untyped-def]
    """The request has waited longest of all, so it is the head of its queue."""
    r = s.request[request].replica
    _leave(s, r)
    waited, caused = t - s.arrivals_ns[request], _barren(s, r, t) - s.request[request].barren_ns
    s.request[request].status = _TIMEOUT
    s.request[request].load_ns, s.request[request].pool_ns = caused, waited - caused
    s.request[request].response_ns = waited + _draw(s, _OVERHEAD, request, 0)


@_compiled
def run(s):  # type: ignore[no-untyped-def]
    """Fill in the requests' arrays of the State. Gives the steps [changes, (time, replicas, slots, engines)] and the end."""
    rule, total, n = s.rules[0], s.totals[0], len(s.arrivals_ns)
    heap = [(np.int64(0), np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    for _ in range(rule.initial):
        _ready(s, np.int64(0), _start(s))
    steps, changes = np.empty((1024, 4), np.int64), 1
    steps[0] = 0, total.started, total.held_slots, total.held_engines
    coming, oldest = np.int64(0), np.int64(0)  # the next arrival; whoever has waited longest, or will have, once it came
    over_since, last_start = np.int64(-1), np.int64(-1)
    t: Any = np.int64(0)
    while coming < n or total.in_use > 0 or total.waiting > 0:
        arrival = s.arrivals_ns[coming] if coming < n else _NEVER
        event = heap[0][0] if len(heap) > 0 else _NEVER
        expiry = _NEVER
        if rule.acquire_timeout_ns > 0 and total.waiting > 0:
            # Whoever waits has neither a service time nor a refusal yet.
            while s.request[oldest].service_ns > 0 or s.request[oldest].status != _OK:
                oldest += 1
            expiry = s.arrivals_ns[oldest] + rule.acquire_timeout_ns
        start = _NEVER
        if over_since >= 0:
            start = over_since + rule.detect_ns
            if last_start >= 0:
                start = max(start, last_start + rule.cooldown_ns)
        t = min(arrival, event, expiry, start)
        if event == t:
            _, rank, r, slot = heapq.heappop(heap)
            kind = rank >> _ORDER_BITS
            if kind == FREE:
                _freed(s, heap, t, r, slot)
            elif kind == MADE:
                _made(s, heap, t, r, slot)
            elif kind == READY:
                _ready(s, t, total.ready)  # numbered as they become ready, in whatever order they were started
            else:
                _shrink(s, heap, t, r)
        elif expiry == t:
            _expire(s, t, oldest)
        elif start == t:
            ready_ns = t + _draw(s, _START, total.started, 0)
            _push(s, heap, ready_ns, READY, _start(s), 0)
            last_start = over_since = t
        else:
            _arrive(s, heap, t, coming)
            coming += 1
        if total.started < rule.maximum:
            if not _over(s):
                over_since = np.int64(-1)
            elif over_since < 0:
                over_since = t
        else:
            over_since = np.int64(-1)
        last = steps[changes - 1]
        if last[1] != total.started or last[2] != total.held_slots or last[3] != total.held_engines:
            if last[0] != t:
                if changes == len(steps):
                    longer = np.empty((2 * changes, 4), np.int64)
                    longer[:changes] = steps
                    steps = longer
                changes += 1
            steps[changes - 1] = t, total.started, total.held_slots, total.held_engines
    return steps[:changes].copy(), t
