"""How far a worker's clock is from the master's: pings over Locust's own channel, of which the shortest round trip wins.

Both ends read CLOCK_MONOTONIC, which has another zero on each host (and in each time namespace, time_namespaces(7)). A ping
leaves at s and its answer is back at e on the master's clock; in between, the worker read t on its own. However the way there
and back divide the time between them, the offset t − (s + e) / 2 is wrong by at most (e − s) / 2 (Cristian, Distributed
Computing 3, 1989): so the fastest ping says most, and half of its round trip is what is stated as the uncertainty.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gevent.event import Event

from bench.clock import now_ns

PINGS = 64
ENOUGH_PINGS = 8
ENOUGH_NS = 500_000_000
"""A worker far away answers fewer than PINGS: after this time ENOUGH_PINGS will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """One answered ping: sent and received on the master's clock, answered on the worker's. All in ns."""

    sent_ns: int
    answered_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        return self.received_ns - self.sent_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """A worker's clock minus the master's, ns. The true offset is at most `uncertainty_ns` away."""

    offset_ns: int
    uncertainty_ns: int
    round_trip_ns: int
    pings: int


ONE_CLOCK = ClockOffset(offset_ns=0, uncertainty_ns=0, round_trip_ns=0, pings=0)
"""Of a run in one process: there is nothing to measure."""


def estimate(pings: Sequence[Ping]) -> ClockOffset:
    """The offset that the fastest of the pings tells. Raises ValueError without pings."""
    best = min(pings, key=lambda ping: ping.round_trip_ns)
    return ClockOffset(
        offset_ns=best.answered_ns - (best.sent_ns + best.received_ns) // 2,
        uncertainty_ns=best.round_trip_ns // 2 + 1,  # both halvings round down
        round_trip_ns=best.round_trip_ns,
        pings=len(pings),
    )


def host_mark() -> str:
    """Equal in two processes where they run on the same boot of the same host; the host's name where the system tells no boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


def clock_mark() -> str:
    """Equal in two processes where they share CLOCK_MONOTONIC, as far as the system can tell: same host, same time namespace."""
    try:
        namespace = str(Path("/proc/self/ns/time").readlink())
    except OSError:
        namespace = ""
    return f"{host_mark()} {namespace}"


class Pinger:
    """Pings one worker, one ping at a time: the next one leaves when the last one is answered."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._begun_ns = now_ns()
        self.pings: list[Ping] = []
        self.ended = Event()

    def ping(self) -> None:
        self._send({"sent_ns": now_ns()})

    def take_answer(self, data: dict[str, Any]) -> None:
        """An answer came: `data` is what the ping said, with `answered_ns` on the worker's clock and `received_ns`."""
        ping = Ping(sent_ns=data["sent_ns"], answered_ns=data["answered_ns"], received_ns=data["received_ns"])
        self.pings.append(ping)
        enough = len(self.pings) >= ENOUGH_PINGS and ping.received_ns - self._begun_ns > ENOUGH_NS
        if enough or len(self.pings) >= PINGS:
            self.ended.set()
        else:
            self.ping()


@dataclass(slots=True, kw_only=True)
class WorkerClock:
    """What is known of one worker's clock: the offset that the start was shifted by, and the offset after the end."""

    worker: int
    host: str
    shared: bool
    start: ClockOffset
    end: ClockOffset | None = None

    def to_json(self) -> dict[str, Any]:
        end = self.end
        return {
            "worker": self.worker,
            "host": self.host,
            "shared": self.shared,
            "offset_ns": self.start.offset_ns,
            "uncertainty_ns": self.start.uncertainty_ns,
            "round_trip_ns": self.start.round_trip_ns,
            "pings": self.start.pings,
            "end_offset_ns": None if end is None else end.offset_ns,
            "end_uncertainty_ns": None if end is None else end.uncertainty_ns,
        }


def clock_of(worker: int, host: str, measured: ClockOffset, *, same_mark: bool) -> WorkerClock:
    """The clock of a worker that was pinged. It is this process's own, and the offset exactly 0, where both say so and no ping
    contradicts it: marks alone do not do, because virtual machines that were started from one memory image name the same boot."""
    shared = same_mark and abs(measured.offset_ns) <= measured.uncertainty_ns
    start = replace(measured, offset_ns=0, uncertainty_ns=0) if shared else measured
    return WorkerClock(worker=worker, host=host, shared=shared, start=start)
