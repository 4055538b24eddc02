"""`bench notebook RUN`: a run as a document to read and to pass on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.app import app


@app.command(epilog="Example: bench notebook results/20260131-120000-burst-resnet50-3f2a -o burst.html")
def notebook(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder (or a .partial one), or an experiment that holds several.")],
    which: Annotated[str | None, typer.Option(help="cold_start, burst or capacity; else the one for this kind of run.")] = None,
    slo: Annotated[str | None, typer.Option(metavar="[p99=]TIME", help="Response time that counts as good; else the run's own.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="HTML, or a notebook with outputs: .ipynb. Else in the run folder."),
    ] = None,
    code: Annotated[bool, typer.Option(help="Show the code at once; the page has a switch for it.")] = False,
) -> None:
    """Run a shipped notebook on a run and write it as one HTML file: what it says, and what to decide from it.

    The notebooks are made for Jupyter too: with -o FILE.ipynb you get it with its outputs, to go on from. Your Jupyter
    settings and kernels are neither used nor changed.
    """
    from bench.cli.progress import steps
    from bench.report.notebooks import write_notebook

    with steps("notebook") as progress:
        progress(f"runs on {run}")
        path = write_notebook(run, output, which=which, slo=slo, show_code=code)
    typer.echo(str(path))
