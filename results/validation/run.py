"""The held-out validation of the capacity planner, step by step. See README.md beside this file.

    python results/validation/run.py curves            # engines and their closed-loop curves: all that is fitted
    python results/validation/run.py plans             # what size each case needs, and what P99 it will have: before any run
    python results/validation/run.py synthetic --jobs 3
    python results/validation/run.py real
    python results/validation/run.py score

Every step goes on where it was stopped: what is finished is not done again. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]  # the repository's own packages first

import plans  # noqa: E402
import score  # noqa: E402
from study import Case, Planned, Study, order_runs, read_study, schedule_of  # noqa: E402

from bench.errors import BenchError  # noqa: E402

if TYPE_CHECKING:
    from bench.experiment.arms import Arm
    from bench.experiment.plan import PlannedRun

ATTEMPTS = 3  # of a run whose generator was disturbed: `bench check` decides, which does not look at response times
DEADLINE = "30s"


def bench(*arguments: str) -> None:
    """One command of the suite as a child. Raises BenchError where it fails."""
    command = [sys.executable, "-m", "bench", *arguments]
    code = subprocess.run(command, cwd=HERE.parents[1], check=False).returncode
    if code:
        raise BenchError(f"bench {' '.join(arguments)} ended with code {code}")


def engine_dir(work: Path, study: Study, name: str) -> Path:
    """The engine, built where it is not there yet."""
    from bench.engine.synthetic_builder import build_synthetic

    place, about = work / "engines" / name, study.engines[name]
    if (place / "manifest.json").exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    if "declared" in about:
        build_synthetic(place, name=name, max_batch=1, **about["declared"])
        return place
    model = about["model"]
    if model == "convnet":
        import convnet

        model = str(work / "engines" / "convnet.onnx")
        convnet.write(Path(model))
    bench("build", model, "--name", name, *about["build"], "-o", str(place))
    return place


def curves(work: Path, study: Study, jobs: int, engines: set[str]) -> None:
    """The service curve of every engine; real ones alone on the machine, after the synthetic ones."""

    def measure(name: str) -> None:
        place, about = work / "curves" / name, study.engines[name]["curve"]
        if plans.finished(place):
            return
        began = time.monotonic()
        options = ["--slots", about["slots"], "--duration", about["duration"], "--rounds", str(about["rounds"]), "--set", "threads=1"]
        with (work / f"curve-{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "bench", "curve", str(engine_dir(work, study, name)), *options, "--force"]
            code = subprocess.run([*command, "--results", str(place)], cwd=HERE.parents[1], stdout=log, stderr=log, check=False).returncode
        if code:
            raise BenchError(f"the curve of {name} failed, see {log.name}")
        print(f"curve of {name}: {time.monotonic() - began:.0f} s", flush=True)

    names = [name for name in study.engines if name in engines]
    for name in names:
        engine_dir(work, study, name)
    with ThreadPoolExecutor(jobs) as side_by_side:
        list(side_by_side.map(measure, [name for name in names if "declared" in study.engines[name]]))
    for name in names:
        measure(name)


def held_out(work: Path, study: Study, group: str, jobs: int, minutes: float) -> None:
    """Every run of the group that is not there yet, in order, for at most so many minutes."""
    runs = order_runs(study, group, plans.sizes(work, study, group))
    for case in study.of(group):
        prepare(work, study, case, [run for run in runs if run.case == case])
    left = [run for run in runs if not place_of(work, run).exists()]
    print(f"{group}: {len(runs)} runs, {len(left)} to do", flush=True)
    stop, began, took = threading.Event(), time.monotonic(), []

    def one(run: Planned) -> float | None:
        if stop.is_set() or time.monotonic() - began > minutes * 60:
            return None
        start = time.monotonic()
        conduct_valid(work, study, run)
        return time.monotonic() - start

    with ThreadPoolExecutor(jobs) as side_by_side:
        waiting = {side_by_side.submit(one, run): run for run in left}
        try:
            for number, done in enumerate(as_completed(waiting), 1):
                run, error = waiting[done], done.exception()
                what = f"{run.case.name} size {run.size} seed {study.seeds[run.block]}"
                if error is not None:
                    print(f"{what}: {error}", flush=True)
                elif (seconds := done.result()) is not None:
                    took.append(seconds)
                    rest = statistics.mean(took) * (len(left) - number) / jobs
                    print(f"{number}/{len(left)} {what}: {seconds:.1f} s; about {rest / 60:.1f} min left", flush=True)
        except KeyboardInterrupt:
            stop.set()
            print("stopping: the runs that go are waited for; the same command goes on", flush=True)
            raise
    missing = sum(not place_of(work, run).exists() for run in runs)
    print(f"{group}: {len(runs) - missing} of {len(runs)} runs are there, in {(time.monotonic() - began) / 60:.1f} min", flush=True)


def experiment_of(work: Path, case: Case) -> Path:
    return work / "runs" / case.name


def place_of(work: Path, run: Planned) -> Path:
    return experiment_of(work, run.case) / "runs" / f"{run.block:02d}-pool-{run.size}"


def arm_of(size: int) -> Arm:
    from bench.experiment.arms import Arm

    return Arm(name=f"pool-{size}", mode="warm-pool", options={"pool": str(size)}, settings={"threads": "1"})


def in_plan(study: Study, run: Planned) -> PlannedRun:
    from bench.experiment.plan import PlannedRun

    return PlannedRun(block=run.block, spikes=1, schedule_seed=study.seeds[run.block], arm=arm_of(run.size).name)


def prepare(work: Path, study: Study, case: Case, runs: Sequence[Planned]) -> None:
    """The folder of the case's runs, as an experiment is kept, so that every command of the suite takes it."""
    from bench import environment
    from bench.load.schedule import write_schedule
    from bench.records import SCHEMA_VERSION

    folder = experiment_of(work, case)
    (folder / "schedules").mkdir(parents=True, exist_ok=True)
    (folder / "runs").mkdir(exist_ok=True)
    for stale in (folder / "runs").glob("*.partial"):
        shutil.rmtree(stale)
    for block, seed in enumerate(study.seeds):
        schedule = folder / "schedules" / f"{block:02d}.parquet"
        if not schedule.exists():
            write_schedule(schedule_of(case, seed), schedule)
    manifest = json.loads((engine_dir(work, study, case.engine) / "manifest.json").read_text("utf-8"))
    found = environment.collect(work)
    record: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "kind": "experiment", "run_id": case.name, "title": case.name}
    record |= {"engine": manifest, "seeds": list(study.seeds), "slo_ns": case.slo_ns}
    record |= {"arms": [dataclasses.asdict(arm_of(size)) for size in sorted({run.size for run in runs})]}
    record |= {"order": [dataclasses.asdict(in_plan(study, run)) for run in runs]}
    record |= {"environment": {**environment.to_json(found), "warnings": environment.warnings(found)}}
    (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def conduct_valid(work: Path, study: Study, run: Planned) -> None:
    """A fresh server of this size and the schedule of this seed; again where the generator was disturbed."""
    from bench.analysis.validity import check_run
    from bench.experiment.conduct import Setup, conduct_one
    from bench.experiment.plan import Spikes

    arm = arm_of(run.size)
    setup = Setup(
        engine_dir=engine_dir(work, study, run.case.engine),
        model=run.case.engine,
        arms=(arm,),
        spikes=Spikes(base_per_s=1, peak_per_s=1, hold_ns=0, rest_ns=0, count=0, blocks=len(study.seeds), seed=0),  # has its own schedules
        slo_ns=run.case.slo_ns,
        deadline=DEADLINE,
        trust=None,
        timeout_s=180,
    )
    planned, place = in_plan(study, run), place_of(work, run)
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(place.with_name(f"{place.name}.partial"), ignore_errors=True)
        conduct_one(experiment_of(work, run.case), setup, arm, planned)
        checked = check_run(place)
        if checked.valid or attempt == ATTEMPTS:
            return
        aside = work / "disturbed" / run.case.name / f"{place.name}-{attempt}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)
        print(f"  {run.case.name} {place.name} again: {next(c.problem for c in checked.checks if c.problem)}", flush=True)


def main(arguments: Sequence[str]) -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("step", choices=["curves", "plans", "synthetic", "real", "tuning", "score"])
    asked.add_argument("--cases", type=Path, default=HERE / "cases.json", help="another study")
    asked.add_argument("--work", type=Path, default=HERE / "work", help="where engines, curves, plans and runs are kept")
    asked.add_argument("--jobs", type=int, help="runs at a time; synthetic engines sleep, so they may be several (3); real ones: 1")
    asked.add_argument("--minutes", type=float, default=60, help="begin no run after so long")
    asked.add_argument("--results", type=Path, default=HERE, help="where `score` writes its summaries and the tables of README.md")
    given = asked.parse_args(arguments)
    study, work = read_study(given.cases), given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    used = {case.engine for case in study.cases if case.group != "tuning"} or {case.engine for case in study.cases}
    steps: dict[str, Callable[[], None]] = {
        "curves": lambda: curves(work, study, given.jobs or 2, used),
        "plans": lambda: plans.make(work, study),
        "score": lambda: score.score(work, study, given.results),
        **{
            group: lambda group=group: held_out(  # type: ignore[misc]
                work, study, group, given.jobs or (1 if group == "real" else 3), given.minutes
            )
            for group in ("synthetic", "real", "tuning")
        },
    }
    try:
        steps[given.step]()
    except BenchError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
