"""Ten million requests are read and analysed within seconds and 2 GB; run it on a machine that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 10_000_000
SPIKES = 20
PARTS = ("queue", "pool", "load", "input", "infer", "output")

MEASURE = """
import json, sys, time
from pathlib import Path
from bench.analysis import compare, goodput, latency, load_run, recovery, tail
from bench.records import open_run
def most():  # of this process alone: getrusage would count what its parent had when it was forked
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
begun = time.perf_counter()
arm = load_run.read_arm([open_run(Path(sys.argv[1]))])
read = time.perf_counter()
peak_reading = most()
rows = arm.requests
found = [latency.latency(rows), goodput.goodput(rows, duration_ns=arm.duration_ns, slo_ns=10**8), tail.tail_split(rows)]
found += [recovery.recovery(arm, slo_ns=10**8), compare.compare_p99(rows, rows), latency.ecdf(rows["response_ns"][rows["ok"]])]
done = time.perf_counter()
print(json.dumps({"rows": len(rows), "read_s": read - begun, "analysis_s": done - read, "table": int(rows.memory_usage().sum()),
    "peak_reading": peak_reading, "peak": most()}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run, written in the order in which requests ended, as a generator does."""
    path = tmp_path_factory.mktemp("results") / "run"
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"schema_version": 1, "kind": "load"}))
    rng = np.random.default_rng(1)
    intended = np.sort(rng.integers(0, 3600 * 10**9, ROWS))
    place = intended * (2 * SPIKES + 1) // (3600 * 10**9)
    inside = place % 2 == 1
    phases = pa.DictionaryArray.from_arrays(
        pa.array(np.where(inside, 1, np.where(place == 0, 0, 2)).astype(np.int8)), ["base", "spike", "rest"]
    )
    seq = pa.array(np.arange(ROWS))
    schedule = {"seq": seq, "intended_ns": intended, "spike": pa.array((place // 2).astype(np.int32), mask=~inside), "phase": phases}
    pq.write_table(pa.table(schedule), path / "schedule.parquet", compression="zstd")
    sent = intended + rng.integers(0, 10**6, ROWS)
    parts = {f"{part}_ns": rng.integers(0, 10**6, ROWS) for part in PARTS}
    done = sent + sum(parts.values()) + rng.integers(10**5, 10**7, ROWS)
    failed = rng.random(ROWS) < 0.01
    columns = {"seq": seq, "intended_ns": intended, "sent_ns": sent, "done_ns": done}
    columns |= {"status": pa.array(np.where(failed, "error", "ok")), **parts}
    table = pa.table(columns).take(pa.array(np.argsort(done)))
    pq.write_table(table, path / "requests.parquet", compression="zstd")
    return path


def test_ten_million_rows(run: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE, str(run)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print(f"\n{found}")
    assert found["rows"] == ROWS
    assert found["read_s"] < 15
    assert found["analysis_s"] < 25
    assert found["peak_reading"] < 2e9
    assert found["peak"] < 4e9
