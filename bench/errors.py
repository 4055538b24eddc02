"""The errors a user can cause or meet, and the exit code each one ends a command with.

Exit codes are the same for all commands: 0 fine, 1 a gate was missed, 2 wrong usage or input,
3 the run is not valid, 70 a defect of this program, 130 stopped with Ctrl-C (what was measured until then is kept).
"""

from __future__ import annotations

import os

EXIT_FINE = 0
EXIT_GATE_MISSED = 1
EXIT_WRONG_INPUT = 2
EXIT_INVALID_RUN = 3
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130
TRACEBACK_VARIABLE = "COLDBURST_TRACEBACK"


class BenchError(Exception):
    """Wrong usage or input. The message is one sentence: what, where, and how to mend it."""

    exit_code = EXIT_WRONG_INPUT


class EngineRefused(BenchError):
    """An engine that must not be loaded here: changed bytes, other versions, a device without the features."""


class WrongAnswer(BenchError):
    """A slot answered, but not what the engine's probe says it must."""


class GateMissed(BenchError):
    """A measured number misses a bound that the user set."""

    exit_code = EXIT_GATE_MISSED


class InvalidRun(BenchError):
    """The run's own checks say that its numbers must not be used."""

    exit_code = EXIT_INVALID_RUN


def one_sentence(error: BaseException) -> str:
    """The error as one line for a person: an OSError names its file, other errors speak for themselves."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        return f"{error.strerror}{where}"
    text = " ".join(str(error).split())
    return text or type(error).__name__


def describe_defect(error: BaseException, program: str, whose: str) -> str:
    """One line for an error that no code foresaw; the traceback before it where the environment asks for that."""
    told = f"{program}: a defect of {whose}: {type(error).__name__}: {one_sentence(error):.300}"
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        return "".join(traceback.format_exception(error)) + told
    return f"{told} (set {TRACEBACK_VARIABLE}=1 to see where)"
