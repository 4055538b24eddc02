"""`bench check RUN...`: may the numbers of this run be used, and do they meet the bounds?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.app import app
from bench.errors import EXIT_FINE, EXIT_GATE_MISSED, EXIT_INVALID_RUN, BenchError, one_sentence

if TYPE_CHECKING:
    from bench.analysis.experiment import ExperimentSummary
    from bench.analysis.validity import Validity
    from bench.slo import Slo


@app.command(
    epilog="Examples: bench check results/20260131-120000-burst-tiny-3f2a"
    "   bench check results/RUN --arm warm-pool --slo p99=200ms --slo spike.p99=500ms --goodput 0.99"
)
def check(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders (or .partial ones), or experiments that hold several.")],
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="[[PHASE.]p99=]TIME", help="Exit 1 where the response time is longer; TIME alone: p99. Repeatable."),
    ] = None,
    goodput: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Exit 1 where fewer arrivals were answered correctly within the first --slo's time."),
    ] = None,
    arm: Annotated[list[str] | None, typer.Option(metavar="ARM", help="Judge the bounds for this arm only; repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print validity with its reasons, key figures of a valid run, and the bounds, as JSON.")
    ] = False,
) -> None:
    """Check that a run delivered the load it asked for: exit 3, with the reason and the remedy, when it did not.

    With --slo or --goodput also whether it was fast enough: exit 1 when it was not. Validity comes first. Of several runs
    the worst exit code counts, and --json prints a list.
    """
    from bench.analysis.load_gates import check_goodput
    from bench.slo import parse_slo

    slos = [parse_slo(text) for text in slo or []]
    check_goodput(goodput, slos)
    if len(runs) == 1:
        code, told = _check(runs[0], slos, goodput, arm or [], as_json=as_json)
        if as_json:
            print(json.dumps(told, indent=2))
        raise typer.Exit(code)
    worst, every = EXIT_FINE, []
    for run in runs:
        try:
            code, told = _check(run, slos, goodput, arm or [], as_json=as_json)
        except BenchError as error:  # the others can be checked all the same
            code, told = error.exit_code, {"run": str(run), "valid": False, "reasons": [one_sentence(error)]}
            typer.echo(f"bench: {one_sentence(error)}", err=True)
        worst = max(worst, code)
        every.append(told)
    if as_json:
        print(json.dumps(every, indent=2))
    raise typer.Exit(worst)


def _check(run: Path, slos: list[Slo], goodput: float | None, arms: list[str], *, as_json: bool) -> tuple[int, dict[str, Any]]:
    """Check one run or experiment, print what is found (not with `as_json`), and return the exit code and all of it."""
    from bench.analysis.load_gates import LoadGateResult, key_figures
    from bench.analysis.validity import check_run, describe, missing_runs, runs_of

    missing = missing_runs(run)
    checked: list[tuple[Path, Validity]] = []
    damaged: list[BenchError] = []
    paths = runs_of(run)
    for path in paths:
        try:
            checked.append((path, check_run(path)))
        except BenchError as error:
            if len(paths) == 1 and not missing:
                raise
            damaged.append(error)  # the other runs of the experiment can be checked all the same
    valid = all(validity.valid for _, validity in checked) and not missing and not damaged
    results: list[LoadGateResult] = []
    summary, absent = None, None if valid else "the run is not valid or not whole"
    bounded = bool(slos) or goodput is not None
    if valid and (bounded or as_json):
        try:
            summary, results = _judge(run, slos, goodput, arms)
        except BenchError as error:
            if bounded or arms:
                raise
            absent = str(error)  # nobody asked for figures, and they cannot be had
    reasons = [f"run {name} is missing" for name in missing] + [str(damage) for damage in damaged]
    reasons += [f"{path}: {one.problem}" for path, validity in checked for one in validity.checks if one.problem]
    found = {
        "run": str(run),
        "valid": valid,
        "reasons": reasons,
        "missing_runs": len(missing),
        "sentence": None if summary is None else summary.sentence,
        "absent": absent,
        "arms": [] if summary is None else [key_figures(one) for one in summary.arms],
        "runs": [{"run": str(path), **validity.to_json()} for path, validity in checked],
        "gates": [{"gate": one.gate, "arm": one.arm, "measured": one.measured, "passed": one.passed} for one in results],
    }
    if not as_json:
        if missing:
            print(f"{run}: INVALID: not finished: {len(missing)} runs of the experiment are missing ({_some(missing)}); {_remedy(run)}")
        for damage in damaged:
            print(f"{run}: INVALID: {damage}")
        for path, validity in checked:
            print(describe(path, validity))
        for result in results:
            print(result.describe())
    if not valid:
        return EXIT_INVALID_RUN, found
    return (EXIT_FINE if all(result.passed for result in results) else EXIT_GATE_MISSED), found


def _remedy(run: Path) -> str:
    from bench.records import open_run

    saved = open_run(run)
    if saved.partial:
        return f"go on with it: bench burst --resume {saved.path}"
    return "it had ended, so they were taken away or damaged since: run it again"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _spelt(name: str, known: list[str]) -> str:
    """The arm's name as the experiment has it; `warm-pool:pool=2`, as `--arms` takes it, is one of its spellings."""
    plain = name.replace(":", "-").replace(",", "-").replace("=", "")
    return next((one for one in known if name == one or plain == one.replace("=", "")), name)


def _judge(run: Path, slos: list[Any], goodput: float | None, names: list[str]) -> tuple[ExperimentSummary, list[Any]]:
    import dataclasses

    from bench.analysis.experiment import summarize
    from bench.analysis.load_gates import evaluate
    from bench.analysis.subject import open_subject

    subject = open_subject(run, slos[0].bound_ns if slos else None)
    known = [files.name for files in subject.arms]
    names = [_spelt(name, known) for name in names]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BenchError(f"--arm {unknown[0]!r}: {run} has no such arm, only {', '.join(known)}")
    if names:
        subject = dataclasses.replace(subject, arms=tuple(files for files in subject.arms if files.name in names))
    summary = summarize(subject)
    return summary, evaluate(summary, slos, goodput)
