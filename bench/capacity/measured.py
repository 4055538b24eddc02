"""What a plan rests on: the service curve and the starts of one engine, as samples, in a file of the plan's own.

A plan keeps its samples, so that `bench validate` predicts with exactly what the plan was made of, wherever the runs went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.analysis.curve import idle_note, invalid_reasons, useful_slots
from bench.capacity.starts import Starts
from bench.errors import BenchError
from bench.records import naming
from bench.tables import read_parquet, write_parquet

if TYPE_CHECKING:
    from bench.capacity.service import ServiceCurve

Samples = NDArray[np.int64]
FILE = "measured.parquet"
SCHEMA = pa.schema([("what", pa.string()), ("busy", pa.int32()), ("ns", pa.int64())])
# What two runs must agree in to be of the same engine; one that was built again may have other bytes.
SAME_ENGINE = ("name", "source_sha256", "runtime", "runtime_version", "precision", "device")
_WITHOUT_THREADS = ("synthetic", "tensorrt")  # they take the setting, so that one command line serves every runtime
# Runtime settings that change nothing where they are given as they are anyway (reference_server.runtimes).
DEFAULTS = {"buffers": "reuse", "cuda_graphs": "off", "spinning": "off", "load_optimization": "none", "memory_pattern": "on"}
_STARTS = ("cold_load_ns", "load_ns", "slot_ns", "ready_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Bytes, None where not known. base: the process without an engine. engine: what comes with an engine, its slots aside.
    slot: each slot. kind: resident or device."""

    kind: str
    base_bytes: int | None
    engine_bytes: int | None
    slot_bytes: int | None

    @property
    def known(self) -> bool:
        return self.engine_bytes is not None and self.slot_bytes is not None

    def of(self, engines: float, slots: float, processes: float = 1) -> float | None:
        """What so many processes hold that have so many engines and slots, all together; the numbers may be means."""
        if self.engine_bytes is None or self.slot_bytes is None:
            return None
        return processes * (self.base_bytes or 0) + engines * self.engine_bytes + slots * self.slot_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """levels: the service times with 1, 2, ... busy slots, with the turnaround, which keeps a slot from others as well.
    overheads_ns: of each answer beside its slot, at the same levels. throughput_per_s: of each level, in closed loop. busy: the
    numbers of busy slots that were measured; the other levels are those of the next larger one. sharing (`engine` or `copy`),
    settings: as the curve's servers had it. engine: its manifest. sources: where it came from, for people. curve_notes: what is to be
    said of the curve before any number that comes of it. invalid: why the curve or the cold starts may not be used; they and the
    notes are the plan's to keep, and not read back.
    """

    subject: str
    engine: Mapping[str, Any]
    sharing: str
    settings: Mapping[str, str]
    levels: tuple[Samples, ...]
    overheads_ns: tuple[Samples, ...]
    throughput_per_s: tuple[float, ...]
    memory: HeldMemory
    starts: Starts
    sources: Mapping[str, str]
    busy: tuple[int, ...]
    curve_notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()

    @property
    def own_settings(self) -> dict[str, str]:
        """Those of `settings` that a server must have for the curve to hold: not `threads` where the runtime has no use for it."""
        return self.used(self.settings)

    def used(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Those of the settings that the runtime has a use for."""
        idle = self.engine.get("runtime") in _WITHOUT_THREADS
        return {name: value for name, value in settings.items() if not (idle and name == "threads")}

    @property
    def model_bytes(self) -> int | None:
        """The model's size, as a rule of thumb would take it: the engine's file; of a synthetic one what it holds."""
        if self.engine.get("runtime") == "synthetic":
            return self.memory.engine_bytes
        files = self.engine.get("files") or ()
        return int(files[0]["bytes"]) if files else None

    def overhead_ns(self, slots: int) -> Samples:
        """What a request of a server with so many slots may take beside its slot. Larger servers are not asked: on a machine that
        also runs the clients more busy slots leave less of it to HTTP."""
        return np.concatenate(self.overheads_ns[:slots])

    @property
    def useful_slots(self) -> int:
        """The fewest slots after which no larger number answers more than 5 % more, as `bench curve` says it."""
        return useful_slots([(slots, self.throughput_per_s[slots - 1]) for slots in self.busy])

    @property
    def best_per_s(self) -> float:
        return max(self.throughput_per_s)


def fit(curve: ServiceCurve, starts: Starts, sources: Mapping[str, str]) -> Measured:
    """Put the two runs together. Raises BenchError where they are not of the same engine."""
    engine = dict(curve.engine)
    different = [what for what in SAME_ENGINE if engine.get(what) != starts.engine.get(what)]
    if different:
        what = different[0]
        raise BenchError(
            f"--curve and --coldstart are not of one engine: {what.replace('_', ' ')} is {engine.get(what)} in the curve and "
            f"{starts.engine.get(what)} in the cold starts; measure both on the same"
        )
    levels = [curve.at(busy) for busy in range(1, max(level.busy for level in curve.of_batch()) + 1)]
    return Measured(
        subject=curve.title,
        engine=engine,
        sharing=curve.sharing,
        settings=dict(curve.settings),
        levels=tuple(np.ascontiguousarray(level.service_ns + level.turnaround_ns, np.int64) for level in levels),
        # Whoever finds a slot free waits for no turnaround: its round trip stays as it was measured.
        overheads_ns=tuple(np.maximum(np.ascontiguousarray(level.overhead_ns - level.turnaround_ns, np.int64), 0) for level in levels),
        # Between two numbers that were measured the level is that of the larger one, with fewer slots to answer.
        throughput_per_s=tuple(float(level.throughput_per_s) * busy / level.busy for busy, level in enumerate(levels, 1)),
        memory=HeldMemory(
            kind=curve.memory_kind, base_bytes=curve.base_bytes, engine_bytes=curve.engine_bytes, slot_bytes=curve.slot_bytes
        ),
        starts=starts,
        sources=dict(sources),
        busy=tuple(level.busy for level in curve.of_batch()),
        curve_notes=tuple(note for note in (idle_note(curve),) if note is not None),
        invalid=(*(f"the service curve is not valid: {why}" for why in invalid_reasons(curve)), *starts.invalid),
    )


def write_measured(measured: Measured, folder: Path) -> dict[str, Any]:
    """Write the samples into the folder; returns what belongs into `run.json` beside them."""
    rows: list[tuple[str, int | None, Samples]] = [("service", busy, samples) for busy, samples in enumerate(measured.levels, 1)]
    rows += [("overhead", busy, samples) for busy, samples in enumerate(measured.overheads_ns, 1)]
    rows += [(name, None, samples) for name in _STARTS for samples in [getattr(measured.starts, name)] if samples is not None]
    tables = [
        pa.table({"what": [what] * len(samples), "busy": pa.array([busy] * len(samples), pa.int32()), "ns": samples}, schema=SCHEMA)
        for what, busy, samples in rows
    ]
    with naming(folder / FILE):
        write_parquet(pa.concat_tables(tables), folder / FILE)
    return {
        "subject": measured.subject,
        "engine": dict(measured.engine),
        "sharing": measured.sharing,
        "settings": dict(measured.settings),
        "throughput_per_s": list(measured.throughput_per_s),
        "memory": asdict(measured.memory),
        "ready_level": measured.starts.ready_level,
        "notes": list(measured.starts.notes),
        "sources": dict(measured.sources),
        "busy": list(measured.busy),
    }


def read_measured(folder: Path, about: Mapping[str, Any]) -> Measured:
    """Read back what `write_measured` wrote. Raises BenchError where it is damaged."""
    try:
        table = read_parquet(folder / FILE, SCHEMA.names).cast(SCHEMA)
        what = np.asarray(table.column("what").to_pylist())
        busy, ns = table.column("busy").fill_null(0).to_numpy(), table.column("ns").to_numpy()
        highest = int(busy.max())
        levels, overheads = (tuple(ns[(what == name) & (busy == k)] for k in range(1, highest + 1)) for name in ("service", "overhead"))
        if not all(len(samples) for samples in (*levels, *overheads)):
            raise ValueError("a level has no sample")
        starts = {name: ns[what == name] if (what == name).any() else None for name in _STARTS}
        return Measured(
            subject=about["subject"],
            engine=about["engine"],
            sharing=about["sharing"],
            settings=about["settings"],
            levels=levels,
            overheads_ns=overheads,
            throughput_per_s=tuple(about["throughput_per_s"]),
            memory=HeldMemory(**about["memory"]),
            starts=Starts(ready_level=about["ready_level"], engine=about["engine"], notes=tuple(about["notes"]), invalid=(), **starts),
            sources=about["sources"],
            busy=tuple(about.get("busy") or range(1, highest + 1)),
        )
    except (BenchError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise BenchError(f"{folder / FILE} or its run.json cannot be read ({error}): make the plan again with `bench plan`") from None
