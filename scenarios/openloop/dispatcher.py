"""Sends each arrival at its time, whatever the answers do, and leaves one row for each.

Everything here runs as callbacks of gevent's loop: the timer's, and each connection's. After a stall the arrivals that
are overdue are sent in bounded bursts, and the loop reads answers between two bursts.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from bench.clock import now_ns
from scenarios.openloop.connections import Connection, ConnectFailed, LimitReached, Pool
from scenarios.openloop.payload import Payload
from scenarios.openloop.reply import UNKNOWN_PARTS
from scenarios.openloop.sink import ERROR, NOT_SENT, OK, SHED, TIMEOUT, WRONG, RecordSink
from scenarios.openloop.timer import make_timer
from scenarios.openloop.verify import ReplyCheck

_BURST_ROWS = 64
_BURST_NS = 1_000_000
_SWEEP_S = 0.05
_FLUSH_NS = 800_000_000
_QUIET_NS = 2_000_000
_QUIET_TRIES = 5
_STALE_NS = 5_000_000
_PAUSE_NS = 10_000_000
_COLLECT_NS = 10_000_000_000
_OPENING_S = 5.0
_OPENING_LOOK_S = 0.005
_NOT_TAKEN = "connect failed: the server did not take the connection within the deadline"
_TOO_LATE = "deadline passed before it could be sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one worker sends. `seq` and `intended_ns` (since the start) are parallel and sorted by time."""

    seq: array[int]
    intended_ns: array[int]
    request: bytes
    address: tuple[str, int]
    deadline_ns: int
    max_connections: int
    open_beforehand: int
    record: bool = True


class Dispatcher:
    """One a process. `prepare`, then `go(start_ns)`, then `ended.wait()`; `stop` ends it early. Never to be used twice."""

    def __init__(self, work: Work, *, sink: RecordSink, check: ReplyCheck) -> None:
        hub = gevent.get_hub()
        self._work = work
        self._sink = sink
        self._check = check
        self._seq = work.seq
        self._due = work.intended_ns
        self._count = len(work.seq)
        self._next = 0
        self._start_ns = 0
        self._in_flight = 0
        self._sent_ns: dict[int, int] = {}
        self._resent: set[int] = set()
        self._expiry: deque[tuple[int, int, Connection]] = deque()
        self._stop_reason: str | None = None
        self._armed_ns = 0
        self._payload = Payload(work.request)
        self._pool = Pool(address=work.address, limit=work.max_connections, owner=self, loop=hub.loop, clock=now_ns)
        self._timer = make_timer(hub.loop, self._guard(self._wake))
        self._sweep_timer = hub.loop.timer(_SWEEP_S, repeat=_SWEEP_S)
        self._recorder: Any = None
        self._unhandled: BaseException | None = None
        self.ended = Event()
        self.most_in_flight = 0
        self.pauses = 0
        self.longest_pause_ns = 0
        self.collect_ns = 0
        self._cpu_ns = 0
        self._wall_ns = 0

    def prepare(self) -> None:
        """Open the connections that are there before the start, and wait for them, though not for ever."""
        give_up = now_ns() + int(_OPENING_S * 1e9)
        self._pool.open_beforehand(self._work.open_beforehand)
        while self._pool.opening and now_ns() < give_up:
            gevent.sleep(_OPENING_LOOK_S)
        self._pool.open_no_more()

    def go(self, start_ns: int) -> None:
        """Run the schedule with `start_ns` of CLOCK_MONOTONIC as its zero. Returns at once."""
        self._start_ns = start_ns
        gc.collect()
        gc.freeze()
        gc.disable()
        self._cpu_ns = -time.process_time_ns()
        self._wall_ns = -now_ns()
        self._sweep_timer.start(self._guard(self._sweep))
        self._recorder = gevent.spawn(self._guard(self._record))
        self._arm_next()

    def stop(self, reason: str, *, patience_s: float) -> None:
        """Send nothing more, give what is in flight `patience_s`, and end. Waits for that; safe to call twice."""
        if self._recorder is None:
            self._pool.close()
            self._payload.close()
            return
        self._refuse_rest(reason)
        if not self.ended.wait(timeout=patience_s):
            for connection in list(self._pool.connections):
                if connection.number >= 0:
                    connection.close()
                    self._close_row(connection, ERROR, f"{reason} before the answer came")
            self.ended.wait(timeout=10)

    def _give_up(self, reason: str) -> None:
        self.stop(reason, patience_s=1.0)
        if not self.ended.is_set():  # the recorder itself failed: hand on what it left
            with contextlib.suppress(Exception):
                for _ in self._sink.pieces(everything=True):
                    pass
        self.ended.set()

    def generator(self) -> dict[str, Any]:
        """What the generator can say about itself after the end."""
        return {
            "timer": self._timer.kind,
            "cpu_ns": self._cpu_ns,
            "wall_ns": self._wall_ns,
            "pauses": self.pauses,
            "longest_pause_ns": self.longest_pause_ns,
            "longest_flush_ns": self._sink.longest_hold_ns,
            "flush_ns": self._sink.total_hold_ns,
            "collect_ns": self.collect_ns,
            "most_in_flight": self.most_in_flight,
            "most_connections": self._pool.most_open,
            "connections_opened": self._pool.opened,
            "values_compared": self._check.compared,
            "resent": len(self._resent),
            "failure": repr(self._unhandled) if self._unhandled else None,
        }

    # The hot path.

    def _wake(self) -> None:
        now = now_ns()
        late = now - self._armed_ns
        if late > _PAUSE_NS:
            self.pauses += 1
            self.longest_pause_ns = max(self.longest_pause_ns, late)
        start, due, index = self._start_ns, self._due, self._next
        last = min(self._count, index + _BURST_ROWS)
        until = now + _BURST_NS
        while index < last:
            intended = start + due[index]
            if intended > now:
                now = now_ns()
                if intended > now:
                    break
            self._next = index + 1
            self._send(index, intended, now)
            index += 1
            now = now_ns()
            if now > until:
                break
        self._arm_next()

    def _arm_next(self) -> None:
        if self._next < self._count:
            self._armed_ns = self._start_ns + self._due[self._next]
            now = now_ns()
            if self._armed_ns < now:
                self._armed_ns = now  # overdue by our own doing: not a pause of the machine
            self._timer.arm(self._armed_ns)
        elif not self._in_flight:
            self._finish()

    def _send(self, index: int, intended: int, now: int) -> None:
        deadline = intended + self._work.deadline_ns
        if now >= deadline:
            self._not_sent(index, _TOO_LATE)
            return
        try:
            connection = self._pool.send(index, self._payload)
        except LimitReached as error:
            self._not_sent(index, str(error))
            return
        except ConnectFailed as error:
            self._not_sent(index, f"connect failed: {error}")
            return
        self._in_flight += 1
        if self._in_flight > self.most_in_flight:
            self.most_in_flight = self._in_flight
        self._expiry.append((deadline, index, connection))

    def first_byte_sent(self, connection: Connection, sent_ns: int) -> None:
        self._sent_ns.setdefault(connection.number, sent_ns)

    def answered(self, connection: Connection) -> None:
        done = now_ns()
        reply = connection.reply
        error = -1
        parts = UNKNOWN_PARTS
        try:
            if reply.status == 200:
                reason = self._check(reply.body, reply.json_length, self._seq[connection.number])
                if reason is None:
                    status = OK
                else:
                    status, error = WRONG, self._sink.text(reason)
            else:
                status = SHED if reply.status in (429, 503) else ERROR
                error = self._sink.text(f"HTTP {reply.status}")
            if reply.timing:
                parts = reply.parts_ns()
        except Exception as failure:  # one odd answer may cost its own row, never the run
            status, error = WRONG, self._sink.text(f"the answer cannot be judged ({type(failure).__name__}: {failure})"[:200])
        index = connection.number
        start = self._start_ns
        sent = self._sent_ns.pop(index, done)
        self._in_flight -= 1
        if self._work.record:
            self._sink.add(
                self._seq[index],
                self._due[index],
                sent - start,
                done - start,
                status,
                reply.status,
                error,
                len(reply.body),
                connection.connect_ns,
                parts,
            )
        if not self._in_flight and self._next == self._count:
            self._finish()

    def failed(self, connection: Connection, reason: str) -> None:
        index = connection.number
        sent = self._sent_ns.get(index)
        if sent is None:
            self._close_row(connection, NOT_SENT, f"connect failed: {reason}")
        elif connection.used and not connection.reply.started and now_ns() - sent < _STALE_NS and index not in self._resent:
            # The server let an idle connection go in the moment in which we used it: as browsers do, send once more.
            self._resent.add(index)
            self._in_flight -= 1
            self._send(index, self._start_ns + self._due[index], now_ns())
            if not self._in_flight and self._next == self._count:
                self._finish()
        else:
            self._close_row(connection, ERROR, reason)

    # Beside the hot path.

    def _not_sent(self, index: int, reason: str) -> None:
        sent = self._sent_ns.pop(index, None)  # known only where it was to be sent once more
        status, sent_ns, done_ns = (NOT_SENT, -1, -1) if sent is None else (ERROR, sent - self._start_ns, now_ns() - self._start_ns)
        if self._work.record:
            self._sink.add(self._seq[index], self._due[index], sent_ns, done_ns, status, -1, self._sink.text(reason), -1, -1, UNKNOWN_PARTS)

    def _close_row(self, connection: Connection, status: int, reason: str) -> None:
        """The row of a request that got no whole answer."""
        index = connection.number
        connection.number = -1
        done = now_ns() - self._start_ns
        sent = self._sent_ns.pop(index, None)
        if sent is None:
            status = NOT_SENT
        http = connection.reply.status or -1
        self._in_flight -= 1
        if self._work.record:
            self._sink.add(
                self._seq[index],
                self._due[index],
                -1 if sent is None else sent - self._start_ns,
                -1 if sent is None else done,
                status,
                http,
                self._sink.text(reason),
                -1,
                -1 if sent is None else connection.connect_ns,
                UNKNOWN_PARTS,
            )
        if not self._in_flight and self._next == self._count:
            self._finish()

    def _sweep(self) -> None:
        now = now_ns()
        expiry = self._expiry
        while expiry:
            deadline, index, connection = expiry[0]
            if connection.number == index:
                if deadline > now:
                    break
                connection.close()
                unsent = _TOO_LATE if connection.connected else _NOT_TAKEN
                self._close_row(connection, TIMEOUT, "no answer within the deadline" if connection.wrote else unsent)
            expiry.popleft()
        if self._next < self._count:
            self._pool.refill(self._work.open_beforehand)

    def _refuse_rest(self, reason: str) -> None:
        """Everything not yet sent becomes a row. In pieces: a long schedule has many."""
        if self._stop_reason is not None:
            return
        self._stop_reason = reason
        first, self._next = self._next, self._count
        self._timer.close()
        for index in range(first, self._count):
            self._not_sent(index, reason)
            if index % 4096 == 0:
                gevent.sleep(0)
        if not self._in_flight:
            self._finish()

    def _finish(self) -> None:
        if self._wall_ns <= 0:
            self._wall_ns += now_ns()
            self._cpu_ns += time.process_time_ns()
            self._sweep_timer.stop()
            self._sweep_timer.close()
            self._timer.close()
            self._pool.close()
            self._payload.close()

    def _record(self) -> None:
        """The recorder greenlet: hands rows on at least once a second, between the sends."""
        flushed = collected = now_ns()
        while True:
            finished = self._wall_ns > 0
            now = now_ns()
            if finished or now - flushed > _FLUSH_NS or self._sink.waiting > 2048:
                if not finished:
                    self._await_quiet()
                self._correct()
                for _ in self._sink.pieces(everything=finished or now - flushed > _FLUSH_NS):
                    gevent.sleep(0)
                    if not finished:
                        self._await_quiet()
                    self._correct()  # rows that came meanwhile may leave with the next piece
                if now - flushed > _FLUSH_NS:
                    flushed = now
            if finished:
                break
            if now - collected > _COLLECT_NS:
                # Reference counting frees nearly everything; what is left in cycles must not grow for hours.
                before = now_ns()
                gc.collect(1)
                self.collect_ns = max(self.collect_ns, now_ns() - before)
                collected = now
            gevent.sleep(0.02)
        gc.enable()
        gc.unfreeze()
        self.ended.set()

    def _correct(self) -> None:
        for seq, reason in self._check.compare_samples().items():
            self._sink.correct(seq, WRONG, reason)

    def _await_quiet(self) -> None:
        """Return when no send is due for a moment. Where sends are too dense for that, waiting would only cost time."""
        for _ in range(_QUIET_TRIES):
            if self._next >= self._count or self._start_ns + self._due[self._next] - now_ns() > _QUIET_NS:
                return
            gevent.sleep(0.001)

    def _guard(self, callback: Callable[[], None]) -> Callable[[], None]:
        """The loop prints what a callback raises and goes on without it: a run must end instead."""

        def guarded() -> None:
            try:
                callback()
            except Exception as error:
                logging.getLogger(__name__).exception("the dispatcher failed")
                self._unhandled = error
                gevent.spawn(self._give_up, f"the generator failed: {error!r}")

        return guarded
