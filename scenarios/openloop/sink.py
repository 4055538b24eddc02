"""From the hot path to Arrow: one row for each arrival, packed into preallocated memory, turned into batches elsewhere.

The dispatcher packs a row with one call into a block of 64-bit integers. A recorder greenlet takes the filled blocks
away in small pieces, while the next send is not due, makes Arrow batches of them and hands each batch on.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from bench.clock import now_ns
from scenarios.openloop.reply import PARTS, UNKNOWN_PARTS

STATUSES = ("ok", "wrong", "error", "shed", "timeout", "not_sent", "lost_worker")
OK, WRONG, ERROR, SHED, TIMEOUT, NOT_SENT, LOST_WORKER = range(len(STATUSES))

STOPPED = "stopped"
"""The reason of an arrival that was not sent because the run was stopped by its user."""

SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("intended_ns", pa.int64(), nullable=False),
        ("sent_ns", pa.int64()),
        ("done_ns", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        ("http_status", pa.int16()),
        ("error", pa.string()),
        ("bytes", pa.int64()),
        ("worker", pa.int32()),
        ("connect_ns", pa.int64()),
        *[(f"{part}_ns", pa.int64()) for part in PARTS],
    ]
)
"""requests.parquet: times in ns since the run's start, `bytes` of the answer's body, None where not known.
`connect_ns`: how much of sent − intended the arrival waited for its own new connection, None where it found one."""

_SEQ, _INTENDED, _SENT, _DONE, _STATUS, _HTTP, _ERROR, _BYTES, _CONNECT, _FIRST_PART = range(10)
_FIELDS = _FIRST_PART + len(PARTS)
_ROW = struct.Struct(f"={_FIELDS}q")
_BLOCK_ROWS = 4096
PIECE_ROWS = 1024
_MAX_TEXTS = 1000
_STATUS_TEXTS = pa.array(STATUSES)

Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]]


class RecordSink:
    """Rows wait here between the dispatcher and the file (or the master)."""

    def __init__(
        self, *, worker: int, deliver: Callable[[pa.RecordBatch], None], observe: Callable[[Rows, list[str]], None] | None
    ) -> None:
        self._worker = worker
        self._deliver = deliver
        self._observe = observe
        self._block = bytearray(_BLOCK_ROWS * _ROW.size)
        self._used = 0
        self._full: deque[tuple[bytearray, int]] = deque()
        self._spare = [bytearray(_BLOCK_ROWS * _ROW.size) for _ in range(4)]
        self._texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._corrections: dict[int, tuple[int, int]] = {}
        self.rows = 0
        self.longest_hold_ns = 0
        self.total_hold_ns = 0

    def add(
        self,
        seq: int,
        intended_ns: int,
        sent_ns: int,
        done_ns: int,
        status: int,
        http_status: int,
        error: int,
        size: int,
        connect_ns: int,
        parts: tuple[int, ...],
    ) -> None:
        """Record one arrival; -1 stands for not known. `error` is a code from `text`. Takes about half a microsecond."""
        at = self._used * _ROW.size
        _ROW.pack_into(self._block, at, seq, intended_ns, sent_ns, done_ns, status, http_status, error, size, connect_ns, *parts)
        self._used += 1
        self.rows += 1
        if self._used == _BLOCK_ROWS:
            self._change_block()

    def text(self, reason: str) -> int:
        """A code for a reason. Reasons are few; past a thousand different ones the rest share one."""
        code = self._codes.get(reason)
        if code is None:
            if len(self._texts) >= _MAX_TEXTS:
                return self.text("another reason") if "another reason" in self._codes else self._new_text("another reason")
            code = self._new_text(reason)
        return code

    def correct(self, seq: int, status: int, reason: str) -> None:
        """Change what a row that still waits here says: its values were found to be wrong after it was written."""
        self._corrections[seq] = (status, self.text(reason))

    @property
    def waiting(self) -> int:
        """Rows not yet handed on."""
        return self._used + sum(used for _, used in self._full)

    def pieces(self, *, everything: bool) -> Any:
        """Hand rows on, piece by piece: a generator that yields after each, so that sends can come in between."""
        if everything and self._used:
            self._change_block()
        while self._full:
            block, used = self._full.popleft()
            matrix = np.frombuffer(block, dtype=np.int64, count=used * _FIELDS).reshape(used, _FIELDS)
            if self._corrections:
                for row in matrix:
                    if (correction := self._corrections.pop(int(row[_SEQ]), None)) is not None:
                        row[_STATUS], row[_ERROR] = correction
            for start in range(0, used, PIECE_ROWS):
                before = now_ns()
                rows = matrix[start : start + PIECE_ROWS]
                self._deliver(self._batch(rows))
                if self._observe is not None:
                    self._observe(rows, self._texts)
                held = now_ns() - before
                self.total_hold_ns += held
                self.longest_hold_ns = max(self.longest_hold_ns, held)
                yield
            del matrix, rows  # the views on the block
            if len(self._spare) < 8:
                self._spare.append(block)

    def _change_block(self) -> None:
        self._full.append((self._block, self._used))
        self._block = self._spare.pop() if self._spare else bytearray(_BLOCK_ROWS * _ROW.size)
        self._used = 0

    def _new_text(self, reason: str) -> int:
        code = len(self._texts)
        self._texts.append(reason)
        self._codes[reason] = code
        return code

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        columns = np.ascontiguousarray(rows.T)
        texts = pa.array(self._texts, pa.string()) if self._texts else pa.array([""], pa.string())
        error = columns[_ERROR]
        arrays = [
            pa.array(columns[_SEQ]),
            pa.array(columns[_INTENDED]),
            _nullable(columns[_SENT]),
            _nullable(columns[_DONE]),
            _STATUS_TEXTS.take(pa.array(columns[_STATUS])),
            pa.array(columns[_HTTP].astype(np.int16), mask=columns[_HTTP] < 0),
            texts.take(pa.array(error, mask=error < 0)),
            _nullable(columns[_BYTES]),
            pa.array(np.full(len(rows), self._worker, np.int32)),
            _nullable(columns[_CONNECT]),
            *[_nullable(columns[_FIRST_PART + part]) for part in range(len(PARTS))],
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def warm(sink_deliver: Callable[[pa.RecordBatch], None]) -> None:
    """Run the whole way once with rows that are thrown away: first calls into Arrow take tens of milliseconds."""
    sink = RecordSink(worker=0, deliver=sink_deliver, observe=None)
    reason = sink.text("warming")
    for seq in range(PIECE_ROWS):
        sink.add(seq, 0, 0, 0, OK, 200, reason, 0, -1, UNKNOWN_PARTS)
    for _ in sink.pieces(everything=True):
        pass


def unanswered_batch(
    seqs: np.ndarray[Any, np.dtype[np.int64]], intended_ns: np.ndarray[Any, np.dtype[np.int64]], status: int, reason: str
) -> pa.RecordBatch:
    """Rows of arrivals that no worker reported: their worker was lost, or the run was stopped before it started."""
    count = len(seqs)
    known = {
        "seq": pa.array(seqs.astype(np.int64)),
        "intended_ns": pa.array(intended_ns.astype(np.int64)),
        "status": pa.array([STATUSES[status]] * count, pa.string()),
        "error": pa.array([reason] * count, pa.string()),
    }
    return pa.RecordBatch.from_arrays([known.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA], schema=SCHEMA)


def _nullable(column: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    return pa.array(column, mask=column < 0)
