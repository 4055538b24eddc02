"""Run folders with known numbers, as `bench coldstart` and `bench burst` leave them, for what reads whole folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from request_rows import write_run
from test_phases import Rows

from bench.coldstart import cold_start_schema

MS, SECOND = 10**6, 10**9
ENGINE: dict[str, Any] = {
    "name": "tiny",
    "runtime": "onnxruntime",
    "runtime_version": "1.0",
    "precision": "fp32",
    "device": "cpu:test",
    "files": [{"name": "model.onnx", "bytes": 2_000_000}],
    "profiles": [{"input": {"min": [1, 64], "opt": [1, 64], "max": [1, 64]}}],
}
ENVIRONMENT: dict[str, Any] = {"cpu": {"model": "a processor", "usable_cores": 2}, "memory": {"total_bytes": 8 * 10**9}, "warnings": []}
ARMS = ("cold-load", "warm-pool")
BLOCKS, SPIKES = 3, 2
BASE_PER_S, PEAK_PER_S, HOLD_S, REST_S = 40, 200, 1, 2
WARM_NS = 5 * MS


def cold_start_run(folder: Path, trials: int = 6, *, unattributed: float = 4) -> Path:
    """A process takes 200 ms (100 ms of it imports, `unattributed` ms in no phase), an engine 46 ms, a slot 7 ms, a warm answer 4 ms, in
    every trial."""
    rows = Rows()
    start = {"spawn": 20.0, "imports": 100.0, "library": 30.0, "deserialise": 40.0, "first_inference": 5.0, "check": 1.0}
    for _ in range(trials):
        rows.trial("process", start, rest=unattributed, after={"steady": 3}, page_cache="warm", memory=60_000_000)
        rows.trial("engine", {"deserialise": 40, "first_inference": 5, "check": 1}, page_cache="warm", memory=70_000_000)
        rows.trial("slot", {"slot": 1, "buffers": 1, "first_inference": 5}, page_cache="warm", memory=70_000_000)
        rows.trial("warm", {"inference": 4}, after={"check": 1}, page_cache="warm", memory=70_000_000)
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows.rows, schema=cold_start_schema()), folder / "cold_starts.parquet")
    record = {
        "schema_version": 1,
        "kind": "coldstart",
        "run_id": folder.name,
        "created": "2026-01-31T12:00:00Z",
        "coldburst_version": "0",
        "settings": {"levels": ["process", "engine", "slot", "warm"], "trials": trials, "seed": 0},
        "variants": [{"label": "", "settings": {}, "environment": {}, "engine": ENGINE}],
        "environment": ENVIRONMENT,
    }
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def experiment(folder: Path, *, slo_ns: int | None = 50 * MS) -> Path:
    """Two arms, three blocks of two spikes. warm-pool answers in 5 ms, always; cold-load loses ground in a spike, 1 ms with
    each request, and has caught up when the spike is over. What a spike's P99 is in cold-load: `cold_p99_ns`."""
    folder.mkdir(parents=True)
    order = [{"block": block, "spikes": SPIKES, "schedule_seed": 1, "arm": arm} for block in range(BLOCKS) for arm in ARMS]
    record = {
        "schema_version": 1,
        "kind": "experiment",
        "run_id": folder.name,
        "created": "2026-01-31T12:00:00Z",
        "coldburst_version": "0",
        "engine": ENGINE,
        "title": "tiny, onnxruntime 1.0, fp32, cpu:test",
        "arms": [{"name": arm, "mode": arm, "options": {}, "settings": {}} for arm in ARMS],
        "capacities": {
            arm: {"rate_per_s": rate, "requests": 100, "duration_ns": SECOND, "senders": 1}
            for arm, rate in zip(ARMS, (160, 400), strict=True)
        },
        "spikes": {
            "base_per_s": BASE_PER_S,
            "peak_per_s": PEAK_PER_S,
            "hold_ns": HOLD_S * SECOND,
            "rest_ns": REST_S * SECOND,
            "count": BLOCKS * SPIKES,
            "blocks": BLOCKS,
            "seed": 1,
        },
        "slo_ns": slo_ns,
        "order": order,
        "environment": ENVIRONMENT,
    }
    (folder / "run.json").write_text(json.dumps(record))
    for entry in order:
        _write_block(folder / "runs", int(str(entry["block"])), str(entry["arm"]))
    return folder


def cold_p99_ns(block: int) -> int:
    """Of each spike of the block: the 198th of its 200 answers."""
    return (20 + block + 198) * MS


def _arrivals() -> Iterator[tuple[int, int, str]]:
    """(intended_ns, spike, phase): rest, then spike and rest as often as there are spikes; evenly spaced."""
    at = 0
    for spike in range(SPIKES):
        for index in range(BASE_PER_S * REST_S):
            yield at + index * SECOND // BASE_PER_S, -1, "base" if spike == 0 else "rest"
        at += REST_S * SECOND
        for index in range(PEAK_PER_S * HOLD_S):
            yield at + index * SECOND // PEAK_PER_S, spike, "spike"
        at += HOLD_S * SECOND
    for index in range(BASE_PER_S * REST_S):
        yield at + index * SECOND // BASE_PER_S, -1, "rest"


def _write_block(runs: Path, block: int, arm: str) -> None:
    rows: list[dict[str, Any]] = []
    asked: dict[str, list[Any]] = {"seq": [], "intended_ns": [], "spike": [], "phase": []}
    ahead = 0
    for seq, (intended, spike, phase) in enumerate(_arrivals()):
        ahead = ahead + 1 if spike >= 0 else 0
        wait = ahead * MS if arm == "cold-load" else 0
        service = WARM_NS if arm == "warm-pool" else (20 + block) * MS
        load = 0 if arm == "warm-pool" else service - WARM_NS
        for name, value in zip(asked, (seq, intended, spike, phase), strict=True):
            asked[name].append(value)
        rows.append(
            {
                "seq": seq, "intended_ns": intended, "sent_ns": intended, "done_ns": intended + wait + service, "status": "ok",
                "http_status": 200, "error": None, "bytes": 100, "worker": 0, "queue_ns": 0, "pool_ns": wait, "load_ns": load,
                "input_ns": MS, "infer_ns": 3 * MS, "output_ns": MS,
            }
        )  # fmt: skip
    step = (REST_S + HOLD_S) * SECOND
    duration = SPIKES * step + REST_S * SECOND
    windows = [
        {"index": n, "start_ns": n * step + REST_S * SECOND, "end_ns": (n + 1) * step, "peak_rate": PEAK_PER_S} for n in range(SPIKES)
    ]
    path = write_run(runs, f"{block:02d}-{arm}", rows, asked, about={"duration_ns": duration, "spikes": windows})
    server = {"started_ns": 0, "listening_ns": SECOND // 2, "ready_ns": SECOND, "flags": []}
    (path / "run.json").write_text(json.dumps({"schema_version": 1, "kind": "load", "arm": arm, "block": block, "server": server}))
    (path / "summary.json").write_text(json.dumps({"generators": []}))
    samples = range(-SECOND, duration, SECOND // 20)
    resident = 80_000_000 if arm == "cold-load" else 100_000_000
    timeline = {
        "t_ns": list(samples),
        "model": ["tiny"] * len(samples),
        "slots_busy": [0] * len(samples),
        "slots_idle": [1] * len(samples),
        "slots_loading": [0] * len(samples),
        "waiting": [0] * len(samples),
        "resident_bytes": [resident] * len(samples),
        "device_bytes": pa.array([None] * len(samples), pa.int64()),
        "process_cpu_ns": [0] * len(samples),
    }
    pq.write_table(pa.table(timeline), path / "timeline.parquet")
