"""Where a thread wakes, and where it may run afterwards, as the kernel says."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reference_server.cores import Nearness

pytestmark = pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="there is no choice of cores here")


@contextmanager
def confined(*cores: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Woken(threading.Thread):
    """Tells after each waking where it may run then, and once it has left."""

    def __init__(self, nearness: Nearness) -> None:
        super().__init__(daemon=True)
        self.nearness = nearness
        self.orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.seen: queue.SimpleQueue[tuple[set[int], set[int]]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while self.orders.get():
            woken = os.sched_getaffinity(0)
            self.nearness.leave()
            self.seen.put((woken, os.sched_getaffinity(0)))

    def wake(self, *, call: bool) -> tuple[set[int], set[int]]:
        assert self.native_id is not None
        if call:
            self.nearness.call(self.native_id)
        self.orders.put(True)
        return self.seen.get(timeout=60)


@pytest.fixture
def woken() -> Iterator[Woken]:
    thread = Woken(Nearness())
    yield thread
    thread.orders.put(False)
    thread.join(60)


def test_a_thread_that_is_called_wakes_where_its_waker_is_and_then_goes_where_it_likes(woken: Woken) -> None:
    everywhere = os.sched_getaffinity(0)
    for core in sorted(everywhere)[:2] * 3:
        with confined(core):  # so that we know where the call comes from
            assert woken.wake(call=True)[0] == {core}
        assert woken.wake(call=False)[1] == everywhere


def test_a_thread_may_run_wherever_its_waker_may_now(woken: Woken) -> None:
    """An operator may move the process to other cores at any time."""
    everywhere = os.sched_getaffinity(0)
    core = min(everywhere)
    with confined(core):
        assert woken.wake(call=True)[1] == {core}
    assert woken.wake(call=True)[1] == everywhere


def test_with_a_single_core_nothing_is_asked_of_the_kernel() -> None:
    with confined(min(os.sched_getaffinity(0))):
        nearness = Nearness()
    thread = Woken(nearness)
    everywhere = os.sched_getaffinity(0)
    assert thread.wake(call=True) == (everywhere, everywhere)
    thread.orders.put(False)
    thread.join(60)
