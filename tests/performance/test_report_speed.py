"""A report of a million and of ten million requests within seconds and 4 GB; run it on a machine that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SPIKES = 20
DURATION_NS = 3600 * 10**9
PARTS = ("queue", "pool", "load", "input", "infer", "output")

MEASURE = """
import json, resource, sys, time
begun = time.perf_counter()
from pathlib import Path
from bench.report.build import build_page, write_html
write_html(Path(sys.argv[2]), [build_page(Path(sys.argv[1]), slo_ns=10**8)])
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"wall_s": time.perf_counter() - begun, "peak": peak}))
"""


def write_run(path: Path, rows: int) -> None:
    """One run, written in the order in which requests ended, as a generator does."""
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"schema_version": 1, "kind": "load", "scenario": "burst"}))
    rng = np.random.default_rng(1)
    intended = np.sort(rng.integers(0, DURATION_NS, rows))
    place = intended * (2 * SPIKES + 1) // DURATION_NS
    inside = place % 2 == 1
    phases = pa.DictionaryArray.from_arrays(
        pa.array(np.where(inside, 1, np.where(place == 0, 0, 2)).astype(np.int8)), ["base", "spike", "rest"]
    )
    seq = pa.array(np.arange(rows))
    schedule = {"seq": seq, "intended_ns": intended, "spike": pa.array((place // 2).astype(np.int32), mask=~inside), "phase": phases}
    pq.write_table(pa.table(schedule), path / "schedule.parquet", compression="zstd")
    sent = intended + rng.integers(0, 10**5, rows)
    parts = {f"{part}_ns": rng.integers(0, 10**6, rows) for part in PARTS}
    done = sent + sum(parts.values()) + rng.integers(10**5, 10**7, rows)
    failed = rng.random(rows) < 0.01
    columns = {"seq": seq, "intended_ns": intended, "sent_ns": sent, "done_ns": done}
    columns |= {"status": pa.array(np.where(failed, "error", "ok")), "error": pa.array(np.where(failed, "HTTP 500", None), pa.string())}
    table = pa.table({**columns, **parts}).take(pa.array(np.argsort(done)))
    pq.write_table(table, path / "requests.parquet", compression="zstd", row_group_size=1 << 17)


@pytest.mark.parametrize(("rows", "most_s"), [(1_000_000, 8), (10_000_000, 60)])
def test_report(tmp_path: Path, rows: int, most_s: float) -> None:
    write_run(tmp_path / "run", rows)
    report = tmp_path / "report.html"
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path / "run"), str(report)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print(f"\n{rows:,} rows: {found}, {report.stat().st_size:,} bytes")
    assert found["wall_s"] < most_s
    assert found["peak"] < 4e9
    assert report.stat().st_size < 3e6
