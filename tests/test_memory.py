"""Memory from a timeline written by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.analysis.memory import Memory, PerSlot, memory, memory_over_time, per_copy_between, per_slot_between

MB = 1_000_000


def timeline(rows: list[tuple[int, str, int, int, int, int, int | None, int | None]]) -> pa.Table:
    names = ("t_ns", "model", "slots_busy", "slots_idle", "slots_loading", "waiting", "resident_bytes", "device_bytes")
    types = (pa.int64(), pa.string(), *([pa.int32()] * 4), pa.int64(), pa.int64())
    columns = zip(*rows, strict=True)
    return pa.table({name: pa.array(column, kind) for name, kind, column in zip(names, types, columns, strict=True)})


GROWING = [
    (0, "m", 0, 0, 1, 0, 100 * MB, None),
    (50, "m", 1, 0, 0, 3, 200 * MB, None),
    (100, "m", 1, 0, 1, 2, 260 * MB, None),
    (150, "m", 1, 2, 0, 0, 400 * MB, None),
    (200, "m", 0, 3, 0, 0, 402 * MB, None),
    (250, "m", 0, 3, 0, 0, 404 * MB, None),
]


def test_by_hand() -> None:
    (found,) = memory(timeline(GROWING))
    assert (found.kind, found.first, found.peak, found.last, found.slots) == ("resident", 100 * MB, 404 * MB, 404 * MB, 3)
    assert found.median == 330 * MB
    # Settled samples only: one slot at 200, three at the median of 400, 402 and 404.
    assert found.per_slot == 101 * MB


def test_over_time_in_the_order_of_time() -> None:
    series = memory_over_time(timeline(GROWING[::-1]))
    assert series["t_ns"].tolist() == [0, 50, 100, 150, 200, 250]
    assert series["slots"].tolist() == [0, 1, 1, 3, 3, 3]
    assert series["waiting"].tolist() == [0, 3, 2, 0, 0, 0]
    assert np.isnan(series["device_bytes"]).all()


def test_two_models_share_a_process() -> None:
    rows = [(0, "a", 1, 1, 0, 1, 500 * MB, 70 * MB), (0, "b", 0, 3, 0, 2, 500 * MB, 70 * MB)]
    series = memory_over_time(timeline(rows))
    assert (series["slots"].tolist(), series["waiting"].tolist(), series["resident_bytes"].tolist()) == ([5], [3], [500 * MB])
    assert [entry.kind for entry in memory(timeline(rows))] == ["resident", "device"]


def test_a_fixed_pool_tells_nothing_of_a_slot_but_two_pools_do() -> None:
    (one,) = memory(timeline([(0, "m", 0, 1, 0, 0, 150 * MB, None)]))
    (four,) = memory(timeline([(0, "m", 0, 4, 0, 0, 450 * MB, None)]))
    assert one.per_slot is None
    assert per_slot_between(one, four) == per_slot_between(four, one) == PerSlot(bytes=100 * MB, reason=None)
    assert per_slot_between(one, one) is None


def of(slots: int, resident: int, spread: int = 0) -> Memory:
    return Memory(kind="resident", first=0, median=resident * MB, peak=0, last=0, slots=slots, per_slot=None, spread=float(spread * MB))


def test_what_cannot_be_told_is_no_number() -> None:
    (shrunk,) = memory(timeline([(0, "m", 0, 1, 0, 0, 150 * MB, None), (50, "m", 0, 2, 0, 0, 149 * MB, None)]))
    assert shrunk.per_slot is None and shrunk.per_slot_reason is not None and "not larger" in shrunk.per_slot_reason
    smaller = per_slot_between(of(1, 200), of(4, 190))
    assert smaller is not None and smaller.bytes is None and "was not larger" in str(smaller.reason)
    lost = per_slot_between(of(1, 200, spread=20), of(4, 215))
    assert lost is not None and lost.bytes is None and "runs of one arm differ by 20.0 MB" in str(lost.reason)
    assert per_slot_between(of(1, 200, spread=20), of(4, 230)) == PerSlot(bytes=10 * MB, reason=None)


def test_copies_of_an_engine() -> None:
    assert per_copy_between(of(4, 300), of(4, 600)) == PerSlot(bytes=100 * MB, reason=None, copies=True)
    assert per_copy_between(of(1, 300), of(1, 600)) is None  # one slot has one engine either way
    assert per_copy_between(of(2, 300), of(4, 600)) is None
