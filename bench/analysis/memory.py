"""Memory over time, at its peak and for each slot, from the server's timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.analysis.statistics import median

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One kind of memory of a server's process in bytes (`kind`: resident or device). slots: the most that were ready
    at once. per_slot: what one more slot takes, from the medians of the samples with the fewest and with the most slots;
    None where their number did not change (then compare two arms with `per_slot_between`)."""

    kind: str
    first: int
    median: float
    peak: int
    last: int
    slots: int
    per_slot: float | None


def memory_over_time(timeline: pa.Table) -> pd.DataFrame:
    """One row a sample: t_ns (from the run's start), slots (ready: busy + idle, all models together), busy, loading,
    waiting, resident_bytes and device_bytes (float64, NaN where not known). Samples are in the order of time."""
    counted = {"slots_busy": "busy", "slots_idle": "idle", "slots_loading": "loading", "waiting": "waiting"}
    frame = timeline.select(["t_ns", *counted, "resident_bytes", "device_bytes"]).to_pandas().rename(columns=counted)
    grouped = frame.groupby("t_ns", sort=True)
    counts = grouped[["busy", "idle", "loading", "waiting"]].sum()
    # Memory is the process's, the same in each model's row of a sample.
    sizes = grouped[["resident_bytes", "device_bytes"]].first().astype("float64")
    series: pd.DataFrame = counts.join(sizes).reset_index()
    series.insert(1, "slots", series["busy"] + series["idle"])
    del series["idle"]
    return series


def memory(timeline: pa.Table) -> tuple[Memory, ...]:
    """Resident and device memory, those that are known."""
    series = memory_over_time(timeline)
    found = []
    for kind in ("resident", "device"):
        known = series[series[f"{kind}_bytes"].notna()]
        if known.empty:
            continue
        sizes = known[f"{kind}_bytes"].to_numpy()
        found.append(
            Memory(
                kind=kind,
                first=int(sizes[0]),
                median=median(sizes),
                peak=int(sizes.max()),
                last=int(sizes[-1]),
                slots=int(known["slots"].max()),
                per_slot=_per_slot(known["slots"].to_numpy(), sizes, known["loading"].to_numpy()),
            )
        )
    return tuple(found)


def per_slot_between(fewer: Memory, more: Memory) -> float | None:
    """Bytes a slot from two servers that differ only in their number of slots: difference of the medians over
    difference of the slots. None where they have the same number, or are different kinds of memory."""
    if fewer.kind != more.kind or fewer.slots == more.slots:
        return None
    return (more.median - fewer.median) / (more.slots - fewer.slots)


def _per_slot(
    slots: np.ndarray[tuple[int], np.dtype[np.int64]],
    sizes: np.ndarray[tuple[int], np.dtype[np.float64]],
    loading: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> float | None:
    settled = loading == 0  # a slot that is being loaded has part of its memory already
    if not settled.any():
        return None
    slots, sizes = slots[settled], sizes[settled]
    low, high = int(slots.min()), int(slots.max())
    if low == high:
        return None
    return (median(sizes[slots == high]) - median(sizes[slots == low])) / (high - low)
