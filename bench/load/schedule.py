"""The schedule: every arrival of a run, computed before the first send. The file is the artefact, the seed its provenance.

A Parquet file with the columns seq (int64, 0, 1, ... in the order of sending), intended_ns (int64, from the start of the run, sorted),
spike (int32, null outside spikes), phase (text) and what a trace brought along. The file's metadata holds, under the key
`coldburst.schedule`, JSON with schema_version, duration_ns, spikes and provenance.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.drafts import file_to_replace
from bench.errors import BenchError
from bench.load.profile import NO_SPIKE, PHASES
from bench.tables import parquet_table, write_parquet

SCHEMA_VERSION = 1
METADATA_KEY = b"coldburst.schedule"
PHASE_TYPE = pa.dictionary(pa.int8(), pa.string())
OWN_COLUMNS: Mapping[str, pa.DataType] = {"seq": pa.int64(), "intended_ns": pa.int64(), "spike": pa.int32(), "phase": PHASE_TYPE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """One excursion of the offered rate above its base, [start_ns, end_ns). peak_rate is per second."""

    index: int
    start_ns: int
    end_ns: int
    peak_rate: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """All arrivals of a run.

    table: the columns of the file, one row an arrival. duration_ns: how long load is offered; arrivals lie in
    [0, duration_ns]. provenance: how it came about (arrivals, parameters and seed, or the trace and what was done to it).
    """

    table: pa.Table
    duration_ns: int
    spikes: tuple[Spike, ...]
    provenance: Mapping[str, Any]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def seq(self) -> NDArray[np.int64]:
        return _numbers(self.table, "seq")

    @property
    def intended_ns(self) -> NDArray[np.int64]:
        return _numbers(self.table, "intended_ns")

    @property
    def spike(self) -> NDArray[np.int32]:
        """The spike of each arrival, int32, NO_SPIKE (-1) outside spikes."""
        filled: NDArray[np.int32] = self.table.column("spike").fill_null(NO_SPIKE).to_numpy()
        return filled.astype(np.int32, copy=False)

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """The names of the columns that a trace brought along."""
        return tuple(name for name in self.table.column_names if name not in OWN_COLUMNS)


def make_schedule(
    *,
    intended_ns: NDArray[np.int64],
    duration_ns: int,
    provenance: Mapping[str, Any],
    spike: NDArray[np.int32] | None = None,
    phase: NDArray[np.int8] | None = None,
    spikes: tuple[Spike, ...] = (),
    extra: pa.Table | None = None,
) -> Schedule:
    """Put a schedule together from sorted times. spike: int32 [n], NO_SPIKE outside; phase: int8 [n], index into PHASES
    (left out: all "trace"). extra: further columns, one row an arrival. Raises BenchError where there are no arrivals."""
    count = len(intended_ns)
    if count == 0:
        raise BenchError("the schedule has no arrivals: raise the rate or the duration")
    spike = np.full(count, NO_SPIKE, np.int32) if spike is None else spike
    phase = np.full(count, PHASES.index("trace"), np.int8) if phase is None else phase
    columns = {
        "seq": pa.array(np.arange(count, dtype=np.int64)),
        "intended_ns": pa.array(intended_ns),
        "spike": pa.array(spike, mask=spike == NO_SPIKE),
        "phase": pa.DictionaryArray.from_arrays(pa.array(phase), pa.array(PHASES)),
    }
    table = pa.table(columns)
    if extra is not None:
        for name in extra.column_names:
            # A trace may call a column what the schedule calls one of its own.
            kept = name if name not in OWN_COLUMNS else f"trace_{name}"
            if kept in table.column_names or (kept != name and kept in extra.column_names):
                raise BenchError(f"the trace has a column {name!r} which would be a second {kept!r}: leave one out with --columns")
            table = table.append_column(kept, extra.column(name))
    schedule = Schedule(table=table, duration_ns=duration_ns, spikes=spikes, provenance=provenance)
    _check(schedule, "the schedule")
    return schedule


def partition(schedule: Schedule, worker: int, workers: int) -> Schedule:
    """The share of one worker: the rows whose seq modulo `workers` is `worker`. Raises BenchError where a worker would
    have nothing to send."""
    if not 0 <= worker < workers:
        raise BenchError(f"worker {worker} of {workers} does not exist: workers count from 0")
    if workers > len(schedule):
        raise BenchError(f"{workers} workers are more than the {len(schedule)} arrivals of the schedule: start fewer")
    share = schedule.table.filter(pa.array(schedule.seq % workers == worker))
    return Schedule(table=share, duration_ns=schedule.duration_ns, spikes=schedule.spikes, provenance=schedule.provenance)


def write_schedule(schedule: Schedule, path: Path, *, force: bool = False) -> None:
    """Write the file whole or not at all. Raises BenchError where it exists (without `force`) or cannot be written."""
    about = {
        "schema_version": SCHEMA_VERSION,
        "duration_ns": schedule.duration_ns,
        "spikes": [asdict(spike) for spike in schedule.spikes],
        "provenance": schedule.provenance,
    }
    table = schedule.table.replace_schema_metadata({METADATA_KEY: json.dumps(about, allow_nan=False).encode()})
    if path.exists() and not force:
        raise BenchError(f"{path} exists already and is not overwritten: name another file, or say --force")
    path = file_to_replace(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        write_parquet(table, temporary)
        if force:
            temporary.replace(path)
        else:
            # Unlike a rename, a link fails where the file has appeared in the meantime.
            os.link(temporary, path)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_schedule(path: Path) -> Schedule:
    """Read a file that `write_schedule` wrote. Raises BenchError: no such file, not Parquet, not a schedule, another
    version, missing or wrong columns, times that are unsorted, negative or past the duration."""
    if not path.is_file():
        raise BenchError(f"{path} is not a file: write a schedule with `bench schedule` or `bench trace`")
    try:
        table = parquet_table(path)
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        raise BenchError(f"{path} is not a readable Parquet file: write a schedule with `bench schedule` or `bench trace`") from None
    stored = (table.schema.metadata or {}).get(METADATA_KEY)
    if stored is None:
        raise BenchError(f"{path} is a Parquet file but not a schedule: write one with `bench schedule` or `bench trace`")
    try:
        about = json.loads(stored)
        json.dumps(about, allow_nan=False)  # JSON has no NaN and no infinity, though Python's reader takes them
        version = about["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BenchError(f"{path} has damaged schedule metadata: write it again") from None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise BenchError(f"{path} is a schedule of version {version!r}, this program reads version {SCHEMA_VERSION}: write it again")
    for name, kind in OWN_COLUMNS.items():
        if table.column_names.count(name) != 1:
            raise BenchError(f"{path} has {'two columns' if name in table.column_names else 'no column'} {name}: write it again")
        try:
            table = table.set_column(table.column_names.index(name), name, table.column(name).cast(kind))
        except pa.ArrowException:
            raise BenchError(f"{path} has {table.schema.field(name).type} in column {name}, not {kind}: write it again") from None
    try:
        spikes = tuple(_spike(**spike) for spike in about["spikes"])
        schedule = Schedule(table=table, duration_ns=_whole(about["duration_ns"]), spikes=spikes, provenance=dict(about["provenance"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BenchError(f"{path} has damaged schedule metadata: write it again") from None
    _check(schedule, str(path))
    return schedule


def _check(schedule: Schedule, where: str) -> None:
    """Raises BenchError where a promise of the format is broken."""
    if len(schedule) == 0:
        raise BenchError(f"{where} has no arrivals: raise the rate or the duration")
    for name in ("seq", "intended_ns"):
        if schedule.table.column(name).null_count:
            raise BenchError(f"{where} has rows without {name}: write it again")
    times, seq, in_spike = schedule.intended_ns, schedule.seq, schedule.spike
    if times.min() < 0:
        raise BenchError(
            f"{where} has a negative time, {times.min()} ns, in row {int(times.argmin())}: times count from the start of the run"
        )
    if (times[1:] < times[:-1]).any():
        row = int((times[1:] < times[:-1]).argmax()) + 1
        raise BenchError(f"{where} is not sorted: row {row} is due before row {row - 1}")
    if times[-1] > schedule.duration_ns:
        raise BenchError(f"{where} has an arrival at {times[-1]} ns, after its duration of {schedule.duration_ns} ns: write it again")
    if seq[0] < 0 or (seq[1:] <= seq[:-1]).any():
        raise BenchError(f"{where} has a seq that does not grow from row to row: write it again")
    known = [spike.index for spike in schedule.spikes]
    if len(set(known)) < len(known) or min(known, default=0) < 0 or any(one.end_ns < one.start_ns for one in schedule.spikes):
        raise BenchError(
            f"{where} has a spike table with an index that is negative or there twice, or an end before its start: write it again"
        )
    if schedule.table.column("spike").null_count < len(schedule) and not set(np.unique(in_spike).tolist()) <= {
        NO_SPIKE,
        *known,
    }:
        raise BenchError(f"{where} has arrivals of a spike that its spike table does not know: write it again")


def _spike(*, index: Any, start_ns: Any, end_ns: Any, peak_rate: Any) -> Spike:
    return Spike(index=_whole(index), start_ns=_whole(start_ns), end_ns=_whole(end_ns), peak_rate=float(peak_rate))


def _whole(value: Any) -> int:
    """Raises TypeError where it is no whole number."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise TypeError
    return value


def _numbers(table: pa.Table, name: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = table.column(name).to_numpy()
    return numbers
