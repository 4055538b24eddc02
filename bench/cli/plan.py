"""`bench plan`: how many slots, how many replicas, how much memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.errors import EXIT_GATE_MISSED, BenchError
from bench.units import format_size, parse_duration_ns, parse_size_bytes

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.offered import Offered
    from bench.capacity.plan import Plan

_MOST_ARRIVALS = 5_000_000  # of one seed
_MOST_DRAWN = 50_000_000  # of all seeds
_MOST_SEEDS = 1000
_MOST_REPLICAS = 10_000
_MOST_WAITING = 10**9
_LAST_SEED = 2**32 - 1


@app.command()
def plan(
    curve: Annotated[Path, typer.Option("--curve", metavar="RUN", help="The service curve: a run of `bench curve`.", show_default=False)],
    coldstart: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run of `bench coldstart` of the same engine; without it only warm pools are planned."),
    ] = None,
    arrivals: Annotated[str | None, typer.Option(metavar="NAME:KEY=VALUE,...", help="The load in words, as in `bench schedule`.")] = None,
    schedule: Annotated[Path | None, typer.Option(metavar="FILE", help="The load as a schedule file.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="The load as a trace whose format tells itself.")] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="[[PHASE.]p99=]TIME", help="What must hold; TIME alone: p99. Repeatable; the first one says what is in time."),
    ] = None,
    goodput: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of arrivals to be answered in time; else as the first --slo says.")
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of one replica's device or machine.")] = None,
    reserve: Annotated[str, typer.Option(metavar="SHARE", help="What of it stays free.")] = "10%",
    beside: Annotated[
        list[Path] | None,
        typer.Option(metavar="PLAN", help="A plan of another model on the same device, whose pool has its memory first; repeatable."),
    ] = None,
    memory_by: Annotated[
        str | None,
        typer.Option(metavar="peak|mean", help="By which memory, of ways with as few replicas, the least is taken; with --beside: mean."),
    ] = None,
    price: Annotated[str | None, typer.Option(metavar="PRICE", help="Of one replica, such as 2.5/h.")] = None,
    replica_start: Annotated[
        str | None, typer.Option(metavar="TIME", help="From the decision to start a replica until it is ready; else as measured.")
    ] = None,
    detect: Annotated[str, typer.Option(metavar="TIME", help="How long too many must wait until a replica is started.")] = "15s",
    waiting: Annotated[float, typer.Option(metavar="N", help="Too many: waiting requests a slot.")] = 1.0,
    max_replicas: Annotated[int, typer.Option(metavar="N", help="No more replicas than these.")] = 16,
    max_slots: Annotated[int | None, typer.Option(metavar="N", help="No more slots a replica; else as many as were measured.")] = None,
    queue_limit: Annotated[int | None, typer.Option(metavar="N", help="As the server's.")] = None,
    acquire_timeout: Annotated[str | None, typer.Option(metavar="TIME", help="As the server's.")] = None,
    idle_timeout: Annotated[str, typer.Option(metavar="TIME", help="As the server's, in elastic.")] = "30s",
    modes: Annotated[
        str | None, typer.Option(metavar="MODE,...", help="Of warm-pool, elastic, scale-out, lazy, cold-load; else all of them.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="How often the load and the service times are drawn.")] = 5,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 1,
    sensitivity: Annotated[bool, typer.Option(help="Also with other peaks, burst lengths and gaps.")] = True,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also from a curve or cold starts that are not valid.")] = False,
    results: options.Results = Path("results"),
    as_json: options.AsJson = False,
) -> None:
    """Say how many slots and replicas hold an SLO under a load, from what was measured, by simulation.

    The answer comes first, in one sentence; then each way to serve (warm-pool, elastic, scale-out, lazy, cold-load) with the
    smallest size that holds, what it holds in memory and what limits it. The plan is kept in a folder of its own, for
    `bench validate` and `bench notebook`. Where nothing holds, it names what comes closest, and exits with 1.

    Examples: bench plan --curve results/CURVE --coldstart results/COLD --arrivals train:base=5,peak=40,hold=10s,rest=30s,spikes=10
    --slo p99=300ms --memory 16GiB --price 2.5/h

    bench plan --curve results/CURVE --schedule replay.parquet --slo p99=100ms --goodput 0.999 --replica-start 45s --detect 15s
    """
    from bench.capacity.candidates import Rules
    from bench.capacity.cost import parse_price
    from bench.capacity.goal import parse_goal
    from bench.capacity.offered import refuse_too_many
    from bench.capacity.plan import make_plan
    from bench.capacity.search import Bounds
    from bench.cli.progress import steps
    from bench.records import RunFolder

    _one_load(arrivals, schedule, trace)
    goal = parse_goal(slo or [], goodput)
    priced = None if price is None else parse_price(price)
    rules = Rules(
        queue_limit=_within(0, queue_limit, _MOST_WAITING, "--queue-limit"),
        acquire_timeout_ns=None if acquire_timeout is None else _above_zero(acquire_timeout, "--acquire-timeout"),
        idle_timeout_ns=parse_duration_ns(idle_timeout, "--idle-timeout"),
        ready_ns=None if replica_start is None else parse_duration_ns(replica_start, "--replica-start"),
        detect_ns=parse_duration_ns(detect, "--detect"),
        above=waiting,
    )
    usable, others = _usable(memory, reserve, beside or [])
    families = _families(modes)
    for value, most, name in ((max_replicas, _MOST_REPLICAS, "--max-replicas"), (max_slots, _MOST_REPLICAS, "--max-slots")):
        _within(1, value, most, name)
    _within(1, seeds, _MOST_SEEDS, "--seeds")
    _within(0, seed, _LAST_SEED, "--seed")
    by = _memory_by(memory_by, beside or [])
    if not 0 <= waiting < 1e9:
        raise BenchError(f"--waiting is {waiting:g}: write how many waiting requests a slot are too many, such as 1")
    drawn = range(seed, seed + seeds)
    RunFolder.check_writable(results)
    with steps("plan") as progress:
        progress("reading the runs")
        measured = _measured(curve, coldstart, anyway)
        refuse_too_many(_offered(arrivals, schedule, trace, drawn[:1]), min(_MOST_ARRIVALS, _MOST_DRAWN // seeds), seeds)
        offered = _offered(arrivals, schedule, trace, drawn)
        bounds = Bounds(
            most_slots=min(max_slots or len(measured.levels), len(measured.levels)), most_replicas=max_replicas, usable_bytes=usable
        )
        made = make_plan(
            measured,
            offered,
            goal,
            rules,
            bounds,
            drawn,
            families=families,
            price=priced,
            vary=sensitivity,
            memory_by=by,
            notes=(*others, *_fewer_slots(max_slots, len(measured.levels)), *_coarse_clock(trace or schedule, offered)),
            progress=progress,
        )
        progress("report")
        path = _keep(results, made, measured, offered)
    if as_json:
        typer.echo(json.dumps({"run": str(path), **_plain(made)}, indent=2, allow_nan=False))
    else:
        _show(path)
    if not made.holds:
        raise typer.Exit(EXIT_GATE_MISSED)


def _one_load(arrivals: str | None, schedule: Path | None, trace: Path | None) -> None:
    given = [name for name, value in (("--arrivals", arrivals), ("--schedule", schedule), ("--trace", trace)) if value is not None]
    if len(given) != 1:
        which = f"and not both {' and '.join(given)}" if given else "and has none"
        raise BenchError(f"a plan needs one load {which}: give --arrivals TEXT, --schedule FILE or --trace FILE")


def _offered(arrivals: str | None, schedule: Path | None, trace: Path | None, seeds: Sequence[int]) -> Offered:
    from bench.capacity.offered import of_process, of_schedule
    from bench.load.arrivals_text import parse_arrivals
    from bench.load.schedule import read_schedule
    from bench.load.traces.importing import import_trace

    if arrivals is not None:
        return of_process(parse_arrivals(arrivals), seeds)
    if schedule is not None:
        return of_schedule(read_schedule(schedule), schedule.name, seeds)
    assert trace is not None
    try:
        read = import_trace(trace)
    except BenchError as error:
        if "--format" not in str(error):
            raise
        raise BenchError(
            f"--trace {trace} does not tell its format: make a schedule of it with `bench trace {trace} --format NAME -o load.parquet`, "
            "and give that with --schedule"
        ) from None
    return of_schedule(read, f"{trace.name} ({read.provenance['format']})", seeds)


def _fewer_slots(most: int | None, measured: int) -> tuple[str, ...]:
    if most is None or most <= measured:
        return ()
    return (f"--max-slots {most} is more than the curve has: at most {measured} slots a replica were tried",)


def _coarse_clock(file: Path | None, offered: Offered) -> tuple[str, ...]:
    """What `bench trace` warns of, for a trace that is planned for as it is."""
    from bench.load.traces.told import coarse_tick_ns

    tick_ns = None if file is None else coarse_tick_ns(offered.schedules[0].intended_ns)
    if file is None or tick_ns is None:
        return ()
    tick = f"{tick_ns / 1e9:g}s"
    return (
        f"the clock's tick of {file.name} is {tick}, and all arrivals of one come at once, so the response times are those of jolts: draw "
        f"each from its tick (bench trace TRACE --spread {tick} -o load.parquet), and plan for that (--schedule load.parquet)",
    )


def _measured(curve: Path, coldstart: Path | None, anyway: bool) -> Measured:
    from bench.capacity.measured import fit
    from bench.capacity.service import read_service_curve
    from bench.capacity.starts import no_starts, read_starts

    service = read_service_curve(curve)
    starts = no_starts(service.engine) if coldstart is None else read_starts(coldstart)
    measured = fit(service, starts, {"curve": str(curve), **({} if coldstart is None else {"coldstart": str(coldstart)})})
    if measured.invalid and not anyway:
        raise BenchError(f"{measured.invalid[0]}; --anyway plans with it nevertheless")
    return measured


def _keep(results: Path, made: Plan, measured: Measured, offered: Offered) -> Path:
    from bench.capacity.saved_plan import save_plan, whole_or_gone
    from bench.records import naming, open_run
    from bench.report.build import build_page, write_html

    # What was measured elsewhere and at another time belongs to that machine, not to the one that plans.
    environment = open_run(Path(measured.sources["curve"])).run.get("environment") or {}
    folder = save_plan(results, made, measured, offered, environment=environment, command=sys.argv)
    with whole_or_gone(folder.path):
        page = build_page(folder.path)
        for picture in page.pictures:
            with naming(folder.path / f"{picture.name}.svg"):
                (folder.path / f"{picture.name}.svg").write_bytes(picture.data)
        write_html(folder.path / "report.html", [page])
        return folder.finish()


def _show(path: Path) -> None:
    from rich.console import Console

    from bench.report.build import build_page
    from bench.report.text import render_answer

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    render_answer(build_page(path, pictures=False), console, ("If the load is another one",))
    plots = "".join(f"\nplot:   {plot}" for plot in sorted(path.glob("*.svg")))
    typer.echo(f"{plots}\nreport: {path / 'report.html'}\nfiles:  {path}")


def _plain(made: Plan) -> dict[str, object]:
    import dataclasses

    return dataclasses.asdict(made)


def _usable(memory: str | None, reserve: str, beside: Sequence[Path]) -> tuple[int | None, tuple[str, ...]]:
    """What is left for this model's pool on one device, and what has to be said of the others there."""
    share = _share(reserve)
    if memory is None:
        if beside:
            raise BenchError("--beside shares out a device's memory: say with --memory how much there is")
        return None, ()
    left = int(parse_size_bytes(memory, "--memory") * (1 - share))
    if left <= 0:
        raise BenchError(f"--memory {memory} leaves nothing behind the reserve of {reserve}: write what the device has, such as 16GiB")
    notes = []
    for path in beside:
        name, held = _pool_of(path)
        left -= held
        notes.append(
            f"beside {name}, which has {format_size(held)} of the memory; what its requests do to the service times here is not in the plan"
        )
    if left <= 0:
        raise BenchError(f"--memory {memory} is all taken by the plans that are --beside: {format_size(-left)} are missing already")
    return left, tuple(notes)


def _pool_of(path: Path) -> tuple[str, int]:
    from bench.capacity.saved_plan import read_plan

    other = read_plan(path).plan
    if not other.holds or other.answer is None or other.answer.replica_bytes is None:
        raise BenchError(f"--beside {path} has no size that holds, or does not know its memory: plan that model first")
    return f"{other.subject} ({other.answer.candidate.text})", round(other.answer.replica_bytes)


def _share(text: str) -> float:
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise BenchError(f"--reserve {text!r} is not a share below 1: write it such as 10% or 0.1")
    return share


def _families(text: str | None) -> tuple[str, ...]:
    from bench.capacity.candidates import FAMILIES

    if text is None:
        return FAMILIES
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BenchError(f"--modes {text!r} names no way to serve: write one or more of {', '.join(FAMILIES)}")
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise BenchError(f"--modes {text!r}: {unknown[0]} is none of {', '.join(FAMILIES)}")
    return tuple(name for name in FAMILIES if name in names)


def _above_zero(text: str, name: str) -> int:
    value = parse_duration_ns(text, name)
    if value <= 0:
        raise BenchError(f"{name} is {text}, and must be above 0")
    return value


def _memory_by(text: str | None, beside: Sequence[Path]) -> str:
    """What is free in between helps only where something else uses it: another model, or what the user knows of."""
    from bench.capacity.choice import MEAN, PEAK

    if text is None:
        return MEAN if beside else PEAK
    if text not in (PEAK, MEAN):
        raise BenchError(f"--memory-by {text!r} is neither {PEAK} nor {MEAN}")
    return text


def _within(least: int, value: int | None, most: int, name: str) -> int | None:
    if value is not None and not least <= value <= most:
        raise BenchError(f"{name} is {value}, and must be at least {least} and at most {most:,}")
    return value
