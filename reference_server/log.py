"""What the server says on standard error: sentences for a person, or JSON lines for a machine (`--log-json`).

Lines are written once a turn of the event loop, so that a burst costs one write for many requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import Any

import orjson

from bench.clock import utc_now
from reference_server.server_timing import Timing

# W3C Trace Context, "traceparent Header Field Values": version, trace-id, parent-id, flags; versions above 00 may say more.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def parse_traceparent(value: bytes | None) -> tuple[str, str] | None:
    """(trace-id, parent-id) of a valid `traceparent`, None for none or one that must be ignored."""
    match = _TRACEPARENT.fullmatch(value) if value else None
    if match is None:
        return None
    version, trace_id, parent_id, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None) or not trace_id.strip(b"0") or not parent_id.strip(b"0"):
        return None
    return trace_id.decode(), parent_id.decode()


class Log:
    """For use on the event loop's thread, but for `event`, which may be called from any."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._lines: list[bytes] = []

    def event(self, name: str, message: str, **fields: Any) -> None:
        """Something that a person wants to know."""
        if self.as_json:
            sys.stderr.write(orjson.dumps({"time": utc_now(), "event": name, "message": message, **fields}).decode() + "\n")
        else:
            sys.stderr.write(f"reference_server: {message}\n")
        sys.stderr.flush()

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
        if lines:
            sys.stderr.buffer.write(b"".join(lines))
            sys.stderr.buffer.flush()

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
