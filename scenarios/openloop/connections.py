"""Native non-blocking connections, one watcher of gevent's loop each, and the pool that lends them.

gevent's own sockets would switch to a greenlet for each event; here the loop calls the connection directly. Nothing in
these callbacks may wait.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gevent import monkey

from scenarios.openloop.payload import Payload
from scenarios.openloop.reply import BadReply, Reply

_native_socket = monkey.get_original("socket", "socket")
_READ, _WRITE = 1, 2
_PIECE = 262_144
_OPENING_AT_ONCE = 2
_OPENING_STEP_S = 0.004
_PROBE_S = 2.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LimitReached(Exception):
    """The pool may not open another connection now. The message says which limit."""


class ConnectFailed(Exception):
    """The connection could not be made, or broke before a byte of the request was taken."""


class Owner(Protocol):
    """Who is told what becomes of a connection's request. `number` is the index of the arrival it carries."""

    def answered(self, connection: Connection) -> None: ...

    def failed(self, connection: Connection, reason: str) -> None: ...

    def first_byte_sent(self, connection: Connection, sent_ns: int) -> None: ...


class Connection:
    """One keep-alive connection: idle, or carrying one request."""

    __slots__ = (
        "_asked_ns",
        "_clock",
        "_owner",
        "_payload",
        "_pool",
        "_reader",
        "_taken",
        "_writer",
        "connect_ns",
        "connected",
        "number",
        "open",
        "reply",
        "socket",
        "used",
        "wrote",
    )

    def __init__(self, pool: Pool, owner: Owner, clock: Callable[[], int], native: Any, loop: Any, *, connected: bool) -> None:
        self._pool = pool
        self._owner = owner
        self._clock = clock
        self.socket = native
        self.reply = Reply()
        self.number = -1
        self.open = True
        self.connected = connected
        self.connect_ns = -1
        """How long the request that it carries waited for this connection to be made; -1 where it was there already."""
        self._asked_ns = 0
        self.used = False
        self.wrote = False
        self._payload: Payload | None = None  # while it is not sent whole
        self._taken = 0  # bytes of it
        self._reader = loop.io(native.fileno(), _READ)
        self._writer = loop.io(native.fileno(), _WRITE)
        self._reader.start(self._readable)
        if not connected:
            self._writer.start(self._writable)

    def send(self, number: int, payload: Payload) -> None:
        """Start to send. Raises ConnectFailed when not a byte could be taken and never will be."""
        self.number = number
        self.wrote = False
        self.connect_ns = -1
        sent_ns = self._clock()
        if not self.connected:
            self._asked_ns = sent_ns
            self._payload, self._taken = payload, 0
            return
        try:
            count = payload.send(self.socket, 0)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self.number = -1
            self.close()
            raise ConnectFailed(_reason(error)) from None
        if count:
            self.wrote = True
            self._owner.first_byte_sent(self, sent_ns)
        if count < payload.size:
            self._payload, self._taken = payload, count
            self._writer.start(self._writable)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._reader.stop()
            self._reader.close()
            self._writer.stop()
            self._writer.close()
            self.socket.close()
            self._pool.closed(self)

    def _writable(self) -> None:
        if not self.connected:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._broken(os.strerror(code))
                return
            self.connected = True
            if self.number < 0:
                self._pool.give_back(self)
        payload = self._payload
        if payload is None:
            self._writer.stop()
            return
        sent_ns = self._clock()
        try:
            count = payload.send(self.socket, self._taken)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self._refused(error)
            return
        if not self.wrote:
            self.wrote = True
            if self._asked_ns:
                self.connect_ns, self._asked_ns = sent_ns - self._asked_ns, 0
            self._owner.first_byte_sent(self, sent_ns)
        self._taken += count
        if self._taken == payload.size:
            self._payload = None
            self._writer.stop()

    def _refused(self, error: OSError) -> None:
        """The request cannot be sent on. An answer that came before the connection broke, as a refusal may, still counts."""
        number = self.number
        while self.number == number and self._readable():
            pass
        if self.number == number:
            self._broken(_reason(error))

    def _readable(self) -> bool:
        # The loop only prints what a callback raises, and the request would look as if no answer had come.
        try:
            return self._read()
        except Exception as error:
            self._broken(f"the answer cannot be read ({type(error).__name__}: {error})"[:200])
            return True

    def _read(self) -> bool:
        """Take what is there. False where nothing is."""
        try:
            data = self.socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                return False
            self._broken(_reason(error))
            return True
        if self.number < 0:
            self.close()  # idle: the server closed it, or speaks without being asked
            return True
        if not data:
            if self.reply.closed():
                self._finished()
            elif self.reply.started:
                self._broken("the connection was closed in the middle of the answer")
            else:
                self._broken("the connection was closed without an answer")
            return True
        try:
            whole = self.reply.feed(data)
        except BadReply as error:
            self._broken(str(error))
            return True
        if whole:
            self._finished()
        return True

    def _finished(self) -> None:
        early = self._payload is not None  # answered before all of it was taken, as a refusal may be
        if early:
            self._payload = None
            self._writer.stop()
        self._owner.answered(self)
        keep = self.reply.keep_alive and not early
        self.number = -1
        self.used = True
        self.reply.reset()
        if keep:
            self._pool.give_back(self)
        else:
            self.close()

    def _broken(self, reason: str) -> None:
        carrying = self.number >= 0
        self.close()
        if carrying:
            self._owner.failed(self, reason)
            self.number = -1


class Pool:
    """Connections to one address, opened beforehand and on demand up to a limit. Not one more is opened than that."""

    def __init__(self, *, address: tuple[str, int], limit: int, owner: Owner, loop: Any, clock: Callable[[], int]) -> None:
        self._family, self._kind, self._protocol, self._where = _reachable(*address)
        self.limit = limit
        self.limit_reason = f"limit of {limit} connections reached"
        self._owner = owner
        self._loop = loop
        self._clock = clock
        self._idle: deque[Connection] = deque()
        self.connections: set[Connection] = set()
        self.most_open = 0
        self.opened = 0
        self._connecting: set[Connection] = set()
        self._beforehand = 0
        self._opener = loop.timer(_OPENING_STEP_S, repeat=_OPENING_STEP_S)

    def open_beforehand(self, count: int) -> None:
        """Begin to open `count` connections (or as many as the limit allows), a few at a time: a server may have a short
        queue of connections, and one that overflows it is tried again only a second later. `opening` tells when it is done.

        Raises LimitReached or ConnectFailed where not even one can be begun.
        """
        self._beforehand = min(count, self.limit)
        if self._beforehand > len(self.connections):
            self._connecting_or_idle(self._open())
            self._opener.start(self._open_some)

    @property
    def opening(self) -> bool:
        """Whether connections that were to be there beforehand are still missing."""
        return self._beforehand > 0 and (len(self.connections) < self._beforehand or bool(self._connecting))

    def open_no_more(self) -> None:
        """The load begins: what is still connecting stays, nothing more is begun beforehand."""
        self._beforehand = 0
        self._opener.stop()

    def _open_some(self) -> None:
        missing = self._beforehand - len(self.connections)
        if missing <= 0:
            self._opener.stop()
            return
        for _ in range(min(missing, _OPENING_AT_ONCE - len(self._connecting))):
            try:
                self._connecting_or_idle(self._open())
            except (LimitReached, ConnectFailed, OSError):
                self.open_no_more()
                return

    def _connecting_or_idle(self, connection: Connection) -> None:
        if connection.connected:
            self._idle.append(connection)
        else:
            self._connecting.add(connection)

    def send(self, number: int, payload: Payload) -> Connection:
        """Send on the idle connection that rested longest (so that all are used in turn), or on a new one; where the limit
        leaves no new one, on one that is still being made.

        One that the server closed under us is passed over: nothing was sent on it. Raises LimitReached or ConnectFailed.
        """
        idle = self._idle
        while idle:
            connection = idle.popleft()
            if connection.open:
                try:
                    connection.send(number, payload)
                except ConnectFailed:
                    continue
                return connection
        try:
            connection = self._open()
        except LimitReached:
            if not self._connecting:
                raise
            connection = self._connecting.pop()
        connection.send(number, payload)
        return connection

    def refill(self, count: int) -> None:
        """Replace connections that the server let go, a few at a time, so that a spike finds them open."""
        for _ in range(min(8 - len(self._connecting), min(count, self.limit) - len(self.connections))):
            try:
                self._connecting_or_idle(self._open())
            except (LimitReached, ConnectFailed):
                return

    def give_back(self, connection: Connection) -> None:
        """It can take a request: its last one was answered, or it has just been made."""
        self._connecting.discard(connection)
        self._idle.append(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._connecting.discard(connection)

    def close(self) -> None:
        self._opener.stop()
        self._opener.close()
        for connection in list(self.connections):
            connection.number = -1
            connection.close()
        self._idle.clear()

    def _open(self) -> Connection:
        if len(self.connections) >= self.limit:
            raise LimitReached(self.limit_reason)
        try:
            native = _native_socket(self._family, self._kind, self._protocol)
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                raise LimitReached(f"no more connections: {_reason(error)}") from None
            raise
        native.setblocking(False)
        native.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = native.connect_ex(self._where)
        if code not in (0, errno.EINPROGRESS):
            native.close()
            if code in (errno.EADDRNOTAVAIL, errno.EAGAIN):
                raise LimitReached("no more connections: this host has no free port")
            raise ConnectFailed(os.strerror(code))
        connection = Connection(self, self._owner, self._clock, native, self._loop, connected=code == 0)
        self.connections.add(connection)
        self.opened += 1
        self.most_open = max(self.most_open, len(self.connections))
        return connection


def _reachable(host: str, port: int) -> tuple[int, int, int, Any]:
    """(family, kind, protocol, address) of a host: of several, the first at which somebody listens, as `localhost` may be ::1 too.
    Raises OSError where the host is not known."""
    found = [
        (family, kind, protocol, where) for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ]
    for family, kind, protocol, where in found if len(found) > 1 else ():
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.settimeout(_PROBE_S)
            probe.connect(where)
            return family, kind, protocol, where
    return found[0]


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def shared_out(limit: int, workers: int) -> list[int]:
    """How many connections each worker may have: `limit` together, and one each where the operating system leaves fewer."""
    return [max(1, limit // workers + (worker < limit % workers)) for worker in range(workers)]
