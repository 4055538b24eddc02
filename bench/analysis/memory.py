"""Memory over time, at its peak and for each slot, from the server's timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.analysis.statistics import median
from bench.units import format_size

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.records import SavedRun

NO_GROWTH = "the memory was not larger with more slots: what one takes is less than what the rest of the process gives back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One kind of memory of a server's process in bytes (`kind`: resident or device). slots: the most that were ready
    at once. per_slot: what one more slot takes, from the medians of the samples with the fewest and with the most slots;
    None where their number did not change (then compare two arms with `per_slot_between`), and where it cannot be told:
    per_slot_reason then says why. spread: of several runs, the largest median less the smallest; 0 of one."""

    kind: str
    first: int
    median: float
    peak: int
    last: int
    slots: int
    per_slot: float | None
    per_slot_reason: str | None = None
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerSlot:
    """Bytes that one more slot takes, or None with the reason. copies: each slot also has an engine of its own."""

    bytes: float | None
    reason: str | None
    copies: bool = False


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
        per_slot = _per_slot(known["slots"].to_numpy(), sizes, known["loading"].to_numpy())
        found.append(
            Memory(
                kind=kind,
                first=int(sizes[0]),
                median=median(sizes),
                peak=int(sizes.max()),
                last=int(sizes[-1]),
                slots=int(known["slots"].max()),
                per_slot=per_slot if per_slot is not None and per_slot > 0 else None,
                per_slot_reason=None if per_slot is None or per_slot > 0 else NO_GROWTH,
            )
        )
    return tuple(found)


def memory_of_runs(runs: Sequence[SavedRun]) -> tuple[Memory, ...]:
    """The medians over the runs; the peak and the slots are the largest of any."""
    import pyarrow.compute as pc

    by_kind: dict[str, list[tuple[Memory, Memory | None]]] = {}
    for run in runs:
        timeline = run.table("timeline")
        if timeline is None or timeline.num_rows == 0:
            continue
        if run.run.get("loads"):  # what is loaded beside is not the arm's, neither its slots nor its memory
            timeline = timeline.filter(pc.equal(timeline.column("model"), timeline.column("model")[0]))
            whole = {one.kind: one for one in memory(timeline.filter(pc.less(timeline.column("t_ns"), run.run["loads"][0]["began_ns"])))}
        else:
            whole = {one.kind: one for one in memory(timeline)}
        loaded = timeline.filter(pc.greater_equal(timeline.column("t_ns"), 0))
        for one in memory(loaded if loaded.num_rows else timeline):
            by_kind.setdefault(one.kind, []).append((one, whole.get(one.kind)))
    return tuple(
        Memory(
            kind=kind,
            first=int(median([one.first for one, _ in found])),
            median=median([one.median for one, _ in found]),
            peak=max(one.peak for one, _ in found),
            last=int(median([one.last for one, _ in found])),
            slots=max(one.slots for one, _ in found),
            spread=max(one.median for one, _ in found) - min(one.median for one, _ in found),
            **_per_slot_of([whole for _, whole in found if whole is not None]),
        )
        for kind, found in by_kind.items()
    )


def _per_slot_of(wholes: Sequence[Memory]) -> dict[str, Any]:
    """The median over the runs; not known where it grew in fewer than half of them."""
    grown = [one.per_slot for one in wholes if one.per_slot is not None]
    shrunk = [one for one in wholes if one.per_slot_reason is not None]
    if not grown and not shrunk:
        return {"per_slot": None}
    if 2 * len(grown) <= len(wholes):
        return {"per_slot": None, "per_slot_reason": NO_GROWTH}
    return {"per_slot": median(grown)}


def per_slot_between(one: Memory, other: Memory) -> PerSlot | None:
    """Bytes a slot from two servers that differ only in their number of slots: difference of the medians over
    difference of the slots. None where they have the same number, or are different kinds of memory."""
    if one.kind != other.kind or one.slots == other.slots:
        return None
    fewer, more = sorted((one, other), key=lambda memory: memory.slots)
    return _share_of_difference(fewer, more, more.slots - fewer.slots, f"{more.slots} slots instead of {fewer.slots}")


def per_copy_between(shared: Memory, copied: Memory) -> PerSlot | None:
    """Bytes of one more copy of the engine, from two servers with as many slots, of which the first has one engine for
    all of them. None where they have other numbers of slots, or only one."""
    if shared.kind != copied.kind or shared.slots != copied.slots or copied.slots < 2:
        return None
    found = _share_of_difference(shared, copied, copied.slots - 1, f"{copied.slots} engines instead of 1")
    return replace(found, copies=True)


def memory_difference(one: Memory | None, two: Memory | None) -> tuple[str | None, float | None]:
    """Which kind of memory both are, and how many bytes more the second is (median)."""
    if one is None or two is None or one.kind != two.kind:
        return None, None
    return one.kind, two.median - one.median


def per_slot_against(first: Mapping[str, Any], one: Memory, second: Mapping[str, Any], two: Memory) -> PerSlot | None:
    """What a slot or a copy of the engine takes, where the set-ups of two warm pools differ in nothing else; else None."""

    def but(setup: Mapping[str, Any], left_out: str) -> Any:
        options = {key: value for key, value in (setup.get("options") or {}).items() if key != left_out}
        return setup.get("mode"), options, setup.get("settings"), setup.get("alone")

    if first.get("mode") != "warm-pool":
        return None
    if but(first, "pool") == but(second, "pool"):
        return per_slot_between(one, two)
    sharing = [(setup.get("options") or {}).get("sharing", "engine") for setup in (first, second)]
    if but(first, "sharing") == but(second, "sharing") and sharing[0] != sharing[1]:
        return per_copy_between(one, two) if sharing[0] == "engine" else per_copy_between(two, one)
    return None


def _share_of_difference(less: Memory, more: Memory, count: int, what: str) -> PerSlot:
    grown, noise = more.median - less.median, max(less.spread, more.spread)
    if grown <= 0:
        return PerSlot(bytes=None, reason=f"with {what} the memory was not larger, so what one takes is lost in the rest")
    if grown <= noise:
        words = f"with {what} the memory was {format_size(grown)} larger, and runs of one arm differ by {format_size(noise)}"
        return PerSlot(bytes=None, reason=words)
    return PerSlot(bytes=grown / count, reason=None)


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
