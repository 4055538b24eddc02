"""The bytes that every connection sends, made before the run."""

from __future__ import annotations

import os
import socket

_FROM_FILE_BYTES = 65_536


class Payload:
    """A large one also lies in a file in memory, from which the kernel sends without copying (memfd_create(2), sendfile(2)).

    Copies would cost more than the time: those in flight on many connections push each other out of the cache, so that a
    generator that falls behind gets slower and stays behind.
    """

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._content = memoryview(content)
        self._file: int | None = None
        if self.size >= _FROM_FILE_BYTES and hasattr(os, "memfd_create") and hasattr(os, "sendfile"):
            self._file = os.memfd_create("payload", os.MFD_CLOEXEC)
            with open(self._file, "wb", closefd=False) as file:
                file.write(content)

    def send(self, connection: socket.socket, start: int) -> int:
        """Send what comes from byte `start` on, as much as is taken now; returns how many bytes. Raises OSError as send(2) does."""
        if self._file is None:
            return connection.send(self._content[start:] if start else self._content)
        return os.sendfile(connection.fileno(), self._file, start, self.size - start)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
