"""One dispatcher without Locust, with or without recording: `recording_cost.py PORT RATE SECONDS on|off`.

Prints JSON: CPU a request and p50 of the send lag (taken in both cases by the same extra line), ns; longest hold by a flush.
"""
# ruff: noqa: I001

from __future__ import annotations

import locust  # noqa: F401

import json
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

from bench.clock import now_ns
from bench.records import RunFolder
from scenarios.openloop.connections import Connection
from scenarios.openloop.dispatcher import Dispatcher, Work
from scenarios.openloop.sink import SCHEMA, RecordSink, warm
from scenarios.openloop.target import find_target
from scenarios.openloop.verify import ReplyCheck


class Timed(Dispatcher):
    """Keeps the send lag apart from the records."""

    lags: array[int]

    def first_byte_sent(self, connection: Connection, sent_ns: int) -> None:
        self.lags.append(sent_ns - self._start_ns - self._due[connection.number])
        super().first_byte_sent(connection, sent_ns)


def main(port: int, rate: int, seconds: int, record: bool) -> dict[str, Any]:
    target = find_target(f"http://127.0.0.1:{port}", model=None, shape=None, encoding=None, probe=None, seed=1)
    count = rate * seconds
    with tempfile.TemporaryDirectory() as folder:
        rows = RunFolder.create(Path(folder), "trial").table("requests", SCHEMA)
        sink = RecordSink(worker=0, deliver=rows.write_batch, observe=None)
        warm(lambda batch: batch.serialize())
        work = Work(
            seq=array("q", range(count)),
            intended_ns=array("q", (i * 1_000_000_000 // rate for i in range(count))),
            request=target.request,
            address=target.address,
            deadline_ns=10_000_000_000,
            max_connections=4096,
            open_beforehand=64,
            record=record,
        )
        dispatcher = Timed(work, sink=sink, check=ReplyCheck(target.outputs, batch=target.batch, verify_every=0))
        dispatcher.lags = array("q")
        dispatcher.prepare()
        dispatcher.go(now_ns() + 300_000_000)
        dispatcher.ended.wait()
        rows.close()
    about = dispatcher.generator()
    assert sink.rows == (count if record else 0)
    lags = sorted(dispatcher.lags)
    return {
        "cpu_ns": about["cpu_ns"] / count,
        "lag_p50_ns": lags[len(lags) // 2],
        "lag_p99_ns": lags[len(lags) * 99 // 100],
        "longest_flush_ns": about["longest_flush_ns"],
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "on")))
