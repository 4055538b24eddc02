"""A saved service curve, read back: how long a request occupies its slot when k slots are busy, and what slots hold.

What occupies a slot is told by the server's parts: input copy, inference, and of `output` the least of the level, since
the rest of that part is the way back to the connection and the encoding, where the slot serves the next request already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bench.analysis.sm_clock import ClockRange, sm_clock_of_runs
from bench.errors import BenchError
from bench.records import SavedRun, open_run

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

CURVE = "curve"
RAMP, STEADY, DRAIN = "ramp", "steady", "drain"
LEAST_SAMPLES = 100
_FULLY = 0.98  # of its slots occupied: what is missing then is the edge of the measurement
_PARTS = ("queue_ns", "pool_ns", "load_ns", "input_ns", "infer_ns", "output_ns")
_COLUMNS = ("round", "busy", "batch", "phase", "sent_ns", "done_ns", *_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """`busy` slots that were never idle, and one batch size. Arrays are int64, one element a request, in the order in
    which they ended, of at least 100.

    service_ns: how long it occupied its slot. overhead_ns: its round trip less that, less the wait for a slot and for a
    load: HTTP on both sides, decoding, encoding, the hops between threads. throughput_per_s: answers a second of all
    slots together; round_throughputs_per_s: the same of each round, a fresh server each.
    """

    busy: int
    batch: int
    service_ns: NDArray[np.int64]
    overhead_ns: NDArray[np.int64]
    throughput_per_s: float
    round_throughputs_per_s: tuple[float, ...]

    @property
    def occupied(self) -> float:
        """How many slots were occupied on average (Little's law). Below `busy` where the load could not keep up."""
        return self.throughput_per_s * float(self.service_ns.mean()) / 1e9

    @property
    def turnaround_ns(self) -> int:
        """For how long a slot stands empty between two requests although one waits, in the mean: until the event loop has handed
        it over. A saturated server answers that much less often than its service times alone would let it."""
        if not 0 < self.occupied < _FULLY * self.busy:
            return 0
        return round(self.busy / self.throughput_per_s * 1e9 - float(self.service_ns.mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCurve:
    """What was measured of one engine on one device.

    engine: its manifest as JSON. settings: the runtime settings that all servers had, also the threads of a slot: the
    curve holds for servers with the same. levels: ascending in batch, then in busy. Memory is of the server's process,
    of `memory_kind`, at its peak under load: `base_bytes` before it loaded anything, `engine_bytes` what comes with the
    engine (its library too), `slot_bytes` with each slot (with `sharing` copy: its own engine too). None where not
    known; `slot_bytes` and `engine_bytes` need two numbers of slots. sm_clock: of all servers; None without a GPU.
    """

    path: Path
    run_id: str
    partial: bool
    title: str
    engine: Mapping[str, Any]
    sharing: str
    settings: Mapping[str, str]
    levels: tuple[ServiceLevel, ...]
    slot_bytes: int | None
    engine_bytes: int | None
    base_bytes: int | None
    memory_kind: Literal["resident", "device"]
    measured_bytes: Mapping[int, int]
    sm_clock: ClockRange | None = None

    @property
    def model(self) -> str:
        return str(self.engine["name"])

    @property
    def device(self) -> str:
        return str(self.engine["device"])

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that were measured, ascending."""
        return tuple(sorted({level.batch for level in self.levels}))

    def of_batch(self, batch: int | None = None) -> tuple[ServiceLevel, ...]:
        """The levels of one batch size, ascending in busy; None is the smallest one."""
        wanted = self.batches[0] if batch is None else batch
        return tuple(level for level in self.levels if level.batch == wanted)

    def at(self, busy: int, batch: int | None = None) -> ServiceLevel:
        """The level of the fewest busy slots that are at least `busy`; beyond the last one measured, that one.

        So between two levels a request is said to take as long as with the more busy slots. Raises KeyError for a batch
        size that was not measured.
        """
        levels = self.of_batch(batch)
        if not levels:
            raise KeyError(batch)
        return next((level for level in levels if level.busy >= busy), levels[-1])

    def memory_bytes(self, slots: int) -> int | None:
        """What a server with so many slots holds: measured for that number, else base + engine + slots x slot; None where
        that is not known."""
        if slots in self.measured_bytes:
            return self.measured_bytes[slots]
        if self.base_bytes is None or self.engine_bytes is None or self.slot_bytes is None:
            return None
        return self.base_bytes + self.engine_bytes + slots * self.slot_bytes


def read_service_curve(run: Path) -> ServiceCurve:
    """The curve of a run folder, also of one that was cut off. Raises BenchError where it is another run or holds none."""
    return service_curve(open_run(run, CURVE))


def service_curve(saved: SavedRun) -> ServiceCurve:
    """The same from a run that is open. Levels with fewer than 100 answers are left out. Raises BenchError."""
    record = saved.run
    saved.check_kind(CURVE)
    table = saved.table("requests", _COLUMNS)
    levels = () if table is None else _levels(table)
    if not levels:
        raise BenchError(f"{saved.path} has no level with {LEAST_SAMPLES} answers, so it holds no service curve; measure it again")
    saved.check_table("servers")
    timeline = saved.table("timeline", ("slots", "slots_busy", "slots_idle", "resident_bytes", "device_bytes"))
    kind, base, measured = _memory(timeline)
    slot, engine = _memory_line(base, measured)
    try:
        return ServiceCurve(
            path=saved.path,
            run_id=str(record["run_id"]),
            partial=saved.partial,
            title=str(record["title"]),
            engine=record["engine"],
            sharing=str(record["sharing"]),
            settings=record["settings"],
            levels=levels,
            slot_bytes=slot,
            engine_bytes=engine,
            base_bytes=base,
            memory_kind=kind,
            measured_bytes=measured,
            sm_clock=sm_clock_of_runs([saved]),
        )
    except KeyError as error:
        raise BenchError(f"{saved.path / 'run.json'} has no {error}: it was written by another program, or is damaged") from None


def _levels(table: pa.Table) -> tuple[ServiceLevel, ...]:
    columns = {name: table.column(name).to_numpy() for name in ("busy", "batch", "phase")}
    keep = columns["phase"] == STEADY
    for name in _PARTS:  # of a server that does not tell
        keep &= table.column(name).is_valid().to_numpy()
    numbers = {name: table.column(name).to_numpy()[keep].astype(np.int64) for name in (*_PARTS, "sent_ns", "done_ns", "round")}
    busy, batch = columns["busy"][keep].astype(np.int64), columns["batch"][keep].astype(np.int64)
    pairs = sorted({(int(size), int(slots)) for size, slots in zip(batch, busy, strict=True)})
    found = []
    for size, slots in pairs:
        chosen = np.flatnonzero((busy == slots) & (batch == size))
        if len(chosen) >= LEAST_SAMPLES:
            found.append(_level(slots, size, {name: values[chosen] for name, values in numbers.items()}))
    return tuple(found)


def _level(busy: int, batch: int, rows: Mapping[str, NDArray[np.int64]]) -> ServiceLevel:
    order = np.argsort(rows["done_ns"], kind="stable")
    part = {name: values[order] for name, values in rows.items()}
    service = part["input_ns"] + part["infer_ns"] + part["output_ns"].min()
    overhead = part["done_ns"] - part["sent_ns"] - part["pool_ns"] - part["load_ns"] - service
    done = [part["done_ns"][part["round"] == number] for number in np.unique(part["round"])]
    rates = [_rate_per_s(times) for times in done]
    return ServiceLevel(
        busy=busy,
        batch=batch,
        service_ns=service,
        overhead_ns=np.maximum(overhead, 0),
        throughput_per_s=len(order) / sum(len(times) / rate for rate, times in zip(rates, done, strict=True)) if all(rates) else 0.0,
        round_throughputs_per_s=tuple(rates),
    )


def _rate_per_s(done_ns: NDArray[np.int64]) -> float:
    """Answers a second: the slope of the line through their count over time. Slots that began together also end
    together, and a count between two moments would depend on how many of them fell just outside."""
    since_s = (done_ns - done_ns[0]) / 1e9
    off_s = since_s - since_s.mean()
    spread = float(off_s @ off_s)
    return float(off_s @ np.arange(len(done_ns))) / spread if spread > 0 else 0.0


def _memory(timeline: pa.Table | None) -> tuple[Literal["resident", "device"], int | None, dict[int, int]]:
    """The kind of memory, before anything was loaded, and the peak with all slots ready by their number (the median of
    the rounds is not taken: what was held once can be held again)."""
    if timeline is None or timeline.num_rows == 0:
        return "resident", None, {}
    slots = timeline.column("slots").to_numpy()
    ready = timeline.column("slots_busy").to_numpy() + timeline.column("slots_idle").to_numpy()
    device = timeline.column("device_bytes")
    kind: Literal["resident", "device"] = "resident" if device.null_count == timeline.num_rows else "device"
    held = timeline.column(f"{kind}_bytes").fill_null(-1).to_numpy()
    before, known = held[(ready == 0) & (held >= 0)], held >= 0
    full = [int(number) for number in np.unique(slots) if ((slots == number) & (ready == number) & known).any()]
    return (
        kind,
        int(before.min()) if len(before) else None,
        {number: int(held[(slots == number) & (ready == number) & known].max()) for number in full},
    )


def _memory_line(base: int | None, measured: Mapping[int, int]) -> tuple[int | None, int | None]:
    """Bytes of each slot and of the engine: the least-squares line through what servers of several sizes held."""
    if base is None or len(measured) < 2:
        return None, None
    slot, rest = np.polyfit(list(measured), list(measured.values()), 1)
    return max(0, round(float(slot))), max(0, round(float(rest)) - base)
