"""The arrivals of one run, or of all runs of an arm, as one table: what was recorded beside what was scheduled.

One row an arrival, in the order of seq within each run. Times and durations are ns. A duration that may be unknown is
float64 with NaN for unknown (exact up to 104 days); there is no column of Python objects, and columns are read one at
a time, so that 10 million rows fit into little more than the table itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.errors import BenchError
from bench.load.profile import NO_SPIKE
from bench.load.schedule import METADATA_KEY
from bench.records import SavedRun
from bench.run_tables import STATUSES

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

PARTS = ("queue", "pool", "load", "input", "infer", "output")
UNKNOWN_PHASE = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeWindow:
    """When the rate was above its base in one run: [start_ns, end_ns) on the run's clock."""

    run: int
    spike: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRecords:
    """The runs of one arm. `requests` has one row a recorded arrival:

    run (int16, the number that pairs it with the run of another arm), seq (int64), intended_ns (int64), lag_ns,
    round_trip_ns and response_ns (float64, NaN where it was not sent or not done), status (categorical of STATUSES), ok
    (bool), spike (int32, negative outside), phase (categorical), queue_ns, pool_ns, load_ns, input_ns, infer_ns,
    output_ns (float64, NaN where the server did not tell).

    runs: their numbers; durations_ns: how long each offered load. unrecorded: scheduled arrivals without a row, from a
    run that was cut off; they are unknown, not failed. partial: a run did not end by itself.
    """

    requests: pd.DataFrame
    spikes: tuple[SpikeWindow, ...]
    runs: tuple[int, ...]
    durations_ns: tuple[int, ...]
    unrecorded: int
    partial: bool

    @property
    def duration_ns(self) -> int:
        """How long load was offered, all runs together."""
        return sum(self.durations_ns)


def read_arm(runs: Sequence[SavedRun], numbers: Sequence[int] | None = None) -> ArmRecords:
    """Read the runs of one arm. `numbers` (0, 1, ... where not given): runs of two arms with the same number had the
    same schedule, which is what pairs their spikes; in an experiment that is the block. Raises BenchError where a run
    has no requests or no schedule, or where its records do not fit its schedule."""
    if not runs:
        raise BenchError("there is no run to read: name a run folder")
    parts = [_read_run(saved, number) for number, saved in zip(range(len(runs)) if numbers is None else numbers, runs, strict=True)]
    requests = parts[0].requests if len(parts) == 1 else _concatenate([part.requests for part in parts])
    return ArmRecords(
        requests=requests,
        spikes=tuple(window for part in parts for window in part.spikes),
        runs=tuple(number for part in parts for number in part.runs),
        durations_ns=tuple(duration for part in parts for duration in part.durations_ns),
        unrecorded=sum(part.unrecorded for part in parts),
        partial=any(part.partial for part in parts),
    )


def _read_run(saved: SavedRun, number: int) -> ArmRecords:
    seq_table, scheduled = saved.table("requests", ["seq"]), saved.table("schedule", ["seq"])
    if seq_table is None or seq_table.num_rows == 0:
        raise BenchError(f"{saved.path} has no recorded requests; only a run that sent load can be analysed")
    if scheduled is None:
        raise BenchError(f"{saved.path} has no schedule, so what it was to deliver is not known")
    seq = seq_table.column("seq").to_numpy()
    order = None if (seq[1:] > seq[:-1]).all() else np.argsort(seq, kind="stable")
    seq = seq if order is None else seq[order]
    arrivals = scheduled.num_rows
    rows = _rows_of(scheduled.column("seq").to_numpy(), seq, saved)
    del seq_table, scheduled

    def column(name: str) -> NDArray[Any]:
        values = _one_column(saved, name)
        return values if order is None else values[order]

    intended = column("intended_ns").astype(np.int64)
    sent, done = column("sent_ns"), column("done_ns")
    columns: dict[str, Any] = {"run": np.full(len(seq), number, np.int16), "seq": seq, "intended_ns": intended}
    columns["lag_ns"] = sent - intended
    columns["round_trip_ns"] = done - sent
    columns["response_ns"] = done - intended
    del sent, done
    status = _status_codes(saved)
    status = status if order is None else status[order]
    columns["status"] = pd.Categorical.from_codes(status, categories=list(STATUSES))  # type: ignore[call-overload, unused-ignore]
    columns["ok"] = status == 0
    schedule = saved.table("schedule")
    assert schedule is not None
    columns["spike"] = schedule.column("spike").fill_null(NO_SPIKE).to_numpy()[rows].astype(np.int32, copy=False)
    columns["phase"] = _phases(schedule, rows)
    spikes, duration_ns = _windows(schedule, number)
    del schedule
    for part in PARTS:
        columns[f"{part}_ns"] = column(f"{part}_ns")
    return ArmRecords(
        requests=pd.DataFrame(columns, copy=False),
        spikes=spikes,
        runs=(number,),
        durations_ns=(duration_ns,),
        unrecorded=arrivals - len(seq),
        partial=saved.partial,
    )


def _one_column(saved: SavedRun, name: str) -> NDArray[Any]:
    """int64 as it is, or float64 with NaN for null."""
    table = saved.table("requests", [name])
    assert table is not None
    values = table.column(name)
    del table
    if name == "intended_ns":
        exact: NDArray[np.int64] = values.to_numpy()
        return exact
    return values.cast("float64").to_numpy().astype(np.float64, copy=False)  # type: ignore[no-any-return]


def _status_codes(saved: SavedRun) -> NDArray[np.int8]:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = saved.table("requests", ["status"])
    assert table is not None
    found: NDArray[np.int8] = pc.index_in(table.column("status"), value_set=pa.array(STATUSES)).cast("int8").to_numpy()
    return found


def _rows_of(scheduled: NDArray[np.int64], seq: NDArray[np.int64], saved: SavedRun) -> NDArray[np.int64] | slice:
    """The row of the schedule of each recorded arrival: usually all of them, one after the other."""
    if len(scheduled) == len(seq) and (scheduled == seq).all():
        return slice(None)
    rows = np.searchsorted(scheduled, seq)
    known = rows < len(scheduled)
    if not known.all() or (scheduled[rows] != seq).any():
        raise BenchError(f"{saved.path} has recorded arrivals that its schedule does not have: the records are damaged")
    if (seq[1:] == seq[:-1]).any():
        raise BenchError(f"{saved.path} has arrivals that are recorded twice: the records are damaged")
    return rows


def _phases(schedule: pa.Table, rows: NDArray[np.int64] | slice) -> pd.Categorical:
    encoded = schedule.column("phase").combine_chunks()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int8)
    return pd.Categorical.from_codes(codes[rows], categories=names)  # type: ignore[call-overload, no-any-return, unused-ignore]


def _windows(schedule: pa.Table, run: int) -> tuple[tuple[SpikeWindow, ...], int]:
    """The spikes and the duration, as the schedule's metadata tells; from its arrivals where it does not."""
    about = json.loads((schedule.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    intended, spike = schedule.column("intended_ns").to_numpy(), schedule.column("spike").fill_null(NO_SPIKE).to_numpy()
    duration_ns = int(about.get("duration_ns", intended[-1] if len(intended) else 0))
    if "spikes" in about:
        known = [(entry["index"], entry["start_ns"], entry["end_ns"]) for entry in about["spikes"]]
    else:
        known = [(int(i), int(intended[spike == i].min()), int(intended[spike == i].max()) + 1) for i in np.unique(spike[spike >= 0])]
    return tuple(SpikeWindow(run=run, spike=i, start_ns=start, end_ns=end) for i, start, end in known), duration_ns


def _concatenate(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """One table; the phases of all runs in one set of categories, so that the column stays categorical."""
    phases = pd.api.types.union_categoricals([frame["phase"] for frame in frames])
    joined = pd.concat([frame.drop(columns="phase") for frame in frames], ignore_index=True)
    joined.insert(joined.columns.get_loc("spike") + 1, "phase", phases)  # type: ignore[operator, arg-type, unused-ignore]
    return joined
