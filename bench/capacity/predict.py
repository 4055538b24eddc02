"""What a candidate would do with the load, by simulation: one run for each seed, all of them pooled.

Of each seed the service times are drawn anew, and the arrivals too where they come from a process. Percentiles are exact, of
all seeds together; the interval is that of a single further run, from how the seeds differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.analysis.statistics import Interval, nearest_rank
from bench.capacity.candidates import COLD, Candidate, Rules, replicas_of, server_of
from bench.capacity.goal import PERCENT, Goal

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.offered import Offered
    from bench.capacity.simulation import Simulated
    from bench.load.schedule import Schedule

LEAST_SEEDS = 5  # for an interval: with two, Student's factor alone is 13
_FAILED = np.inf
_WIDEST = 100.0  # of a logarithm: beyond that an interval says nothing, and its end is no number any more
# Two-sided 95 % points of Student's t by degrees of freedom, then the normal's.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one candidate, all seeds together. Times in ns, memory in bytes (None: not known).

    p50_ns, p99_ns: of the answered arrivals; None without any. values_ns: the figure of each SLO, in their order; interval:
    where the first of them lies in a further run (95 %), None with fewer than five seeds. attainment: the share of all arrivals answered
    within the first SLO's time. holds: every SLO and the goodput. held_bytes: mean over the time; peak_bytes: the most
    that was held at once; replica_bytes: the most that one replica may hold, which has to fit on its device. replicas,
    slots: means over the time. busy: the share of that slot time in which requests were served.
    """

    candidate: Candidate
    seeds: int
    arrivals: int
    p50_ns: float | None
    p99_ns: float | None
    values_ns: tuple[float | None, ...]
    interval: Interval | None
    attainment: float
    shed_share: float
    holds: bool
    held_bytes: float | None
    peak_bytes: float | None
    replica_bytes: float | None
    replicas: float
    most_replicas: int
    slots: float
    busy: float

    @property
    def value_ns(self) -> float:
        """The first SLO's figure; infinite where nothing was answered."""
        return math.inf if self.values_ns[0] is None else self.values_ns[0]


def simulate_one(
    candidate: Candidate, measured: Measured, rules: Rules, intended_ns: NDArray[np.int64], seed: int, *, overhead: bool = True
) -> Simulated:
    """One run of the candidate. Raises BenchError."""
    from bench.capacity.simulation import Service, simulate

    service = Service(levels=measured.levels, overhead_ns=measured.overhead_ns(candidate.slots) if overhead else np.zeros(1, np.int64))
    return simulate(intended_ns, service, server_of(candidate, measured, rules), replicas_of(candidate, measured, rules), seed=seed)


def predict(
    candidate: Candidate, measured: Measured, offered: Offered, goal: Goal, rules: Rules, seeds: Sequence[int], *, give_up: float = math.inf
) -> Prediction:
    """Simulate the candidate with each seed. Once the first seed misses the first SLO by the factor `give_up`, it is not
    simulated further: more of them would only say how bad it is. Raises BenchError."""
    runs: list[tuple[Schedule, Simulated]] = []
    for schedule, seed in zip(offered.schedules, seeds, strict=True):
        runs.append((schedule, simulate_one(candidate, measured, rules, schedule.intended_ns, seed)))
        if len(runs) == 1 and math.isfinite(give_up):
            figure = _figure([_times(runs[0][1])], goal, 0, [runs[0][0]])
            if figure is None or figure > give_up * goal.slo.bound_ns:
                break
    times = [_times(run) for _, run in runs]
    schedules = [schedule for schedule, _ in runs]
    pooled = np.concatenate(times)
    answered = pooled[np.isfinite(pooled)]
    values = tuple(_figure(times, goal, number, schedules) for number in range(len(goal.slos)))
    each = [_figure([one], goal, 0, [schedule]) for one, schedule in zip(times, schedules, strict=True)]
    attainment = float((pooled <= goal.slo.bound_ns).mean())
    holds = attainment >= goal.goodput and all(
        value is not None and value <= slo.bound_ns for value, slo in zip(values, goal.slos, strict=True)
    )
    p50, p99 = (percentile_of(answered, percent) for percent in (50.0, 99.0))
    return Prediction(
        candidate=candidate,
        seeds=len(runs),
        arrivals=len(pooled),
        p50_ns=p50,
        p99_ns=p99,
        values_ns=values,
        interval=further_run(each, float(answered.min(initial=math.inf)) if len(answered) else 0.0),
        attainment=attainment,
        shed_share=float(1 - len(answered) / len(pooled)),
        holds=holds,
        **_held(candidate, measured, [run for _, run in runs], schedules),
    )


def percentile_of(values: NDArray[np.float64], percent: float) -> float | None:
    """Nearest rank without a floor on the samples: a simulation can have as many as it likes. None of nothing."""
    if not len(values):
        return None
    rank = nearest_rank(len(values), percent) - 1
    return float(np.partition(values, rank)[rank])


def further_run(each: Sequence[float | None], least: float = 0.0) -> Interval | None:
    """Where the figure of one more run would lie, 95 %: Student's prediction interval on a logarithmic scale, and nothing of it below
    `least`, which no answer can be. None with fewer than five runs, whose spread is hardly known, or one without a figure."""
    if len(each) < LEAST_SEEDS or any(value is None or value <= 0 for value in each):
        return None
    logs = np.log(np.array(each, np.float64))
    reach = min(_WIDEST, t_point(len(logs) - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / len(logs)))
    middle = float(logs.mean())
    return Interval(low=max(least, math.exp(middle - reach)), high=math.exp(middle + reach))


def t_point(freedom: int) -> float:
    """The two-sided 95 % point of Student's t with so many degrees of freedom, at least 1."""
    return _T[freedom - 1] if freedom <= len(_T) else 1.96


def _times(run: Simulated) -> NDArray[np.float64]:
    """The response time of each arrival, infinite where it was refused."""
    return np.where(run.status == 0, run.response_ns.astype(np.float64), _FAILED)


def _figure(times: Sequence[NDArray[np.float64]], goal: Goal, number: int, schedules: Sequence[Schedule]) -> float | None:
    """The statistic of one SLO over the answered arrivals of its phase, all runs together."""
    slo = goal.slos[number]
    if slo.phase is not None:
        times = [one[_in_phase(schedule, slo.phase)] for one, schedule in zip(times, schedules, strict=True)]
    pooled = np.concatenate(times)
    return percentile_of(pooled[np.isfinite(pooled)], PERCENT[slo.statistic])


def _in_phase(schedule: Schedule, phase: str) -> NDArray[np.bool_]:
    import pyarrow.compute as pc

    found: NDArray[np.bool_] = pc.equal(schedule.table.column("phase").cast("string"), phase).to_numpy().astype(np.bool_)
    return found


def _held(candidate: Candidate, measured: Measured, runs: Sequence[Simulated], schedules: Sequence[Schedule]) -> dict[str, Any]:
    """What was held while load was offered and until the last answer, the mean of the runs."""
    memory = measured.memory
    span = sum(max(run.end_ns, 1) for run in runs)
    replicas, slots, engines = (sum(run.held_ns(getattr(run, name)) for run in runs) / span for name in ("replicas", "slots", "engines"))
    peak = None
    if memory.known:
        peak = max(
            float(((memory.base_bytes or 0) * run.replicas + memory.engine_bytes * run.engines + memory.slot_bytes * run.slots).max())  # type: ignore[operator]
            for run in runs
        )
    return {
        "held_bytes": memory.of(engines, slots, replicas),
        "peak_bytes": peak,
        "replica_bytes": replica_bytes(candidate, measured),
        "replicas": replicas,
        "most_replicas": max(int(run.replicas.max()) for run in runs),
        "slots": slots,
        "busy": sum(float(run.service_ns.sum()) for run in runs) / max(slots * span, 1.0),
    }


def replica_bytes(candidate: Candidate, measured: Measured) -> float | None:
    """What one replica holds when all of its slots are there; under cold-load each has an engine of its own."""
    return measured.memory.of(candidate.slots if candidate.family == COLD else 1, candidate.slots)
