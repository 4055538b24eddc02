"""The typer application that all command modules add to."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="bench",
    help="Measure cold starts and bursts of inference services, and decide what to keep warm.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would take as long as everything else that `--help` does
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 a gate was missed, 2 wrong usage or input, 3 the run is not valid, 130 stopped with Ctrl-C.",
)


@app.callback()
def _bench() -> None:  # without a callback, an application with one command would take no command's name
    pass
