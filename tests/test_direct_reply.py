"""Replies that a slot's thread writes to the socket itself: whole, in order, to the right client, and known to the server in time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import queue
import random
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from conftest import SyntheticFactory
from test_server import ELEMENTS, Server, good_body, raw_request, requests_total, serving, until
from uvicorn.server import ServerState

from reference_server.bodies import BodyReceiver
from reference_server.connection import Connection, with_limits
from reference_server.limits import Limits

RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: closing drops what was not sent, and tells the peer so


# A connection, with the test in the place of the slot's thread


@dataclass(slots=True)
class Held:
    """A request that is being answered. `log` gets its path when it begins, and when it is over."""

    connection: Connection
    path: str
    direct: bool  # whether a slot's thread may send the reply
    over: asyncio.Future[None]
    log: list[str]

    def send(self, body: bytes) -> bool:
        """As a slot's thread does, but without asking for `settle`."""
        return self.connection.send_directly(b"content-length: %d\r\n" % len(body), [body], self._ended)

    def answer(self, body: bytes) -> None:
        """As the event loop does."""

        async def answer() -> None:
            await self.connection.answer(b"content-length: %d\r\n" % len(body), [body])
            self.over.set_result(None)

        asyncio.run_coroutine_threadsafe(answer(), self.connection.loop)

    def settle(self) -> None:
        self.connection.loop.call_soon_threadsafe(self.connection.settle)

    def _ended(self) -> None:
        self.log.append(f"{self.path} is over")
        self.connection.sent()
        self.over.set_result(None)


@dataclass(slots=True)
class HoldingServer:
    """A server that answers only when the test does."""

    port: int
    loop: asyncio.AbstractEventLoop
    requests: queue.SimpleQueue[Held] = field(default_factory=queue.SimpleQueue)
    log: list[str] = field(default_factory=list)
    clients: ExitStack = field(default_factory=ExitStack)

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = self.clients.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=60))
        connection.sendall(data)
        return connection

    def next_request(self) -> Held:
        return self.requests.get(timeout=60)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"]["connection"]
        if scope["path"] == "/unasked":  # answered without a look at its body
            await connection.answer(b"content-length: 2\r\n", [b"no"])
            return
        if await connection.take_body() is None:
            return
        self.log.append(f"{scope['path']} begins")
        held = Held(
            connection=connection,
            path=scope["path"],
            direct=connection.may_send_directly(),
            over=self.loop.create_future(),
            log=self.log,
        )
        connection.running = asyncio.current_task()
        self.requests.put(held)
        with contextlib.suppress(asyncio.CancelledError):
            await held.over


@contextmanager
def holding_server(limits: Limits | None = None, keep_alive_s: int = 60) -> Iterator[HoldingServer]:
    started: queue.SimpleQueue[HoldingServer] = queue.SimpleQueue()
    stopped = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = HoldingServer(port=0, loop=loop)
        config = uvicorn.Config(
            found.app, interface="asgi3", ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=keep_alive_s
        )
        kind, state = with_limits(limits or Limits()), ServerState()
        server = await loop.create_server(lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
        found.port = server.sockets[0].getsockname()[1]
        started.put(found)
        await asyncio.to_thread(stopped.wait, 120)
        server.close()

    thread = threading.Thread(target=lambda: uvloop.run(main()), daemon=True)
    thread.start()
    found = started.get(timeout=60)
    with found.clients:
        yield found
    stopped.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def holding() -> Iterator[HoldingServer]:
    with holding_server() as server:
        yield server


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()


def read_reply(connection: socket.socket, ahead: bytearray | None = None) -> tuple[int, bytes, bytes]:
    """One whole reply, and not a byte more: (status, head, body). `ahead` holds what was received of the next ones."""
    data = bytearray() if ahead is None else ahead
    while (end := data.find(b"\r\n\r\n")) < 0:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {bytes(data)!r}"
        data += piece
    head = bytes(data[:end])
    assert head.startswith(b"HTTP/1.1 "), head
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None, head
    whole = end + 4 + int(found.group(1))
    while len(data) < whole:
        piece = connection.recv(65536)
        assert piece, f"the connection ended {whole - len(data)} bytes before the end of a reply"
        data += piece
    body = bytes(data[end + 4 : whole])
    del data[:whole]
    assert ahead is not None or not data, f"{len(data)} bytes follow the reply"
    return int(head[9:12]), head, body


def test_a_request_that_follows_a_reply_finds_it_accounted_for(holding: HoldingServer) -> None:
    """Also where the thread did not get to tell the event loop yet, and on another connection too."""
    first, second = holding.connect(get("/1")), holding.connect()
    assert holding.next_request().send(b"one")
    assert read_reply(first)[2] == b"one"
    second.sendall(get("/2"))
    assert holding.next_request().send(b"two")
    assert read_reply(second)[2] == b"two"
    second.sendall(get("/3"))
    held = holding.next_request()
    assert not held.connection.pipeline and not held.connection.flow.read_paused
    assert holding.log == ["/1 begins", "/1 is over", "/2 begins", "/2 is over", "/3 begins"]


def test_a_reply_is_told_of_before_it_is_written(holding: HoldingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    write = os.write

    def look_and_write(descriptor: int, data: bytes) -> int:
        if descriptor == held.connection._socket:
            told.append(len(held.connection.sent_directly))
        return write(descriptor, data)

    client = holding.connect(get("/1"))
    held = holding.next_request()
    monkeypatch.setattr(os, "write", look_and_write)
    assert held.send(b"one")
    monkeypatch.undo()
    assert read_reply(client)[2] == b"one"
    assert told == [1]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_request_whose_body_ends_after_a_reply_finds_it_accounted_for(holding: HoldingServer, in_place: bool) -> None:
    """Also where the body's end goes straight to where it will lie."""
    body = b"x" * (200_000 if in_place else 1000)
    second = holding.connect(b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    first = holding.connect(get("/1"))
    held = holding.next_request()
    second.sendall(body[:100])
    reading = until_connections(held.connection, 2)
    if in_place:
        until(lambda: reading._body.received > 0, "some of the body is there")
        second.sendall(body[100:50_000])
        until(lambda: type(reading.transport.get_protocol()) is BodyReceiver, "the rest is received in place")
    second.sendall(body[max(100, 50_000 * in_place) : -1])
    until(lambda: reading._body.received == len(body) - 1, "all but a byte is there")
    assert held.send(b"one")
    assert read_reply(first)[2] == b"one"
    second.sendall(body[-1:])
    assert holding.next_request().path == "/2"
    assert holding.log == ["/1 begins", "/1 is over", "/2 begins"]


def until_connections(one: Connection, number: int) -> Connection:
    """The other one, once there are so many."""
    until(lambda: len(one.connections) == number, f"{number} connections")
    return next(other for other in one.connections if other is not one)  # type: ignore[return-value]


def test_a_reply_larger_than_the_buffers_between(holding: HoldingServer) -> None:
    """What the socket does not take at once the event loop sends, before anything else."""
    client = holding.connect(get("/1") + get("/2"))
    body = random.Random(1).randbytes(20_000_000)
    held = holding.next_request()
    assert held.send(body)
    assert 0 < len(held.connection._left) < len(body)
    held.settle()
    behind = holding.next_request()
    assert not behind.direct
    behind.answer(b"behind it")
    ahead = bytearray()
    assert read_reply(client, ahead)[2] == body
    assert read_reply(client, ahead)[2] == b"behind it"
    assert not ahead
    client.sendall(get("/3"))
    after = holding.next_request()
    assert after.direct and after.send(b"after it")
    assert read_reply(client)[2] == b"after it"


def test_nothing_is_sent_to_a_client_that_has_the_descriptor_of_another(holding: HoldingServer) -> None:
    gone = holding.connect(get("/gone"))
    held = holding.next_request()
    descriptor = held.connection._socket
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
    gone.close()
    until(lambda: held.connection.running is not None and held.connection.running.done(), "the server sees that the client is gone")
    until(lambda: held.connection._socket is None, "the connection gave its socket up")
    others, requests = [], []
    for number in range(4):
        others.append(holding.connect(get(f"/{number}")))
        requests.append(holding.next_request())
    assert descriptor in [request.connection._socket for request in requests]
    assert not held.send(b"for the one that is gone")
    for request, other in zip(requests, others, strict=True):
        assert request.send(request.path.encode())
        request.settle()
        assert read_reply(other)[2] == request.path.encode()
    assert "/gone is over" not in holding.log


def test_a_reply_that_was_sent_before_the_client_went_is_a_reply(holding: HoldingServer) -> None:
    client = holding.connect(get("/1"))
    held = holding.next_request()
    assert held.send(b"one")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
    client.close()
    until(held.over.done, "the connection's end brings the request to its own")
    assert not held.over.cancelled()
    assert holding.log == ["/1 begins", "/1 is over"]


def test_the_last_reply_of_a_connection(holding: HoldingServer) -> None:
    client = holding.connect(get("/1", "Connection: close"))
    held = holding.next_request()
    assert held.send(b"one")
    held.settle()
    _, head, body = read_reply(client)
    assert body == b"one" and b"connection: close" in head
    assert client.recv(1) == b""


# How long a connection stays


def test_the_end_of_a_reply_must_be_taken_in_time_too() -> None:
    """However little of it is left."""
    with holding_server(Limits(body_timeout_ns=10**9)) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", server.port))
        requests = 0
        while True:  # one at a time, until the kernel takes no more
            client.sendall(get(f"/{requests}"))
            held = server.next_request()
            held.answer(b"x" * 4000)
            requests += 1
            until(held.over.done, "it is over")
            if left := held.connection.transport.get_write_buffer_size():
                break
            assert requests < 10_000
        assert left < 8000
        until(lambda: held.connection.client_gone, "the connection was given up")


def test_an_empty_line_does_not_keep_a_connection() -> None:
    with holding_server(keep_alive_s=2) as server:
        client = server.connect(get("/1"))
        server.next_request().answer(b"one")
        assert read_reply(client)[2] == b"one"
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < began + 60:
                client.sendall(b"\r\n")
                client.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    assert client.recv(1) == b""
                    break
        assert time.monotonic() < began + 60


def test_a_request_after_empty_lines(holding: HoldingServer) -> None:
    client = holding.connect(get("/1"))
    for number in range(2, 5):
        holding.next_request().answer(b"it")
        assert read_reply(client)[2] == b"it"
        client.sendall(b"\r\n")
        client.sendall(b"\r\n" + get(f"/{number}"))
    assert holding.next_request().path == "/4"


def test_a_connection_whose_body_came_after_its_reply_is_closed_like_any_other() -> None:
    with holding_server(keep_alive_s=1) as server:
        client = server.connect(get("/unasked", "Content-Length: 10") + b"12345")
        assert read_reply(client)[2] == b"no"
        client.sendall(b"67890")
        client.settimeout(60)
        assert client.recv(1) == b""


# The server as it is


@contextmanager
def clients(server: Server, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = [stack.enter_context(server.open()) for _ in range(number)]
        for connection in opened:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield opened


@pytest.fixture
def one_slot(tmp_path: Path, synthetic: SyntheticFactory) -> Iterator[Server]:
    with serving(tmp_path, synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS)) as server:
        yield server
        assert server.errors() == ""


def test_who_has_a_reply_finds_the_slot_free_and_the_request_counted(one_slot: Server) -> None:
    """One slot, and one request at a time, on connections in turn: none waits, and each is in the statistics that follow it."""
    statistics = get("/v2/models/synthetic/stats")
    with clients(one_slot, 3) as (first, second, asking):
        for number, connection in zip(range(1, 401), itertools.cycle((first, first, second)), strict=False):
            connection.sendall(raw_request(good_body(id=str(number))))
            status, _, body = read_reply(connection)
            assert (status, json.loads(body)["id"]) == (200, str(number))
            asking.sendall(statistics)
            counted = json.loads(read_reply(asking)[2])["model_stats"][0]
            assert counted["inference_count"] == counted["inference_stats"]["success"]["count"] == number
    assert one_slot.metric('coldburst_pool_hits_total{model="synthetic"}') == 400
    assert one_slot.metric('coldburst_pool_misses_total{model="synthetic"}') == 0


def test_ten_thousand_requests_on_sixteen_connections(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    wrong: list[object] = []

    def ask(connection: socket.socket, number: int) -> None:
        try:
            for step in range(625):
                name = f"{number}-{step}"
                connection.sendall(raw_request(good_body(id=name)))
                status, _, body = read_reply(connection)
                if status != 200 or json.loads(body)["id"] != name:
                    wrong.append((name, status, body))
        except Exception as error:
            wrong.append(error)

    engine = synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS)
    with serving(tmp_path, engine, "--pool-size", "3") as server:
        with clients(server, 16) as connections:
            threads = [threading.Thread(target=ask, args=(connection, number)) for number, connection in enumerate(connections)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []
        assert requests_total(server, "ok") == 10_000
        assert server.errors() == ""


def test_pipelined_requests_keep_their_order_and_their_bytes(one_slot: Server) -> None:
    """Sent in pieces of any size, so that some are there with their forerunners, and some only after the reply to these."""
    random_ = random.Random(3)
    stream = memoryview(b"".join(raw_request(good_body(id=str(number))) for number in range(600)))
    with clients(one_slot, 1) as (connection,):

        def send() -> None:
            rest = stream
            while rest:
                size = random_.choice((30, 250, 1000))
                connection.sendall(rest[:size])
                rest = rest[size:]

        sender = threading.Thread(target=send)
        sender.start()
        ahead = bytearray()
        for number in range(600):
            status, _, body = read_reply(connection, ahead)
            assert (status, json.loads(body)["id"]) == (200, str(number))
        sender.join()
        assert not ahead


def test_clients_that_close_at_any_moment(one_slot: Server) -> None:
    """Before the run, during it, between it and the reply, after the reply: each request ends once, and no reply goes astray."""
    random_ = random.Random(4)
    request = raw_request(good_body(id="gone"))
    for number in range(300):
        leaving = one_slot.open(request)
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        goes_ns = time.monotonic_ns() + random_.randrange(600_000)
        while time.monotonic_ns() < goes_ns:
            pass
        leaving.close()
        with one_slot.open(raw_request(good_body(id=str(number)))) as staying:
            status, _, body = read_reply(staying)
            assert (status, json.loads(body)["id"]) == (200, str(number))
    until(lambda: one_slot.metric('coldburst_slots{model="synthetic",state="idle"}') == 1, "the slot came back")
    answered, left = requests_total(one_slot, "ok"), requests_total(one_slot, "cancelled")
    assert answered >= 300 and answered + left <= 600
    assert requests_total(one_slot, "failed") == requests_total(one_slot, "invalid") == 0


def test_sigterm_under_replies_that_are_on_their_way(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    """Of a client that reads only after the signal: what was begun is whole and in order, then comes at most a refusal."""
    engine = synthetic(input_elements=ELEMENTS, output_elements=15_000)
    body = good_body(parameters={"binary_data_output": True})
    with serving(tmp_path, engine, "--pool-size", "2") as server, ExitStack() as stack:
        slow = []
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(60)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(raw_request(body) * 200)
            slow.append(connection)

        def answered() -> bool:
            before = requests_total(server, "ok")
            return before > 0 and requests_total(server, "ok") == before

        until(answered, "nothing more can be written")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in server.errors(), "the server says that it drains")
        for connection in slow:
            ahead = bytearray()
            statuses = []
            while not statuses or statuses[-1] == 200:
                ended = not ahead and connection.recv(1, socket.MSG_PEEK) == b""
                if ended:
                    break
                status, _, content = read_reply(connection, ahead)
                statuses.append(status)
                if status == 200:
                    assert len(content) > 60_000 and content.endswith(struct.pack("<f", 3.0) * 15_000)
            assert statuses[0] == 200 and set(statuses[:-1]) <= {200} and statuses[-1] in (200, 503)
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.errors()


def test_sigterm_under_load(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    """Whoever gets a byte of a reply gets all of it."""
    engine = synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS)
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()
    counts: list[Callable[[], int]] = []

    def ask(connection: socket.socket, done: list[int]) -> None:
        try:
            while True:
                connection.sendall(raw_request(good_body()))
                if connection.recv(1, socket.MSG_PEEK) == b"":
                    break
                status, _, _ = read_reply(connection)
                if status != 200:
                    seen.put(status)
                    break
                done.append(status)
        except (ConnectionResetError, BrokenPipeError):
            pass  # it came as the connection was being closed
        except BaseException as error:
            seen.put(error)

    with serving(tmp_path, engine, "--pool-size", "2") as server, clients(server, 6) as connections:
        finished: list[list[int]] = [[] for _ in connections]
        counts = [done.__len__ for done in finished]
        threads = [threading.Thread(target=ask, args=pair) for pair in zip(connections, finished, strict=True)]
        for thread in threads:
            thread.start()
        until(lambda: min(count() for count in counts) > 50, "all of them are served")
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.errors()
    statuses = []
    while not seen.empty():
        statuses.append(seen.get())
    assert set(statuses) <= {503}
