"""The command line: `bench COMMAND`. Each command imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import sys

from bench.cli import check, load  # noqa: F401  each module adds its commands
from bench.cli.app import app
from bench.errors import EXIT_INTERRUPTED, EXIT_WRONG_INPUT, BenchError, one_sentence


def main() -> None:
    """Run the command line. A user's error is one sentence on standard error and an exit code, never a traceback."""
    try:
        app()
    except BenchError as error:
        print(f"bench: {one_sentence(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"bench: {one_sentence(error)}", file=sys.stderr)
        sys.exit(EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
