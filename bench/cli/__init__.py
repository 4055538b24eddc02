"""The command line: `bench COMMAND`. Each command imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import sys

from bench.cli import burst, check, coldstart, engines, environment, inspection, load, models, notebook, report, scenario, serve  # noqa: F401  (they add commands)
from bench.cli.app import app
from bench.errors import EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, BenchError, describe_defect, one_sentence


def main() -> None:
    """Run the command line. A user's error is one sentence on standard error and an exit code, never a traceback."""
    from bench import streams

    streams.open_missing()
    streams.forgive()
    code = _run()
    try:
        streams.flush()
    except OSError as error:
        if code == 0:  # else the command has said what is wrong
            print(f"bench: standard output cannot be written: {one_sentence(error)}", file=sys.stderr)
            code = EXIT_WRONG_INPUT
    sys.exit(code)


def _run() -> int:
    """Run the command, say what went wrong, and return the exit code."""
    from bench.subprocesses import stop_on_sigterm

    try:
        # Not "standalone": typer would draw a box around a wrong command or option where one sentence does.
        with stop_on_sigterm():
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
