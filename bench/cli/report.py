"""`bench report` and `bench compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.errors import BenchError

if TYPE_CHECKING:
    from bench.records import SavedRun


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, experiments or cold-start runs, also unfinished ones.")
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The HTML file; else report.html here.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown for a pull request instead.")] = False,
    slo: Annotated[str | None, typer.Option(metavar="[p99=]TIME", help="Response time that counts as good; else the run's own.")] = None,
    force: Annotated[bool, typer.Option(help="Replace FILE where it exists.")] = False,
) -> None:
    """Write what was measured as one HTML file that needs nothing else: verdict, validity, numbers, pictures, method.

    Examples: bench report results/20260131-120000-burst-tiny-3f2a -o report.html

    bench report results/RUN --markdown >> $GITHUB_STEP_SUMMARY
    """
    from bench.report.build import build_page, write_html
    from bench.slo import parse_slo_time_ns

    slo_ns = None if slo is None else parse_slo_time_ns(slo)
    target = out or Path("report.html")
    if not markdown and target.exists() and not force:
        raise BenchError(f"{target} exists; name another file with -o, or replace it with --force")
    if not markdown and not target.absolute().parent.is_dir():
        raise BenchError(f"{target} cannot be written: there is no folder {target.parent}")
    pages = [build_page(run, pictures=not markdown, slo_ns=slo_ns) for run in runs]
    if markdown:
        from bench.report.markdown import render

        typer.echo(render(pages))
        return
    write_html(target, pages)
    typer.echo(str(target))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run or an experiment: what is compared with.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one of the same engine, device and schedule.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare although they are not alike; the reasons are printed first.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what differs between two runs, with its interval; refuse (exit 2) where they cannot be compared.

    Example: bench compare results/before results/after
    """
    from bench.records import open_run

    saved = [open_run(path) for path in (first, second)]
    kinds = [run.kind for run in saved]
    if "coldstart" in kinds:
        if kinds[0] != kinds[1]:
            raise BenchError(f"a {kinds[0]} run and a {kinds[1]} run measure different things and cannot be compared")
        _compare_coldstarts(saved[0], saved[1], anyway, as_json)
        return
    from bench.analysis.compare_runs import compare_runs
    from bench.analysis.experiment import plain
    from bench.report.burst_comparison import describe_comparison

    found = compare_runs(first, second, anyway=anyway)
    _refuse(found.obstacles, anyway)
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
        return
    for comparison in found.arms:
        typer.echo(describe_comparison(comparison))


def _refuse(obstacles: tuple[str, ...], anyway: bool) -> None:
    if obstacles and not anyway:
        raise BenchError(f"these cannot be compared: {'; '.join(obstacles)}; --anyway does it nevertheless")
    for obstacle in obstacles:
        typer.echo(f"NOT ALIKE  {obstacle}", err=True)


def _compare_coldstarts(one: SavedRun, two: SavedRun, anyway: bool, as_json: bool) -> None:
    from bench.analysis.compare_coldstarts import compare_coldstarts, obstacles
    from bench.analysis.experiment import plain
    from bench.analysis.phases import describe_comparison

    if one.path.resolve() == two.path.resolve():
        raise BenchError(f"{one.path} and {two.path} are the same run")
    _refuse(obstacles(one, two), anyway)
    found = compare_coldstarts(one, two)
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
        return
    for comparison in found:
        typer.echo(describe_comparison(comparison))
