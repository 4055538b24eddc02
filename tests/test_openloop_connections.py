"""The pool against a server whose queue of new connections is short, and one that closes under the client."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator

import gevent
import pytest

from bench.clock import now_ns
from scenarios.openloop.connections import Connection, Pool, shared_out
from scenarios.openloop.payload import Payload


class Heard:
    """The owner of a pool: notes what it is told."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.failures: list[str] = []

    def answered(self, connection: Connection) -> None:
        raise ArithmeticError("a defect of the owner")

    def failed(self, connection: Connection, reason: str) -> None:
        self.failures.append(reason)

    def first_byte_sent(self, connection: Connection, sent_ns: int) -> None:
        self.sent.append(connection.number)


def until(condition: Callable[[], bool]) -> None:
    give_up = now_ns() + 60_000_000_000
    while not condition():
        assert now_ns() < give_up
        gevent.sleep(0.005)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)  # Linux holds one connection more than that, and drops the next one's first packet
        yield server


def pool_of(listener: socket.socket, owner: Heard, limit: int = 8) -> Pool:
    return Pool(address=listener.getsockname(), limit=limit, owner=owner, loop=gevent.get_hub().loop, clock=now_ns)


def test_a_full_queue_is_not_overrun_and_what_is_connected_is_used_first(listener: socket.socket) -> None:
    owner = Heard()
    pool = pool_of(listener, owner)
    try:
        pool.open_beforehand(8)
        until(lambda: sum(one.connected for one in pool.connections) == 2)
        gevent.sleep(0.1)  # time in which an eager pool would open all eight
        assert pool.opening and len(pool.connections) <= 4
        first, second = pool.send(0, Payload(b"x")), pool.send(1, Payload(b"x"))
        assert first.connected and second.connected and owner.sent == [0, 1] and first.connect_ns == -1
        third = pool.send(2, Payload(b"x"))
        assert not third.connected and owner.sent == [0, 1]
        accepted: list[socket.socket] = []
        thread = threading.Thread(target=lambda: accepted.extend(listener.accept()[0] for _ in range(8)))
        thread.start()
        until(lambda: third.wrote and not pool.opening)
        thread.join(60)
        assert third.connect_ns > 0 and owner.sent == [0, 1, 2] and len(pool.connections) == 8
        for one in accepted:
            one.close()
    finally:
        pool.close()


def test_a_defect_in_a_callback_is_an_error_of_its_request_and_not_a_silence(listener: socket.socket) -> None:
    owner = Heard()
    pool = pool_of(listener, owner)
    try:
        connection = pool.send(7, Payload(b"x"))
        server, _ = listener.accept()
        until(lambda: connection.wrote)
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        until(lambda: bool(owner.failures))
        assert owner.failures == ["the answer cannot be read (ArithmeticError: a defect of the owner)"]
        server.close()
    finally:
        pool.close()


def test_a_connection_that_cannot_be_made_fails_its_request() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, and nobody listens
        owner = Heard()
        pool = pool_of(silent, owner)
        try:
            pool.send(0, Payload(b"x"))
            until(lambda: bool(owner.failures))
            assert owner.failures == ["Connection refused"] and not owner.sent and not pool.connections
        finally:
            pool.close()


@pytest.mark.parametrize("size", [4_000, 65_536, 8_000_000])
def test_every_byte_is_sent_in_order_however_little_is_taken_at_once(listener: socket.socket, size: int) -> None:
    content = random.Random(size).randbytes(size)
    payload = Payload(content)
    owner = Heard()
    pool = pool_of(listener, owner)
    try:
        for number in range(2):  # the second time from the start again
            connection = pool.send(number, payload)
            if not number:
                server, _ = listener.accept()
                server.setblocking(False)
            arrived = bytearray()
            while len(arrived) < size:
                gevent.sleep(0)  # what does not fit is sent by the loop
                with contextlib.suppress(BlockingIOError):
                    arrived += server.recv(1 << 16)
            assert arrived == content
            connection.number = -1
            pool.give_back(connection)
        assert owner.sent == [0, 1] and not owner.failures
        server.close()
    finally:
        pool.close()
        payload.close()


@pytest.mark.parametrize("missing", ["memfd_create", "sendfile"])
def test_where_the_kernel_cannot_send_from_a_file_the_bytes_are_copied(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, missing, refuse)
    content = random.Random(3).randbytes(65_536)
    payload = Payload(content)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = 0
        arrived = b""
        while len(arrived) < len(content):
            sent += payload.send(ours, sent) if sent < len(content) else 0
            arrived += theirs.recv(1 << 17)
    payload.close()
    assert arrived == content


def test_a_refusal_counts_though_the_connection_broke_before_all_was_sent(listener: socket.socket) -> None:
    owner = Heard()
    pool = pool_of(listener, owner)
    payload = Payload(bytes(8_000_000))
    try:
        connection = pool.send(0, payload)
        server, _ = listener.accept()
        until(lambda: connection.wrote)
        server.sendall(b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        server.close()  # with bytes unread: a reset follows the answer
        while True:  # what the loop does where it looks at the writing end first
            with contextlib.suppress(BlockingIOError):
                try:
                    payload.send(connection.socket, 0)
                except OSError as error:
                    connection._refused(error)
                    break
        assert owner.failures == ["the answer cannot be read (ArithmeticError: a defect of the owner)"] and connection.reply.status == 503
    finally:
        pool.close()
        payload.close()


def test_of_a_host_with_several_addresses_the_one_that_listens_is_used(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, and nobody listens
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one.getsockname()) for one in (silent, listener)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        owner = Heard()
        pool = pool_of(listener, owner)
        try:
            connection = pool.send(0, Payload(b"x"))
            until(lambda: connection.wrote)
            assert connection.socket.getpeername() == listener.getsockname() and not owner.failures
        finally:
            pool.close()


def test_the_limit_is_shared_out_to_the_last_connection() -> None:
    assert shared_out(4096, 3) == [1366, 1365, 1365]
    assert shared_out(3, 3) == [1, 1, 1]
    assert all(sum(shared_out(limit, workers)) == limit for workers in range(1, 9) for limit in range(workers, 40))
    assert shared_out(1, 3) == [1, 1, 1]  # of a `ulimit -n` that is too low for what was asked
