"""Load beside traffic: what arrivals felt that were due while one more engine was being loaded, and what it took.

Two arms got the same schedule, one of them with a load in each spike. So the arrivals that were due during a load have
their like in the other arm: the same numbers of the same block, alone. The unit is the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from bench.analysis.compare import P99Comparison, compare_p99
from bench.analysis.load_run import ArmRecords
from bench.analysis.statistics import Interval, median, percentile
from bench.analysis.subject import ArmFiles
from bench.analysis.tail import clustered_interval
from bench.errors import BenchError
from bench.records import SavedRun

Windows = Mapping[int, Sequence[tuple[int, int, int]]]  # block -> (spike, began_ns, ended_ns) of each load


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsBeside:
    """`arm` had the loads, `alone` is the same without. loads: done and timed, of `planned`; errors: why others are none.
    took_ns: median of a load. arrivals: due during a load, in both arms; alone_p99_ns and during_p99_ns: of their
    correct answers, None with fewer than 100. p99: of those arrivals, paired by load, neighbours put together where one
    load has too few; None with the `reason`. extra_ns: by how much the same arrival took longer, mean, with its
    interval over loads (None below five). held_bytes and peak_bytes: memory (the device's where that is known, else resident:
    memory_kind) beyond what there was just before the first load of each server, afterwards and at most while loading;
    medians over servers, None without a timeline."""

    arm: str
    alone: str
    planned: int
    loads: int
    errors: tuple[str, ...]
    took_ns: float | None
    took_longest_ns: int | None
    arrivals: int
    alone_p99_ns: float | None
    during_p99_ns: float | None
    p99: P99Comparison | None
    reason: str | None
    extra_ns: float | None
    extra_interval: Interval | None
    memory_kind: str | None
    held_bytes: float | None
    peak_bytes: float | None


def load_windows(files: ArmFiles) -> Windows:
    """When which load was going on, by block; those that failed are none."""
    return {
        number: [(load["spike"], load["began_ns"], load["ended_ns"]) for load in _loads(run) if load["error"] is None]
        for number, run in zip(files.numbers, files.runs, strict=True)
    }


def during(arm: ArmRecords, windows: Windows) -> pd.DataFrame:
    """The arrivals that were due during a load: run, seq, spike (the load's), ok, response_ns."""
    run, intended = arm.requests["run"].to_numpy(), arm.requests["intended_ns"].to_numpy()
    pieces = []
    for number, loads in windows.items():
        rows = np.flatnonzero(run == number)
        for spike, began_ns, ended_ns in loads:
            first, last = np.searchsorted(intended[rows], [began_ns, ended_ns])
            pieces.append(arm.requests.iloc[rows[first:last]][["run", "seq", "ok", "response_ns"]].assign(spike=spike))
    return pd.concat(pieces, ignore_index=True) if pieces else arm.requests.iloc[:0][["run", "seq", "spike", "ok", "response_ns"]]


def loads_beside(files: ArmFiles, alone: str, without: pd.DataFrame, with_load: pd.DataFrame, *, planned: int) -> LoadsBeside:
    """`without` and `with_load`: `during` of the arm without and with the loads, for the windows of the latter. planned:
    as many loads as its runs have spikes."""
    every = [load for run in files.runs for load in _loads(run)]
    good = [load for load in every if load["error"] is None]
    took = [load["ended_ns"] - load["began_ns"] for load in good]
    p99, reason = None, None
    try:
        p99 = compare_p99(without, with_load)
    except BenchError:
        reason = f"{len(with_load)} arrivals were due during a load, too few for a P99: use more spikes, or a higher peak"
    both = without.merge(with_load, on=["run", "seq", "spike"], suffixes=("_without", "_with"))
    both = both[both["ok_without"] & both["ok_with"]]
    extra = (both["response_ns_with"] - both["response_ns_without"]).to_numpy()
    clusters = (both["run"].astype("int64") * 1_000_000 + both["spike"]).to_numpy()
    memory = [found for run in files.runs for found in [_memory_of_first(run)] if found is not None]
    return LoadsBeside(
        arm=files.name,
        alone=alone,
        planned=planned,
        loads=len(good),
        errors=tuple(dict.fromkeys(str(load["error"]) for load in every if load["error"] is not None)),
        took_ns=median(took) if took else None,
        took_longest_ns=max(took, default=None),
        arrivals=len(both),
        alone_p99_ns=percentile(both["response_ns_without"].to_numpy(), 99),
        during_p99_ns=percentile(both["response_ns_with"].to_numpy(), 99),
        p99=p99,
        reason=reason,
        extra_ns=float(extra.mean()) if len(extra) else None,
        extra_interval=clustered_interval(extra, clusters) if len(extra) else None,
        memory_kind=memory[0][0] if memory else None,
        held_bytes=median([held for _, held, _ in memory]) if memory else None,
        peak_bytes=median([peak for _, _, peak in memory]) if memory else None,
    )


def _loads(run: SavedRun) -> list[dict[str, Any]]:
    return list(run.run.get("loads") or ())


def _memory_of_first(run: SavedRun) -> tuple[str, float, float] | None:
    """(kind, held, peak) of the first load of the run's server. Later ones may get pages that the allocator has kept."""
    timeline = run.table("timeline", ["t_ns", "resident_bytes", "device_bytes"])
    load = next((load for load in _loads(run) if load["error"] is None), None)
    if timeline is None or load is None:
        return None
    kind = "device" if timeline.column("device_bytes").null_count < len(timeline) else "resident"
    sizes = timeline.select(["t_ns", f"{kind}_bytes"]).rename_columns(["t_ns", "bytes"])
    before = _sizes(sizes, load["began_ns"] - 500_000_000, load["began_ns"])
    loading = _sizes(sizes, load["began_ns"], load["ended_ns"])
    held = _sizes(sizes, load["ended_ns"], load["unloaded_ns"] or load["ended_ns"] + 500_000_000)
    if not len(before) or not len(held):
        return None
    start = median(before)
    return kind, median(held) - start, float(max(*loading, *held)) - start


def _sizes(timeline: pa.Table, from_ns: int, to_ns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    t_ns = timeline.column("t_ns")
    chosen = timeline.filter(pc.and_(pc.greater_equal(t_ns, from_ns), pc.less(t_ns, to_ns)))
    sizes: np.ndarray[tuple[int], np.dtype[np.float64]] = chosen.column("bytes").drop_null().cast("float64").to_numpy()
    return sizes
