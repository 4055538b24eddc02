"""Run one command: the errors that a user can mend as one sentence, every other one as a defect, and the exit code."""

from __future__ import annotations

import sys
import threading

from bench import streams
from bench.cli import (  # noqa: F401  (they add commands)
    burst,
    check,
    coldstart,
    curve,
    engines,
    environment,
    inspection,
    load,
    models,
    notebook,
    plan,
    report,
    scenario,
    serve,
    validate,
)
from bench.cli.app import app
from bench.errors import EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, BenchError, describe_defect, one_sentence


def run() -> int:
    """Run the command line. A user's error is one sentence on standard error and an exit code, never a traceback."""
    from bench.subprocesses import stop_on_signals

    streams.open_missing()
    streams.forgive()
    with stop_on_signals() as asked_to_stop:
        code = _run(asked_to_stop)
    try:
        streams.flush()
    except OSError as error:
        if code == 0:  # else the command has said what is wrong
            print(f"bench: standard output cannot be written: {one_sentence(error)}", file=sys.stderr)
            code = EXIT_WRONG_INPUT
    return code


def _run(asked_to_stop: threading.Event) -> int:
    """Run the command, say what went wrong, and return the exit code."""
    try:
        # Not "standalone": typer would draw a box around a wrong command or option where one sentence does.
        exit_code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except BenchError as error:
        print(f"bench: {one_sentence(error)}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"bench: {one_sentence(error)}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    except Exception as error:
        # typer has no public name for the class of its usage errors; all of them can say what is wrong
        if not hasattr(error, "format_message"):
            if asked_to_stop.is_set():  # a library may turn the interrupt into an error of its own
                print("bench: stopped", file=sys.stderr)
                return EXIT_INTERRUPTED
            print(describe_defect(error, "bench", "bench"), file=sys.stderr)
            return EXIT_DEFECT
        print(f"bench: {error.format_message().rstrip('.')}; see `{_help_command(error)}`", file=sys.stderr)
        return EXIT_WRONG_INPUT
    if exit_code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this exit code
        print("bench: stopped", file=sys.stderr)
    return exit_code if isinstance(exit_code, int) else 0


def _help_command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'bench'} --help"
