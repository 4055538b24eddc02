"""Wake-ups at absolute times of CLOCK_MONOTONIC, as an event of gevent's loop.

The loop's own timers round to a millisecond. A timerfd (timerfd_create(2)) is a file that becomes readable at its
deadline, so a loop that watches files wakes within tens of microseconds. `os.timerfd_create` exists from Python 3.13
on; ctypes reaches the same calls before that. Where there is no timerfd the loop's timer is used, and the run says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any, Protocol

from bench.clock import now_ns

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000


class Timer(Protocol):
    """Calls `on_due` in the loop once `deadline_ns` of the last `arm` has passed; a past deadline is due at once."""

    kind: str

    def arm(self, deadline_ns: int) -> None: ...

    def close(self) -> None: ...


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class TimerfdTimer:
    """A timerfd watched by the loop. Raises OSError or AttributeError where the system has none."""

    kind = "timerfd"

    def __init__(self, loop: Any, on_due: Callable[[], None]) -> None:
        # PyDLL keeps the interpreter lock during the calls, which take less than a microsecond.
        libc = ctypes.PyDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC have the same values
        self._file = libc.timerfd_create(_CLOCK_MONOTONIC, flags)
        if self._file < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._spec = _Itimerspec()
        self._value = self._spec.value
        self._pointer = ctypes.byref(self._spec)
        self._on_due = on_due
        self._watcher = loop.io(self._file, 1)
        self._watcher.start(self._readable)

    def arm(self, deadline_ns: int) -> None:
        # An all-zero value would disarm: a deadline of 0 or less is as good as 1 ns.
        self._value.seconds, self._value.nanoseconds = divmod(max(deadline_ns, 1), _NS)
        if self._settime(self._file, _TFD_TIMER_ABSTIME, self._pointer, None) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def _readable(self) -> None:
        try:
            os.read(self._file, 8)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return  # re-armed for later between the loop's look and this read
        self._on_due()

    def close(self) -> None:
        if self._file >= 0:
            self._watcher.stop()
            self._watcher.close()
            os.close(self._file)
            self._file = -1


class PortableTimer:
    """The loop's own timer: late by up to a millisecond."""

    kind = "portable"

    def __init__(self, loop: Any, on_due: Callable[[], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._timer: Any = None

    def arm(self, deadline_ns: int) -> None:
        self.close()
        self._timer = self._loop.timer(max(0, deadline_ns - now_ns()) / _NS)
        self._timer.start(self._on_due, update=True)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None


def make_timer(loop: Any, on_due: Callable[[], None]) -> Timer:
    """The best timer this system has."""
    try:
        return TimerfdTimer(loop, on_due)
    except (OSError, AttributeError):
        return PortableTimer(loop, on_due)
