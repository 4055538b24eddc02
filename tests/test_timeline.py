"""The server's timeline file: what it says while serving, what of it survives a kill, and how it becomes a table."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.clock import now_ns
from bench.errors import BenchError
from bench.server_timeline import read_server_timeline
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry
from reference_server.server_timing import Timing
from reference_server.timeline import INTERVAL_NS, Timeline

SyntheticFactory = Callable[..., Path]


def test_a_spike_that_a_scrape_would_miss_is_seen(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    path, gate = tmp_path / "timeline.jsonl", tmp_path / "gate"
    before = now_ns()

    def sampled(waiting: int) -> bool:
        rows = read_server_timeline(path)[1].to_pylist()
        return any(row["slots_busy"] == 1 and row["waiting"] == waiting for row in rows)

    async def main() -> None:
        registry = Registry([synthetic(gate=gate), synthetic(name="other")], PoolSettings(size=1))
        timeline = Timeline(path, list(registry.models.values()))
        timeline.start()
        await registry.start()
        model = registry.models["synthetic"]
        gate.touch()
        given = {"input": np.ones((1, 1024), np.float32)}
        first, *others = [asyncio.create_task(model.infer(given, None, Timing())) for _ in range(3)]
        for waiting in (2, 1):
            async with asyncio.timeout(60):
                while not sampled(waiting):
                    await asyncio.sleep(0.01)
            others[waiting - 1].cancel()
        gate.unlink()
        await first
        timeline.close()
        timeline.close()
        await registry.close()

    asyncio.run(main())
    metadata, table = read_server_timeline(path, zero_ns=before)
    assert metadata["interval_ns"] == INTERVAL_NS
    assert metadata["pid"] == os.getpid()
    assert abs(metadata["anchor"]["wall_ns"] - time.time_ns()) < 10**12
    rows = table.to_pylist()
    assert all(0 <= row["t_ns"] <= now_ns() - before for row in rows)
    assert {row["model"] for row in rows} == {"synthetic", "other"}
    busy = [row for row in rows if row["model"] == "synthetic" and row["slots_busy"] == 1]
    assert {1, 2} <= {row["waiting"] for row in busy}
    # The numbers of a sample are read one after the other, so only while one waits can none have changed on the way.
    assert all(row["slots_idle"] == 0 for row in busy if row["waiting"])
    assert all(row["device_bytes"] is None and row["resident_bytes"] > 10_000_000 for row in rows)
    assert all(row["sm_clock_mhz"] is None for row in rows)  # there is no GPU in use, whatever this machine has
    assert sorted(row["process_cpu_ns"] for row in rows) == [row["process_cpu_ns"] for row in rows]


def test_a_kill_loses_no_sample_that_was_taken(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    program = f"""
import time
from pathlib import Path
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry
from reference_server.timeline import Timeline
models = list(Registry([Path({str(synthetic())!r})], PoolSettings()).models.values())
Timeline(Path({str(path)!r}), models).start()
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.read_bytes().count(b"\n") >= 5):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    whole = path.read_bytes().count(b"\n") - 1
    assert read_server_timeline(path)[1].num_rows == whole
    with path.open("ab") as file:
        file.write(b'[12, "synth')  # a write that a crash of the machine tore
    assert read_server_timeline(path)[1].num_rows == whole


def test_a_disk_that_fills_leaves_whole_rows(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    program = f"""
import resource, time
from pathlib import Path
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry
from reference_server.timeline import Timeline
models = list(Registry([Path({str(synthetic())!r})], PoolSettings()).models.values())
timeline = Timeline(Path({str(path)!r}), models)
limit = Path({str(path)!r}).stat().st_size + 250  # two rows and a half
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
timeline.start()
timeline._thread.join()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stderr == f"timeline {path} ends here: No space left on device\n"
    assert path.read_bytes().endswith(b"]\n")
    assert read_server_timeline(path)[1].num_rows >= 1


def test_nothing_is_overwritten_and_a_folder_that_is_not_there_is_told(synthetic: SyntheticFactory, tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_text("mine")
    for bad in (path, tmp_path / "none" / "timeline.jsonl"):
        with pytest.raises(BenchError, match="cannot be written"):
            Timeline(bad, [])
    assert path.read_text() == "mine"


@pytest.mark.parametrize("content", ["", "[]", "{}", "rubbish\n", '{"schema_version": 9, "columns": []}\n'])
def test_what_is_no_timeline_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_text(content)
    with pytest.raises(BenchError):
        read_server_timeline(path)


def test_a_timeline_without_rows_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    Timeline(path, []).close()
    assert read_server_timeline(path)[1].num_rows == 0
    assert json.loads(path.read_text())["schema_version"] == 1
