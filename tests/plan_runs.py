"""What a plan is made of and checked against, with known numbers: a service curve, cold starts, and load runs whose server is a
simulation with seeds that no plan uses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from notebook_runs import ENGINE, ENVIRONMENT, MS, cold_start_run
from request_rows import REQUESTS_SCHEMA

from bench.capacity.candidates import Candidate, Rules
from bench.capacity.measured import HeldMemory, Measured
from bench.capacity.predict import simulate_one
from bench.capacity.starts import Starts
from bench.load.arrivals_text import parse_arrivals
from bench.load.schedule import write_schedule
from bench.server_timeline import timeline_schema

MB = 10**6
SERVICE_NS, OVERHEAD_NS = 20 * MS, 1 * MS
BASE, ENGINE_MB, SLOT = 50 * MB, 100 * MB, 25 * MB
PARTS = ("queue_ns", "pool_ns", "load_ns", "input_ns", "infer_ns", "output_ns")


def service_ns(busy: int) -> int:
    """Slots of this device slow each other down: each further one by a twentieth."""
    return SERVICE_NS + SERVICE_NS * (busy - 1) // 20


def measured(slots: int = 8, **changes: Any) -> Measured:
    """As `curve_run` and `cold_start_run` measure it; the service time spreads by a tenth, evenly."""
    rank = np.linspace(0.95, 1.05, 101)
    levels = tuple(np.rint(service_ns(busy) * rank).astype(np.int64) for busy in range(1, slots + 1))
    given: dict[str, Any] = {
        "subject": "known",
        "engine": ENGINE,
        "sharing": "engine",
        "settings": {},
        "levels": levels,
        "overheads_ns": (np.array([OVERHEAD_NS], np.int64),) * slots,
        "throughput_per_s": tuple(busy / service_ns(busy) * 1e9 for busy in range(1, slots + 1)),
        "memory": HeldMemory(kind="resident", base_bytes=BASE, engine_bytes=ENGINE_MB, slot_bytes=SLOT),
        "starts": starts(),
        "sources": {"curve": "here"},
    }
    own = {**given, **changes}
    return Measured(**{"busy": tuple(range(1, len(own["levels"]) + 1)), **own})


def starts(*, cold_load_ms: int = 200, load_ms: int = 180, slot_ms: int = 20, ready_ms: int = 1000) -> Starts:
    """One sample each."""

    def one(ms: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([ms * MS], np.int64)

    return Starts(
        cold_load_ns=one(cold_load_ms),
        load_ns=one(load_ms),
        slot_ns=one(slot_ms),
        ready_ns=one(ready_ms),
        ready_level="server",
        engine=ENGINE,
        notes=(),
    )


def curve_run(folder: Path, slots: int = 8, answers: int = 120) -> Path:
    """A run of `bench curve` with the service times of `measured`."""
    folder.mkdir(parents=True)
    rank = np.linspace(0.95, 1.05, answers)
    common = {"round": 0, "t_ns": 0, "slots_loading": 0, "waiting": 0, "process_cpu_ns": 0, "device_bytes": None}
    rows, timeline = [], [{**common, "slots": 1, "slots_busy": 0, "slots_idle": 0, "resident_bytes": BASE}]
    for busy in range(1, slots + 1):
        for number, part in enumerate(rank):
            taken = round(service_ns(busy) * float(part))
            sent = (number // busy) * service_ns(busy)
            own = dict.fromkeys(PARTS, 0) | {"infer_ns": taken}
            place = {"round": 0, "busy": busy, "batch": 1, "phase": "steady", "status": "ok"}
            rows.append({**place, "sent_ns": sent, "done_ns": sent + taken + OVERHEAD_NS, **own})
        held = BASE + ENGINE_MB + busy * SLOT
        timeline.append({**common, "slots": busy, "slots_busy": busy, "slots_idle": 0, "resident_bytes": held})
    pq.write_table(pa.Table.from_pylist(rows), folder / "requests.parquet")
    types = pa.schema([(name, pa.int64()) for name in timeline[0]])
    samples = pa.Table.from_pylist(timeline, schema=types)
    pq.write_table(samples.append_column("model", pa.array(["known"] * len(timeline))), folder / "timeline.parquet")
    _write_json(
        folder / "run.json",
        {
            "schema_version": 1,
            "kind": "curve",
            "run_id": folder.name,
            "title": "known, onnxruntime 1.0, fp32, cpu:test",
            "engine": ENGINE,
            "sharing": "engine",
            "settings": {"threads": "1"},
            "slots": list(range(1, slots + 1)),
            "batches": [1],
            "environment": ENVIRONMENT,
        },
    )
    return folder


def cold_run(folder: Path, **given: Any) -> Path:
    """A run of `bench coldstart` of the same engine."""
    return cold_start_run(folder, **given)


def load_run(
    folder: Path,
    arrivals: str,
    *,
    seed: int,
    slots: int,
    mode: str = "warm-pool",
    slo: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Path:
    """A load run as `bench burst` leaves it, answered by the simulation of `measured` with a seed of its own."""
    schedule = parse_arrivals(arrivals).schedule(seed)
    folder.mkdir(parents=True)
    write_schedule(schedule, folder / "schedule.parquet")
    truth = simulate_one(Candidate(family=mode, slots=slots), measured(), Rules(), schedule.intended_ns, seed=10**6 + seed)
    rows: list[dict[str, Any]] = []
    for seq, (due, taken, pool, load, own) in enumerate(
        zip(schedule.intended_ns, truth.response_ns, truth.pool_ns, truth.load_ns, truth.service_ns, strict=True)
    ):
        row: dict[str, Any] = {"seq": seq, "intended_ns": int(due), "sent_ns": int(due), "done_ns": int(due + taken), "status": "ok"}
        row |= {"http_status": 200, "error": None, "bytes": 100, "worker": 0}
        row |= {"queue_ns": 0, "pool_ns": int(pool), "load_ns": int(load), "input_ns": 0, "infer_ns": int(own), "output_ns": 0}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA), folder / "requests.parquet")
    sample = {"t_ns": 0, "model": "known", "slots_busy": 0, "slots_idle": slots, "slots_loading": 0, "waiting": 0}
    sample |= {"resident_bytes": BASE + ENGINE_MB + slots * SLOT, "device_bytes": None, "process_cpu_ns": 0}
    pq.write_table(pa.Table.from_pylist([sample], schema=timeline_schema()), folder / "timeline.parquet")
    _write_json(
        folder / "run.json",
        {
            "schema_version": 1,
            "kind": "load",
            "run_id": folder.name,
            "engine": ENGINE,
            "environment": ENVIRONMENT,
            "settings": {"slo": slo},
            "setup": {"name": mode, "mode": mode, "options": dict(options or {"pool": str(slots)}), "settings": {}},
        },
    )
    _write_json(folder / "summary.json", {"generators": []})
    return folder


def load_runs(folder: Path, arrivals: str, sizes: Sequence[int], *, seeds: Sequence[int], slo: str | None = None) -> list[Path]:
    """Every size with every seed."""
    return [load_run(folder / f"{size}-{seed}", arrivals, seed=seed, slots=size, slo=slo) for size in sizes for seed in seeds]


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value), "utf-8")
