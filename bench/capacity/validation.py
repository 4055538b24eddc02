"""Predicted against measured, on runs that the plan was not made of.

A run is predicted with its own arrivals and its own server settings; nothing is fitted to it. Runs of one load and one size
are a case: their answers are pooled, and how their own P99s differ is the noise floor that no prediction can be below.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.analysis.load_run import ArmRecords, read_arm
from bench.analysis.statistics import median
from bench.capacity.predict import further_run, percentile_of, replica_bytes, simulate_one
from bench.capacity.served import Served, differences, outside_the_model, served, thread_notes, unlike
from bench.capacity.sizes import Score, score_sizes, sentence
from bench.errors import BenchError
from bench.records import SavedRun

if TYPE_CHECKING:
    import pandas as pd

    from bench.capacity.measured import Measured
    from bench.capacity.simulation import Simulated

Floats = NDArray[np.float64]
_FOR_RECOVERY = 5  # seeds: recovery is a matter of windows, and a few say enough
_LEAST_FOR_P99 = 100
_NAMED = 3  # of the runs that are left out for one reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure in ns. predicted_ns: of all seeds pooled; low_ns, high_ns: where the simulation expects what was measured
    (95 %). lowest_run_ns, highest_run_ns: of the single runs. None where there were too few answers."""

    predicted_ns: float | None
    low_ns: float | None
    high_ns: float | None
    measured_ns: float | None
    lowest_run_ns: float | None
    highest_run_ns: float | None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        if self.predicted_ns is None or not self.measured_ns:
            return None
        return self.predicted_ns / self.measured_ns - 1

    @property
    def inside(self) -> bool | None:
        """Whether what was measured lies where the simulation expects it."""
        if self.low_ns is None or self.high_ns is None or self.measured_ns is None:
            return None
        return self.low_ns <= self.measured_ns <= self.high_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeCompared:
    """One spike of one run. p99_ns: over the arrivals within it (the largest with fewer than 100); recovered_ns: None where
    that did not come while it was watched (predicted: in most of the seeds)."""

    run: str
    spike: int
    arrivals: int
    predicted_p99_ns: float | None
    measured_p99_ns: float | None
    predicted_recovered_ns: float | None
    measured_recovered_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The runs of one load, one size and one SLO. noise: the relative spread of the P99 from run to run (standard
    deviation of its logarithm); None with one run. recovery: medians over spikes, None: not within the time watched.
    Memory in bytes at its peak, None where not known."""

    load: str
    text: str
    mode: str
    slots: int
    minimum: int
    slo_ns: int | None
    runs: tuple[str, ...]
    arrivals: int
    p50: Compared
    p99: Compared
    noise: float | None
    predicted_in_time: float | None
    measured_in_time: float | None
    predicted_shed: float
    measured_shed: float
    predicted_recovery_ns: float | None
    measured_recovery_ns: float | None
    predicted_bytes: float | None
    measured_bytes: float | None
    spikes: tuple[SpikeCompared, ...]
    sharing: str = "engine"

    @property
    def name(self) -> str:
        """Such as `warm-pool 4`, and `warm-pool 4, copy` where each slot has an engine of its own."""
        size = f"{self.minimum} to {self.slots}" if self.mode == "elastic" else str(self.slots)
        return f"{self.mode} {size}{', copy' if self.sharing == 'copy' else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All cases. median_error, worst_error: of the P99, absolute and relative; noise: the median noise floor. scores: the
    right size by load (bench.capacity.sizes). left_out: runs that were not compared, and why."""

    sentence: str
    subject: str
    plan: str
    seeds: int
    runs: int
    cases: tuple[Case, ...]
    median_error: float | None
    worst_error: float | None
    noise: float | None
    inside: int
    scores: tuple[Score, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A run, and how it was served."""

    saved: SavedRun
    served: Served


def group(runs: Sequence[SavedRun], measured: Measured, *, anyway: bool) -> tuple[list[list[Member]], list[str]]:
    """Runs of one load, server and SLO together, the loads in the order given, the sizes ascending; and which runs were served in a
    way that was not measured for the plan, in sentences. Raises BenchError for a run of another engine (unless `anyway`), or one that
    does not say how it was served."""
    groups: dict[Any, list[Member]] = {}
    without: dict[str, list[str]] = {}
    for saved in runs:
        other = differences(saved, measured)
        if other and not anyway:
            raise BenchError(
                f"{saved.path} is of another engine than the plan ({other[0]}): it says nothing about it; --anyway does it nevertheless"
            )
        how = served(saved)
        why = unlike(saved, how, measured)
        if why is not None:
            without.setdefault(why, []).append(saved.path.name)
            continue
        groups.setdefault((how.load, how.candidate, how.rules, how.sharing, how.slo_ns), []).append(Member(saved=saved, served=how))
    loads = {load: number for number, load in enumerate(dict.fromkeys(load for load, *_ in groups))}
    ordered = sorted(groups.values(), key=lambda members: (loads[members[0].served.load], *_order(members[0].served)))
    return ordered, [f"{_names(names)}: {why}" for why, names in without.items()]


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_NAMED])} and {more} more"


def _order(how: Served) -> tuple[str, int, int]:
    return how.candidate.family, how.candidate.slots, how.candidate.minimum


def compare(members: Sequence[Member], measured: Measured, slo_ns: int | None, seeds: Sequence[int]) -> Case:
    """One case. Raises BenchError where a run's records are damaged."""
    how = members[0].served
    engine = dataclasses.replace(measured, sharing=how.sharing)
    arm = read_arm([member.saved for member in members])
    requests = arm.requests
    number, ok = requests["run"].to_numpy(), requests["ok"].to_numpy()
    response = np.where(ok, requests["response_ns"].to_numpy(), np.inf)
    simulated = [_simulate(arm, engine, how, seed) for seed in seeds]
    slo = how.slo_ns if how.slo_ns is not None else slo_ns
    in_spike = requests["spike"].to_numpy() >= 0
    runs = [number == run for run in arm.runs]
    each = [_p(response[chosen], 99, least=_LEAST_FOR_P99) for chosen in runs]
    recovered = _recovery(arm, None)
    expected = [_recovery(arm, times) for times in simulated[:_FOR_RECOVERY]]
    return Case(
        load=how.load,
        text=how.text,
        mode=how.candidate.mode,
        slots=how.candidate.slots,
        minimum=how.candidate.minimum,
        slo_ns=slo,
        runs=tuple(member.saved.path.name for member in members),
        arrivals=len(requests),
        p50=_compared(simulated, response, runs, 50),
        p99=_compared(simulated, response, runs, 99),
        noise=_noise(each),
        predicted_in_time=None if slo is None else float(np.mean([(times <= slo).mean() for times in simulated])),
        measured_in_time=None if slo is None else float((response <= slo).mean()),
        predicted_shed=float(np.mean([np.isinf(times).mean() for times in simulated])),
        measured_shed=float((requests["status"].to_numpy() == "shed").mean()),
        predicted_recovery_ns=_median([one["median"] for one in expected]),
        measured_recovery_ns=recovered["median"],
        predicted_bytes=replica_bytes(how.candidate, engine) if how.sharing == measured.sharing else None,
        measured_bytes=_peak([member.saved for member in members], measured.memory.kind),
        spikes=tuple(_spikes(arm, members, response, in_spike, simulated, recovered, expected)),
        sharing=how.sharing,
    )


def _simulate(arm: ArmRecords, measured: Measured, how: Served, seed: int) -> Floats:
    """The response time of every row of the arm, infinite where it was refused."""
    number, intended = arm.requests["run"].to_numpy(), arm.requests["intended_ns"].to_numpy()
    times = np.empty(len(number), np.float64)
    for run in arm.runs:
        rows = np.flatnonzero(number == run)
        rows = rows[np.argsort(intended[rows], kind="stable")]
        result: Simulated = simulate_one(how.candidate, measured, how.rules, intended[rows], seed=seed * 1009 + run)
        times[rows] = np.where(result.status == 0, result.response_ns, np.inf)
    return times


def _compared(simulated: Sequence[Floats], response: Floats, runs: Sequence[NDArray[np.bool_]], percent: float) -> Compared:
    least = _LEAST_FOR_P99 if percent > 50 else 1
    each = [_p(times, percent, least=least) for times in simulated]
    spread = further_run(each, min((float(times.min()) for times in simulated if len(times)), default=0.0))
    single = [value for chosen in runs for value in [_p(response[chosen], percent, least=least)] if value is not None]
    return Compared(
        predicted_ns=_p(np.concatenate(list(simulated)), percent, least=least) if any(value is not None for value in each) else None,
        low_ns=None if spread is None else spread.low,
        high_ns=None if spread is None else spread.high,
        measured_ns=_p(response, percent, least=least),
        lowest_run_ns=min(single, default=None),
        highest_run_ns=max(single, default=None),
    )


def _p(times: Floats, percent: float, *, least: int) -> float | None:
    """Over the answered ones; None with fewer than `least` of them."""
    answered = times[np.isfinite(times)]
    return percentile_of(answered, percent) if len(answered) >= least else None


def _noise(each: Sequence[float | None]) -> float | None:
    known = [math.log(value) for value in each if value]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _recovery(arm: ArmRecords, simulated: Floats | None) -> dict[Any, float | None]:
    """`median` and each (run, spike): after how long it was over. Measured where no simulated times are given."""
    from bench.analysis.experiment import recovery_window_ns
    from bench.analysis.recovery import recovery

    if simulated is not None:
        ok = np.isfinite(simulated)
        frame: pd.DataFrame = arm.requests.assign(ok=ok, response_ns=np.where(ok, simulated, np.nan))
        arm = dataclasses.replace(arm, requests=frame)
    found = recovery(arm, window_ns=recovery_window_ns(arm))
    if found is None:
        return {"median": None}
    return {"median": found.median_ns, **{(one.run, one.spike): one.recovery.after_ns for one in found.spikes}}


def _spikes(
    arm: ArmRecords,
    members: Sequence[Member],
    response: Floats,
    in_spike: NDArray[np.bool_],
    simulated: Sequence[Floats],
    recovered: dict[Any, float | None],
    expected: Sequence[dict[Any, float | None]],
) -> list[SpikeCompared]:
    number, spike = arm.requests["run"].to_numpy(), arm.requests["spike"].to_numpy()
    found = []
    for window in arm.spikes:
        chosen = in_spike & (number == window.run) & (spike == window.spike)
        if not chosen.any():
            continue
        back = [one.get((window.run, window.spike)) for one in expected]
        known = [value for value in back if value is not None]
        found.append(
            SpikeCompared(
                run=members[arm.runs.index(window.run)].saved.path.name,
                spike=window.spike,
                arrivals=int(chosen.sum()),
                predicted_p99_ns=_p(np.concatenate([times[chosen] for times in simulated]), 99, least=1),
                measured_p99_ns=_p(response[chosen], 99, least=1),
                predicted_recovered_ns=median(known) if 2 * len(known) > len(back) else None,
                measured_recovered_ns=recovered.get((window.run, window.spike)),
            )
        )
    return found


def _peak(runs: Sequence[SavedRun], kind: str) -> float | None:
    """The median over the runs of the most that the server held while load was offered; None where no run tells."""
    from bench.analysis.memory import memory

    peaks = []
    for saved in runs:
        timeline = saved.table("timeline")
        if timeline is not None and timeline.num_rows:
            peaks += [one.peak for one in memory(timeline) if one.kind == kind]
    return median(peaks) if peaks else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if 2 * len(known) > len(values) else None


def runs_to_compare(paths: Sequence[Path]) -> tuple[list[SavedRun], list[str]]:
    """The valid load runs of the folders that the model is of, experiments opened; and which were left out, and why. Raises
    BenchError where a folder is none, or nothing is left."""
    from bench.analysis.validity import check_run, runs_of
    from bench.records import open_run

    found, left_out = [], []
    for path in paths:
        kind = open_run(path).kind
        if kind not in ("load", "experiment"):
            raise BenchError(f"{path} is a {kind} run; a plan is validated with load runs and burst experiments")
        outside = outside_the_model(open_run(path))
        for place in runs_of(path):
            if place.name in outside:
                left_out.append(f"{place.name}: {outside[place.name]}")
                continue
            checked = check_run(place)
            problem = next((check.problem for check in checked.checks if check.problem), None)
            if problem is None:
                found.append(open_run(place))
            else:
                left_out.append(f"{place.name}: {problem}")
    if not found:
        raise BenchError(
            f"none of the runs can be compared with ({left_out[0] if left_out else 'no run'}): run the load against a plain server"
        )
    return found, left_out


def validate(
    measured: Measured,
    runs: Sequence[SavedRun],
    *,
    plan: str,
    slo_ns: int | None,
    memory_bytes: int | None,
    seeds: Sequence[int],
    left_out: Sequence[str] = (),
    anyway: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Validation:
    """Compare every case, then score the sizes. slo_ns: for runs without one of their own. Raises BenchError, also where none of
    the runs was served in a way that was measured for the plan."""
    groups, unlike_the_plan = group(runs, measured, anyway=anyway)
    left_out = (*left_out, *unlike_the_plan)
    if not groups:
        raise BenchError(f"none of the runs can be compared with ({left_out[0]})")
    runs = [member.saved for members in groups for member in members]
    cases = []
    for done, members in enumerate(groups):
        progress(done, len(groups))
        cases.append(compare(members, measured, slo_ns, seeds))
    errors = [abs(one.p99.error) for one in cases if one.p99.error is not None]
    noises = [one.noise for one in cases if one.noise is not None]
    scores = score_sizes(groups, cases, measured, memory_bytes, seeds)
    progress(len(groups), len(groups))
    made = Validation(
        sentence="",
        subject=measured.subject,
        plan=plan,
        seeds=len(seeds),
        runs=len(runs),
        cases=tuple(cases),
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
        noise=median(noises) if noises else None,
        inside=sum(one.p99.inside is True for one in cases),
        scores=scores,
        left_out=tuple(left_out),
        notes=tuple(thread_notes(runs, measured)),
    )
    return dataclasses.replace(made, sentence=sentence(made))
