"""What one binary infer request costs the server's process, without a network: `python tests/performance/request_cost.py`.

A connection gets the bytes of a request from a transport that only counts what is written, and the next ones when the request is
over; what the slot's thread writes goes to the null device. CPU time in us a request, the least of forty batches, all on one
core: the bare Starlette handler, the server with an answer that is ready, with a run on the event loop, and as it is, with the
slot's thread.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
import uvicorn  # noqa: E402
import uvloop  # noqa: E402
from bare_server import app as bare_app  # noqa: E402
from test_server_overhead import ELEMENTS, binary_request  # noqa: E402
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: E402

from bench.engine.synthetic_builder import build_synthetic  # noqa: E402
from reference_server.app import App  # noqa: E402
from reference_server.connection import with_limits  # noqa: E402
from reference_server.limits import Limits  # noqa: E402
from reference_server.log import Log, StandardError  # noqa: E402
from reference_server.phases import Phases  # noqa: E402
from reference_server.pool_settings import PoolSettings  # noqa: E402
from reference_server.registry import Registry  # noqa: E402
from reference_server.runtimes.synthetic import Declaration, SyntheticEngine  # noqa: E402
from reference_server.server_timing import Timing  # noqa: E402
from reference_server.serving import _collect_less  # noqa: E402

BATCHES, READ_BYTES = 40, 256_000  # what uvloop reads at most at once


class Transport:
    """Delivers requests to `protocol`, one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes) -> None:
        self.protocol: Any = None
        self._loop = loop
        self._request = request
        self._left = 0
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._all_answered = loop.create_future()

    async def ask(self, requests: int) -> None:
        self._left = requests
        self._all_answered = self._loop.create_future()
        self._loop.call_soon(self._deliver)
        await self._all_answered

    def _deliver(self) -> None:
        rest = memoryview(self._request)
        while rest:
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer = memoryview(self.protocol.get_buffer(-1))
                size = min(len(buffer), len(rest))
                buffer[:size] = rest[:size]
                self.protocol.buffer_updated(size)
            else:
                size = min(READ_BYTES, len(rest))
                self.protocol.data_received(bytes(rest[:size]))
            rest = rest[size:]

    def request_over(self) -> None:
        self._left -= 1
        if self._left:
            self._loop.call_soon(self._deliver)
        else:
            self._all_answered.set_result(None)

    def write(self, data: bytes) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def fileno(self) -> int:
        return self._nowhere

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def getsockname(self) -> None: ...

    getpeername = getsockname

    def get_extra_info(self, name: str) -> Transport | None:
        return self if name == "socket" else None


def telling(protocol: Any) -> Any:
    """The protocol, with word to the transport when a request is over."""

    class Telling(protocol):  # type: ignore[misc]
        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.transport.request_over()

    return Telling


async def cost_us(app: Any, protocol: type[asyncio.Protocol], request: bytes) -> float:
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False)
    config.load()
    transport = Transport(asyncio.get_running_loop(), request)
    state = uvicorn.Server(config).server_state
    transport.protocol = telling(protocol)(config=config, server_state=state, app_state={})
    transport.protocol.connection_made(transport)
    requests = 200 if len(request) < 10_000 else 50
    costs = []
    for _ in range(BATCHES):
        began = time.process_time_ns()
        await transport.ask(requests)
        costs.append((time.process_time_ns() - began) / requests / 1e3)
    return min(costs)


def without_thread(run: Callable[..., Any]) -> Callable[..., Any]:
    async def infer(inputs: Mapping[str, Any], outputs: Sequence[str] | None, timing: Timing, reply: object) -> Any:
        return run(inputs, outputs).outputs

    return infer


async def measure(size: str, directory: Path) -> None:
    elements = ELEMENTS[size]
    body, json_length = binary_request(elements)
    lines = (
        "POST /v2/models/model/infer HTTP/1.1", "Host: 127.0.0.1", f"Inference-Header-Content-Length: {json_length}",
        "Content-Type: application/octet-stream", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        f"Content-Length: {len(body)}", "", "",
    )  # fmt: skip
    request = "\r\n".join(lines).encode() + body
    build_synthetic(directory / "model", name="model", input_elements=elements, output_elements=1024)
    registry = Registry([directory / "model"], PoolSettings(mode="warm-pool", size=2))
    await registry.start()
    app = App(registry, Log(StandardError(), as_json=False), max_body_bytes=Limits().max_body_bytes)
    _collect_less()
    ours = with_limits(Limits())
    pool: Any = registry.models["model"].pool
    manifest = registry.models["model"].manifest
    slot = SyntheticEngine(manifest, Declaration(input_elements=elements, output_elements=1024)).make_slot(Phases())
    ready = slot.run({"input": np.zeros((1, elements), np.float32)})
    costs = [await cost_us(bare_app, HttpToolsProtocol, request), 0.0, 0.0, await cost_us(app, ours, request)]
    for number, run in enumerate((lambda *_: ready, slot.run), 1):
        pool.infer = without_thread(run)
        costs[number] = await cost_us(app, ours, request)
    names = ("bare handler", "answer ready", "with the run", "with the thread")
    print(f"{size:>6}: " + ", ".join(f"{name} {cost:.0f} us" for name, cost in zip(names, costs, strict=True)))
    await registry.close()


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(ELEMENTS):
            uvloop.run(measure(size, Path(folder) / str(number)))
