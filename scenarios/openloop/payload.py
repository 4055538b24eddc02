"""The bytes that every connection sends, made before the run."""

from __future__ import annotations

import errno
import os
import socket

_FROM_FILE_BYTES = 65_536
_NO_SENDFILE = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP)


class Payload:
    """A large one also lies in a file in memory, from which the kernel sends without copying (memfd_create(2), sendfile(2)).

    Copies would cost more than the time: those in flight on many connections push each other out of the cache, so that a
    generator that falls behind gets slower and stays behind. Where a system or a sandbox has not both calls, it is copied.
    """

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._content = memoryview(content)
        self._file = _file_in_memory(content) if self.size >= _FROM_FILE_BYTES and hasattr(os, "sendfile") else None

    def send(self, connection: socket.socket, start: int) -> int:
        """Send what comes from byte `start` on, as much as is taken now; returns how many bytes. Raises OSError as send(2) does."""
        if self._file is not None:
            try:
                return os.sendfile(connection.fileno(), self._file, start, self.size - start)
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
            self.close()
        return connection.send(self._content[start:] if start else self._content)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _file_in_memory(content: bytes) -> int | None:
    """The descriptor of a file that holds `content`, None where there can be none (ENOSYS, a seccomp filter, `ulimit -f`)."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("payload", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
