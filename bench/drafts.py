"""Files and folders that are made beside their place under another name, so that they appear whole or not at all.

Whoever makes one holds a lock on it, which the kernel drops when the process ends, however it ends. So what a killed
process left can be told from what is being made, and the next one to make something there clears it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bench.errors import BenchError

_BUILDING, _REPLACED, _PARTIAL = ".building", ".replaced", ".partial"
_DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}(?P<suffix>\.building|\.replaced|\.partial)")
_SETTLED_S = 60.0  # a younger one may not have been locked yet


def file_to_replace(target: Path, what: str = "") -> Path:
    """`target`, or the file that it leads to as a symbolic link.

    Raises BenchError where something else than a file has the name: renaming over a device or a pipe would destroy it.
    """
    found = target.resolve() if target.is_symlink() else target
    if found.exists() and not found.is_file():
        raise BenchError(f"{what} {target}".lstrip() + f" is {'a folder' if found.is_dir() else 'no regular file'}: name a file")
    return found


@contextlib.contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, to be renamed when it is whole; removed on the way out where it was not."""
    folder = _beside(target, _BUILDING)
    folder.mkdir()
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def draft_file(target: Path) -> Iterator[Path]:
    """The same for a file."""
    file = _beside(target, _PARTIAL)
    file.touch()
    try:
        with _locked(file):
            yield file
    finally:
        file.unlink(missing_ok=True)


def replace_folder(draft: Path, target: Path) -> None:
    """Give `draft` the name of `target`, which may be there: at no time is there half a folder under that name. Raises OSError."""
    replaced = _beside(target, _REPLACED)
    try:
        if target.exists():
            target.rename(replaced)
        draft.rename(target)
    finally:
        if replaced.exists() and not target.exists():  # stopped between the two
            replaced.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)


def clear_abandoned(folder: Path) -> None:
    """Remove what ended processes left half made in a folder, and put back what they were about to replace."""
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _DRAFT.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if match is None or path.is_symlink() or time.time() - path.stat().st_mtime < _SETTLED_S:
                continue
            with _locked(path):  # not its maker's any more
                if match["suffix"] == _REPLACED and not (folder / match["name"]).exists():
                    path.rename(folder / match["name"])
                elif path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{suffix}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder. Raises BlockingIOError where another process has it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
