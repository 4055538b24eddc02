"""What the planner says of each case before any held-out run: from the service curve and the arrival process alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from study import Case, Study, offered_of, schedule_of

from bench.errors import BenchError
from bench.records import open_run

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.saved_plan import SavedPlan

REPEATS = 20  # of a whole case: as many draws of all its runs, pooled as the measured ones are


def finished(place: Path) -> Path | None:
    """The one finished run in the folder; None where there is none yet."""
    found = [child for child in sorted(place.glob("*")) if (child / "run.json").exists() and not child.name.endswith(".partial")]
    return found[-1] if found else None


def make(work: Path, study: Study) -> None:
    """A plan for each case that has none yet, kept as `bench plan` keeps it, and all of them in `plans.json`."""
    said: dict[str, Any] = {}
    for case in study.cases:
        if finished(work / "curves" / case.engine) is None:
            if case.group != "tuning":
                raise BenchError(f"{case.engine} has no curve yet: run the step `curves` first")
            continue
        said[case.name] = _of_case(work, study, case)
        one = said[case.name]
        print(f"{case.name}: {one['slots']} slots, P99 {one['p99_ns'] / 1e6:.0f} ms of {case.slo}", flush=True)
    (work / "plans.json").write_text(json.dumps(said, indent=1) + "\n", "utf-8")


def read(work: Path) -> dict[str, Any]:
    """What `make` wrote. Raises BenchError where it did not yet."""
    path = work / "plans.json"
    if not path.exists():
        raise BenchError("there are no plans yet: run the step `plans` first")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def sizes(work: Path, study: Study, group: str) -> dict[str, list[int]]:
    """Of each case: the predicted size, one less and one more, as far as there are such."""
    said = read(work)
    found = {}
    for case in study.of(group):
        slots = said[case.name]["slots"]
        found[case.name] = [size for size in (slots - 1, slots, slots + 1) if 1 <= size <= study.most_slots(case)]
    return found


def saved(work: Path, case: Case) -> SavedPlan:
    from bench.capacity.saved_plan import read_plan

    place = finished(work / "plans" / case.name)
    if place is None:
        raise BenchError(f"{case.name} has no plan yet: run the step `plans` first")
    return read_plan(place)


def _of_case(work: Path, study: Study, case: Case) -> dict[str, Any]:
    place = work / "plans" / case.name
    if finished(place) is None:
        _save(work, study, case, place)
    plan = saved(work, case)
    answer = plan.plan.answer
    if answer is None or answer.candidate.replicas > 1:
        raise BenchError(f"{case.name}: {plan.plan.sentence}")
    slots = answer.candidate.slots
    near = [size for size in (slots - 1, slots, slots + 1) if 1 <= size <= study.most_slots(case)]
    return {
        "slots": slots,
        "holds": plan.plan.holds,
        "p99_ns": answer.p99_ns,
        "sentence": plan.plan.sentence,
        "pooled": {str(size): pooled(plan.measured, study, case, size) for size in near},
    }


def _save(work: Path, study: Study, case: Case, place: Path) -> None:
    from bench.capacity.candidates import Rules
    from bench.capacity.goal import parse_goal
    from bench.capacity.measured import fit
    from bench.capacity.plan import make_plan
    from bench.capacity.saved_plan import save_plan
    from bench.capacity.search import Bounds
    from bench.capacity.service import read_service_curve
    from bench.capacity.starts import no_starts
    from bench.units import parse_size_bytes

    curve = finished(work / "curves" / case.engine)
    assert curve is not None
    service = read_service_curve(curve)
    measured = fit(service, no_starts(service.engine), {"curve": str(curve)})
    offered = offered_of(case, study.plan_seeds)
    bounds = Bounds(most_slots=len(measured.levels), most_replicas=1, usable_bytes=parse_size_bytes(study.memory, "memory"))
    goal = parse_goal([f"p99={case.slo}"], None)
    plan = make_plan(measured, offered, goal, Rules(), bounds, study.plan_seeds, families=("warm-pool",), vary=False)
    environment = open_run(curve).run.get("environment") or {}
    save_plan(place, plan, measured, offered, environment=environment, command=["plans", case.name]).finish()


def pooled(measured: Measured, study: Study, case: Case, size: int) -> dict[str, Any]:
    """P50 and P99 of as many runs as will be measured, pooled: the median over `REPEATS` such sets with arrivals of their own, and
    where one more set lies (95 %)."""
    from bench.capacity.predict import further_run, percentile_of

    sets = [_responses(measured, study, case, size, 10_000 + 100 * repeat) for repeat in range(REPEATS)]
    found: dict[str, Any] = {}
    for name, percent in (("p50", 50.0), ("p99", 99.0)):
        each = [percentile_of(times, percent) for times in sets]
        spread = further_run(each)
        found[name] = {
            "predicted_ns": float(np.median([value for value in each if value is not None])),
            "low_ns": None if spread is None else spread.low,
            "high_ns": None if spread is None else spread.high,
        }
    return found


def _responses(measured: Measured, study: Study, case: Case, size: int, first_seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    from bench.capacity.candidates import Candidate, Rules
    from bench.capacity.predict import simulate_one

    seeds: Sequence[int] = range(first_seed, first_seed + len(study.seeds))
    candidate = Candidate(family="warm-pool", slots=size)
    runs = [simulate_one(candidate, measured, Rules(), schedule_of(case, seed).intended_ns, seed) for seed in seeds]
    return np.concatenate([run.response_ns[run.status == 0].astype(np.float64) for run in runs])
