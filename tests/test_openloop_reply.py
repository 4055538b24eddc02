"""The answer parser: every legal framing, whatever pieces the socket gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.openloop.reply import BadReply, Reply

HEAD = b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=0.012, pool;dur=1.5, load;dur=0, infer;desc=x;dur=2e0\r\n"
BODY = bytes(range(256)) * 3
FRAMINGS = {
    "length": HEAD + b"content-LENGTH:  768 \r\n\r\n" + BODY,
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"100\r\n" + BODY[:256] + b"\r\n1fF;ext=1\r\n" + BODY[256:767] + b"\r\n"
    b"1\r\n" + BODY[767:] + b"\r\n0\r\nTrailer: x\r\n\r\n",
    "after interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    + HEAD
    + b"Content-Length: 768\r\n\r\n"
    + BODY,
}


def feed(reply: Reply, data: bytes, cuts: list[int]) -> bool:
    """Feed `data` cut at the given places; True when the last piece, and only that one, made it whole."""
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    results = [reply.feed(data[a:b]) for a, b in pairwise(edges)]
    assert not any(results[:-1])
    return results[-1]


@pytest.mark.parametrize("framing", FRAMINGS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same_answer(framing: str, cuts: list[int]) -> None:
    reply = Reply()
    for _ in range(2):  # a connection is used again
        assert feed(reply, FRAMINGS[framing], cuts)
        assert (reply.status, bytes(reply.body), reply.keep_alive) == (200, BODY, True)
        assert reply.parts_ns() == (12_000, 1_500_000, 0, -1, 2_000_000, -1)
        reply.reset()


def test_byte_by_byte() -> None:
    for data in FRAMINGS.values():
        reply = Reply()
        assert [reply.feed(data[i : i + 1]) for i in range(len(data))].index(True) == len(data) - 1
        assert bytes(reply.body) == BODY


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nconnection: Keep-Alive\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_keep_alive(head: bytes, keep: bool) -> None:
    reply = Reply()
    assert reply.feed(head + b"Content-Length: 2\r\n\r\nab")
    assert reply.keep_alive is keep


def test_a_body_may_end_with_the_connection() -> None:
    reply = Reply()
    assert not reply.feed(b"HTTP/1.1 200 OK\r\n\r\nab")
    assert not reply.feed(b"cd")
    assert reply.closed() and bytes(reply.body) == b"abcd"
    half = Reply()
    half.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
    assert not half.closed()


def test_bytes_after_the_answer_end_the_connection() -> None:
    for data in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabX", FRAMINGS["chunked"] + b"X"):
        reply = Reply()
        assert reply.feed(data)
        assert not reply.keep_alive
    assert bytes(reply.body) == BODY


def test_no_body() -> None:
    reply = Reply()
    assert reply.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (reply.status, bytes(reply.body)) == (204, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BadReply):
        Reply().feed(data)


def test_nonsense_parts_are_not_known() -> None:
    reply = Reply()
    assert reply.feed(
        b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=1e999, pool;dur=1e30, load;dur=x, infer, output;dur=1\r\nContent-Length: 0\r\n\r\n"
    )
    assert reply.parts_ns() == (-1, -1, -1, -1, -1, 1_000_000)


@given(
    data=st.binary(max_size=200),
    head=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]),
)
def test_no_bytes_break_the_parser(head: bytes, data: bytes) -> None:
    reply = Reply()
    try:
        reply.feed(head + data)
        reply.feed(data)
    except BadReply:
        return
    assert len(reply.parts_ns()) == 6


def test_the_quick_way_to_read_parts_agrees_with_the_general_one() -> None:
    values = ("0", "0.012", "1.5", "123456.789", "7", "0.000001")
    names = ("queue", "pool", "load", "input", "infer", "output")
    expected = (0, 12_000, 1_500_000, 123_456_789_000, 7_000_000, 1)
    for order in (names, names[::-1]):  # another order takes the general way
        timing = ", ".join(f"{name};dur={values[names.index(name)]}" for name in order)
        reply = Reply()
        assert reply.feed(f"HTTP/1.1 200 OK\r\nServer-Timing: {timing}\r\nContent-Length: 0\r\n\r\n".encode())
        assert reply.parts_ns() == expected


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: " + b"9" * 5000,
        b"Content-Length: -5",
        b"Content-Length: 1e3",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 2\r\nInference-Header-Content-Length: " + b"9" * 5000,
        b"Content-Length: 2\r\nInference-Header-Content-Length: -1",
    ],
)
def test_a_damaged_length_is_refused_at_once(fields: bytes) -> None:
    with pytest.raises(BadReply, match="is no length"):
        Reply().feed(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n{}")


@pytest.mark.parametrize("fields", [b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 1000 + b"\r\n", b"Content-Length: 2147483649\r\n\r\n"])
def test_a_body_that_would_fill_the_memory_is_refused_at_once(fields: bytes) -> None:
    with pytest.raises(BadReply, match="longer than 2 GiB"):
        Reply().feed(b"HTTP/1.1 200 OK\r\n" + fields)


def test_a_part_without_a_leading_digit() -> None:
    reply = Reply()
    assert reply.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nServer-Timing: infer;dur=.5, queue;dur=1e400\r\n\r\n")
    assert reply.parts_ns() == (-1, -1, -1, -1, 500_000, -1)
