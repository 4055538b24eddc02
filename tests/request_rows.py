"""Requests as tests write them: a few lists become the table that the analysis reads, or a run folder on the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.analysis.load_run import PARTS, ArmRecords, SpikeWindow, read_arm
from bench.records import RunFolder, open_run
from bench.run_tables import STATUSES

REQUESTS_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("intended_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("done_ns", pa.int64()),
        ("status", pa.string()),
        ("http_status", pa.int16()),
        ("error", pa.string()),
        ("bytes", pa.int64()),
        ("worker", pa.int32()),
        *[(f"{part}_ns", pa.int64()) for part in PARTS],
    ]
)


def requests(
    *,
    intended: Sequence[int],
    response: Sequence[float | None],
    lag: Sequence[float] | float = 0,
    status: Sequence[str] | str = "ok",
    spike: Sequence[int] | int = -1,
    phase: Sequence[str] | str = "base",
    run: Sequence[int] | int = 0,
    parts: Mapping[str, Sequence[float | None]] | None = None,
) -> pd.DataFrame:
    """The table that `bench.analysis.load_run` makes; ns; a single value stands for all rows."""
    n = len(intended)
    statuses = [status] * n if isinstance(status, str) else list(status)
    phases = [phase] * n if isinstance(phase, str) else list(phase)
    taken = np.array([np.nan if value is None else value for value in response], np.float64)
    lags = np.broadcast_to(np.asarray(lag, np.float64), n)
    return pd.DataFrame(
        {
            "run": np.broadcast_to(np.asarray(run, np.int16), n),
            "seq": np.arange(n, dtype=np.int64),
            "intended_ns": np.asarray(intended, np.int64),
            "lag_ns": lags,
            "round_trip_ns": taken - lags,
            "response_ns": taken,
            "status": pd.Categorical(statuses, categories=STATUSES),
            "ok": np.array([value == "ok" for value in statuses], np.bool_),
            "spike": np.broadcast_to(np.asarray(spike, np.int32), n),
            "phase": pd.Categorical(phases, categories=list(dict.fromkeys(phases))),
            **{f"{part}_ns": np.array((parts or {}).get(part, [None] * n), np.float64) for part in PARTS},
        }
    )


def arm(table: pd.DataFrame, *, duration_ns: int, spikes: Sequence[tuple[int, int]] = ()) -> ArmRecords:
    """One run whose spikes are (start_ns, end_ns)."""
    windows = tuple(SpikeWindow(run=0, spike=i, start_ns=start, end_ns=end) for i, (start, end) in enumerate(spikes))
    return ArmRecords(requests=table, spikes=windows, runs=(0,), durations_ns=(duration_ns,), unrecorded=0, partial=False)


def write_run(
    results: Path,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    schedule: Mapping[str, Sequence[Any]],
    *,
    about: Mapping[str, Any] | None = None,
    finish: bool = True,
) -> Path:
    """A run folder as the generator leaves it. `about`: the schedule's own metadata."""
    folder = RunFolder.create(results, name)
    folder.write_json("run.json", {"schema_version": 1, "kind": "load"})
    columns = {
        "seq": pa.array(schedule["seq"], pa.int64()),
        "intended_ns": pa.array(schedule["intended_ns"], pa.int64()),
        "spike": pa.array(schedule["spike"], pa.int32()),
        "phase": pa.array(schedule["phase"], pa.string()).dictionary_encode(),
    }
    table = pa.table(columns)
    if about is not None:
        table = table.replace_schema_metadata({b"coldburst.schedule": json.dumps(about).encode()})
    pq.write_table(table, folder.path / "schedule.parquet")
    stream = folder.table("requests", REQUESTS_SCHEMA)
    half = len(rows) // 2
    for some in (rows[:half], rows[half:]):
        stream.write(some)
    if finish:
        folder.write_json("summary.json", {"generators": []})
        return folder.finish()
    folder.close()
    return folder.path


def read(path: Path) -> ArmRecords:
    return read_arm([open_run(path)])
