"""One HTTP/1.1 answer, read from whatever pieces the socket gives (RFC 9112). Made for the hot path: no header table."""

from __future__ import annotations

import re

PARTS = ("queue", "pool", "load", "input", "infer", "output")
"""The parts of the server's time that a Server-Timing header may carry, in the order of a record's columns."""

UNKNOWN_PARTS = (-1,) * len(PARTS)

_LENGTH = re.compile(rb"\r\ncontent-length:([^\r\n]*)")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*\bchunked\b")
_CONNECTION = re.compile(rb"\r\nconnection:[ \t]*([^\r\n]*)")
_TIMING = re.compile(rb"\r\nserver-timing:([^\r\n]*)")
_METRIC = re.compile(rb"([a-z]+)[ \t]*;[^,]*?dur=((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)")
_JSON_LENGTH = re.compile(rb"\r\ninference-header-content-length:([^\r\n]*)")
_MAX_HEAD = 65_536
_MAX_CHUNK_LINE = 4096
_MAX_BODY = 2 << 30  # as much as a request may have: more is a damaged length, or a body that would fill the memory
_MAX_LENGTH_DIGITS = len(str(_MAX_BODY))
_TOO_LONG = "the body of the answer is longer than 2 GiB"
_MAX_PART_MS = 1e9  # a longer part than eleven days is nonsense, and must not overflow a column


class BadReply(Exception):
    """The bytes are not an HTTP/1.1 answer. The message says what is wrong."""


class Reply:
    """Feed it bytes until `feed` says that the answer is whole; then read the fields; `reset` before the next answer."""

    __slots__ = ("_buffer", "_chunk_left", "_in_body", "_length", "body", "json_length", "keep_alive", "started", "status", "timing")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.started = False
        """True from the first byte of the answer on."""
        self.status = 0
        self.keep_alive = True
        self.body: bytes | bytearray = b""
        self.json_length = -1
        """Length of the JSON in front of binary tensors, -1 where the answer is JSON alone."""
        self.timing = b""
        """The Server-Timing header's value in small letters, b"" without one."""
        self._buffer: bytes | bytearray = b""
        self._in_body = False
        self._length = -1  # of the body; -1: chunked, -2: until the connection closes
        self._chunk_left = -1  # -1: a chunk's size line comes next, -2: the trailer comes next

    def feed(self, data: bytes) -> bool:
        """Take what the socket gave. True when the answer is whole. Raises BadReply."""
        self.started = True
        if self._in_body:
            return self._feed_body(data)
        if self._buffer:
            data = bytes(self._buffer) + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD:
                    raise BadReply("the head of the answer is longer than 64 KiB")
                if not b"HTTP/1.".startswith(data[:7]):
                    raise BadReply("the answer is not HTTP/1.1")
                self._buffer = data
                return False
            self._read_head(data[:end].lower())
            rest = data[end + 4 :]
            if self.status >= 200:
                break
            if self.status == 101:
                raise BadReply("the server switched protocols")
            data = rest  # an interim answer (100 Continue, 103 Early Hints): the real one follows
        self._in_body = True
        self._buffer = b""
        length = self._length
        if length > _MAX_BODY:
            raise BadReply(_TOO_LONG)
        if len(rest) == length:
            self.body = rest
            return True
        self.body = bytearray()
        return self._feed_body(rest)

    def closed(self) -> bool:
        """The connection was closed. True when that is how this answer ends."""
        self.keep_alive = False
        return self._in_body and self._length == -2

    def parts_ns(self) -> tuple[int, ...]:
        """The server's parts in ns, in the order of PARTS; -1 where the header does not tell."""
        if not self.timing:
            return UNKNOWN_PARTS
        plain = _ALL_PARTS.fullmatch(self.timing)
        if plain is not None:
            # The reference server's own form, three times as fast to read: at thousands of answers a second it counts.
            return tuple([int(float(value) * 1e6 + 0.5) for value in plain.groups()])
        found = {name: float(value) for name, value in _METRIC.findall(self.timing)}
        return tuple(round(found[name] * 1e6) if found.get(name, _MAX_PART_MS) < _MAX_PART_MS else -1 for name in _PART_KEYS)

    def _read_head(self, head: bytes) -> None:
        if not head.startswith(b"http/1.") or not head[9:12].isdigit():
            raise BadReply("the answer is not HTTP/1.1")
        self.status = int(head[9:12])
        connection = _CONNECTION.search(head)
        if connection is None:
            self.keep_alive = head[7:8] != b"0"
        elif head[7:8] == b"0":
            self.keep_alive = b"keep-alive" in connection.group(1)
        else:
            self.keep_alive = b"close" not in connection.group(1)
        if self.status in (204, 304):
            self._length = 0
        elif (lengths := _LENGTH.findall(head)) and b"\r\ntransfer-encoding:" not in head:
            self._length = _length_of(lengths, "Content-Length")
        elif _CHUNKED.search(head) is not None:
            self._length = -1
        elif self.status >= 200:
            self._length = -2
            self.keep_alive = False
        timing = _TIMING.findall(head)
        self.timing = timing[0] if len(timing) == 1 else b",".join(timing)
        json_lengths = _JSON_LENGTH.findall(head)
        self.json_length = _length_of(json_lengths, "Inference-Header-Content-Length") if json_lengths else -1

    def _feed_body(self, data: bytes) -> bool:
        if self._length == -1:
            return self._feed_chunks(data)
        body = self.body
        assert isinstance(body, bytearray)
        body += data
        if self._length == -2 and len(body) > _MAX_BODY:
            raise BadReply(_TOO_LONG)
        if self._length == -2 or len(body) < self._length:
            return False
        if len(body) > self._length:
            del body[self._length :]
            self.keep_alive = False  # bytes after the answer: nothing that follows on this connection can be trusted
        return True

    def _feed_chunks(self, data: bytes) -> bool:
        body = self.body
        assert isinstance(body, bytearray)
        data = bytes(self._buffer) + data if self._buffer else data
        at = 0
        while True:
            if self._chunk_left >= 0:
                take = data[at : at + self._chunk_left + 2]  # the chunk and its CRLF
                if len(take) <= self._chunk_left + 1:
                    self._buffer = data[at:]
                    if len(take) < self._chunk_left:  # keep the bytes out of the buffer, so that large chunks are copied once
                        body += take
                        self._chunk_left -= len(take)
                        self._buffer = b""
                    return False
                if take[-2:] != b"\r\n":
                    raise BadReply("a chunk of the answer does not end where its size says")
                body += take[:-2]
                at += len(take)
                self._chunk_left = -1
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                if len(data) - at > _MAX_CHUNK_LINE:
                    raise BadReply("a chunk's size line or trailer is longer than 4 KiB")
                self._buffer = data[at:]
                return False
            line = data[at:line_end]
            at = line_end + 2
            if self._chunk_left == -2:
                if not line:
                    if at < len(data):
                        self.keep_alive = False
                    return True
                continue  # a trailer field
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                size = -1
            if size < 0:
                raise BadReply("a chunk of the answer has no size")
            if len(body) + size > _MAX_BODY:
                raise BadReply(_TOO_LONG)
            self._chunk_left = size if size > 0 else -2


def _length_of(values: list[bytes], name: str) -> int:
    """The one length that a header says, however often (RFC 9110, section 8.6). Raises BadReply."""
    text = values[0].strip()
    if not text.isdigit() or len(text) > _MAX_LENGTH_DIGITS or any(other.strip() != text for other in values[1:]):
        raise BadReply(f"the answer's {name} is no length: {b', '.join(values)[:40].decode('latin-1').strip()!r}")
    return int(text)


_PART_KEYS = tuple(name.encode() for name in PARTS)
_ALL_PARTS = re.compile(rb" ?" + b", ?".join(name + rb";dur=([0-9]{1,9}(?:\.[0-9]{1,12})?)" for name in _PART_KEYS))
