"""`bench coldstart` and `bench demo`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.engine.manifest import read_manifest
from bench.errors import BenchError, GateMissed, InvalidRun

if TYPE_CHECKING:
    import pyarrow as pa

    from bench.analysis.phases import ColdStartSummary
    from bench.coldstart import Plan, Variant
    from bench.engine.resolve import BuildOptions
    from bench.records import RunFolder


_BUILD_KEYS = ("optimize", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vary:
    """One `--vary KEY=A,B`: a build option (optimize, precision), an environment variable (upper case), or a runtime setting."""

    key: str
    values: tuple[str, ...]


@app.command()
def coldstart(
    subject: Annotated[
        str, typer.Argument(metavar="[ENGINE|MODEL|NAME]", help="An engine directory, an .onnx file, or resnet50, bert-base, tiny.")
    ] = "resnet50",
    level: Annotated[
        list[str] | None,
        typer.Option(help="server, process, process-disk, engine, slot or warm; repeatable, or joined by commas. Default: all."),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials of each level.")] = 20,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B", help="Repeat all for each value: optimize, precision, a runtime setting, or an environment VARIABLE."
        ),
    ] = None,
    gate: Annotated[
        list[str] | None, typer.Option(metavar="'LEVEL.p50 < BOUND'", help="Exit 1 where a bound is missed; repeatable.")
    ] = None,
    settings: options.Settings = None,
    results: options.Results = Path("results"),
    runtime: options.Runtime = "onnxruntime",
    optimize: options.Optimize = "all",
    precision: options.Precision = "fp32",
    module: options.Module = "tensorrt",
    shape: options.Shape = None,
    values: options.Input = None,
    name: options.Name = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of the trials.")] = 0,
    python: Annotated[str | None, typer.Option(help="Python interpreter that runs the trials; else this one.")] = None,
    trust: options.Trust = None,
    timeout: Annotated[str, typer.Option(help="How long one trial may take.")] = "10min",
    as_json: options.AsJson = False,
) -> None:
    """Take a cold start apart: where the time goes until the first correct answer, and what a warm slot saves.

    Levels: server (a fresh reference server until its first correct answer over HTTP), process (a fresh process),
    process-disk (the same, the engine's pages dropped from the page cache), engine (one more load in a process that is up),
    slot (one more slot on a loaded engine), warm (a slot in use, borrowed from a pool). The trials of all levels are
    interleaved in random order; every trial checks its answer. The run is kept in a folder of its own.

    Examples: bench coldstart resnet50 --gate 'process.p50 < 2s'

    bench coldstart model.onnx --shape ids=1x128 --vary threads=1,2 --trials 30
    """
    from bench.engine.request import TensorrtOptions
    from bench.engine.resolve import BuildOptions
    from bench.units import parse_duration_ns

    run_coldstart(
        subject,
        BuildOptions.from_flags(
            runtime=runtime,
            optimize=optimize,
            name=name,
            shapes=shape or [],
            inputs=values or [],
            seed=0,
            tensorrt=TensorrtOptions(precision=precision, module=module),
        ),
        levels=[one for text in level or [] for one in text.split(",")],
        trials=trials,
        varied=parse_vary(vary or []),
        gates=gate or [],
        settings=settings or [],
        results=results,
        seed=seed,
        python=python,
        trust=trust,
        timeout_s=parse_duration_ns(timeout, "--timeout") / 1e9,
        as_json=as_json,
    )


@app.command()
def demo(
    model: Annotated[str, typer.Argument(metavar="[NAME|MODEL]", help="What to show it with.")] = "resnet50",
    trials: Annotated[int, typer.Option(help="Trials of each level.")] = 6,
    results: options.Results = Path("results"),
    force: Annotated[bool, typer.Option(help="Run although another experiment runs on this machine.")] = False,
) -> None:
    """Show what this is in under three minutes: take a cold start apart, then let spikes hit a cold and a warm server.

    The burst is of `tiny`, whose spikes have enough requests for a P99 within seconds. Both end with a report.html.

    Example: bench demo
    """
    from bench.cli.burst import Burst, run_burst
    from bench.engine.resolve import BuildOptions, cache_folder
    from bench.experiment.conduct import only_one

    # So many spikes, short and high, that four of them have answers enough for a P99 and five such groups an interval.
    load = Burst(base="0.3x:slowest", peak="2x:slowest", hold="500ms", rest="1s", calibrate="2s", spikes=20, blocks=2, slo="50ms")
    with only_one(force, cache_folder()):  # known before minutes of cold starts
        run_coldstart(model, BuildOptions(), trials=trials, results=results)
        typer.echo("\nnow the same spikes against an engine that is loaded for each request, and against a warm pool:\n")
        run_burst("tiny", BuildOptions(), "cold-load,warm-pool:pool=2", load, results=results)


def run_coldstart(
    subject: str,
    build_options: BuildOptions,
    *,
    results: Path,
    trials: int,
    levels: Sequence[str] = (),
    varied: Sequence[Vary] = (),
    gates: Sequence[str] = (),
    settings: Sequence[str] = (),
    seed: int = 0,
    python: str | None = None,
    trust: Path | None = None,
    timeout_s: float = 600.0,
    as_json: bool = False,
) -> None:
    """Run, keep, print. Raises BenchError, GateMissed, InvalidRun; on Ctrl-C what was measured is kept and printed."""
    from bench import environment
    from bench.analysis.gates import check_phase, check_trials, evaluate, parse_gate
    from bench.cli.progress import bar, steps
    from bench.coldstart import LEVELS, Plan, check_plan, cold_start_schema, run_trials, start_run
    from bench.engine.resolve import resolve_engine
    from bench.records import RunFolder, new_run_id

    chosen = tuple(dict.fromkeys(levels)) or LEVELS
    check_plan(Plan(variants=(), levels=chosen, trials=trials))
    parsed_gates = [parse_gate(text, chosen) for text in gates]
    for one in parsed_gates:
        check_phase(one)
        check_trials(one, trials)
    RunFolder.check_writable(results)
    with steps(f"engine of {subject}") as progress:
        variants = make_variants(subject, build_options, varied, settings, lambda text, given: resolve_engine(text, given, progress))
    plan = Plan(variants=variants, levels=chosen, trials=trials, seed=seed, python=python, trust=trust, timeout_s=timeout_s)
    found = environment.collect(results)
    facts = {**environment.to_json(found), "warnings": environment.warnings(found)}
    folder = start_run(results, new_run_id("coldstart", Path(subject).stem), plan, facts, ["bench", *sys.argv[1:]])
    finished = False
    try:
        with bar("cold starts") as show:
            run_trials(plan, folder.table("cold_starts", cold_start_schema(_title(plan))), show)
        finished = True
    finally:  # an interrupted run is summed up too, from the trials that were done
        folder.close()
        concluded = _conclude(folder, plan, facts["warnings"], finished)
        if concluded is not None:
            path, summary, table = concluded
            _show(path, summary, _title(plan), as_json)
    gate_results = [result for gate in parsed_gates for result in evaluate(gate, table)]
    for result in gate_results:
        typer.echo(result.describe(), err=as_json)
    if not summary.valid:
        raise InvalidRun(f"the run is not valid: {summary.invalid[0]}")
    missed = sum(not result.passed for result in gate_results)
    if missed:
        raise GateMissed(f"{missed} of {len(gate_results)} gates missed")


def parse_vary(texts: Sequence[str]) -> list[Vary]:
    """Raises BenchError for what is not KEY=A,B with different values, and for a key given twice."""
    varied: list[Vary] = []
    for text in texts:
        key, separator, values = text.partition("=")
        split = tuple(values.split(","))
        if not separator or not key or len(split) < 2 or len(set(split)) < len(split):
            raise BenchError(f"--vary {text!r} is not KEY=A,B with at least two values, each given once")
        if key in [vary.key for vary in varied]:
            raise BenchError(f"--vary names {key!r} twice; give all of its values at once")
        varied.append(Vary(key=key, values=split))
    return varied


def make_variants(
    subject: str,
    build_options: BuildOptions,
    varied: Sequence[Vary],
    settings: Sequence[str],
    resolve: Callable[[str, BuildOptions], Path],
) -> tuple[Variant, ...]:
    """Every combination of the varied values, with its engine. Raises BenchError."""
    from bench.coldstart import Variant
    from bench.engine.shapes import parse_assignments

    fixed = parse_assignments(settings, "--set")
    variants = []
    for combination in itertools.product(*(vary.values for vary in varied)):
        chosen = dict(zip((vary.key for vary in varied), combination, strict=True))
        tensorrt = dataclasses.replace(build_options.tensorrt, precision=chosen.get("precision", build_options.tensorrt.precision))
        options_here = dataclasses.replace(build_options, optimize=chosen.get("optimize", build_options.optimize), tensorrt=tensorrt)
        variants.append(
            Variant(
                label=" ".join(f"{key}={value}" for key, value in chosen.items()),
                engine_dir=resolve(subject, options_here),
                settings={**fixed, **{k: v for k, v in chosen.items() if k not in _BUILD_KEYS and not k.isupper()}},
                environment={k: v for k, v in chosen.items() if k.isupper()},
            )
        )
    return tuple(variants)


def _conclude(folder: RunFolder, plan: Plan, warnings: Sequence[str], finished: bool) -> tuple[Path, ColdStartSummary, pa.Table] | None:
    """Write summary, picture and report into the folder; where the run finished, give it its name. None without a trial."""
    from bench.analysis.phases import summarize
    from bench.records import naming, open_run
    from bench.report.build import build_page, write_html
    from bench.report.figures import waterfall

    folder.check_there()
    table = open_run(folder.path).table("cold_starts")
    if table is None or not table.num_rows:
        if not finished:
            shutil.rmtree(folder.path)  # nothing was measured
        return None
    summary = summarize(table, [variant.label for variant in plan.variants], plan.trials, warnings)
    folder.write_json("summary.json", {"subject": _title(plan), **summary.to_json()})
    with naming(folder.path / "waterfall.png"):
        waterfall(summary, _title(plan), folder.path / "waterfall.png")
    path = folder.finish() if finished else folder.path
    write_html(path / "report.html", [build_page(path)])
    return path, summary, table


def _title(plan: Plan) -> str:
    """What every number of the run belongs to: engine, runtime, precision, device, load."""
    manifest = read_manifest(plan.variants[0].engine_dir)
    shapes = ", ".join(f"{name} {'x'.join(map(str, sizes.min)) or 'scalar'}" for name, sizes in manifest.profiles[0].items())
    return f"{manifest.title}, {shapes}, one request at a time"


def _show(path: Path, summary: ColdStartSummary, title: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"run": str(path), "subject": title, **summary.to_json()}, indent=2))
        return
    from rich.console import Console

    from bench.report.coldstart_table import render

    render(summary, title, Console(width=None if sys.stdout.isatty() else 140, highlight=False))
    typer.echo(f"\nfiles: {path}{' (stopped before its end)' if path.name.endswith('.partial') else ''}")
    typer.echo("       report.html, waterfall.png, summary.json, cold_starts.parquet, run.json")
