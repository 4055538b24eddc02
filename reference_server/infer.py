"""One inference request from its first byte to its reply, with every nanosecond of it in one of the six parts.

queue   from the first byte until the pool gets the request: receiving, the event loop, decoding
pool, load, input, infer   as the pool and the runtime say
output  all that comes after the inference: copying out, encoding; the way back to the event loop where that comes before the reply
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bench.clock import now_ns
from reference_server.connection import JOINED_BYTES
from reference_server.documents import error_document
from reference_server.jobs import InferenceFailed, Job, LoadFailed, Overloaded, fill_timing
from reference_server.log import Log
from reference_server.protocol import HEADER_LENGTH, Codec, InferReply, InferRequest
from reference_server.registry import ServedModel
from reference_server.responses import Header, Receive, Scope, Send
from reference_server.server_timing import Timing
from reference_server.tensors import RequestRefused

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HOW_IT_IS_SENT = frozenset((b"content-encoding", b"transfer-encoding", b"upgrade"))


class ClientGone(Exception):
    """The connection was lost before the request was complete."""


class Inference:
    """The infer route of one model."""

    def __init__(self, model: ServedModel, log: Log, *, max_body_bytes: int) -> None:
        self.draining = False
        self.in_flight = 0
        self._model = model
        self._codec = Codec(model.manifest)
        self._log = log
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.draining:
            message = "the server is shutting down; send the request to another one"
            await self._finish(_Call(scope), 503, "shed", message, b"retry-after: 1\r\n", close=True)
            return
        self.in_flight += 1
        try:
            await self._serve(_Call(scope))
        finally:
            self.in_flight -= 1

    async def _serve(self, call: _Call) -> None:
        try:
            body = await self._read_body(call)
            header_length = call.headers.get(b"inference-header-content-length")
            if len(call.headers) != len(call.raw_headers):
                call.check_one_header_length()
            request = self._codec.decode(body, None if header_length is None else header_length.decode("latin-1"))
            call.request = request
            answer = await self._infer(call, request)
        except RequestRefused as refused:
            await self._finish(call, refused.status, "invalid", refused.message)
        except Overloaded as overloaded:
            await self._finish(call, 503, "shed", str(overloaded), b"retry-after: %d\r\n" % overloaded.retry_after_s)
        except LoadFailed as failed:
            await self._finish(call, 500, "load_failed", str(failed))
        except InferenceFailed as failed:
            await self._finish(call, 500, "failed", str(failed))
        except ClientGone:
            self._record(call, 0, "cancelled", now_ns() - call.started_ns)
        except asyncio.CancelledError:
            if not call.connection.transport.is_closing():
                raise  # the server is being stopped, not the client
            self._record(call, 0, "cancelled", now_ns() - call.started_ns)
        else:
            if answer is not None:
                await self._send_answer(call, answer)

    async def _read_body(self, call: _Call) -> bytes | memoryview:
        headers = call.headers
        if not _HOW_IT_IS_SENT.isdisjoint(headers):
            _check_plain(call.raw_headers)
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._max_body_bytes:
            raise RequestRefused(413, f"the body has {int(length)} bytes, the limit is {self._max_body_bytes}")
        body: bytes | memoryview | None = await call.connection.take_body()
        if body is None:
            raise ClientGone
        return body

    async def _infer(self, call: _Call, request: InferRequest) -> InferReply | None:
        """None where the slot's thread has sent the reply."""
        connection = call.connection
        task = connection.running = asyncio.current_task(connection.loop)
        # With more than this request the event loop is awake anyway, and two threads that answer are in each other's way.
        alone = len(connection.tasks) == 1
        reply = _DirectReply(self, call, request) if alone and connection.may_send_directly() else None
        call.timing.queue_ns = now_ns() - call.started_ns
        try:
            outputs = await self._model.infer(request.inputs, request.names, call.timing, reply)
        finally:
            if connection.running is task:  # else the next request is being answered already
                connection.running = None
        return None if reply is not None and reply.finished else self.encode(request, outputs)

    def encode(self, request: InferRequest, outputs: Mapping[str, NDArray[Any]]) -> InferReply:
        """Any thread may ask."""
        return self._codec.encode(request, outputs)

    async def _send_answer(self, call: _Call, answer: InferReply) -> None:
        duration_ns, headers = _end_timing(call.started_ns, call.timing, answer)
        self._record(call, 200, "ok", duration_ns)
        await call.connection.answer(headers, answer.chunks)

    def sent(self, call: _Call, duration_ns: int) -> None:
        """The slot's thread has sent the reply."""
        self._record(call, 200, "ok", duration_ns)
        call.connection.sent()

    async def _finish(self, call: _Call, status: int, outcome: str, message: str, headers: bytes = b"", *, close: bool = False) -> None:
        """Answer with an error. What is in none of the parts was spent before the pool (`queue`), or after a run (`output`)."""
        timing = call.timing
        duration_ns = now_ns() - call.started_ns
        rest = duration_ns - timing.queue_ns - timing.pool_ns - timing.load_ns - timing.input_ns - timing.infer_ns - timing.output_ns
        if timing.infer_ns:
            timing.output_ns += max(rest, 0)
        else:
            timing.queue_ns += max(rest, 0)
        self._record(call, status, outcome, duration_ns)
        body = error_document(message)
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nserver-timing: %b\r\n%b"
        await call.connection.answer(lines % (len(body), server_timing(timing), headers), [body], status=status, close=close)

    def _record(self, call: _Call, status: int, outcome: str, duration_ns: int) -> None:
        request = call.request
        self._model.metrics.record(outcome, duration_ns, call.timing, () if request is None else request.shapes)
        if self._log.as_json:
            self._log.request(
                path=call.path,
                model=self._model.manifest.name,
                status=status,
                outcome=outcome,
                duration_ns=duration_ns,
                timing=call.timing,
                traceparent=call.headers.get(b"traceparent"),
                request_id=None if request is None else request.id,
            )


def _check_plain(headers: list[Header]) -> None:
    """Raises RequestRefused where the body is sent in a way that is not taken here."""
    for name, value in headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise RequestRefused(415, "compressed bodies are not taken; send the body as it is")
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            raise RequestRefused(415, "the only transfer encoding taken is chunked")
        if name == b"upgrade":
            raise RequestRefused(400, "upgrades are not supported; send the request without an Upgrade header")


class _Call:
    """What is known of the request at hand."""

    __slots__ = ("connection", "headers", "path", "raw_headers", "request", "started_ns", "timing")

    def __init__(self, scope: Scope) -> None:
        state: dict[str, Any] = scope["state"]  # see reference_server.connection
        self.started_ns: int = state["first_byte_ns"]
        self.connection = state["connection"]
        self.raw_headers: list[Header] = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(self.raw_headers)
        self.path: str = scope["path"]
        self.request: InferRequest | None = None
        self.timing = Timing()

    def check_one_header_length(self) -> None:
        """Where the JSON ends must not depend on which of two headers one reads. Raises RequestRefused."""
        if len({value for name, value in self.raw_headers if name == b"inference-header-content-length"}) > 1:
            raise RequestRefused(400, f"the request has two different {HEADER_LENGTH} headers")


class _DirectReply:
    """The reply to one request, for the slot's thread to send: see reference_server.jobs.DirectReply."""

    __slots__ = ("_call", "_duration_ns", "_inference", "_request", "_timing", "finished", "settle")

    def __init__(self, inference: Inference, call: _Call, request: InferRequest) -> None:
        self._inference = inference
        self._call = call
        self._request = request
        self._timing = Timing()  # its own: the event loop fills in the call's, should the client go away meanwhile
        self._duration_ns = 0
        self.finished = False
        self.settle: Callable[[], None] = call.connection.settle

    def send(self, job: Job, ended: Callable[[], None]) -> bool:
        call, timing, answer = self._call, self._timing, job.answer
        if answer is None or sum([output.nbytes for output in answer.outputs.values()]) > JOINED_BYTES:
            return False
        try:
            reply = self._inference.encode(self._request, answer.outputs)
        except Exception:
            return False  # the event loop meets it too, and answers accordingly
        timing.queue_ns = call.timing.queue_ns
        fill_timing(timing, job)
        self._duration_ns, headers = _end_timing(call.started_ns, timing, reply)
        return bool(call.connection.send_directly(headers, reply.chunks, ended))

    def finish(self) -> None:
        self.finished = True
        self._call.timing = self._timing
        self._inference.sent(self._call, self._duration_ns)


def _end_timing(started_ns: int, timing: Timing, reply: InferReply) -> tuple[int, bytes]:
    """The reply is ready: how long that took, and the headers that tell of it. What is in none of the parts is `output`."""
    duration_ns = now_ns() - started_ns
    rest = duration_ns - timing.queue_ns - timing.pool_ns - timing.load_ns - timing.input_ns - timing.infer_ns - timing.output_ns
    timing.output_ns += max(rest, 0)
    headers = b"content-length: %d\r\nserver-timing: %b\r\n" % (reply.content_length, server_timing(timing))
    if reply.header_length is None:
        return duration_ns, headers + b"content-type: application/json\r\n"
    binary = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    return duration_ns, headers + binary % reply.header_length


def server_timing(timing: Timing) -> bytes:
    """The value of the Server-Timing header (W3C Server Timing): durations in ms, exact to the ns."""
    return b"queue;dur=%.6f, pool;dur=%.6f, load;dur=%.6f, input;dur=%.6f, infer;dur=%.6f, output;dur=%.6f" % (
        timing.queue_ns / 1e6,
        timing.pool_ns / 1e6,
        timing.load_ns / 1e6,
        timing.input_ns / 1e6,
        timing.infer_ns / 1e6,
        timing.output_ns / 1e6,
    )
