"""The typer application that all command modules add to."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="bench",
    help="Measure cold starts and bursts of inference services, and decide what to keep warm.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would take as long as everything else that `--help` does
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 a gate was missed, 2 wrong usage or input, 3 the run is not valid, 70 a defect of bench, "
    "130 stopped with Ctrl-C.",
)


def _show_version(asked: bool) -> None:
    if asked:
        import bench

        typer.echo(f"bench {bench.__version__}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    pass
