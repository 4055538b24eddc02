"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits in time and size, and two things the application needs.

What uvicorn does, stays: pipelined requests are answered in order, a client that does not read stops the writing. Added, to
what `reference_server.reading` does:

- A reply must be taken within the body timeout.
- A client that went away is no error: what is still to be written for it is dropped.
- The task that the application puts into `scope["state"]["connection"].running` is cancelled when the client goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from reference_server.limits import Limits
from reference_server.reading import RequestReader

_JOINED_BYTES = 64 * 1024  # a reply up to this is sent in one piece, a larger one without copying its tensors


class Connection(RequestReader):
    """Made by uvicorn for each connection; `limits` is set on the class that `with_limits` makes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state = {"connection": self}
        self.running: asyncio.Task[None] | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._head = b""  # status line and default headers of a reply

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

    async def answer(self, headers: bytes, chunks: Sequence[bytes | memoryview]) -> None:
        """Send a whole 200 reply to the request at hand; `headers` are lines that each end in CRLF, Content-Length among them.

        It does what uvicorn's `send` does, for a reply that needs no checks, and in one write where it is small: header and
        body in a segment each would wake the client twice.
        """
        cycle = self._answering
        assert cycle is not None
        if self._flow.write_paused and not cycle.disconnected:
            await self._flow.drain()
        if cycle.disconnected:
            return
        if cycle.default_headers is not self._default_headers:  # uvicorn makes new ones each second
            self._default_headers = cycle.default_headers
            lines = [b"%b: %b\r\n" % header for header in cycle.default_headers]
            self._head = b"".join((STATUS_LINE[200], *lines))
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        first, *rest = chunks
        head = (self._head, headers, b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", first)
        if sum(map(len, rest)) <= _JOINED_BYTES:
            self.transport.write(b"".join((*head, *rest)))
        else:
            self.transport.write(b"".join(head))
            for chunk in rest:
                self.transport.write(chunk)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

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
    return type("LimitedConnection", (Connection,), {"limits": limits})
