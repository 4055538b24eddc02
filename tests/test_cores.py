"""Where a thread wakes, and where it may run afterwards, as the kernel says."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reference_server.cores import Handover

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
    """The slot's thread, for the test as the event loop's: it tells where it may run when it wakes, and from then on."""

    def __init__(self, handover: Handover) -> None:
        super().__init__(daemon=True)
        self.handover = handover
        self.orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.seen: queue.SimpleQueue[tuple[set[int], set[int]]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while (order := self.orders.get()) != "end":
            woken = os.sched_getaffinity(0)
            self.handover.slot_woke()
            if order == "call back":
                self.handover.call_loop()
            self.seen.put((woken, os.sched_getaffinity(0)))

    def wake(self, order: str = "wake", *, call: bool) -> tuple[set[int], set[int]]:
        assert self.native_id is not None
        if call:
            self.handover.call_slot(self.native_id)
        self.orders.put(order)
        return self.seen.get(timeout=60)


@pytest.fixture
def woken() -> Iterator[Woken]:
    thread = Woken(Handover())
    yield thread
    thread.orders.put("end")
    thread.join(60)


def test_a_thread_that_is_called_wakes_where_its_waker_is_and_then_goes_where_it_likes(woken: Woken) -> None:
    everywhere = os.sched_getaffinity(0)
    for core in sorted(everywhere)[:2] * 3:
        with confined(core):  # so that we know where the call comes from
            assert woken.wake(call=True)[0] == {core}
        assert woken.wake(call=False)[1] == everywhere


def test_where_the_operator_moves_the_event_loop_its_slots_follow(woken: Woken) -> None:
    """At the next request but one."""
    everywhere = os.sched_getaffinity(0)
    for cores in ({min(everywhere)}, everywhere):
        os.sched_setaffinity(0, cores)
        woken.wake("call back", call=True)
        woken.handover.loop_woke()
        assert os.sched_getaffinity(0) == cores
        assert woken.wake(call=True)[1] == cores


def test_the_event_loop_is_called_back_likewise(woken: Woken) -> None:
    everywhere = os.sched_getaffinity(0)
    core = max(everywhere)
    woken.wake("call back", call=True)
    assert len(os.sched_getaffinity(0)) == 1
    woken.handover.loop_woke()
    assert os.sched_getaffinity(0) == everywhere
    with confined(core):  # the thread will then stay there, so that we know where its call comes from
        woken.wake("call back", call=True)
        woken.handover.loop_woke()
    assert woken.wake("call back", call=False)[1] == {core}
    assert os.sched_getaffinity(0) == {core}
    woken.handover.loop_woke()
    assert os.sched_getaffinity(0) == everywhere


def test_other_threads_are_not_confined_with_an_event_loop_that_was_called(woken: Woken) -> None:
    everywhere = os.sched_getaffinity(0)
    other = Woken(woken.handover)
    woken.wake("call back", call=True)
    assert len(os.sched_getaffinity(0)) == 1
    assert other.wake("call back", call=True)[1] == everywhere
    woken.handover.loop_woke()
    assert os.sched_getaffinity(0) == everywhere
    other.orders.put("end")
    other.join(60)


def test_with_a_single_core_nothing_is_asked_of_the_kernel() -> None:
    with confined(min(os.sched_getaffinity(0))):
        handover = Handover()
    thread = Woken(handover)
    everywhere = os.sched_getaffinity(0)
    assert thread.wake("call back", call=True) == (everywhere, everywhere)
    assert os.sched_getaffinity(0) == everywhere
    thread.orders.put("end")
    thread.join(60)
