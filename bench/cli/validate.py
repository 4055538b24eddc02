"""`bench validate`: what a plan predicts against what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.errors import BenchError
from bench.slo import parse_slo_time_ns
from bench.units import parse_size_bytes

_MOST_SEEDS = 1000


@app.command()
def validate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The folder that `bench plan` made.")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Load runs or burst experiments that it was not made of.")],
    slo: Annotated[
        str | None, typer.Option(metavar="[p99=]TIME", help="P99 that must hold, for runs without an SLO of their own; else the plan's.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for the rule memory / model size; else the plan's, else the machine's.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="How often each run is simulated.")] = 20,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also with runs of another engine.")] = False,
    results: options.Results = Path("results"),
    as_json: options.AsJson = False,
) -> None:
    """Predict runs that the plan has not seen, with their own arrivals and server settings, and say how wrong that is.

    Runs of one load and one size are pooled into a case. Compared are P50 and P99 of the response time, refusals, recovery
    and memory, over all and spike by spike; and where several sizes of one load were measured, whether the predicted size is
    the right one, beside rules of thumb. The result is kept in a folder of its own.

    Example: bench validate results/PLAN results/BURST results/BURST-2 --slo 100ms
    """
    from bench.capacity.predict import LEAST_SEEDS
    from bench.capacity.refutation import against_measurement
    from bench.capacity.saved_plan import read_plan, whole_or_gone
    from bench.capacity.saved_validation import save_validation
    from bench.capacity.validation import runs_to_compare
    from bench.capacity.validation import validate as compare
    from bench.cli.progress import bar
    from bench.records import RunFolder
    from bench.report.build import build_page, write_html

    if not LEAST_SEEDS <= seeds <= _MOST_SEEDS:
        raise BenchError(f"--seeds is {seeds}, and must be at least {LEAST_SEEDS} (an interval needs them) and at most {_MOST_SEEDS:,}")
    slo_ns = None if slo is None else parse_slo_time_ns(slo)
    usable = None if memory is None else parse_size_bytes(memory, "--memory")
    RunFolder.check_writable(results)
    saved = read_plan(plan)
    found, left_out = runs_to_compare(runs)
    own = saved.plan.goal.slo
    if slo_ns is None and own.phase is None and own.statistic == "p99":
        slo_ns = own.bound_ns
    with bar("validate") as progress:
        made = compare(
            saved.measured,
            found,
            plan=saved.saved.path.name,
            slo_ns=slo_ns,
            memory_bytes=usable if usable is not None else saved.plan.usable_bytes,
            seeds=range(1, seeds + 1),
            left_out=left_out,
            anyway=anyway,
            progress=progress,
        )
    folder = save_validation(results, made, saved, runs, sys.argv)
    with whole_or_gone(folder.path):
        write_html(folder.path / "report.html", [build_page(folder.path)])
        path = folder.finish()
    if as_json:
        against = against_measurement(saved.plan, made)
        told = {"run": str(path), "plan_invalid": list(saved.plan.invalid), "refuted": None if against is None else against.sentence}
        typer.echo(json.dumps({**told, **(json.loads((path / "summary.json").read_text("utf-8")))}, indent=2))
        return
    from rich.console import Console

    from bench.report.text import render_answer

    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    render_answer(build_page(path, pictures=False), console, ("The right number of slots", "In time, refused, recovery, memory"))
    typer.echo(f"\nreport: {path / 'report.html'}\nfiles:  {path}")
