"""The command line: `bench COMMAND`. Each command imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import os
import sys

from bench.errors import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from bench.cli.run import run  # only now, so that Ctrl-C while the commands are imported leaves no traceback

        code = run()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:
        # Where the interrupt came while a dataclass was being made (`exec` of a string), CPython remembers it as
        # unhandled, whoever caught it, and sys.exit would end in a SIGINT to ourselves. Nothing is left to be tidied.
        os._exit(code)
    sys.exit(code)
