"""The phases of a cold start: each lies between two clock reads around the act that it names."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.clock import now_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """`start_ns` and `end_ns` on CLOCK_MONOTONIC; `resident_bytes` of the process after it, None where not known."""

    name: str
    start_ns: int
    end_ns: int
    resident_bytes: int | None
    device_bytes: int | None = None


def resident_bytes() -> int | None:
    """Resident memory of this process (proc(5), statm field 2), None where the host does not tell."""
    try:
        return int(os.pread(_statm(os.getpid()), 128, 0).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError, AttributeError):
        return None


@functools.cache
def _statm(pid: int) -> int:
    """The descriptor stays open: opening it anew would take ten times as long as reading it, between two phases."""
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Phases:
    """A list of phases in the order in which they ended. Not for use from several threads at once."""

    __slots__ = ("recorded",)

    def __init__(self) -> None:
        self.recorded: list[Phase] = []

    @contextmanager
    def phase(self, name: str, device_bytes: Callable[[], int | None] | None = None) -> Iterator[None]:
        """Time the body. A body that raises leaves no phase: it did not do what the name says.

        `device_bytes` is asked after the phase, outside its time, by runtimes whose phases take device memory.
        """
        start = now_ns()
        yield
        self.add(name, start, now_ns(), device_bytes)

    def add(self, name: str, start_ns: int, end_ns: int, device_bytes: Callable[[], int | None] | None = None) -> None:
        self.recorded.append(
            Phase(
                name=name,
                start_ns=start_ns,
                end_ns=end_ns,
                resident_bytes=resident_bytes(),
                device_bytes=device_bytes() if device_bytes is not None else None,
            )
        )

    def as_dicts(self) -> list[dict[str, Any]]:
        """The phases as JSON has them."""
        return [asdict(phase) for phase in self.recorded]

    @property
    def total_ns(self) -> int:
        return sum(phase.end_ns - phase.start_ns for phase in self.recorded)
