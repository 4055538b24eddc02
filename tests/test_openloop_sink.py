"""Rows from the dispatcher to Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from scenarios.openloop.reply import UNKNOWN_PARTS
from scenarios.openloop.sink import LOST_WORKER, NOT_SENT, OK, SCHEMA, WRONG, RecordSink, unanswered_batch


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return pa.Table.from_batches(batches, SCHEMA).to_pylist()


def test_rows_survive_block_changes_in_order() -> None:
    batches: list[pa.RecordBatch] = []
    observed: list[int] = []
    sink = RecordSink(worker=3, deliver=batches.append, observe=lambda rows, _: observed.append(len(rows)))
    total = 20_000
    for seq in range(total):
        status, error = (OK, -1) if seq % 7 else (NOT_SENT, sink.text(f"reason {seq % 3}"))
        sink.add(
            seq, seq * 10, -1 if error >= 0 else seq * 10 + 1, -1, status, 200 if error < 0 else -1, error, seq, -1, (0, 1, 2, 3, 4, -1)
        )
        if seq == 9_000:
            for _ in sink.pieces(everything=False):
                pass
            assert sum(batch.num_rows for batch in batches) == 8192 and sink.waiting == 809
    for _ in sink.pieces(everything=True):
        pass
    rows = rows_of(batches)
    assert [row["seq"] for row in rows] == list(range(total)) and sum(observed) == total and sink.waiting == 0
    assert rows[7] == {
        "seq": 7, "intended_ns": 70, "sent_ns": None, "done_ns": None, "status": "not_sent", "http_status": None, "error": "reason 1",
        "bytes": 7, "worker": 3, "connect_ns": None,
            "queue_ns": 0, "pool_ns": 1, "load_ns": 2, "input_ns": 3, "infer_ns": 4, "output_ns": None,
    }  # fmt: skip
    assert rows[8]["sent_ns"] == 81 and rows[8]["http_status"] == 200 and rows[8]["error"] is None


def test_a_row_can_be_corrected_until_it_is_handed_on() -> None:
    batches: list[pa.RecordBatch] = []
    sink = RecordSink(worker=0, deliver=batches.append, observe=None)
    for seq in range(3):
        sink.add(seq, 0, 0, 0, OK, 200, -1, 0, -1, UNKNOWN_PARTS)
    sink.correct(1, WRONG, "other values")
    for _ in sink.pieces(everything=True):
        pass
    assert [(row["status"], row["error"]) for row in rows_of(batches)] == [("ok", None), ("wrong", "other values"), ("ok", None)]


def test_reasons_are_bounded() -> None:
    sink = RecordSink(worker=0, deliver=lambda batch: None, observe=None)
    codes = {sink.text(f"reason {i}") for i in range(5000)}
    assert len(codes) == 1001


def test_rows_of_a_lost_worker() -> None:
    rows = rows_of([unanswered_batch(np.array([4, 6]), np.array([40, 60]), LOST_WORKER, "gone")])
    assert [(row["seq"], row["intended_ns"], row["sent_ns"], row["status"], row["error"]) for row in rows] == [
        (4, 40, None, "lost_worker", "gone"),
        (6, 60, None, "lost_worker", "gone"),
    ]
