"""Which threads may run where, as the kernel says: together while requests are short and alone, else wherever they might before."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import SyntheticFactory
from test_direct_reply import clients, read_reply
from test_server import ELEMENTS, Server, good_body, raw_request, serving, until

from reference_server.shared_core import SharedCore

pytestmark = pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="there is no choice of cores here")

MS = 10**6


class Other(threading.Thread):
    """In the place of a slot's thread: it waits for its end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.start()
        assert self.native_id is not None
        self.id = self.native_id

    def run(self) -> None:
        self.told.get()

    @property
    def cores(self) -> set[int]:
        return os.sched_getaffinity(self.id)


@pytest.fixture
def other() -> Iterator[Other]:
    everywhere = os.sched_getaffinity(0)
    thread = Other()
    yield thread
    thread.told.put(None)
    thread.join(60)
    os.sched_setaffinity(0, everywhere)


@contextmanager
def confined(*cores: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def test_they_share_a_core_until_they_part(other: Other) -> None:
    everywhere = os.sched_getaffinity(0)
    shared, third = SharedCore(), Other()
    for now_ns in range(3):
        shared.join(other.id, now_ns)
        core = os.sched_getaffinity(0)
        assert len(core) == 1
        shared.join(third.id, now_ns)
        assert other.cores == third.cores == os.sched_getaffinity(0) == core
        shared.part()
        assert other.cores == third.cores == os.sched_getaffinity(0) == everywhere
        shared.part()
    third.told.put(None)


def test_it_is_the_core_that_the_event_loop_runs_on(other: Other) -> None:
    shared = SharedCore()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        with confined(core):
            shared.join(other.id, 0)
            assert other.cores == {core}
            shared.part()


def test_from_time_to_time_they_part_for_a_request(other: Other) -> None:
    everywhere = os.sched_getaffinity(0)
    shared = SharedCore()
    shared.join(other.id, 0)
    shared.join(other.id, 100 * MS)
    assert len(other.cores) == 1
    shared.join(other.id, 101 * MS)
    assert other.cores == os.sched_getaffinity(0) == everywhere
    shared.join(other.id, 102 * MS)
    assert len(other.cores) == len(os.sched_getaffinity(0)) == 1
    shared.part()


def test_what_an_operator_says_meanwhile_stays_so(other: Other) -> None:
    everywhere = os.sched_getaffinity(0)
    shared = SharedCore()
    shared.join(other.id, 0)
    (core,) = os.sched_getaffinity(0)
    elsewhere = min(everywhere - {core})
    for thread in (0, other.id):
        os.sched_setaffinity(thread, {elsewhere})
    shared.part()
    assert os.sched_getaffinity(0) == other.cores == {elsewhere}


def test_a_thread_that_has_ended_is_no_obstacle() -> None:
    everywhere = os.sched_getaffinity(0)
    shared, ended = SharedCore(), Other()
    shared.join(ended.id, 0)
    ended.told.put(None)
    ended.join(60)
    until(lambda: not Path(f"/proc/self/task/{ended.id}").exists(), "the kernel has forgotten it")
    shared.part()
    assert os.sched_getaffinity(0) == everywhere
    shared.join(ended.id, 0)  # nor is one that cannot be moved
    shared.part()
    assert os.sched_getaffinity(0) == everywhere


def test_with_a_single_core_all_stays_as_it_is(other: Other) -> None:
    everywhere = os.sched_getaffinity(0)
    with confined(min(everywhere)):
        shared = SharedCore()
    shared.join(other.id, 0)
    assert other.cores == os.sched_getaffinity(0) == everywhere


# The server


def cores_of_threads(server: Server) -> list[set[int]]:
    """The event loop's first."""
    threads = sorted(int(entry.name) for entry in Path(f"/proc/{server.process.pid}/task").iterdir())
    assert threads[0] == server.process.pid
    return [os.sched_getaffinity(thread) for thread in threads]


def everybody_is_free(server: Server) -> bool:
    return all(cores == os.sched_getaffinity(0) for cores in cores_of_threads(server))


def ask(server: Server, requests: int) -> None:
    with clients(server, 1) as (connection,):
        for _ in range(requests):
            connection.sendall(raw_request(good_body()))
            assert read_reply(connection)[0] == 200


def come_together(server: Server) -> None:
    """On a busy machine the runs may not be short for a while, and from time to time they part anyway."""

    def asked() -> bool:
        ask(server, 30)
        loop, *others = cores_of_threads(server)
        return len(loop) == 1 and others.count(loop) == 1

    until(asked, "the event loop and a slot's thread share a core")


def test_short_requests_one_at_a_time(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    """A scrape, whose answer is rendered in a thread of its own, and a second request at the same time set all threads free."""
    engine = synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS)
    with serving(tmp_path, engine, "--pool-size", "2", "--health-interval", "0") as server:
        come_together(server)
        server.ask("GET", "/metrics")
        assert everybody_is_free(server)
        come_together(server)
        with clients(server, 8) as connections:
            for _ in range(1000):
                for connection in connections:
                    connection.sendall(raw_request(good_body()))
                for connection in connections:
                    assert read_reply(connection)[0] == 200
                if everybody_is_free(server):
                    break
            else:
                raise AssertionError("eight requests at a time leave the threads on one core")


def test_long_requests_share_nothing(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    engine = synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS, service_ns=2 * MS)
    with serving(tmp_path, engine) as server:
        for _ in range(5):
            ask(server, 10)
            assert everybody_is_free(server)


@pytest.mark.parametrize("mode", ["cold-load --pool-size 2", "lazy --pool-size 8", "elastic --max 8"])
def test_threads_that_are_made_later_are_free(tmp_path: Path, synthetic: SyntheticFactory, mode: str) -> None:
    engine = synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS)
    with serving(tmp_path, engine, "--health-interval", "0", "--mode", *mode.split()) as server:
        if mode.startswith("cold-load"):
            ask(server, 40)
        else:
            come_together(server)
            slots = len(cores_of_threads(server))
            with clients(server, 8) as connections:

                def grown() -> bool:
                    for connection in connections:
                        connection.sendall(raw_request(good_body()) * 20)
                    for connection in connections:
                        ahead = bytearray()
                        assert [read_reply(connection, ahead)[0] for _ in range(20)] == [200] * 20
                    return len(cores_of_threads(server)) > slots

                until(grown, "one more slot")
            server.ask("GET", "/metrics")
        assert everybody_is_free(server)
