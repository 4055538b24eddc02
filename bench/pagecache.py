"""A file's pages in the operating system's page cache: put them there, drop them, and check which it is.

`drop` only asks (POSIX_FADV_DONTNEED is advice, posix_fadvise(2)), so it looks afterwards with mincore(2) and says what it
saw. Since Linux 5.2 mincore tells the truth only about files that the caller owns or may write to, and calls every page
of others resident; for those the answer here is None, not known. The same holds off Linux.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import stat
import sys
from pathlib import Path

# Mapped piece by piece, so that a file larger than memory or than the address space limit can be looked at too.
_WINDOW_BYTES = 1 << 30
_MAP_FAILED = ctypes.c_void_p(-1).value
_READ_BYTES = 1 << 20


def resident_fraction(path: Path) -> float | None:
    """The share (0..1) of the file's pages that are in the page cache; None where that cannot be known.

    An empty file has no pages, so none of it is resident: 0. Looking brings no page in. Raises OSError where the file
    cannot be opened.
    """
    descriptor = _open_regular(path)
    if descriptor is None:
        return None
    try:
        return _resident_fraction(descriptor, path)
    finally:
        os.close(descriptor)


def drop(path: Path) -> bool | None:
    """Drop the file's pages from the page cache, those not yet written to the disk too.

    True: verified, no page is left. False: pages are left (another process maps the file, or its file system lives in
    memory, as tmpfs does). None: it could not be asked, or not be verified. Raises OSError where the file cannot be opened.
    """
    descriptor = _open_regular(path)
    if descriptor is None:
        return None
    try:
        if sys.platform != "linux":
            return None
        try:
            os.fsync(descriptor)  # a dirty page is not dropped; Linux syncs a descriptor opened for reading too
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            return None
        left = _resident_fraction(descriptor, path)
        return None if left is None else left == 0
    finally:
        os.close(descriptor)


def warm(path: Path) -> int:
    """Read the whole file once, which leaves its pages in the page cache. Returns the bytes read. Raises OSError."""
    buffer = bytearray(_READ_BYTES)
    total = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def _open_regular(path: Path) -> int | None:
    """A descriptor for reading, None for what is not a regular file. Never waits, as opening a named pipe would."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _resident_fraction(descriptor: int, path: Path) -> float | None:
    libc = _libc()
    if libc is None or not _mincore_tells_the_truth(descriptor, path):
        return None
    size = os.fstat(descriptor).st_size
    resident = 0
    for start in range(0, size, _WINDOW_BYTES):
        pages = _resident_pages(libc, descriptor, start, min(_WINDOW_BYTES, size - start))
        if pages is None:
            return None
        resident += pages
    return resident / _pages(size) if size else 0.0


def _mincore_tells_the_truth(descriptor: int, path: Path) -> bool:
    """Linux's can_do_mincore(): the caller owns the file, or may write to it."""
    if sys.platform != "linux":
        return False
    return os.fstat(descriptor).st_uid == os.geteuid() or os.access(path, os.W_OK, effective_ids=True)


def _resident_pages(libc: ctypes.CDLL, descriptor: int, start: int, length: int) -> int | None:
    # Python's own read-only mmap hands out no address, so the mapping is made here. Nothing ever reads through it.
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _MAP_FAILED:
        return None
    try:
        count = _pages(length)
        vector = (ctypes.c_ubyte * count)()
        if libc.mincore(address, length, vector) != 0:
            return None
    finally:
        libc.munmap(address, length)
    # Only the lowest bit of each byte is defined (mincore(2)).
    return (int.from_bytes(bytes(vector), "little") & int.from_bytes(b"\x01" * count, "little")).bit_count()


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE)


@functools.cache
def _libc() -> ctypes.CDLL | None:
    """The C library with the three calls declared, None where it lacks one of them."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # off_t is a C long in glibc and on 64-bit musl
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        libc.mmap.restype = ctypes.c_void_p
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return libc
