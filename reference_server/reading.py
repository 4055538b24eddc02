"""The reading half of a connection: from bytes to requests, within limits of time and size.

- A request must arrive within the header and the body timeout (408); headers and trailers have a limit (431). So neither a
  slow-loris nor a half-open connection stays for ever.
- Nothing more is read while a request waits behind the one being answered, or a large body for one who asks for it: a client
  that pipelines has as little memory here as any other. One that sends tiny chunks gives the others their turn.
- A body is joined once, when it is complete, instead of being copied piece by piece; a body in tiny chunks takes no more
  memory than any other. The rest of a large one is received where it will lie. Of one that is too large nothing is kept.
- What is wrong with a body that is coming, the application is told, and answers (`take_body`).
- `scope["state"]["first_byte_ns"]` is when the request's first byte was seen (bench.clock).

This leans on names of uvicorn that it does not document; tests/test_server.py would tell if they moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from bench.clock import now_ns
from reference_server.bodies import Body, BodyReceiver
from reference_server.documents import error_document
from reference_server.limits import Limits
from reference_server.responses import refusal
from reference_server.tensors import RequestRefused

MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 8  # requests that wait behind the one being answered; with more of them nothing is parsed
_PARSED_AT_ONCE = 16 * 1024  # bytes: bounds the requests that one look at the pipeline's length can be late by
_SMALL_AT_ONCE = 1000  # pieces of a body, each a call from the parser: some 1 ms, then the other connections have their turn
_UNASKED_BYTES = 4 * 2**20  # of a body: with more, nothing is read until the application asks for it, or has answered
IDLE, HEADERS, BODY = 0, 1, 2
_TOO_MANY_HEADERS = f"the headers have more than {MAX_HEADER_BYTES} bytes"


class _Flow(FlowControl):
    """uvicorn resumes the reading after every answer; whether that may be, the connection says."""

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._may_read = may_read

    def resume_reading(self) -> None:
        if self.read_paused and self._may_read():
            super().resume_reading()


class RequestReader(HttpToolsProtocol):
    """What comes in on one connection; reference_server.connection has the rest."""

    limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: RequestResponseCycle | None = None  # `cycle` is the one that came last
        self._silent = True  # it never said a word
        self._phase = HEADERS  # a connection that says nothing is a request whose headers do not come
        self._armed = IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._unread = memoryview(b"")  # received, but not parsed yet
        self._bypassing = False  # the body that is coming no longer goes through the parser
        self._refused = False  # the last answer is decided; what the client still sends is dropped
        self._body = Body()  # that is coming
        self._unlooked_bytes = min(_UNASKED_BYTES, self.limits.max_body_bytes)  # a body of more is looked at with each piece
        self._header_bytes = 0  # of the headers that are coming, in the pieces before this one; then of pieces without any body
        self._body_seen = 0  # bytes of the body before this piece
        self._piece_bytes = 0  # of what is being parsed
        self._behind = False  # in this piece, another message ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport, self._may_read)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unread = memoryview(b"")
        self._phase = IDLE
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._silent = False
        if len(data) <= _PARSED_AT_ONCE and not self._unread and not self._bypassing:
            self._parse(data)
            if len(self.pipeline) > MAX_PIPELINED:
                self._flow.pause_reading()
        else:
            self._unread = memoryview(b"".join((self._unread, data)) if self._unread else data)
            self._parse_unread()

    def _parse_unread(self) -> None:
        while self._unread:
            if len(self.pipeline) > MAX_PIPELINED:
                self._flow.pause_reading()  # until the last of them is being answered
                return
            if self._body.small_pieces > _SMALL_AT_ONCE:
                self._body.small_pieces = 0
                self._flow.pause_reading()
                self.loop.call_soon(self._read_on)
                return
            size = _PARSED_AT_ONCE
            if self._phase == BODY and (self._bypassing or len(self._unread) > size):
                left = self._body_left()
                self._bypassing = left > 0
                size = left or size
            piece, self._unread = self._unread[:size], self._unread[size:]
            self._parse(piece)
        if self._bypassing:
            self._receive_in_place()

    def _read_on(self) -> None:
        if self._unread:
            self._parse_unread()
        self._flow.resume_reading()

    def _may_read(self) -> bool:
        unasked = self._phase == BODY and self._body.received > self._unlooked_bytes and not self._body.asked
        return not (self._unread or self.pipeline or (unasked and not self.cycle.response_complete) or self.transport.is_closing())

    def _body_left(self) -> int:
        return self._body.left(self.scope["headers"])

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
        if self._body_left() == 0:
            self.transport.set_protocol(self)
            self._end_body()
            self._after_piece()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._flow.read_paused and not self.pipeline:
            self._read_on()

    def _parse(self, data: bytes | memoryview) -> None:
        if self._refused or self.transport.is_closing():
            self._unread = memoryview(b"")
            return
        self._behind = False
        self._piece_bytes = len(data)
        keep_alive, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        if self._bypassing:
            self._take_body(data)
        else:
            super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        if keep_alive is not None:
            if self._phase == IDLE and not self._behind:  # an empty line between requests, which is no sign of life
                self.timeout_keep_alive_task = keep_alive
            else:
                keep_alive.cancel()
        if self._phase == HEADERS:
            if not self._behind:  # else only a part of this piece is theirs; when they are complete, all are counted exactly
                self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self._refused:
                self._refuse_in_turn(431, _TOO_MANY_HEADERS)
        elif self._phase == BODY:
            self._count_trailers(len(data))
        self._after_piece()

    def _count_trailers(self, size: int) -> None:
        """Pieces in which there is nothing of the body are trailers, or what pretends to be a chunk's size."""
        if self._body.received != self._body_seen:
            self._body_seen = self._body.received
            self._header_bytes = 0
            return
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES and not self._refused:
            self._refuse(431, f"more than {MAX_HEADER_BYTES} bytes came of which nothing is the body: trailers, or a chunk's size")

    def _after_piece(self) -> None:
        if self._phase != self._armed or (self._phase != IDLE and self._behind):  # or began in the piece in which the last one ended
            self._watch()
        if self._phase == IDLE and self.timeout_keep_alive_task is None and self.cycle is not None and self.cycle.response_complete:
            # The rest of a body came after its reply: the keep-alive timer was stopped, and nobody else would start it again.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _take_body(self, piece: bytes | memoryview) -> None:
        """The parser would only copy what is known to be body."""
        self.on_body(piece)  # kept as it is, and joined at the end
        if self._body_left() == 0:
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
        self._phase = HEADERS
        self._header_bytes = 0
        self._body = Body()

    def on_headers_complete(self) -> None:
        self._phase = BODY
        problem = None
        if self._header_bytes + self._piece_bytes > MAX_HEADER_BYTES and self._exact_header_bytes() > MAX_HEADER_BYTES:
            problem = 431, _TOO_MANY_HEADERS
        elif (version := self.parser.get_http_version()) not in ("1.1", "1.0"):
            problem = 505, f"this server speaks HTTP/1.1 and HTTP/1.0, not HTTP/{version}"
        elif [name for name, _ in self.headers].count(b"host") != 1 and version == "1.1":
            problem = 400, "an HTTP/1.1 request has one Host header"  # RFC 9112, 3.2
        if problem is None:
            super().on_headers_complete()
        else:
            self._refuse_in_turn(*problem)
        self.headers = []  # what comes now are trailers, which are nothing to go by (RFC 9110, 6.5.1)
        self._header_bytes = self._body_seen = 0

    def _refuse_in_turn(self, status: int, message: str) -> None:
        """Answer this request so, after those before it, and close."""
        app, self.app = self.app, refusal(status, message)
        self.url = b"/"  # it may not have come to its end, or be longer than uvicorn takes
        try:
            super().on_headers_complete()
        finally:
            self.app = app
        self._refused = True

    def _exact_header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)  # `: ` and the line's end

    def on_body(self, body: bytes | memoryview) -> None:
        coming = self._body
        coming.received += len(body)
        if coming.refused or self.cycle.response_complete or self._refused:
            coming.small_pieces += 1
            return  # the rest is read and dropped, so that the client can read the answer
        coming.add(body)
        if coming.received > self._unlooked_bytes:
            self._look_at_size()

    def _look_at_size(self) -> None:
        limit = self.limits.max_body_bytes
        if self._body.received > limit:
            self._refuse_body(413, f"the body has more than {limit} bytes, which is the limit")
        if not self._body.asked:
            self._flow.pause_reading()

    def _refuse_body(self, status: int, message: str) -> None:
        """The application gets this instead of the body, where it asks for one."""
        self._body.refuse()
        self.cycle.body = RequestRefused(status, message)  # type: ignore[assignment]
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._phase = IDLE
        self._behind = True
        cycle = self.cycle
        if not cycle.response_complete and not self._body.refused:
            cycle.more_body = False
            cycle.body = self._body.take()  # type: ignore[assignment]
            cycle.message_event.set()

    async def take_body(self) -> bytes | memoryview | None:
        """The whole body of the request at hand, not to be written to; None where the client went away before it was there.

        Unlike uvicorn's `receive` it copies nothing, and does not wait for what is here. Raises RequestRefused where the
        body is not to be had: too large, too slow, not chunked as HTTP says.
        """
        cycle = self._answering
        assert cycle is not None
        if cycle.more_body and not cycle.disconnected:
            self._body.asked = True  # it is the body that is coming: the next request's cannot begin before this one's ended
            if cycle.waiting_for_100_continue and cycle.scope["http_version"] != "1.0" and not self.transport.is_closing():
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                cycle.waiting_for_100_continue = False
            self._flow.resume_reading()
            await cycle.message_event.wait()
        if cycle.more_body or cycle.disconnected:
            return None
        body: Any = cycle.body  # whatever uvicorn says: see on_message_complete and _refuse_body
        cycle.body = bytearray()
        if isinstance(body, RequestRefused):
            raise body
        return body  # type: ignore[no-any-return]

    # The timer

    def _watch(self) -> None:
        """Run the timer of the phase that reading is in, and no other."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._armed = self._phase
        if self._phase != IDLE:
            timeout_ns = self.limits.header_timeout_ns if self._phase == HEADERS else self.limits.body_timeout_ns
            self._deadline = self.loop.call_later(timeout_ns / 1e9, self._too_slow)

    def _too_slow(self) -> None:
        cycle = self.cycle
        earlier_runs = cycle is not None and not cycle.response_complete and (self._phase == HEADERS or cycle.scope is not self.scope)
        if self.flow.read_paused or self.pipeline or earlier_runs:
            self._watch()  # the server is not reading, or owes an earlier answer first: not the client's slowness
        elif self._silent:
            self.transport.abort()
        else:
            what = "headers" if self._phase == HEADERS else "body"
            self._refuse(408, f"the request's {what} did not arrive in time")

    # Answers that no application sees

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade (h2c, WebSocket) is ignored, as RFC 9110 7.8 allows, but the parser stops there: the answer is the last."""
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is coming so, in its turn, and close; or where its answer went out before, only close."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._phase == BODY and cycle.scope is self.scope and not cycle.response_started:
                self._refuse_body(status, message)
            cycle.keep_alive = False
            self._refused = True
            return
        if not (self._phase == BODY and cycle is not None and cycle.scope is self.scope) and not self.transport.is_closing():
            body = error_document(message)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(b"".join((STATUS_LINE[status], head, body)))
        self.transport.close()
