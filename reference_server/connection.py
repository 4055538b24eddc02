"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits in time and size, and two things the application needs.

What uvicorn does, stays: pipelined requests are answered in order, a client that does not read stops the writing. Added:

- A request must arrive within the header and the body timeout (408), a reply must be taken within the body timeout; headers
  have a limit (431). So neither a slow-loris nor a half-open connection stays for ever.
- Nothing more is read while more than a few requests wait behind the one being answered, so a client that pipelines has as
  little memory here as any other.
- A body is joined once, when it is complete, instead of being copied piece by piece; a body in tiny chunks takes no more
  memory than any other. The rest of a large one is received where it will lie.
- A client that went away is no error: what is still to be written for it is dropped.
- `scope["state"]["first_byte_ns"]` is when the request's first byte was seen (bench.clock), and the task that the application
  puts into `scope["state"]["connection"].running` is cancelled when the client goes away.

This leans on names of uvicorn that it does not document; tests/test_server.py would tell if they moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from bench.clock import now_ns
from reference_server.bodies import Body, BodyReceiver
from reference_server.documents import error_document
from reference_server.limits import Limits
from reference_server.responses import Receive, Scope, Send, reply_error

MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 8  # requests that wait behind the one being answered; with more of them nothing is read
_PARSED_AT_ONCE = 16 * 1024  # bytes: bounds the requests that one look at the pipeline's length can be late by
_JOINED_BYTES = 64 * 1024  # a reply up to this is sent in one piece, a larger one without copying its tensors
_IDLE, _HEADERS, _BODY = 0, 1, 2


class _Flow(FlowControl):
    """uvicorn resumes the reading after every answer and for every body; `full` overrules it."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """Made by uvicorn for each connection; `limits` is set on the class that `with_limits` makes."""

    limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state = {"connection": self}
        self.running: asyncio.Task[None] | None = None
        self._silent = True  # it never said a word
        self._phase = _HEADERS  # a connection that says nothing is a request whose headers do not come
        self._armed = _IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None  # `cycle` is the one that came last
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._head = b""  # status line and default headers of a reply
        self._unread = memoryview(b"")  # received, but not parsed while the pipeline is full
        self._bypassing = False  # the body that is coming no longer goes through the parser
        self._refused = False  # the last answer is decided; what the client still sends is dropped
        self._body = Body()  # that is coming
        self._header_bytes = 0  # of the headers that are coming, in the pieces before this one
        self._piece_bytes = 0  # of what is being parsed
        self._behind = False  # in this piece, another message ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_client()
        super().connection_lost(exc)
        self._phase = _IDLE
        self._watch()
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

    # Reading

    def data_received(self, data: bytes) -> None:
        self._silent = False
        if len(data) <= _PARSED_AT_ONCE and not self._unread and not self._bypassing:
            self._parse(data)
            if len(self.pipeline) > MAX_PIPELINED:
                self._stop_reading()
        else:
            self._unread = memoryview(b"".join((self._unread, data)) if self._unread else data)
            self._parse_unread()

    def _parse_unread(self) -> None:
        while self._unread:
            if len(self.pipeline) > MAX_PIPELINED:
                self._stop_reading()
                return
            size = _PARSED_AT_ONCE
            if self._phase == _BODY and (self._bypassing or len(self._unread) > size):
                left = self._body.left(self.headers)
                self._bypassing = left > 0
                size = left or size
            piece, self._unread = self._unread[:size], self._unread[size:]
            self._parse(piece)
        if self._bypassing:
            self._receive_in_place()

    def _receive_in_place(self) -> None:
        """Let what is missing of a body be received where it will lie, if it is to be kept at all."""
        if self.cycle.response_complete or self._refused or self.transport.is_closing():
            return
        rest = self._body.receive_in_place(self.limits.max_body_bytes)
        if rest is not None:
            self.transport.set_protocol(BodyReceiver(self, rest, self._received_in_place))

    def _received_in_place(self, size: int) -> None:
        self._unset_keepalive_if_required()
        self._body.received += size
        if self._body.left(self.headers) == 0:
            self.transport.set_protocol(self)
            self._end_body()
            self._after_piece()

    def _stop_reading(self) -> None:
        self._flow.full = True
        self._flow.pause_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._flow.full and len(self.pipeline) <= MAX_PIPELINED // 2 and not self._refused and not self.transport.is_closing():
            self._flow.full = False
            self._parse_unread()
            self._flow.resume_reading()

    def _parse(self, data: bytes | memoryview) -> None:
        if self._refused or self.transport.is_closing():
            self._unread = memoryview(b"")
            return
        self._behind = False
        self._piece_bytes = len(data)
        if self._bypassing:
            self._unset_keepalive_if_required()
            self._take_body(data)
        else:
            super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._phase == _HEADERS:
            if not self._behind:  # else only a part of this piece is theirs; when they are complete, all are counted exactly
                self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self._refused:
                self.url = b"/"  # it may not have come to its end
                self._refuse_in_turn(431, _TOO_MANY_HEADERS)
        self._after_piece()

    def _after_piece(self) -> None:
        if self._phase != self._armed:
            self._watch()
        elif self._phase == _IDLE and self.timeout_keep_alive_task is None and self.cycle is not None and self.cycle.response_complete:
            # The rest of a body came after its reply: uvicorn has stopped the keep-alive timer and would not start it again.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _take_body(self, piece: bytes | memoryview) -> None:
        """The parser would only copy what is known to be body."""
        self.on_body(piece)  # kept as it is, and joined at the end
        if self._body.left(self.headers) == 0:
            self._end_body()

    def _end_body(self) -> None:
        """The body went past the parser."""
        self._bypassing = False
        self.parser = httptools.HttpRequestParser(self)  # the old one waits for what it was not shown
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.on_message_complete()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["first_byte_ns"] = now_ns()
        self._phase = _HEADERS
        self._header_bytes = 0
        self._body = Body()

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        problem = None
        if self._header_bytes + self._piece_bytes > MAX_HEADER_BYTES and self._exact_header_bytes() > MAX_HEADER_BYTES:
            problem = 431, _TOO_MANY_HEADERS
        elif [name for name, _ in self.headers].count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            problem = 400, "an HTTP/1.1 request has one Host header"  # RFC 9112, 3.2
        if problem is None:
            super().on_headers_complete()
        else:
            self._refuse_in_turn(*problem)

    def _refuse_in_turn(self, status: int, message: str) -> None:
        """Answer this request so, after those before it, and close."""
        app, self.app = self.app, _refusal(status, message)
        try:
            super().on_headers_complete()
        finally:
            self.app = app
        self._refused = True

    def _exact_header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)  # `: ` and the line's end

    def on_body(self, body: bytes | memoryview) -> None:
        self._body.received += len(body)
        if self.cycle.response_complete or self._refused:
            return  # answered already (too large, say): the rest is read and dropped, so that the client can read the answer
        self._body.add(body)
        if self._body.received > self.limits.max_body_bytes:
            self._hand_over_body()

    def on_message_complete(self) -> None:
        self._phase = _IDLE
        self._behind = True
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            self._hand_over_body()

    def _hand_over_body(self) -> None:
        # uvicorn passes `bytes(cycle.body)` on, and bytes() of bytes is the same object: no copy is made.
        self.cycle.body = self._body.take(self.cycle.body)  # type: ignore[assignment]
        self.cycle.message_event.set()

    async def take_body(self) -> bytes | memoryview | None:
        """The whole body of the request at hand, read-only; None where the client went away before it was there.

        For a request whose Content-Length is within the limit: such a body is handed over when it is complete. Unlike
        uvicorn's `receive` it copies nothing, and does not wait for what is here.
        """
        cycle = self._answering
        assert cycle is not None
        if cycle.more_body and not cycle.disconnected:
            if cycle.waiting_for_100_continue and not self.transport.is_closing():
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                cycle.waiting_for_100_continue = False
            self._flow.resume_reading()
            await cycle.message_event.wait()
        if cycle.more_body or cycle.disconnected:
            return None
        body: Any = cycle.body  # bytes or a memoryview, whatever uvicorn says: see _hand_over_body
        cycle.body = bytearray()
        return body  # type: ignore[no-any-return]

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

    # Timers

    def _watch(self) -> None:
        """Run the timer of the phase that reading is in, and no other."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._armed = self._phase
        if self._phase != _IDLE:
            timeout_ns = self.limits.header_timeout_ns if self._phase == _HEADERS else self.limits.body_timeout_ns
            self._deadline = self.loop.call_later(timeout_ns / 1e9, self._too_slow)

    def _too_slow(self) -> None:
        cycle = self.cycle
        earlier_runs = cycle is not None and not cycle.response_complete and (self._phase == _HEADERS or cycle.scope is not self.scope)
        if self.flow.read_paused or self.pipeline or earlier_runs:
            self._watch()  # the server is not reading, or owes an earlier answer first: not the client's slowness
        elif self._silent:
            self._abort()
        elif self._phase == _BODY and cycle.response_started:
            self.transport.close()
        else:
            what = "headers" if self._phase == _HEADERS else "body"
            self._refuse(408, f"the request's {what} did not arrive in time")

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

    # Answers that no application sees

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade (h2c, WebSocket) is ignored, as RFC 9110 7.8 allows, but the parser stops there: the answer is the last."""
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close. Where an earlier request still waits for its answer, close after that instead."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body or self.pipeline):
            cycle.keep_alive = False
            return
        if not self.transport.is_closing():
            body = error_document(message)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(b"".join((STATUS_LINE[status], head, body)))
        self.transport.close()


_TOO_MANY_HEADERS = f"the headers have more than {MAX_HEADER_BYTES} bytes"


def _refusal(status: int, message: str) -> Any:
    """An application that answers so, and closes the connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await reply_error(send, status, message, (b"connection", b"close"))

    return refuse


def with_limits(limits: Limits) -> type[Connection]:
    """The protocol class to give to uvicorn."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
