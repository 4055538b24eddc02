"""A saved cold-start run, read back whole: what it measured, on what, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.analysis.phases import ColdStartSummary, summarize
from bench.errors import BenchError
from bench.records import SavedRun, open_run

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

LEVEL_ORDER = ("server", "process-disk", "process", "engine", "slot", "warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartRun:
    """`subject`: engine, runtime, precision, device and shape, to which every number belongs. `totals`: (variant,
    level) -> the time to the first correct answer of each trial, float64, ns, in the order of the trials."""

    path: Path
    partial: bool
    run: Mapping[str, Any]
    subject: str
    summary: ColdStartSummary
    totals: Mapping[tuple[str, str], NDArray[np.float64]]


def read_cold_starts(path: Path) -> ColdStartRun:
    """Read the run folder, also one that was cut off. Raises BenchError."""
    saved = open_run(path, "coldstart")
    run, table = saved.run, finished_trials(saved)
    summary = summary_of(saved, table)
    names = ("order", "variant", "level", "phase", "duration_ns")
    rows = table.select(list(names)).to_pandas()
    whole = rows[rows["phase"] == "total"].sort_values("order")
    totals = {
        (level.variant, level.level): whole.loc[(whole["variant"] == level.variant) & (whole["level"] == level.level), "duration_ns"]
        .to_numpy()
        .astype(np.float64)
        for level in summary.levels
    }
    return ColdStartRun(
        path=saved.path, partial=saved.partial, run=run, subject=subject_of(run["variants"][0]["engine"]), summary=summary, totals=totals
    )


def finished_trials(saved: SavedRun) -> pa.Table:
    """The table `cold_starts`. Raises BenchError where it has no row."""
    table = saved.table("cold_starts")
    if table is None or not table.num_rows:
        raise BenchError(f"{saved.path} has no finished trial")
    return table


def summary_of(saved: SavedRun, trials: pa.Table) -> ColdStartSummary:
    """What the trials of the run say."""
    variants = [variant["label"] for variant in saved.run.get("variants") or ()]
    warnings = (saved.run.get("environment") or {}).get("warnings") or ()
    return summarize(trials, variants, saved.run["settings"]["trials"], warnings)


def subject_of(engine: Mapping[str, Any]) -> str:
    """What every number about the engine belongs to, from its manifest as `run.json` has it."""
    parts = [engine["name"], f"{engine['runtime']} {engine['runtime_version']}", engine["precision"], engine["device"]]
    shapes = [f"{name} {'x'.join(map(str, sizes['min'])) or 'scalar'}" for name, sizes in engine["profiles"][0].items()]
    return ", ".join([*parts, *shapes])
