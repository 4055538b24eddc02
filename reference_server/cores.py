"""Which core a thread wakes on (sched_setaffinity(2)).

The kernel wakes a thread on an idle core, if there is one. For a thread whose waker is about to sleep itself that is the wrong one:
an idle core has to be called back, on a virtual machine by way of the hypervisor, which takes longer than a request of 4 KB.
Off Linux the kernel decides alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

_MASK_BYTES = 1024  # one bit a core, as many as Linux can have
_Mask = ctypes.c_ubyte * _MASK_BYTES


class Nearness:
    """For one thread that is woken, by one other: made by the waker, whose own cores are left as they are."""

    def __init__(self) -> None:
        self._waker = threading.get_native_id()
        self._anywhere = _Mask(*[0xFF] * _MASK_BYTES)
        self._core_masks: dict[int, ctypes.Array[ctypes.c_ubyte]] = {}
        # Not os.sched_setaffinity: it takes a set of cores, and there is no os.sched_getcpu.
        choice = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
        self._libc = ctypes.PyDLL(None) if choice else None

    def call(self, thread: int) -> None:
        """The waker's: let the sleeping thread (its native id) wake on the core that this runs on, from now on until it calls `leave`."""
        if self._libc is not None:
            core = self._libc.sched_getcpu()
            mask = self._core_masks.get(core)
            if mask is None:
                mask = self._core_masks[core] = _mask(core)
            self._libc.sched_setaffinity(thread, _MASK_BYTES, mask)

    def leave(self) -> None:
        """The woken thread's: run wherever the waker may, which its operator may have changed meanwhile."""
        if self._libc is not None:
            self._libc.sched_getaffinity(self._waker, _MASK_BYTES, self._anywhere)
            self._libc.sched_setaffinity(0, _MASK_BYTES, self._anywhere)


def _mask(core: int) -> ctypes.Array[ctypes.c_ubyte]:
    mask = _Mask()
    if core >= 0:  # else the C library cannot tell; no core at all is refused, and all stays as it is
        mask[core // 8] = 1 << core % 8
    return mask
