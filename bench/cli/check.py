"""`bench check RUN`: may the numbers of this run be used?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.app import app


@app.command(epilog="Example: bench check results/20260131-120000-burst-tiny-3f2a")
def check(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder (or a .partial one), or an experiment that holds several.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check that a run delivered the load it asked for: exit 3, with the reason and the remedy, when it did not."""
    from bench.analysis.validity import check_run, describe, runs_of
    from bench.errors import EXIT_FINE, EXIT_INVALID_RUN

    checked = [(path, check_run(path)) for path in runs_of(run)]
    if as_json:
        print(json.dumps([{"run": str(path), **validity.to_json()} for path, validity in checked], indent=2))
    else:
        for path, validity in checked:
            print(describe(path, validity))
    raise typer.Exit(EXIT_FINE if all(validity.valid for _, validity in checked) else EXIT_INVALID_RUN)
