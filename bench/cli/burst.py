"""`bench burst`."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.errors import BenchError, InvalidRun, one_sentence

if TYPE_CHECKING:
    from bench.analysis.experiment import ExperimentSummary
    from bench.engine.resolve import BuildOptions
    from bench.experiment.arms import Arm
    from bench.experiment.conduct import Setup
    from bench.experiment.plan import PlannedRun
    from bench.records import RunFolder
    from bench.report.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """The load as a user writes it: rates with or without x, times with a unit."""

    base: str = "0.3x:slowest"
    peak: str = "1.2x:slowest"
    hold: str = "2s"
    rest: str = "6s"
    slo: str | None = None
    deadline: str = "30s"
    calibrate: str = "3s"
    spikes: int = 20
    blocks: int = 5
    seed: int = 1
    first_contact: bool = False
    during: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Servers that are already there, and what they are asked for."""

    arms: tuple[Arm, ...]
    model: str
    shape: str | None


@app.command()
def burst(
    subject: Annotated[
        str, typer.Argument(metavar="[ENGINE|MODEL|NAME]", help="An engine directory, an .onnx file, or resnet50, bert-base, tiny.")
    ] = "resnet50",
    arms: Annotated[
        str,
        typer.Option(metavar="ARM,ARM...", help="cold-load, lazy, warm-pool, elastic, with settings: warm-pool:pool=4,sharing=copy."),
    ] = "cold-load,warm-pool",
    spikes: Annotated[int, typer.Option(help="Spikes of each arm: the unit that the intervals count.")] = 20,
    blocks: Annotated[int, typer.Option(help="Fresh servers of each arm; the spikes are shared out among them.")] = 5,
    base: Annotated[str, typer.Option(metavar="RATE", help="Requests/s between spikes, or 0.3x, 0.3x:slowest, 0.3x:ARM.")] = "0.3x:slowest",
    peak: Annotated[str, typer.Option(metavar="RATE", help="Requests/s in a spike, in the same forms.")] = "1.2x:slowest",
    hold: Annotated[str, typer.Option(metavar="TIME", help="How long a spike lasts.")] = "2s",
    rest: Annotated[str, typer.Option(metavar="TIME", help="Mean time between spikes.")] = "6s",
    slo: Annotated[str | None, typer.Option(metavar="[p99=]TIME", help="Response time that counts as good.")] = None,
    deadline: Annotated[str, typer.Option(metavar="TIME", help="When an arrival without an answer is a timeout.")] = "30s",
    calibrate: Annotated[str, typer.Option(metavar="TIME", help="How long the capacity of each arm is measured.")] = "3s",
    first_contact: Annotated[
        bool, typer.Option("--first-contact", help="One more block, in which a spike is the first that a ready server gets.")
    ] = False,
    during: Annotated[
        str | None,
        typer.Option(metavar="load", help="Each arm once more, with one more engine loaded in its server as each spike begins."),
    ] = None,
    results: options.Results = Path("results"),
    resume: Annotated[Path | None, typer.Option(metavar="EXPERIMENT", help="Go on with an interrupted experiment.")] = None,
    force: Annotated[bool, typer.Option(help="Run although another experiment runs on this machine.")] = False,
    runtime: options.Runtime = "onnxruntime",
    optimize: options.Optimize = "all",
    shape: options.Shape = None,
    values: options.Input = None,
    name: options.Name = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="An arm whose server is already there, instead of an engine; repeatable. Needs --name."),
    ] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Let --target be on another host.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals and of the order of the arms.")] = 1,
    trust: options.Trust = None,
    as_json: options.AsJson = False,
) -> None:
    """Replay the same spikes against several arms of one engine, and say what users wait for in each.

    Every arm gets a fresh server for each block and the same schedule; the order of the arms in a block is random. Rates
    with an x are multiples of a capacity, measured first in closed loop. The experiment is kept in a folder of its own.

    Examples: bench burst resnet50 --arms cold-load,warm-pool:pool=2 --spikes 20 --slo 500ms

    bench burst tiny --arms warm-pool,warm-pool:pool=2,lazy --base 50 --peak 400 --hold 1s --rest 3s

    bench burst --target ours=http://127.0.0.1:8000 --target triton=http://127.0.0.1:9000 --name resnet50 --base 5 --peak 20
    """
    from bench.cli.progress import steps
    from bench.engine.resolve import BuildOptions, cache_folder
    from bench.experiment.conduct import only_one, reopen, try_engine

    if resume is not None:
        with only_one(force, cache_folder()):
            folder, setup, planned = reopen(resume)
            if setup.engine_dir is not None:
                with steps(f"burst of {setup.model}") as progress:
                    try_engine(setup.engine_dir, setup.arms, trust=setup.trust, progress=progress)
            _go_on(folder, setup, planned, as_json=as_json)
        return
    there = _targets(target, allow_remote, name, shape or [], values or []) if target else None
    given = BuildOptions.from_flags(runtime=runtime, optimize=optimize, name=name, shapes=shape or [], inputs=values or [], seed=0)
    load = Burst(
        base=base,
        peak=peak,
        hold=hold,
        rest=rest,
        slo=slo,
        deadline=deadline,
        calibrate=calibrate,
        spikes=spikes,
        blocks=blocks,
        seed=seed,
        first_contact=first_contact,
        during=during,
    )
    with only_one(force, cache_folder()):
        run_burst(subject, given, arms, load, results=results, trust=trust, as_json=as_json, there=there)


def _targets(texts: list[str], allow_remote: bool, name: str | None, shapes: list[str], values: list[str]) -> Targets:
    from bench.experiment.arms import parse_targets

    arms = tuple(parse_targets(texts, allow_remote=allow_remote))
    if name is None:
        raise BenchError("--target needs to know which model to ask for: name it with --name")
    if values:
        raise BenchError("--input is for engines that are built here; a server that is already there gets seeded random values")
    return Targets(arms=arms, model=name, shape=",".join(one.replace("=", ":", 1) for one in shapes) or None)


def run_burst(
    subject: str,
    build: BuildOptions,
    arms: str,
    load: Burst,
    *,
    results: Path,
    trust: Path | None = None,
    as_json: bool = False,
    there: Targets | None = None,
) -> None:
    """A whole experiment: engine, calibration, blocks, summary, report; against servers that are `there` already where
    given, instead of `subject` and `arms`. The caller sees to it that there is `only_one`. Raises BenchError, InvalidRun."""
    _go_on(*_prepare(subject, build, arms, load, results, trust, there), as_json=as_json)


def _go_on(folder: RunFolder, setup: Setup, planned: list[PlannedRun], *, as_json: bool) -> None:
    """Conduct, sum up, print. What was measured before an error or Ctrl-C is summed up too. Raises BenchError, InvalidRun."""
    from bench.cli.progress import bar
    from bench.experiment.conduct import conduct

    try:
        with bar("burst") as show:
            conduct(folder, setup, planned, lambda done, total, _what: show(done, total))
    except (KeyboardInterrupt, BenchError, OSError) as stop:
        folder.check_there()  # else there is nothing to sum up, and nothing to go on with
        if not isinstance(stop, KeyboardInterrupt) and not finished_runs(folder.path):
            shutil.rmtree(folder.path)  # the first run cannot be made: nothing was measured, and going on would end here again
            raise
        if finished_runs(folder.path):
            typer.echo("stopping: what was measured is summed up, which takes a few seconds", err=True)
        try:
            conclude(folder.path, as_json=as_json)
        except BenchError as error:  # why it stopped is what is to be said last
            typer.echo(f"bench: {error}", err=True)
        typer.echo(f"stopped; go on with: bench burst --resume {folder.path}", err=True)
        raise
    summary = conclude(folder.finish(), as_json=as_json)
    if summary is not None and summary.invalid:
        raise InvalidRun(f"the experiment is not valid: {summary.invalid[0]}")


def finished_runs(path: Path) -> bool:
    """Whether the experiment has a run to sum up."""
    return any((path / "runs").glob("*/run.json"))


def conclude(path: Path, *, as_json: bool) -> ExperimentSummary | None:
    """Write `summary.json` and `report.html` into the experiment, and print it. None where it has no finished run."""
    from bench.records import RunFolder, open_run
    from bench.report.build import load_report, write_html

    if not finished_runs(path):
        return None
    summary, page = load_report(path)
    unwritten: BenchError | None = None
    try:
        RunFolder(path, open_run(path).run["run_id"]).write_json("summary.json", summary.to_json())
        write_html(path / "report.html", [page])
    except (OSError, BenchError) as error:  # a full disk: what was measured is there, and is at least printed
        unwritten = BenchError(f"{one_sentence(error)}; the runs are kept, so: bench report {path} -o FILE on another disk")
    _print(path, summary, page, as_json=as_json)
    if unwritten is not None:
        raise unwritten
    return summary


def _print(path: Path, summary: ExperimentSummary, page: Page, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"run": str(path), **summary.to_json()}, indent=2))
        return
    from rich.console import Console

    from bench.report.text import render

    render(page, Console(width=None if sys.stdout.isatty() else 140, highlight=False))
    report = path / "report.html"
    typer.echo(
        f"\nreport: {report if report.exists() else 'not written'}\nfiles:  {path}{' (stopped before its end)' if summary.partial else ''}"
    )


def _prepare(
    subject: str, build: BuildOptions, arms_text: str, load: Burst, results: Path, trust: Path | None, there: Targets | None
) -> tuple[RunFolder, Setup, list[PlannedRun]]:
    """Check everything, build the engine, calibrate, and make the experiment's folder with its whole plan."""
    from bench import environment
    from bench.cli.progress import steps
    from bench.engine.manifest import read_manifest
    from bench.engine.resolve import resolve_engine
    from bench.experiment import plan
    from bench.experiment.arms import parse_arms, with_loads
    from bench.experiment.calibration import Capacity
    from bench.experiment.conduct import Setup, calibrate, check_targets, planned_schedules, start_experiment, try_engine
    from bench.experiment.foresight import shortcomings
    from bench.records import RunFolder, new_run_id
    from bench.slo import parse_slo_time_ns
    from bench.units import parse_duration_ns

    arms = parse_arms(arms_text) if there is None else list(there.arms)
    if load.during not in (None, "load"):
        raise BenchError(f"--during {load.during!r} is not known; write --during load, or leave it out")
    if load.during is not None and there is not None:
        raise BenchError("--during load is for servers that are started here; nothing is loaded in one that is already there")
    if load.during is not None:
        arms = with_loads(arms)
    hold_ns, rest_ns = parse_duration_ns(load.hold, "--hold"), parse_duration_ns(load.rest, "--rest")
    calibrate_ns = parse_duration_ns(load.calibrate, "--calibrate")
    slo_ns = None if load.slo is None else parse_slo_time_ns(load.slo)
    for flag, ns in (
        ("--hold", hold_ns),
        ("--rest", rest_ns),
        ("--calibrate", calibrate_ns),
        ("--deadline", parse_duration_ns(load.deadline, "--deadline")),
    ):
        if ns <= 0:
            raise BenchError(f"{flag} is {ns}, and must be above 0")
    if load.seed < 0:
        raise BenchError(f"--seed is {load.seed}, and must be at least 0")
    count, blocks, seed = load.spikes, load.blocks, load.seed
    rates = (load.base, load.peak)
    for text, flag in zip(rates, ("--base", "--peak"), strict=True):
        plan.check_rate(text, flag, [arm.name for arm in arms])
    if count > plan.MOST_SPIKES or blocks > plan.MOST_BLOCKS:
        raise BenchError(
            f"--spikes {count} in --blocks {blocks}: at most {plan.MOST_SPIKES:,} spikes in {plan.MOST_BLOCKS:,} blocks are taken"
        )
    if not 1 <= blocks <= count:
        raise BenchError(f"--spikes {count} cannot be split into --blocks {blocks}: each block needs a spike")
    RunFolder.check_writable(results)
    capacities: dict[str, Capacity] = {}
    if there is not None and plan.needs_calibration(*rates):
        raise BenchError("--target takes --base and --peak in requests a second: a server that is not ours is not calibrated")
    if there is not None:
        check_targets(arms, there.model)
    with steps(f"burst of {subject if there is None else there.model}") as progress:
        engine = resolve_engine(subject, build, progress) if there is None else None
        if engine is not None:
            try_engine(engine, arms, trust=trust, progress=progress)
        if engine is not None and plan.needs_calibration(*rates):
            capacities = calibrate(engine, arms, duration_s=calibrate_ns / 1e9, trust=trust, progress=progress)
            for arm, capacity in capacities.items():
                progress(f"{arm}: {capacity.rate_per_s:.3g} requests/s ({capacity.requests} requests, {capacity.senders} senders)")
    base_per_s, peak_per_s = (plan.parse_rate(t, f, capacities) for t, f in zip(rates, ("--base", "--peak"), strict=True))
    setup = Setup(
        engine_dir=engine,
        model=read_manifest(engine).name if engine is not None else there.model if there is not None else "",
        shape=None if there is None else there.shape,
        arms=tuple(arms),
        spikes=plan.Spikes(
            base_per_s=base_per_s, peak_per_s=peak_per_s, hold_ns=hold_ns, rest_ns=rest_ns, count=count, blocks=blocks, seed=seed
        ),
        slo_ns=slo_ns,
        deadline=load.deadline,
        trust=trust,
        timeout_s=600.0 + count * (hold_ns + rest_ns) / 1e9 * 3,
        first_contact=load.first_contact,
    )
    found = environment.collect(results)
    facts = {**environment.to_json(found), "warnings": environment.warnings(found)}
    name = Path(subject).stem if there is None else there.model
    command = ["bench", *sys.argv[1:]]
    folder, planned = start_experiment(results, new_run_id("burst", name), setup, capacities, facts, command)
    for shortcoming in shortcomings(planned_schedules(folder, planned), len(arms)):
        typer.echo(f"note: {shortcoming}", err=True)
    return folder, setup, planned
