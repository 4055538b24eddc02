"""Two threads that take turns, on one core (sched_setaffinity(2)).

The kernel wakes a thread on an idle core, if there is one. For a thread whose waker is about to sleep itself that is the wrong one:
an idle core has to be called back, on a virtual machine by way of the hypervisor, which may take longer than a request of 4 KB.
Off Linux, and where there is but one core, the kernel decides alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

_MASK_BYTES = 1024  # one bit a core, as many as Linux can have
_Mask = ctypes.c_ubyte * _MASK_BYTES


class Handover:
    """From the event loop's thread, which makes this, to a slot's thread and back.

    Whoever is called wakes on its caller's core, and from then on may run wherever the event loop may, as its operator last
    said. One object for all slots of an event loop: see `handover_of_this_thread`.
    """

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._lock = threading.Lock()
        self._loop_called = False  # it may run on one core only, for the moment
        self._everywhere = _Mask(*[0xFF] * _MASK_BYTES)  # where it may run else
        self._core_masks: dict[int, ctypes.Array[ctypes.c_ubyte]] = {}
        # Not os.sched_setaffinity: it takes a set of cores, and there is no os.sched_getcpu.
        choice = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
        self._libc = ctypes.PyDLL(None) if choice else None
        if self._libc is not None:
            self._libc.sched_getaffinity(0, _MASK_BYTES, self._everywhere)

    def call_slot(self, thread: int) -> None:
        """The event loop is about to wake this sleeping thread (its native id), and then to sleep."""
        if self._libc is not None:
            self._libc.sched_setaffinity(thread, _MASK_BYTES, self._here())

    def slot_woke(self) -> None:
        """Said by the slot's thread that was called."""
        if self._libc is not None:
            self._libc.sched_setaffinity(0, _MASK_BYTES, self._everywhere)

    def call_loop(self) -> None:
        """A slot's thread is about to wake the sleeping event loop, and then to sleep. `loop_woke` must follow."""
        if self._libc is not None:
            with self._lock:
                if not self._loop_called:
                    self._libc.sched_getaffinity(self._loop, _MASK_BYTES, self._everywhere)
                self._loop_called = True
                self._libc.sched_setaffinity(self._loop, _MASK_BYTES, self._here())

    def loop_woke(self) -> None:
        """Said by the event loop that was called."""
        if self._libc is not None:
            with self._lock:
                self._libc.sched_setaffinity(0, _MASK_BYTES, self._everywhere)
                self._loop_called = False

    def _here(self) -> ctypes.Array[ctypes.c_ubyte]:
        assert self._libc is not None
        core = self._libc.sched_getcpu()
        mask = self._core_masks.get(core)
        if mask is None:
            mask = self._core_masks[core] = _mask(core)
        return mask


def _mask(core: int) -> ctypes.Array[ctypes.c_ubyte]:
    mask = _Mask()
    if core >= 0:  # else the C library cannot tell; no core at all is refused, and all stays as it is
        mask[core // 8] = 1 << core % 8
    return mask


_of_threads = threading.local()


def handover_of_this_thread() -> Handover:
    """The one of the event loop that runs in this thread."""
    found: Handover | None = getattr(_of_threads, "handover", None)
    if found is None:
        found = _of_threads.handover = Handover()
    return found
