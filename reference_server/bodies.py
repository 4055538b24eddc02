"""A request's body on its way in: kept in the pieces that came, or received where it will lie."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import numpy as np

_SMALL_PIECE = 1024  # bytes: a piece has an overhead of some 50, which is too much for smaller ones
_IN_PLACE_LEFT = 64 * 1024  # bytes that are still to come: with fewer, one more piece is as good
_IN_PLACE_BYTES = 4 * 2**20  # of a whole body: numpy asks for huge pages from there on, which a client would fill with a few bytes


class Body:
    """Of one request: what came of it and was not handed over yet. Sizes in bytes."""

    __slots__ = ("_chunks", "_length", "received")

    def __init__(self) -> None:
        self.received = 0
        self._chunks: list[bytes | bytearray | memoryview] = []
        self._length: int | None = None  # None until it is asked for, and where it is not declared

    def left(self, headers: Iterable[tuple[bytes, bytes]]) -> int:
        """How much is still to come, 0 where the headers do not tell."""
        if self._length is None:
            found = dict(headers)
            if b"transfer-encoding" in found:
                return 0
            self._length = int(found.get(b"content-length", 0))
        return self._length - self.received

    def add(self, piece: bytes | memoryview) -> None:
        """Keep the piece, which was counted in `received`. Tiny ones are joined."""
        chunks = self._chunks
        if not chunks or len(piece) >= _SMALL_PIECE:
            chunks.append(piece)
        elif isinstance(last := chunks[-1], bytearray):
            last += piece
        else:
            chunks.append(bytearray(piece))

    def receive_in_place(self, most_bytes: int) -> memoryview | None:
        """Where the rest is to be written; None where that would not be worth it, or the body has more than `most_bytes`."""
        length = self._length
        if length is None or length - self.received < _IN_PLACE_LEFT or length >= min(_IN_PLACE_BYTES, most_bytes):
            return None
        body = np.empty(length, np.uint8).data  # a bytearray would be filled with zeros first
        position = 0
        for chunk in self._chunks:
            body[position : position + len(chunk)] = chunk
            position += len(chunk)
        self._chunks = [body.toreadonly()]
        return body[position:]

    def take(self, handed_over: bytes | bytearray) -> bytes | bytearray | memoryview:
        """All that came, behind what was handed over and not fetched; a single piece is not copied."""
        chunks = [bytes(handed_over), *self._chunks] if handed_over else self._chunks
        self._chunks = []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class BodyReceiver(asyncio.BufferedProtocol):
    """Stands in for a connection until the rest of a body is there: the event loop receives straight into `rest`.

    `received` is called with the size of each piece.
    """

    def __init__(self, connection: asyncio.Protocol, rest: memoryview, received: Callable[[int], None]) -> None:
        self._rest = rest
        self._received = received
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        self._rest = self._rest[nbytes:]
        self._received(nbytes)
