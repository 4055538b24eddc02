"""Two cold-start runs: the total of every level that both have, second against first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.analysis.cold_start_run import finished_trials, summary_of
from bench.analysis.phases import Comparison
from bench.analysis.statistics import shift
from bench.errors import BenchError

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.records import SavedRun

_ENGINE = ("source_sha256", "runtime", "runtime_version", "precision", "device")


def obstacles(first: SavedRun, second: SavedRun) -> tuple[str, ...]:
    """Why the two should not be compared; empty where they may."""
    found = []
    for saved in (first, second):
        summary = summary_of(saved, finished_trials(saved))
        found += [f"{saved.path.name} is not valid: {reason}" for reason in summary.invalid[:1]]
        if saved.partial:
            found.append(f"{saved.path.name} did not end by itself")
    one, two = (saved.run["variants"][0]["engine"] for saved in (first, second))
    found += [
        f"another {key.removesuffix('_sha256')}: {str(one[key])[:20]} and {str(two[key])[:20]}" for key in _ENGINE if one[key] != two[key]
    ]
    processors = [_processor(saved) for saved in (first, second)]
    if processors[0] != processors[1]:
        found.append(f"another processor: {processors[0]} and {processors[1]}")
    return tuple(found)


def compare_coldstarts(first: SavedRun, second: SavedRun) -> tuple[Comparison, ...]:
    """The shift of each level's total, of every variant that both have. Raises BenchError where they have none in common."""
    ours, theirs = _totals(finished_trials(first)), _totals(finished_trials(second))
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise BenchError(f"{first.path.name} and {second.path.name} have no level in common")
    return tuple(
        Comparison(
            first=f"{' '.join(key).strip()} of {first.path.name}",
            second=f"{' '.join(key).strip()} of {second.path.name}",
            quantity="total",
            shift=shift(ours[key], theirs[key]),
        )
        for key in shared
    )


def _totals(table: pa.Table) -> dict[tuple[str, str], Any]:
    """(variant, level) -> the total of each trial, ns."""
    columns = {name: np.asarray(table.column(name).to_numpy()) for name in ("variant", "level", "phase", "duration_ns")}
    total = columns["phase"] == "total"
    keys = dict.fromkeys(zip(columns["variant"][total].tolist(), columns["level"][total].tolist(), strict=True))
    return {
        key: columns["duration_ns"][total & (columns["variant"] == key[0]) & (columns["level"] == key[1])]
        for key in keys
        if not key[1].startswith("floor")
    }


def _processor(saved: SavedRun) -> str:
    cpu = (saved.run.get("environment") or {}).get("cpu") or {}
    return f"{cpu.get('model')}, {cpu.get('usable_cores')} cores"
