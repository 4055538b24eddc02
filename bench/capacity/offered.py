"""The load that a plan is made for: a fixed schedule, or a process drawn anew for each seed; and what it would be with a
higher peak, longer bursts or other gaps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.errors import BenchError
from bench.load.arrivals import ArrivalProcess, unit_stream
from bench.load.profile import NO_SPIKE, PHASES, SECOND_NS, Profile
from bench.load.schedule import Schedule, make_schedule
from bench.load.traces.transform import Arrivals, scale_rate, scale_time

_RATES = ("rate", "base", "peak")
_LENGTHS = ("hold_ns", "on_ns", "decay_ns")
_WINDOW_NS = SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offered:
    """`schedules`: one for each seed; the same one where the arrivals are fixed, since then only the services are drawn.
    text: what it is, in words. process: None for a schedule or a trace."""

    text: str
    schedules: tuple[Schedule, ...]
    process: ArrivalProcess | None

    @property
    def arrivals(self) -> int:
        """Of one seed, in the mean."""
        return round(sum(map(len, self.schedules)) / len(self.schedules))

    @property
    def duration_s(self) -> float:
        return sum(one.duration_ns for one in self.schedules) / len(self.schedules) / SECOND_NS

    @property
    def mean_per_s(self) -> float:
        return self.arrivals / max(self.duration_s, 1e-9)

    @property
    def peak_per_s(self) -> float:
        """The process's own peak rate; else the highest rate of a spike in the schedule, or the busiest second."""
        if self.process is not None:
            return max(self.process.expected.peak_rate, *(spike.peak_rate for one in self.schedules for spike in one.spikes), 0.0)
        first = self.schedules[0]
        if first.spikes:
            return max(spike.peak_rate for spike in first.spikes)
        times = first.intended_ns
        return float((np.searchsorted(times, times + SECOND_NS) - np.arange(len(times))).max())

    @property
    def cv(self) -> float | None:
        """Of the gaps, as the process has it; None where it was not made by one."""
        return self.process.cv if self.process is not None else None


def of_process(process: ArrivalProcess, seeds: Sequence[int]) -> Offered:
    """Draw the process once for each seed. Raises BenchError where it has no arrivals."""
    return Offered(text=process.text, schedules=tuple(process.schedule(seed) for seed in seeds), process=process)


def of_schedule(schedule: Schedule, text: str, seeds: Sequence[int]) -> Offered:
    """The same arrivals for each seed."""
    return Offered(text=text, schedules=(schedule,) * len(seeds), process=None)


def with_rate(offered: Offered, factor: float, seeds: Sequence[int]) -> Offered:
    """All rates times `factor`: more or fewer users on the same clock."""
    if factor == 1:
        return offered
    process: Any = offered.process
    if process is None:
        return _each(offered, seeds, lambda one, seed: _moved(one, scale_rate(_plain(one), factor, _rng(seed))))
    if hasattr(process, "points"):
        points = tuple((time_ns, rate * factor) for time_ns, rate in process.points)
        return of_process(dataclasses.replace(process, points=points), seeds)
    rates = {name: getattr(process, name) * factor for name in _RATES if hasattr(process, name)}
    return of_process(dataclasses.replace(process, **rates), seeds)


def with_peak(offered: Offered, factor: float, seeds: Sequence[int]) -> Offered | None:
    """The rate within spikes times `factor`, the base as it is; where the load has no spikes of its own, all rates."""
    process: Any = offered.process
    if process is None or not hasattr(process, "peak"):
        return with_rate(offered, factor, seeds)
    peak = process.peak * factor
    if peak <= process.base:
        return None
    return of_process(dataclasses.replace(process, peak=peak), seeds)


def with_length(offered: Offered, factor: float, seeds: Sequence[int]) -> Offered | None:
    """Bursts `factor` times as long at the same rates; None where the process has none. A trace is stretched, and gets so
    many more users that its rates stay."""
    if factor == 1:
        return offered
    process: Any = offered.process
    if process is None:
        return _each(offered, seeds, lambda one, seed: _moved(one, scale_time(scale_rate(_plain(one), factor, _rng(seed)), factor), factor))
    lengths = {name: max(1, round(getattr(process, name) * factor)) for name in _LENGTHS if getattr(process, name, None)}
    return of_process(dataclasses.replace(process, **lengths), seeds) if lengths else None


def with_cv(offered: Offered, cv: float, seeds: Sequence[int]) -> Offered:
    """Gaps of another coefficient of variation at the same rate over time. A schedule's or a trace's rate is the count of
    each second, so that what it does within a second is drawn anew."""
    if offered.process is not None:
        return of_process(dataclasses.replace(offered.process, cv=cv), seeds)
    return _each(offered, seeds, lambda one, seed: _redrawn(one, cv, _rng(seed)))


def _redrawn(schedule: Schedule, cv: float, rng: np.random.Generator) -> Schedule:
    windows = max(1, -(-schedule.duration_ns // _WINDOW_NS))
    counts = np.bincount(np.minimum(schedule.intended_ns // _WINDOW_NS, windows - 1), minlength=windows).astype(np.float64)
    edges = np.minimum(np.arange(windows + 1, dtype=np.int64) * _WINDOW_NS, max(schedule.duration_ns, 1))
    rate = counts / (np.diff(edges) / SECOND_NS)
    none = np.full(windows, NO_SPIKE, np.int32)
    profile = Profile(edges_ns=edges, start_rate=rate, end_rate=rate, phase=np.full(windows, PHASES.index("trace"), np.int8), spike=none)
    times = profile.times_at(unit_stream(profile.count, cv, rng))
    return _made(schedule, times, schedule.duration_ns, 1.0)


def _each(offered: Offered, seeds: Sequence[int], change: Callable[[Schedule, int], Schedule]) -> Offered:
    return Offered(
        text=offered.text, schedules=tuple(change(one, seed) for one, seed in zip(offered.schedules, seeds, strict=True)), process=None
    )


def _plain(schedule: Schedule) -> Arrivals:
    import pyarrow as pa

    return Arrivals(times_ns=schedule.intended_ns, duration_ns=schedule.duration_ns, extra=pa.table({}))


def _moved(schedule: Schedule, arrivals: Arrivals, stretched: float = 1.0) -> Schedule:
    return _made(schedule, arrivals.times_ns, arrivals.duration_ns, stretched)


def _made(schedule: Schedule, times_ns: Any, duration_ns: int, stretched: float) -> Schedule:
    """The new arrivals with the spikes and phases of the old schedule, at the times to which these were stretched."""
    spikes = tuple(
        dataclasses.replace(spike, start_ns=round(spike.start_ns * stretched), end_ns=round(spike.end_ns * stretched))
        for spike in schedule.spikes
    )
    of = np.full(len(times_ns), NO_SPIKE, np.int32)
    for spike in spikes:
        of[(times_ns >= spike.start_ns) & (times_ns < spike.end_ns)] = spike.index
    return make_schedule(
        intended_ns=np.ascontiguousarray(times_ns, np.int64),
        duration_ns=max(int(duration_ns), int(times_ns[-1]) if len(times_ns) else 0),
        provenance=schedule.provenance,
        spike=of,
        spikes=spikes,
        phase=_phases(schedule, times_ns, stretched),
    )


def _phases(schedule: Schedule, times_ns: Any, stretched: float) -> Any:
    """The phase of the old arrival that was due last before each new one."""
    column = schedule.table.column("phase").combine_chunks()
    names = column.dictionary.to_pylist()
    codes = np.array([PHASES.index(names[code]) for code in range(len(names))], np.int8)[column.indices.to_numpy(zero_copy_only=False)]
    at = np.searchsorted(schedule.intended_ns, np.asarray(times_ns) / stretched, side="right") - 1
    return codes[np.clip(at, 0, len(codes) - 1)]


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, 7]))


def refuse_too_many(offered: Offered, limit: int, seeds: int) -> None:
    """Raises BenchError where a simulation of it with so many seeds would take too long."""
    if offered.arrivals > limit:
        raise BenchError(
            f"the load has {offered.arrivals:,} arrivals, and a plan with {seeds} seeds takes at most {limit:,}: plan for a window of it"
            f"{', or give fewer --seeds' if seeds > 1 else ''}"
        )
