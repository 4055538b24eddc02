"""The whole chain against theory: generator, wire, queue and pool together are an M/D/1 queue when the server is synthetic."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

from bench.engine.synthetic_builder import build_synthetic
from bench.records import open_run

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SEEDS = 10
RATE, SERVICE_NS = 68, 10_000_000
T_975 = 2.262  # Student's t with 9 degrees of freedom


def one_seed(url: str, seed: int) -> tuple[float, float]:
    """(mean pool wait measured, mean wait of M/D/1 at the measured mean slot-occupied time and the delivered rate), ns."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "locust", "-f", str(ROOT / "scenarios" / "burst.py"), "--headless", "--only-summary"]
        command += ["--host", url, "--model", "synthetic", "--results", results, "--seed", str(seed)]
        command += ["--arrivals", f"poisson:rate={RATE},duration=40s"]
        subprocess.run(command, env=ENVIRONMENT, cwd=results, capture_output=True)
        table = open_run(next(iter(Path(results).iterdir()))).table("requests")
    assert table is not None
    rows = sorted(table.to_pylist(), key=lambda row: row["seq"])
    assert {row["status"] for row in rows} == {"ok"}
    # `output` also has the way back to the event loop and the encoding, which occupy no slot: the shortest is the slot's own part.
    occupied = mean(row["input_ns"] + row["infer_ns"] for row in rows) + min(row["output_ns"] for row in rows)
    rate = (len(rows) - 1) / (rows[-1]["sent_ns"] - rows[0]["sent_ns"])
    load = rate * occupied
    return mean(row["pool_ns"] for row in rows), load * occupied / (2 * (1 - load))


def test_pool_wait_is_that_of_m_d_1(tmp_path: Path) -> None:
    engine = tmp_path / "synthetic"
    build_synthetic(engine, name="synthetic", service_ns=SERVICE_NS, load_ns=0)
    command = [sys.executable, "-m", "reference_server", str(engine), "--port", "0", "--mode", "warm-pool", "--pool-size", "1"]
    server = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        assert server.stdout.readline().strip() == "ready"
        pairs = [one_seed(url, seed) for seed in range(1, SEEDS + 1)]
    finally:
        server.terminate()
        server.wait(30)
    ratios = [measured / theory for measured, theory in pairs]
    half = T_975 * stdev(ratios) / math.sqrt(SEEDS)
    waits = f"{mean(measured for measured, _ in pairs) / 1e6:.2f} ms measured, {mean(theory for _, theory in pairs) / 1e6:.2f} ms in theory"
    print(f"\npool wait: {waits}, ratio {mean(ratios):.3f} ± {half:.3f}")
    assert half <= 0.15
    assert abs(mean(ratios) - 1) <= half
