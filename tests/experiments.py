"""Experiments as tests write them: every response time is chosen, so every figure of the summary can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.analysis.load_run import PARTS
from bench.server_timeline import timeline_schema
from tests.request_rows import REQUESTS_SCHEMA

MS = 10**6
S = 10**9
LEAD, HOLD, REST = 2 * S, 1 * S, 4 * S
BASE_GAP, SPIKE_GAP = 20 * MS, 5 * MS  # 50 and 200 requests/s

# (arm, block, spike or None, position inside it) -> (response_ns, the server's parts)
Service = Callable[[str, int, int | None, int], tuple[int, Mapping[str, int]]]

ENGINE = {
    "name": "m",
    "source_sha256": "aa",
    "runtime": "onnxruntime",
    "runtime_version": "1",
    "precision": "fp32",
    "device": "cpu:x86_64",
}
ENVIRONMENT = {"cpu": {"model": "Some CPU", "usable_cores": 2}, "warnings": []}


def arrivals(spikes: int) -> list[tuple[int, int | None, str, int]]:
    """(intended_ns, spike, phase, position): evenly spaced, a lead, and spikes with rests between."""
    found: list[tuple[int, int | None, str, int]] = [(t, None, "base", t // BASE_GAP) for t in range(0, LEAD, BASE_GAP)]
    for spike in range(spikes):
        start = LEAD + spike * (HOLD + REST)
        found += [(start + t, spike, "spike", t // SPIKE_GAP) for t in range(0, HOLD, SPIKE_GAP)]
        found += [(start + HOLD + t, None, "rest", t // BASE_GAP) for t in range(0, REST, BASE_GAP)]
    return found


def write_experiment(
    path: Path,
    service: Service,
    *,
    arms: Sequence[Mapping[str, Any]] = (
        {"name": "cold-load", "mode": "cold-load", "options": {}, "settings": {}},
        {"name": "warm-pool", "mode": "warm-pool", "options": {}, "settings": {}},
    ),
    blocks: int = 2,
    spikes: int = 3,
    leave_out: Sequence[str] = (),
    engine: Mapping[str, Any] = ENGINE,
    resident: Mapping[str, int] | None = None,
    slots: int = 1,
    slo_ns: int | None = 50 * MS,
    status: Callable[[str, int, int], str] = lambda arm, block, seq: "ok",
    first_contact: bool = False,
) -> Path:
    """An experiment folder whose runs have the response times that `service` says. Returns its path."""
    path.mkdir(parents=True)
    order = [{"block": block, "spikes": spikes, "schedule_seed": block, "arm": arm["name"]} for block in range(blocks) for arm in arms]
    if first_contact:
        order += [{**run, "block": blocks, "spikes": 1, "first_contact": True} for run in order[: len(arms)]]
    load = {"base_per_s": 50, "peak_per_s": 200, "hold_ns": HOLD, "rest_ns": REST, "count": blocks * spikes, "blocks": blocks, "seed": 1}
    record = {
        "schema_version": 1,
        "kind": "experiment",
        "run_id": path.name.removesuffix(".partial"),
        "engine": dict(engine),
        "engine_dir": str(path / "no-engine"),
        "title": f"m, onnxruntime 1, fp32, {engine['device']}",
        "arms": list(arms),
        "capacities": {},
        "spikes": load,
        "slo_ns": slo_ns,
        "deadline": "30s",
        "timeout_s": 60.0,
        "order": order,
        "environment": ENVIRONMENT,
        "command": ["bench", "burst", "m"],
    }
    (path / "run.json").write_text(json.dumps(record))
    for run in order:
        folder = f"{run['block']:02d}-{run['arm']}"
        if folder not in leave_out:
            block, count = int(run["block"]), int(run["spikes"])  # type: ignore[call-overload]
            _write_run(path / "runs" / folder, str(run["arm"]), block, count, service, resident or {}, slots, status)
    return path


def _write_run(
    path: Path,
    arm: str,
    block: int,
    spikes: int,
    service: Service,
    resident: Mapping[str, int],
    slots: int,
    status: Callable[[str, int, int], str],
) -> None:
    path.mkdir(parents=True)
    record = {"schema_version": 1, "kind": "load", "scenario": "burst", "arm": arm, "block": block}
    server = {"started_ns": 0, "listening_ns": 200 * MS, "ready_ns": 500 * MS}
    (path / "run.json").write_text(json.dumps({**record, "server": server}))
    (path / "summary.json").write_text(json.dumps({"generators": []}))
    planned = arrivals(spikes)
    about = {
        "duration_ns": LEAD + spikes * (HOLD + REST),
        "spikes": [
            {"index": i, "start_ns": LEAD + i * (HOLD + REST), "end_ns": LEAD + i * (HOLD + REST) + HOLD, "peak_rate": 200.0}
            for i in range(spikes)
        ],
    }
    schedule = pa.table(
        {
            "seq": pa.array(range(len(planned)), pa.int64()),
            "intended_ns": pa.array([entry[0] for entry in planned], pa.int64()),
            "spike": pa.array([entry[1] for entry in planned], pa.int32()),
            "phase": pa.array([entry[2] for entry in planned]).dictionary_encode(),
        }
    ).replace_schema_metadata({b"coldburst.schedule": json.dumps(about).encode()})
    pq.write_table(schedule, path / "schedule.parquet")
    rows = []
    for seq, (intended, spike, _, position) in enumerate(planned):
        took, parts = service(arm, block, spike, position)
        ended = status(arm, block, seq)
        rows.append(
            {
                "seq": seq,
                "intended_ns": intended,
                "sent_ns": intended + MS // 10,
                "done_ns": intended + took,
                "status": ended,
                "error": None if ended == "ok" else "HTTP 500",
                "worker": 0,
                **{f"{part}_ns": parts.get(part, 0) for part in PARTS},
            }
        )
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA), path / "requests.parquet")
    size = resident.get(arm, 100 * MS)
    samples = [
        {
            "t_ns": t,
            "model": "m",
            "slots_busy": 0,
            "slots_idle": 0 if t < 0 else slots,
            "slots_loading": 0,
            "waiting": 0,
            "resident_bytes": size // 2 if t < 0 else size,
            "device_bytes": None,
            "process_cpu_ns": 0,
        }
        for t in range(-S, about["duration_ns"], 50 * MS)  # type: ignore[call-overload]
    ]
    pq.write_table(pa.Table.from_pylist(samples, schema=timeline_schema()), path / "timeline.parquet")


def cold_and_warm(arm: str, block: int, spike: int | None, position: int) -> tuple[int, Mapping[str, int]]:
    """Cold-load: 10 ms, in a spike 100 ms and more, nearly all of it waiting for a slot. Warm-pool: 2 ms, in a spike 20 ms and more.

    In the spike `k` of block `b` the fastest takes 100 (20) ms * (1 + 0.1 * (3 b + k)), each further one 0.1 ms more.
    """
    if spike is None:
        took = 10 * MS if arm == "cold-load" else 2 * MS
        return took + position * 1000, {"pool": 50_000, "load": 5 * MS if arm == "cold-load" else 0, "infer": MS}
    first = (100 if arm == "cold-load" else 20) * MS
    took = first * (10 + 3 * block + spike) // 10 + position * MS // 10
    return took, {"pool": took - 8 * MS, "load": 5 * MS if arm == "cold-load" else 0, "infer": MS}
