"""A million rows through the sink and the run folder, to the end: prints the largest resident size of this process in bytes."""
# ruff: noqa: I001

import locust  # noqa: F401

import resource
import sys
from pathlib import Path

from bench.records import RunFolder
from scenarios.openloop.reply import UNKNOWN_PARTS
from scenarios.openloop.sink import OK, SCHEMA, RecordSink
from scenarios.openloop.summary import summarize

if __name__ == "__main__":
    folder = RunFolder.create(Path(sys.argv[1]), "million")
    rows = folder.table("requests", SCHEMA)
    sink = RecordSink(worker=0, deliver=rows.write_batch, observe=None)
    for seq in range(1_000_000):
        sink.add(seq, seq * 1000, seq * 1000 + 50_000, seq * 1000 + 900_000, OK, 200, -1, 4000, -1, UNKNOWN_PARTS)
        if seq % 5000 == 4999:
            for _ in sink.pieces(everything=True):
                pass
    rows.close()
    assert summarize(rows.path, slo_ns=None, duration_ns=1_000_000_000)["counts"] == {"ok": 1_000_000}
    folder.finish()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
