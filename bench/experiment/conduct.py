"""Run the experiment: a fresh server for each block of each arm, Locust as a child, the run kept, everything stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clock import wall_anchor
from bench.engine.manifest import read_manifest
from bench.engine.manifest_reading import decode
from bench.errors import EXIT_FINE, EXIT_INVALID_RUN, BenchError
from bench.experiment.arms import TARGET, Arm, check_arm
from bench.experiment.calibration import Capacity, measure_capacity
from bench.experiment.loads import loads_beside, second_name
from bench.experiment.plan import PlannedRun, Spikes, plan_runs
from bench.experiment.server_means import read_statistics, statistics_between
from bench.inference_client import InferenceClient
from bench.json_rules import DAMAGED, check_value
from bench.load.arrivals_text import parse_arrivals
from bench.load.schedule import Schedule, read_schedule, write_schedule
from bench.records import RunFolder
from bench.run_rules import RESUME
from bench.scenario_files import scenario_file
from bench.server_process import ServerProcess
from bench.server_timeline import read_server_timeline
from bench.subprocesses import Child, child_environment, module_command
from bench.tables import write_parquet
from bench.units import parse_duration_ns

RUNS = "runs"
_SCHEDULES = "schedules"
_OUR_OPTIONS = (("--host", "--target"), ("--model", "--name"))  # what a scenario's option is called here
_SETTLE_S = 0.5  # between the end of one server and the start of the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all runs of an experiment share. engine_dir: None where all arms are servers that are already there; then
    they are asked for `model`, with inputs of `shape` (as the scenarios take it; None: as the server declares it)."""

    engine_dir: Path | None
    model: str
    shape: str | None = None
    arms: tuple[Arm, ...]
    spikes: Spikes
    slo_ns: int | None
    deadline: str
    trust: Path | None
    timeout_s: float
    first_contact: bool = False


@contextlib.contextmanager
def only_one(force: bool, place: Path) -> Iterator[None]:
    """Two experiments or curves at once on one machine would spoil each other. Raises BenchError where another one runs."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "burst.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not force:
                file.seek(0)
                who = file.read().strip() or "another process"
                raise BenchError(
                    f"another bench burst, curve or demo is running ({who}); two at once would spoil each other, wait or say --force"
                ) from None
        else:
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
        yield


def calibrate(
    setup_engine: Path, arms: Sequence[Arm], *, duration_s: float, trust: Path | None, progress: Callable[[str], None]
) -> dict[str, Capacity]:
    """The capacity of each arm, each on a fresh server."""
    manifest = read_manifest(setup_engine)
    found = {}
    for arm in arms:
        if arm.alone is not None:
            continue
        progress(f"calibrating {arm.name}")
        with _start_server(setup_engine, arm, trust, None) as server:
            server.wait_ready()
            found[arm.name] = measure_capacity(server.url, setup_engine, manifest, senders=arm.concurrency, duration_s=duration_s)
    return found


def check_targets(arms: Sequence[Arm], model: str) -> None:
    """Ask each server that is already there for the model, before anything is made. Raises BenchError."""
    for arm in arms:
        if arm.url is not None:
            with InferenceClient(arm.url, timeout_s=30) as client:
                client.metadata(model)


def try_engine(engine_dir: Path, arms: Sequence[Arm], *, trust: Path | None, progress: Callable[[str], None]) -> None:
    """Load the engine in a server once with each arm's runtime settings: whether it may be loaded here, and which settings
    there are, only the runtime knows; an experiment that finds out in its first block has been begun for nothing, and one
    of lazy arms alone would never find out. Raises BenchError."""
    for arm in {tuple(arm.settings.items()): arm for arm in arms}.values():
        progress(f"trying {arm.name}")
        loading = Arm(name=arm.name, mode="warm-pool", options={}, settings=arm.settings)  # a lazy one would load nothing yet
        with _start_server(engine_dir, loading, trust, None) as server:
            server.wait_ready()


def start_experiment(
    results: Path, run_id: str, setup: Setup, capacities: Mapping[str, Capacity], environment: Mapping[str, Any], command: Sequence[str]
) -> tuple[RunFolder, list[PlannedRun]]:
    """Make the folder and write the whole plan into its `run.json`, and the schedule of every block."""
    planned = plan_runs(setup.spikes, setup.arms, first_contact=setup.first_contact)
    folder = RunFolder.create(results, run_id)
    manifest = None if setup.engine_dir is None else read_manifest(setup.engine_dir)
    folder.write_run(
        "experiment",
        {
            "clock": wall_anchor(),
            "engine": {} if manifest is None else json.loads(manifest.to_json()),
            "engine_dir": None if setup.engine_dir is None else str(setup.engine_dir.resolve()),
            "model": setup.model,
            "shape": setup.shape,
            "title": f"{setup.model}, on servers that were already there" if manifest is None else manifest.title,
            "arms": [dataclasses.asdict(arm) for arm in setup.arms],
            "capacities": {name: dataclasses.asdict(capacity) for name, capacity in capacities.items()},
            "spikes": dataclasses.asdict(setup.spikes),
            "slo_ns": setup.slo_ns,
            "deadline": setup.deadline,
            "trust": None if setup.trust is None else str(setup.trust.resolve()),
            "timeout_s": setup.timeout_s,
            "order": [dataclasses.asdict(run) for run in planned],
            "environment": dict(environment),
        },
        command,
    )
    (folder.path / _SCHEDULES).mkdir()
    (folder.path / RUNS).mkdir()
    for run in {run.block: run for run in planned}.values():
        process = parse_arrivals(setup.spikes.arrivals_text(run.spikes, first_contact=run.first_contact))
        write_schedule(process.schedule(run.schedule_seed), folder.path / _SCHEDULES / f"{run.block:02d}.parquet")
    return folder, planned


def planned_schedules(folder: RunFolder, planned: Sequence[PlannedRun]) -> list[Schedule]:
    """The schedule of each block whose spikes are compared. Raises BenchError where one is not there."""
    blocks = sorted({run.block for run in planned if not run.first_contact})
    return [read_schedule(folder.path / _SCHEDULES / f"{block:02d}.parquet") for block in blocks]


def reopen(path: Path) -> tuple[RunFolder, Setup, list[PlannedRun]]:
    """An experiment that was interrupted, to go on with. Raises BenchError."""
    from bench.records import open_run

    saved = open_run(path)
    if saved.kind != "experiment" or not saved.partial:
        raise BenchError(f"{path} is not an interrupted experiment: --resume takes a folder that ends in .partial")
    run, file = saved.run, saved.path / "run.json"
    check_value(run, RESUME, file)
    try:
        order: tuple[PlannedRun, ...] = decode(tuple[PlannedRun, ...], run["order"], "order")
        setup = Setup(
            engine_dir=None if run["engine_dir"] is None else Path(run["engine_dir"]),
            model=run["model"],
            shape=run["shape"],
            arms=decode(tuple[Arm, ...], run["arms"], "arms"),
            spikes=decode(Spikes, run["spikes"], "spikes"),
            slo_ns=run["slo_ns"],
            deadline=run["deadline"],
            trust=Path(run["trust"]) if run.get("trust") else None,
            timeout_s=run["timeout_s"],
            first_contact=any(entry.first_contact for entry in order),
        )
    except ValueError as error:
        raise BenchError(f"{file}: {error}; {DAMAGED}") from None
    _check_plan(setup, order, saved.path)
    if setup.engine_dir is not None and json.loads(read_manifest(setup.engine_dir).to_json()) != run["engine"]:
        raise BenchError(f"{setup.engine_dir} is another engine than the one that {path} began with; start a new experiment")
    return RunFolder(saved.path, run["run_id"]), setup, list(order)


def _check_plan(setup: Setup, order: Sequence[PlannedRun], experiment: Path) -> None:
    """Whether what an experiment goes on with is what it began with. Raises BenchError."""
    from bench.records import open_run

    for arm in setup.arms:
        check_arm(arm, str(experiment / "run.json"))
        if (arm.mode == TARGET) != (setup.engine_dir is None):
            raise BenchError(f"{experiment / 'run.json'}: the arm {arm.name} and engine_dir do not fit together; {DAMAGED}")
    parse_duration_ns(setup.deadline, f"{experiment / 'run.json'}: deadline")
    if plan_runs(setup.spikes, setup.arms, first_contact=setup.first_contact) != list(order):
        raise BenchError(f"{experiment / 'run.json'}: the order is not the one that its spikes, arms and seed give; {DAMAGED}")
    if not (experiment / RUNS).is_dir():
        raise BenchError(f"{experiment / RUNS} is no folder any more, so there is nothing to go on with; start a new experiment")
    for run in {run.block: run for run in order}.values():
        file = experiment / _SCHEDULES / f"{run.block:02d}.parquet"
        if all((experiment / RUNS / other.folder).exists() for other in order if other.block == run.block):
            continue
        if not file.is_file():
            raise BenchError(f"{file} is gone, so block {run.block + 1} cannot be run any more; start a new experiment")
        schedule = read_schedule(file)
        arrivals = parse_arrivals(setup.spikes.arrivals_text(run.spikes, first_contact=run.first_contact)).text
        if (schedule.provenance.get("arrivals"), schedule.provenance.get("seed")) != (arrivals, run.schedule_seed):
            raise BenchError(f"{file} is not the schedule of block {run.block}, which is {arrivals} of seed {run.schedule_seed}; {DAMAGED}")
        for other in order:
            if other.block == run.block and (experiment / RUNS / other.folder / "run.json").is_file():
                table = open_run(experiment / RUNS / other.folder, "load").table("schedule", ["seq", "intended_ns"])
                if table is None or not table.equals(schedule.table.select(["seq", "intended_ns"])):
                    raise BenchError(f"{file} is not the schedule that {other.folder} had, so what comes could not be compared; {DAMAGED}")


def conduct(folder: RunFolder, setup: Setup, planned: Sequence[PlannedRun], progress: Callable[[int, int, str], None]) -> None:
    """Run what is not there yet. An interrupted run is done again; what was finished stays."""
    for stale in (folder.path / RUNS).glob("*.partial"):
        shutil.rmtree(stale)
    arms = {arm.name: arm for arm in setup.arms}
    for number, run in enumerate(planned):
        if (folder.path / RUNS / run.folder).exists():
            continue
        progress(
            number,
            len(planned),
            f"{'first contact' if run.first_contact else f'block {run.block + 1} of {setup.spikes.blocks}'}, {run.arm}",
        )
        conduct_one(folder.path, setup, arms[run.arm], run)
        time.sleep(_SETTLE_S)
    progress(len(planned), len(planned), "done")


def conduct_one(experiment: Path, setup: Setup, arm: Arm, run: PlannedRun) -> None:
    """One run, on a server of its own, of the block's schedule in the experiment's folder; kept as `runs/BLOCK-ARM`, which is there
    as a whole or not at all. Raises BenchError."""
    workplace = experiment / RUNS / f"{run.folder}.partial"
    workplace.mkdir()
    schedule = experiment / _SCHEDULES / f"{run.block:02d}.parquet"
    if arm.url is not None or setup.engine_dir is None:
        assert arm.url is not None
        before = read_statistics(arm.url, setup.model)
        made = _run_locust(arm.url, schedule, workplace, setup)
        record = json.loads((made / "run.json").read_text("utf-8")) | {
            "arm": arm.name,
            "block": run.block,
            "setup": dataclasses.asdict(arm),
            "server_statistics": statistics_between(before, read_statistics(arm.url, setup.model)),
        }
        _keep(made, record, experiment / RUNS / run.folder, workplace)
        return
    timeline = workplace / "timeline.jsonl"
    with _start_server(setup.engine_dir, arm, setup.trust, timeline, setup.timeout_s) as server:
        server.wait_ready()
        with contextlib.ExitStack() as stack:
            loads = None
            if arm.alone is not None:
                planned = read_schedule(schedule)
                name = second_name(setup.model)
                loads = stack.enter_context(loads_beside(server.url, name, workplace, planned.spikes, planned.duration_ns))
            made = _run_locust(server.url, schedule, workplace, setup)
        server.check_alive()
    record = json.loads((made / "run.json").read_text("utf-8"))
    times = {"started_ns": server.started_ns, "listening_ns": server.listening_ns, "ready_ns": server.ready_ns}
    manifest = read_manifest(setup.engine_dir)
    record |= {"arm": arm.name, "block": run.block, "setup": dataclasses.asdict(arm), "server": {**times, "flags": arm.flags()}}
    record |= {"title": manifest.title, "engine": json.loads(manifest.to_json())}
    if loads is not None:
        record["loads"] = [dataclasses.asdict(load) for load in loads]
    _, samples = read_server_timeline(timeline, zero_ns=record["start_monotonic_ns"])
    write_parquet(samples, made / "timeline.parquet")
    _keep(made, record, experiment / RUNS / run.folder, workplace)


def _keep(made: Path, record: Mapping[str, Any], place: Path, workplace: Path) -> None:
    """Give the finished run its place in the experiment; it is there as a whole or not at all."""
    (made / "run.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    made.rename(place)
    shutil.rmtree(workplace)


def _start_server(engine_dir: Path, arm: Arm, trust: Path | None, timeline: Path | None, timeout_s: float = 600.0) -> ServerProcess:
    flags = arm.flags()
    if arm.alone is not None:
        flags.append(f"--on-demand={second_name(read_manifest(engine_dir).name)}={engine_dir.resolve()}")
    if trust is not None:
        flags.append(f"--trust={trust.resolve()}")
    if timeline is not None:
        flags.append(f"--timeline={timeline.resolve()}")
    return ServerProcess([engine_dir], flags, timeout_s=timeout_s)


def _run_locust(url: str, schedule: Path, workplace: Path, setup: Setup) -> Path:
    """One open-loop run. Returns its folder. Raises BenchError where Locust did not make one."""
    arguments = [
        f"--locustfile={scenario_file('burst')}",
        "--headless",
        f"--host={url}",
        f"--schedule={schedule.resolve()}",
        f"--results={workplace.resolve()}",
        f"--model={setup.model}",
        f"--deadline={setup.deadline}",
        "--loglevel=WARNING",
        "--only-summary",
    ]
    if setup.engine_dir is not None:
        arguments.append(f"--probe={setup.engine_dir.resolve()}")
    elif setup.shape is not None:
        arguments.append(f"--shape={setup.shape}")
    if setup.slo_ns is not None:
        arguments.append(f"--slo={setup.slo_ns}ns")
    with Child(module_command("locust", *arguments), child_environment(), dies_with_us=True) as locust:
        lines = locust.read_to_end(setup.timeout_s)
        code = locust.wait(setup.timeout_s)
        if code not in (EXIT_FINE, EXIT_INVALID_RUN):
            complaint = locust.complaint()
            for theirs, ours in _OUR_OPTIONS if setup.engine_dir is None else ():
                complaint = complaint.replace(theirs, ours)
            raise BenchError(complaint)
    made = [path for path in workplace.iterdir() if (path / "run.json").exists() and not path.name.endswith(".partial")]
    if len(made) != 1:
        raise BenchError(
            f"locust ended with code {code} and left no run in {workplace} (its last line: {lines[-1][:120] if lines else ''!r})"
        )
    return made[0]
