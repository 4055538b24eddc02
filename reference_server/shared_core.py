"""The event loop and slots' threads on one core, while that is better than a core each (sched_setaffinity(2)).

The kernel wakes a thread on an idle core, if there is one; on a virtual machine an idle core takes tens of microseconds to come
back. While requests come one at a time, the event loop and the slot's thread only take turns, and where a run is shorter than such
a wake-up, that is what most of a request's time would go into. In all other cases the kernel decides alone, as it does off Linux.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

SHORT_NS = 100_000  # a run up to this is not worth two wake-ups of another core
_LONGEST_NS = 100_000_000  # then they part for a request, so that the kernel may move them from a core that others use too


class SharedCore:
    """Made by the event loop's thread, one for all slots of an event loop: see `shared_core_of_this_thread`."""

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._lock = threading.Lock()
        self._threads: set[int] = set()  # that share a core; none: nobody is confined
        self._core: set[int] = set()
        self._everywhere: set[int] = set()
        self._since_ns = 0
        self._choice = hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1

    def join(self, thread: int, now_ns: int) -> None:
        """The event loop is about to wake this slot's thread (its native id): let that be on its own core from now on."""
        if not self._choice:
            return
        if self._threads and now_ns - self._since_ns > _LONGEST_NS:
            self.part()
        elif thread not in self._threads:
            with self._lock:
                self._confine(thread, now_ns)

    def part(self) -> None:
        """Let all threads run wherever they might before. Any thread may ask, and as often as it likes."""
        if self._threads:
            with self._lock:
                self._free()

    def _confine(self, thread: int, now_ns: int) -> None:
        try:
            if not self._threads:
                self._everywhere = os.sched_getaffinity(0)
                self._core = {_core_of(self._loop)}
                self._since_ns = now_ns
                self._threads.add(self._loop)
                os.sched_setaffinity(self._loop, self._core)
            os.sched_setaffinity(thread, self._core)
            self._threads.add(thread)
        except OSError:  # it is not allowed here
            self._free()
            self._choice = False

    def _free(self) -> None:
        for thread in self._threads:
            with contextlib.suppress(OSError):  # it has ended
                if os.sched_getaffinity(thread) == self._core:  # else its operator has moved it meanwhile
                    os.sched_setaffinity(thread, self._everywhere)
        self._threads.clear()


def _core_of(thread: int) -> int:
    """On which it ran last (proc_pid_stat(5), `processor`)."""
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[36])


_of_threads = threading.local()


def shared_core_of_this_thread() -> SharedCore:
    """The one of the event loop that runs in this thread."""
    found: SharedCore | None = getattr(_of_threads, "shared_core", None)
    if found is None:
        found = _of_threads.shared_core = SharedCore()
    return found
