"""What the server says on standard error: sentences for a person, or JSON lines for a machine (`--log-json`).

Lines are written once a turn of the event loop, so that a burst costs one write for many requests. Whoever reads them is no
reason to stop serving: where nobody does, or the disk is full, lines are lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import threading
from typing import Any

import orjson

from bench.clock import utc_now
from reference_server.server_timing import Timing

# W3C Trace Context, "traceparent Header Field Values": version, trace-id, parent-id, flags; versions above 00 may say more.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

_MOST_HELD = 2**20  # bytes that wait for a reader
_RETRY_S = 0.1
_LAST_WORDS_MS = 500  # how long a reader that takes nothing is waited for at the end


def parse_traceparent(value: bytes | None) -> tuple[str, str] | None:
    """(trace-id, parent-id) of a valid `traceparent`, None for none or one that must be ignored."""
    match = _TRACEPARENT.fullmatch(value) if value else None
    if match is None:
        return None
    version, trace_id, parent_id, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None) or not trace_id.strip(b"0") or not parent_id.strip(b"0"):
        return None
    return trace_id.decode(), parent_id.decode()


class StandardError:
    """Standard error as a file that never makes anyone wait, and raises nothing. For use from any thread."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._lock = threading.Lock()
        self._held = bytearray()
        self._lost = 0

    def write(self, lines: bytes, *, as_json: bool = False) -> bool:
        """Write the lines, and those that wait since before. Whether all went out, or was given up."""
        with self._lock:
            if len(self._held) + len(lines) > _MOST_HELD:
                self._lost += lines.count(b"\n")
            else:
                self._held += lines
            self._push(0)
            if self._lost and not self._held:
                self._held += _line("log", f"{self._lost} lines were lost, since nobody read them", as_json=as_json)
                self._lost = 0
                self._push(0)
            return not self._held

    def end(self) -> None:
        """Write what waits, as long as somebody takes some of it now and then."""
        with self._lock:
            self._push(_LAST_WORDS_MS)

    def _push(self, patience_ms: int) -> None:
        # A pipe that takes anything takes PIPE_BUF bytes (pipe(7)); with more at once the write would wait for its reader.
        while self._held and self._poll.poll(patience_ms):
            try:
                del self._held[: os.write(self._descriptor, self._held[: select.PIPE_BUF])]
            except OSError:  # no reader, or no space: the next line tries again
                self._held.clear()


def _line(name: str, message: str, *, as_json: bool, **fields: Any) -> bytes:
    message = message.encode(errors="replace").decode()  # a file's name may be no text
    if as_json:
        return orjson.dumps({"time": utc_now(), "event": name, "message": message, **fields}, option=orjson.OPT_APPEND_NEWLINE)
    return f"reference_server: {message}\n".encode()


class Log:
    """For use on the event loop's thread, but for `event`, which may be called from any."""

    def __init__(self, output: StandardError, *, as_json: bool) -> None:
        self.as_json = as_json
        self._lines: list[bytes] = []
        self._output = output
        self._retry: asyncio.TimerHandle | None = None

    def event(self, name: str, message: str, **fields: Any) -> None:
        """Something that a person wants to know."""
        self._output.write(_line(name, message, as_json=self.as_json, **fields), as_json=self.as_json)

    def request(
        self,
        path: str,
        model: str,
        status: int,
        outcome: str,
        duration_ns: int,
        timing: Timing,
        traceparent: bytes | None,
        request_id: bytes | None,
    ) -> None:
        """One infer request is over; `status` 0 means that the client went away. Does nothing unless `as_json`."""
        if not self.as_json:
            return
        trace = parse_traceparent(traceparent)
        line = {
            "time": utc_now(),
            "event": "request",
            "path": path,
            "model": model,
            "id": None if request_id is None else orjson.Fragment(request_id),
            "status": status,
            "outcome": outcome,
            "trace_id": trace and trace[0],
            "parent_id": trace and trace[1],
            "duration_ns": duration_ns,
            "queue_ns": timing.queue_ns,
            "pool_ns": timing.pool_ns,
            "load_ns": timing.load_ns,
            "input_ns": timing.input_ns,
            "infer_ns": timing.infer_ns,
            "output_ns": timing.output_ns,
        }
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if not self._output.write(b"".join(lines), as_json=self.as_json) and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.flush()

    def end(self) -> None:
        """Nothing more will be said: write what is left."""
        self._output.write(b"".join(self._lines), as_json=self.as_json)
        self._output.end()

    def take_over_logging(self) -> None:
        """Warnings and errors of the libraries go the same way."""
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what it warns of, clients cause, and are told themselves
        logging.basicConfig(handlers=[_Handler(self)], level=logging.WARNING, force=True)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.event("log", self.format(record), level=record.levelname, logger=record.name)
