"""A small V2 server for tests, in a thread of the test: what it answers to the n-th inference request is the test's choice."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Answer = Callable[["Exchange"], Awaitable[None]]

OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
TENSOR_META = {"name": "y", "datatype": "FP32", "shape": [-1, 2]}


@dataclass(slots=True)
class Exchange:
    """One inference request: its number (from 0), and where the answer goes."""

    number: int
    body: bytes
    writer: asyncio.StreamWriter
    server: SmallServer

    def json(self, value: object, status: str = "200 OK", extra: str = "") -> None:
        body = json.dumps(value).encode()
        self.writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body)

    def ok(self, extra: str = "", **changed: object) -> None:
        self.json({"model_name": "m", "outputs": [{**OUTPUT, **changed}]}, extra=extra)


async def plain(exchange: Exchange) -> None:
    exchange.ok()


@dataclass(slots=True)
class SmallServer:
    """`with SmallServer(answer) as server:` listens at server.url. `times` holds when each inference request came (CLOCK_MONOTONIC, ns).

    `gone_ns` tells when the last of its connections was closed.
    """

    answer: Answer = plain
    models: tuple[str, ...] = ("m",)
    port: int = 0
    read_delay_s: float = 0.0
    received: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    most_connections: int = 0
    gone_ns: int | None = None
    _open: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _stop: asyncio.Event | None = None

    @property
    def connections(self) -> int:
        """How many are open now."""
        return self._open

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> SmallServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def die(self) -> None:
        """Close everything at once. Safe to call twice."""
        if self._thread is not None and self._thread.is_alive():
            assert self._loop is not None and self._stop is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            if threading.current_thread() is not self._thread:
                self._thread.join(60)

    def _run(self, ready: threading.Event) -> None:
        asyncio.run(self._main(ready))
        self.gone_ns = time.monotonic_ns()

    async def _main(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        writers: set[asyncio.StreamWriter] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            self._open += 1
            self.most_connections = max(self.most_connections, self._open)
            try:
                await self._serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self._open -= 1
                writers.discard(writer)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for writer in list(writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
            if self.read_delay_s and length > 100_000:
                await asyncio.sleep(self.read_delay_s)  # what was sent meanwhile fills the buffers between the two
            body = await reader.readexactly(length) if length else b""
            exchange = Exchange(-1, body, writer, self)
            path = head.split(" ")[1]
            if path.endswith("/infer"):
                exchange.number = len(self.times)
                self.times.append(time.monotonic_ns())
                self.received.append(len(body))
                await self.answer(exchange)
                if writer.is_closing():
                    return
            elif path == "/v2":
                exchange.json({"name": "small", "version": "1", "extensions": []})
            elif path == "/v2/repository/index":
                exchange.json([{"name": name, "state": "READY"} for name in self.models])
            elif path.removeprefix("/v2/models/") in self.models:
                exchange.json({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": [TENSOR_META]})
            else:
                exchange.json({"error": "nothing here"}, "404 Not Found")
            await writer.drain()
