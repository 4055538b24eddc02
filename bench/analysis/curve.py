"""What a service curve says: percentiles by busy slots, what each further slot brings, and how many are of use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analysis.sm_clock import ClockRange
from bench.analysis.statistics import percentiles
from bench.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.capacity.service import ServiceCurve, ServiceLevel

WORTH = 0.05  # a larger number of slots must answer so much more to be of use
_ALIKE = 0.10  # service times within this of that of one slot are those of independent servers
_KEPT_BUSY = 0.90
_MOSTLY_IDLE = 0.5  # below that share of its slots a level was measured with other numbers of busy slots than it says
_ROUNDS_APART = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One number of busy slots and one batch size. Times in ns, percentiles exact, None where there are too few answers.

    speedup: throughput over that of the fewest slots of the same batch. slowdown: the same of the median service time.
    occupied: slots that were busy on average. low_per_s, high_per_s: the slowest and the fastest round. held_bytes: the
    server's memory at its peak with all slots ready.
    """

    busy: int
    batch: int
    answers: int
    service_p50_ns: float | None
    service_p95_ns: float | None
    service_p99_ns: float | None
    overhead_p50_ns: float | None
    overhead_p99_ns: float | None
    throughput_per_s: float
    low_per_s: float
    high_per_s: float
    speedup: float
    slowdown: float
    occupied: float
    held_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSummary:
    """A curve in numbers. useful_slots: the fewest after which no larger number that was measured answers more than
    `WORTH` more; of the smallest batch. independent: service times hardly grow with the number of busy slots; None where the
    slots were not kept busy, so that nobody can tell. invalid: why it is no service curve."""

    title: str
    device: str
    sharing: str
    settings: dict[str, str]
    levels: tuple[LevelSummary, ...]
    useful_slots: int
    independent: bool | None
    memory_kind: str
    base_bytes: int | None
    engine_bytes: int | None
    slot_bytes: int | None
    partial: bool
    caveats: tuple[str, ...]
    sentence: str
    invalid: tuple[str, ...] = ()
    sm_clock: ClockRange | None = None

    @property
    def valid(self) -> bool:
        return not self.invalid

    @property
    def on_cpu(self) -> bool:
        return self.device.startswith("cpu")

    @property
    def batches(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted({level.batch for level in self.levels}))

    def of_batch(self, batch: int) -> tuple[LevelSummary, ...]:
        """The levels of one batch size, ascending in busy."""
        return tuple(level for level in self.levels if level.batch == batch)


def summarize(curve: ServiceCurve, warnings: Sequence[str] = (), planned: int | None = None) -> CurveSummary:
    """warnings: of the environment. planned: how many levels were to be measured; those that lack are told of."""
    levels = tuple(_level(level, curve.of_batch(level.batch)[0], curve.measured_bytes.get(level.busy)) for level in curve.levels)
    first_batch = [level for level in levels if level.batch == levels[0].batch]
    useful = useful_slots([(level.busy, level.throughput_per_s) for level in first_batch])
    return CurveSummary(
        title=curve.title,
        device=curve.device,
        sharing=curve.sharing,
        settings=dict(curve.settings),
        levels=levels,
        useful_slots=useful,
        independent=_independent(first_batch),
        memory_kind=curve.memory_kind,
        base_bytes=curve.base_bytes,
        engine_bytes=curve.engine_bytes,
        slot_bytes=curve.slot_bytes,
        partial=curve.partial,
        caveats=(*_caveats(curve, levels, planned), *warnings),
        sentence=_sentence(first_batch, useful),
        invalid=invalid_reasons(curve),
        sm_clock=curve.sm_clock,
    )


def idle_levels(curve: ServiceCurve) -> list[ServiceLevel]:
    """The levels whose slots were not kept busy, the idlest first."""
    return sorted((level for level in curve.levels if _share(level) < _KEPT_BUSY), key=_share)


def invalid_reasons(curve: ServiceCurve) -> tuple[str, ...]:
    """Why the run is no service curve: a level whose slots stood idle for most of the time says nothing of so many busy ones."""
    idle = [level for level in idle_levels(curve) if _share(level) < _MOSTLY_IDLE]
    if not idle:
        return ()
    return (
        f"slots stood idle for most of the time at {len(idle)} of {len(curve.levels)} levels ({_worst(idle[0])}): what was measured "
        "is HTTP, the server's event loop and the client, and not the engine with so many slots busy; take an engine that works for "
        "longer, or a machine with more cores",
    )


def idle_note(curve: ServiceCurve) -> str | None:
    """What a plan has to say of a valid curve whose slots were not all kept busy; None where they were."""
    idle = idle_levels(curve)
    if not idle or invalid_reasons(curve):
        return None
    return (
        f"in the service curve slots were idle at {len(idle)} of {len(curve.levels)} levels ({_worst(idle[0])}): its throughput is that "
        "of HTTP, the event loop and the client too, and service times with more slots busy may be longer than it says"
    )


def _worst(level: ServiceLevel) -> str:
    return f"at {level.busy}, {level.occupied:.2g} were busy on average"


def _share(level: ServiceLevel) -> float:
    """Of its slots, how many were busy."""
    return level.occupied / level.busy


def useful_slots(rates: Sequence[tuple[int, float]]) -> int:
    """The fewest slots after which no larger number answers more than `WORTH` more. `rates`: (slots, answers a second)."""
    ordered = sorted(rates)
    return next(slots for slots, rate in ordered if all(more <= rate * (1 + WORTH) for larger, more in ordered if larger > slots))


def _level(level: ServiceLevel, first: ServiceLevel, held: int | None) -> LevelSummary:
    p50, p95, p99 = percentiles(level.service_ns, (50, 95, 99))
    overhead_p50, overhead_p99 = percentiles(level.overhead_ns, (50, 99))
    alone = percentiles(first.service_ns, (50,))[0]
    return LevelSummary(
        busy=level.busy,
        batch=level.batch,
        answers=len(level.service_ns),
        service_p50_ns=p50,
        service_p95_ns=p95,
        service_p99_ns=p99,
        overhead_p50_ns=overhead_p50,
        overhead_p99_ns=overhead_p99,
        throughput_per_s=level.throughput_per_s,
        low_per_s=min(level.round_throughputs_per_s),
        high_per_s=max(level.round_throughputs_per_s),
        speedup=level.throughput_per_s / first.throughput_per_s if first.throughput_per_s else 1.0,
        slowdown=p50 / alone if p50 and alone else 1.0,
        occupied=level.occupied,
        held_bytes=held,
    )


def _independent(levels: Sequence[LevelSummary]) -> bool | None:
    if any(level.slowdown > 1 + _ALIKE for level in levels):
        return False  # idle or not
    return None if any(level.occupied < _KEPT_BUSY * level.busy for level in levels) else True


def _sentence(levels: Sequence[LevelSummary], useful: int) -> str:
    chosen = next(level for level in levels if level.busy == useful)
    last, first = levels[-1], levels[0]
    said = f"{_slots(useful)} answer {format_count(chosen.throughput_per_s)} requests/s"
    if useful == 1:
        said = f"{_slots(useful)} answers {format_count(chosen.throughput_per_s)} requests/s"
    if len(levels) == 1:
        return f"{said}, {format_duration(chosen.service_p50_ns)} each; measure more numbers of slots to see how many are of use"
    if useful < last.busy:
        said += f", and no more slots up to {last.busy} answer over {WORTH:.0%} more"
    else:
        said += f", the most that was measured: try more than {last.busy}"
    if useful == first.busy:
        chosen = last
    took = f"with {chosen.busy} busy a request occupies its slot for {format_duration(chosen.service_p50_ns)} (median)"
    if chosen.slowdown <= 1 + _ALIKE and any(level.occupied < _KEPT_BUSY * level.busy for level in levels):
        return f"{said}; {took}, but slots were idle: whether they slow each other down when all are busy is not known"
    if chosen.slowdown <= 1 + _ALIKE:
        return f"{said}; {took}, about as long as with {first.busy}: so far the slots are independent servers"
    return (
        f"{said}; {took}, {format_count(chosen.slowdown)} times as long as with {first.busy}: "
        "slots of one device are not independent servers"
    )


def _caveats(curve: ServiceCurve, levels: Sequence[LevelSummary], planned: int | None) -> tuple[str, ...]:
    found = []
    if curve.device == "none":
        found.append("the synthetic runtime sleeps: nothing here says anything of a device")
    if planned is not None and len(levels) < planned:
        found.append(
            f"{planned - len(levels)} of {planned} levels are missing: they have fewer than 100 answers, or their turn did not come"
        )
    idle = idle_levels(curve)
    if idle:
        found.append(
            f"slots were idle between requests at {len(idle)} of {len(levels)} levels ({_worst(idle[0])}): HTTP takes longer than the "
            "engine here, so the throughput is that of the server's one event loop and of the client, "
            "and service times are of fewer busy slots than the level says"
        )
    apart = [level for level in levels if level.low_per_s and level.high_per_s / level.low_per_s > 1 + _ROUNDS_APART]
    if apart:
        worst = max(apart, key=lambda level: level.high_per_s / level.low_per_s)
        found.append(
            f"the rounds differ by more than {_ROUNDS_APART:.0%} at {len(apart)} of {len(levels)} levels (at {worst.busy}, "
            f"{format_count(worst.low_per_s)} to {format_count(worst.high_per_s)} requests/s): the machine is not quiet, "
            "or --duration is too short"
        )
    return tuple(found)


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"
