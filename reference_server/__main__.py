"""`python -m reference_server ENGINE...`: start, say so, serve, drain.

Standard output has two lines for a program that waits: `listening on http://HOST:PORT` once live, `ready` once ready
(with `--tell-phases` a JSON object follows on that line: where the time in between went).
Exit codes: 0 drained after SIGTERM or SIGINT, 1 requests were cut off by the drain timeout, 2 wrong usage or a failed start,
70 the device can no longer be used by this process, or a defect of the server, 128 + N ended at once by a second signal N.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn
import uvloop

from bench.errors import EXIT_DEFECT, EXIT_FINE, EXIT_WRONG_INPUT, BenchError, describe_defect, one_sentence
from bench.streams import open_missing
from reference_server.app import App
from reference_server.connection import with_limits
from reference_server.limits import tune_listener
from reference_server.log import Log
from reference_server.phases import Phases
from reference_server.registry import EXIT_DEVICE_SPOILED, Registry
from reference_server.settings import ServerSettings, parse_command_line

EXIT_CUT_OFF = 1
_BACKLOG = 1024  # connections that the kernel keeps for us in a burst
_KEEP_ALIVE_S = 30


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handling, that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


async def _serve(settings: ServerSettings, log: Log) -> int:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()  # the exit code to end with, once that is decided

    def on_signal(number: int) -> None:
        if stop.done():
            os._exit(128 + number)
        log.event("drain", f"{signal.Signals(number).name}: finishing what was accepted", signal=number)
        stop.set_result(EXIT_FINE)

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 65536):
            loop.remove_reader(sys.stdin.fileno())
            if not stop.done():
                log.event("drain", "standard input ended: finishing what was accepted")
                stop.set_result(EXIT_FINE)

    def on_device_spoiled(message: str) -> None:
        log.event("device_spoiled", message)
        os._exit(EXIT_DEVICE_SPOILED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if settings.stop_with_stdin:
        try:
            loop.add_reader(sys.stdin.fileno(), on_input)
        except OSError:  # a file, or the null device
            raise BenchError("--stop-with-stdin needs a pipe or a terminal as standard input, whose end can be waited for") from None
    registry = Registry(settings.engines, settings.pool, on_demand=settings.on_demand, on_device_spoiled=on_device_spoiled)
    timeline = _open_timeline(settings, registry)
    app = App(registry, log, max_body_bytes=settings.limits.max_body_bytes)
    listener = _listen(settings.host, settings.port)
    server = _Server(_uvicorn_config(settings, app))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.listening.wait()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _announce(f"listening on http://{host}:{listener.getsockname()[1]}")
    starting = asyncio.create_task(registry.start())
    try:
        await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            starting.result()  # raises LoadFailed
            own = Phases()
            with own.phase("collect"):
                _collect_less()
            _announce(_ready_line(settings, registry, own))
            await asyncio.wait((stop, serving), return_when=asyncio.FIRST_COMPLETED)
        complete = await _drain(settings, app, registry, server, serving, starting)
    finally:
        server.should_exit = server.force_exit = True
        if timeline is not None:
            timeline.close()
        log.flush()
    if not complete:  # neither a run nor a load can be interrupted, and nobody needs it to end
        os._exit(EXIT_CUT_OFF if app.in_flight else EXIT_FINE)
    return EXIT_FINE


async def _drain(
    settings: ServerSettings, app: App, registry: Registry, server: _Server, serving: asyncio.Task[None], starting: asyncio.Task[None]
) -> bool:
    """Answer what was accepted, refuse what comes, release everything. False where the drain timeout did not suffice."""
    app.drain()
    try:
        async with asyncio.timeout(settings.drain_timeout_ns / 1e9):
            while app.in_flight:
                await asyncio.sleep(0.01)
            server.should_exit = True
            await serving
            starting.cancel()
            await asyncio.wait((starting,))
            await registry.close()
    except TimeoutError:
        if app.in_flight:
            print(f"reference_server: the drain timeout is over, {app.in_flight} requests were cut off", file=sys.stderr, flush=True)
        return False
    return True


def _open_timeline(settings: ServerSettings, registry: Registry) -> Any:
    if settings.timeline is None:
        return None
    from reference_server.timeline import Timeline

    timeline = Timeline(settings.timeline, list(registry.models.values()))
    timeline.start()
    return timeline


def _uvicorn_config(settings: ServerSettings, app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=with_limits(settings.limits),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_BACKLOG,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Raises BenchError, in one sentence, for a port in use or an address that is not ours."""
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tune_listener(listener)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise BenchError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --host or --port") from None
    listener.setblocking(False)
    return listener


def _collect_less() -> None:
    """What was loaded stays: the collector need not look at it again, nor interrupt a burst for a few young objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _ready_line(settings: ServerSettings, registry: Registry, own: Phases) -> str:
    if not settings.tell_phases:
        return "ready"
    phases = [*registry.started_phases(), *({"model": None, **phase} for phase in own.as_dicts())]
    return f"ready {json.dumps({'phases': phases})}"


def _announce(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be reading
        print(line, flush=True)


def main() -> None:
    """Run the server with the process's own command line, and end the process."""
    open_missing()  # uvloop would take a closed one for its own, and not survive to find it used
    try:
        settings = parse_command_line()
        log = Log(as_json=settings.log_json)
        log.take_over_logging()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_serve(settings, log))
    except (BenchError, OSError) as error:
        print(f"reference_server: {one_sentence(error)}", file=sys.stderr)
        sys.exit(EXIT_WRONG_INPUT)
    except MemoryError:
        print("reference_server: there is not enough memory to start; free some, or serve fewer slots", file=sys.stderr)
        sys.exit(EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        print(describe_defect(error, "reference_server", "the server"), file=sys.stderr)
        sys.exit(EXIT_DEFECT)
    sys.exit(code)


if __name__ == "__main__":
    main()
