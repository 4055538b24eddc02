"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits in time and size, and what the application needs.

What uvicorn does, stays: pipelined requests are answered in order, a client that does not read stops the writing. Added, to
what `reference_server.reading` does:

- A reply must be taken within the body timeout.
- A client that went away is no error: what is still to be written for it is dropped.
- The task that the application puts into `scope["state"]["connection"].running` is cancelled when the client goes away.
- A slot's thread may write a reply to the socket itself (`send_directly`). While a request is being answered nobody else
  writes, so all it takes is that nothing written before is still to be sent, and that the socket is not closed meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from reference_server.limits import Limits
from reference_server.reading import RequestReader

JOINED_BYTES = 64 * 1024  # a reply up to this is sent in one piece, a larger one without copying its tensors
_LAST = b"connection: close\r\n\r\n"


class Connection(RequestReader):
    """Made by uvicorn for each connection; `limits` and `sent_directly` are set on the class that `with_limits` makes."""

    # Replies that slots' threads have sent, on any connection of the server, and what the event loop is still to do for each.
    sent_directly: deque[tuple[Connection, Callable[[], None]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state = {"connection": self}
        self.running: asyncio.Task[None] | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""  # the same, as they go out
        self._writing = threading.Lock()  # held while a slot's thread uses the socket
        self._socket: int | None = None  # its descriptor, as long as it is ours
        self._left = b""  # of a reply that was sent directly: what the socket did not take

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # else the last 64 KB of what a client does not take would have no timeout
        found = transport.get_extra_info("socket")
        self._socket = None if found is None else found.fileno()

    def data_received(self, data: bytes) -> None:
        if self.sent_directly:
            self.settle()  # whoever sends this may have read those replies: to them the requests are over
        super().data_received(data)

    async def take_body(self) -> bytes | memoryview | None:
        body = await super().take_body()
        if self.sent_directly:
            self.settle()  # the body may have come past data_received, or have lain here
        return body

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_client()
        super().connection_lost(exc)
        self._stop_write_deadline()
        if self.running is not None:
            self.running.cancel()

    @property
    def client_gone(self) -> bool:
        """Whether nothing can be written any more."""
        return self.transport.is_closing()

    def forget_client(self) -> None:
        """The client is gone: what is being answered ends in silence, and what waits behind it is not begun."""
        self.pipeline.clear()
        self._unread = memoryview(b"")
        with self._writing:
            self._socket = None  # the event loop will close it, and its number may be another client's at once
        self.settle()
        answering = self._answering
        if answering is not None and not answering.response_complete:  # uvicorn tells only the request that came last
            answering.disconnected = True
            answering.message_event.set()

    def _abort(self) -> None:
        self.forget_client()
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self.tasks.add(self.loop.create_task(self._run(cycle, app)))

    async def _run(self, cycle: RequestResponseCycle, app: Any) -> None:
        """As uvicorn, but without a callback for the task's end, which would take one more turn of the loop."""
        try:
            await cycle.run_asgi(app)
        finally:
            task = asyncio.current_task(self.loop)
            assert task is not None
            self.tasks.discard(task)

    # Answering

    async def answer(self, headers: bytes, chunks: Sequence[bytes | memoryview], *, status: int = 200, close: bool = False) -> None:
        """Send a whole reply to the request at hand; `headers` are lines that each end in CRLF, Content-Length among them.

        `close`: it is the connection's last. This does what uvicorn's `send` does, for a reply that needs no checks, and in one
        write where it is small: header and body in a segment each would wake the client twice.
        """
        cycle = self._answering
        assert cycle is not None
        if self._flow.write_paused and not cycle.disconnected:
            await self._flow.drain()
        if cycle.disconnected:
            return
        if close:
            cycle.keep_alive = False
        self._make_default_lines(cycle)
        self._begin_answer(cycle)
        first, *rest = chunks
        head = (STATUS_LINE[status], self._default_lines, headers, b"\r\n" if cycle.keep_alive else _LAST, first)
        if sum(map(len, rest)) <= JOINED_BYTES:
            self.transport.write(b"".join((*head, *rest)))
        else:
            self.transport.writelines((b"".join(head), *rest))
        self._end_answer(cycle)

    def _make_default_lines(self, cycle: RequestResponseCycle) -> None:
        if cycle.default_headers is not self._default_headers:  # uvicorn makes new ones each second
            self._default_headers = cycle.default_headers
            self._default_lines = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])

    def _begin_answer(self, cycle: RequestResponseCycle) -> None:
        cycle.response_started = True
        cycle.waiting_for_100_continue = False

    def _end_answer(self, cycle: RequestResponseCycle) -> None:
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    # Answering from a slot's thread

    def may_send_directly(self) -> bool:
        """Whether a slot's thread may send the reply to the request at hand: nothing is left to be sent before it."""
        if self._socket is None or self.transport.get_write_buffer_size():
            return False
        assert self._answering is not None
        self._make_default_lines(self._answering)
        return True

    def send_directly(self, headers: bytes, chunks: Sequence[bytes | memoryview], ended: Callable[[], None]) -> bool:
        """As `answer`, but for a slot's thread, and without waiting: what the socket does not take, the event loop sends.

        `ended` is then called on the event loop, at the latest in the `settle` that the thread has to ask for; it calls
        `sent`. False where the connection is lost: nothing was sent then, nor will `ended` be called.
        """
        cycle = self._answering
        assert cycle is not None
        data = b"".join((STATUS_LINE[200], self._default_lines, headers, b"\r\n" if cycle.keep_alive else _LAST, *chunks))
        with self._writing:
            if self._socket is None:
                return False
            self.sent_directly.append((self, ended))  # before the client can know: see data_received
            try:
                self._left = data[os.write(self._socket, data) :]
            except OSError:  # it takes nothing now, or never again; the event loop finds out which
                self._left = data
        return True

    def settle(self) -> None:
        """Do what is still to be done for replies that slots' threads have sent."""
        while self.sent_directly:
            connection, ended = self.sent_directly.popleft()
            with connection._writing:  # it may be sending right now
                pass
            ended()

    def sent(self) -> None:
        """The reply to the request at hand was sent directly: go on as after any other."""
        cycle, left = self._answering, self._left
        assert cycle is not None
        self._left = b""
        self.running = None
        self._begin_answer(cycle)
        if left and not self.client_gone:
            self.transport.write(left)
        self._end_answer(cycle)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.body_timeout_ns / 1e9, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_deadline()

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


def with_limits(limits: Limits) -> type[Connection]:
    """The protocol class to give to uvicorn."""
    return type("LimitedConnection", (Connection,), {"limits": limits, "sent_directly": deque()})
