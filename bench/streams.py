"""Standard input, output and error as they are found: closed, without a reader, or unable to write what we say.

A leaf that imports only the standard library: the server uses it too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NAMES = ("stdin", "stdout", "stderr")


def open_missing() -> None:
    """Open the null device on each of descriptors 0 to 2 that is closed.

    Else the next file or socket would be opened there, and be written to by whoever writes to standard output.
    """
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def forgive() -> None:
    """Let standard output and error take everything: `?` for a character that they cannot write, nothing where nobody reads.

    That a reader has gone (`| head -1`) is no reason to end a run half way, nor to fail one that is done.
    """
    for descriptor, name in enumerate(_NAMES):
        stream = getattr(sys, name)
        if descriptor == 0 or stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue  # replaced by a test or an embedding program
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            forgiving = io.TextIOWrapper(
                io.BufferedWriter(_Forgiving(stream.fileno(), "wb", closefd=False)),
                encoding=stream.encoding,
                errors="replace",
                line_buffering=stream.line_buffering or descriptor == 2,
                write_through=stream.write_through,
            )
            setattr(sys, name, forgiving)


def flush() -> None:
    """Write out what standard output and error hold. Raises OSError (a full disk); what is left is then given up."""
    for descriptor in (1, 2):
        stream = getattr(sys, _NAMES[descriptor])
        try:
            stream.flush()
        except OSError:
            _point_to_nothing(descriptor)
            raise


class _Forgiving(io.FileIO):
    """A file that says nothing of it when its reader has gone."""

    def write(self, content: Buffer, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            _point_to_nothing(self.fileno())
            return len(memoryview(content).cast("B"))


def _point_to_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
