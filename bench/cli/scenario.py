"""`bench scenario`: where the locustfiles are."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.cli.app import app


@app.command(epilog='Example: locust -f "$(bench scenario burst)" --headless --peak-rate 500')
def scenario(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Its name; left out, all are listed.", show_default=False)] = None,
) -> None:
    """Print the path of a locustfile that comes with this program, for Locust's -f."""
    from bench.scenario_files import scenario_file, scenario_files

    if name is not None:
        typer.echo(scenario_file(name))
        return
    files = scenario_files()
    width = max(map(len, files))
    for found, path in files.items():
        typer.echo(f"{found:{width}}  {path}")
