"""`bench curve`."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.errors import BenchError, InvalidRun

if TYPE_CHECKING:
    from bench.records import RunFolder


@app.command()
def curve(
    subject: Annotated[
        str, typer.Argument(metavar="[ENGINE|MODEL|NAME]", help="An engine directory, an .onnx file, or resnet50, bert-base, tiny.")
    ] = "resnet50",
    slots: Annotated[str, typer.Option(metavar="N..M", help="Numbers of busy slots: 1..8, or 1,2,4,8.")] = "1..8",
    batch: Annotated[
        str | None, typer.Option(metavar="B,B...", help="Batch sizes that the engine takes, such as 1,4; else its smallest.")
    ] = None,
    duration: Annotated[
        str, typer.Option(metavar="TIME", help="How long each level is measured in a round, and until 100 answers.")
    ] = "3s",
    rounds: Annotated[int, typer.Option(help="How often all levels are measured, each time on fresh servers.")] = 2,
    sharing: Annotated[str, typer.Option(metavar="HOW", help="engine (one for all slots) or copy (one each).")] = "engine",
    settings: options.Settings = None,
    results: options.Results = Path("results"),
    runtime: options.Runtime = "onnxruntime",
    optimize: options.Optimize = "all",
    shape: options.Shape = None,
    values: options.Input = None,
    name: options.Name = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of the levels.")] = 0,
    trust: options.Trust = None,
    timeout: Annotated[str, typer.Option(help="How long a server may take until it is ready.")] = "10min",
    force: Annotated[bool, typer.Option(help="Run although an experiment runs on this machine.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure how long a request occupies its slot when 1 to N slots are busy, and how many slots are of use.

    Slots of one device share it: two that are busy take longer than one. Each number of slots gets a fresh server that is kept
    saturated; the throughput, the distribution of the service time and the memory are kept in a folder, for `bench plan` to
    size pools by.

    Examples: bench curve resnet50 --slots 1..8

    bench curve engines/mine --slots 1,2,4 --batch 1,4 --duration 5s --rounds 3
    """
    from bench import environment
    from bench.capacity.measure import MOST_SLOTS, CurvePlan, check_plan, measure, parse_counts, start_run
    from bench.cli.progress import bar, steps
    from bench.engine.resolve import BuildOptions, cache_folder, resolve_engine
    from bench.engine.shapes import parse_assignments
    from bench.experiment.conduct import only_one
    from bench.records import RunFolder, new_run_id
    from bench.units import parse_duration_ns

    counts = parse_counts(slots, "--slots", MOST_SLOTS)
    batches = () if batch is None else parse_counts(batch, "--batch", 2**20)
    duration_ns, timeout_ns = parse_duration_ns(duration, "--duration"), parse_duration_ns(timeout, "--timeout")
    runtime_settings = parse_assignments(settings or [], "--set")
    build = BuildOptions.from_flags(runtime=runtime, optimize=optimize, name=name, shapes=shape or [], inputs=values or [], seed=0)
    RunFolder.check_writable(results)
    with only_one(force, cache_folder()):
        with steps(f"engine of {subject}") as progress:
            engine = resolve_engine(subject, build, progress)
        plan = check_plan(
            CurvePlan(
                engine_dir=engine,
                slots=counts,
                batches=batches,
                duration_ns=duration_ns,
                rounds=rounds,
                seed=seed,
                sharing=sharing,
                settings=runtime_settings,
                trust=trust,
                timeout_s=timeout_ns / 1e9,
            )
        )
        found = environment.collect(results)
        facts = {**environment.to_json(found), "warnings": environment.warnings(found)}
        folder = start_run(results, new_run_id("curve", Path(subject).stem), plan, facts, ["bench", *sys.argv[1:]])
        try:
            with bar("service curve") as show:
                measure(folder, plan, show)
        except (KeyboardInterrupt, BenchError):
            folder.close()
            folder.check_there()
            conclude(folder, folder.path, as_json=as_json)
            raise
        conclude(folder, folder.finish(), as_json=as_json)


def conclude(folder: RunFolder, path: Path, *, as_json: bool) -> None:
    """Write `summary.json` and `report.html` into the run, and print it. A cut-off run without one whole level is only kept
    where it has a row. Raises BenchError where a finished one has none, InvalidRun where it is no service curve."""
    from bench.records import RunFolder, open_run
    from bench.report.build import load_curve, write_html

    saved = open_run(path)
    try:
        summary, page = load_curve(saved)
    except BenchError:
        if not saved.partial:
            raise
        if saved.table("requests", ("busy",)) is None:
            shutil.rmtree(path)  # nothing was measured
        return
    RunFolder(path, folder.run_id).write_json("summary.json", dataclasses.asdict(summary))
    write_html(path / "report.html", [page])
    if as_json:
        typer.echo(json.dumps({"run": str(path), **dataclasses.asdict(summary)}, indent=2))
    else:
        from rich.console import Console

        from bench.report.text import render

        render(page, Console(width=None if sys.stdout.isatty() else 140, highlight=False))
        typer.echo(f"\nreport: {path / 'report.html'}\nfiles:  {path}{' (stopped before its end)' if saved.partial else ''}")
    if summary.invalid and not saved.partial:
        raise InvalidRun(f"the run is not valid: {summary.invalid[0]}")
