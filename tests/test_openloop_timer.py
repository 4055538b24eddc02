"""Both timers: never early, a past deadline at once, the last `arm` counts."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from gevent.event import Event

from bench.clock import now_ns
from scenarios.openloop.timer import PortableTimer, TimerfdTimer


@pytest.mark.parametrize("kind", [TimerfdTimer, PortableTimer])
def test_wakes_at_its_deadlines(kind: Any) -> None:
    woken: list[int] = []
    event = Event()

    def on_due() -> None:
        woken.append(now_ns())
        event.set()

    try:
        timer = kind(gevent.get_hub().loop, on_due)
    except (OSError, AttributeError):
        pytest.skip("no timerfd here")
    try:
        for deadline in (now_ns() + 20_000_000, now_ns() - 5_000_000_000, now_ns() + 5_000_000, -7):
            event.clear()
            timer.arm(now_ns() + 3_600_000_000_000)  # replaced by the next
            timer.arm(deadline)
            assert event.wait(10)
            # The loop's own timer works with floating-point seconds of its own clock.
            assert woken[-1] >= deadline - (0 if kind is TimerfdTimer else 2_000_000)
        assert len(woken) == 4
    finally:
        timer.close()
        timer.close()
    assert timer.kind == {"TimerfdTimer": "timerfd", "PortableTimer": "portable"}[kind.__name__]
