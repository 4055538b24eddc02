"""The server's command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.units import parse_duration_ns, parse_size_bytes
from reference_server.limits import Limits
from reference_server.pool_settings import PoolSettings
from reference_server.runtimes import parse_settings

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODES = ("cold-load", "lazy", "warm-pool", "elastic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything the command line says. Times in ns, sizes in bytes; port 0 is any free one."""

    engines: tuple[Path, ...]
    on_demand: Mapping[str, Path]
    host: str
    port: int
    pool: PoolSettings
    limits: Limits
    timeline: Path | None
    drain_timeout_ns: int
    stop_with_stdin: bool
    log_json: bool
    tell_phases: bool


def parse_command_line(arguments: Sequence[str] | None = None) -> ServerSettings:
    """Raises BenchError for a value that makes no sense; argparse itself ends the process with 2 for an unknown flag."""
    given = _parser().parse_args(arguments)
    duration, size = parse_duration_ns, parse_size_bytes
    pool = PoolSettings(
        mode=given.mode,
        size=_at_least(given.pool_size, 1, "--pool-size"),
        min=_at_least(given.min, 0, "--min"),
        max=_at_least(given.max, max(1, given.min), "--max"),
        idle_timeout_ns=duration(given.idle_timeout, "--idle-timeout"),
        sharing=given.sharing,
        queue_limit=None if given.queue_limit is None else _at_least(given.queue_limit, 0, "--queue-limit"),
        acquire_timeout_ns=None if given.acquire_timeout is None else duration(given.acquire_timeout, "--acquire-timeout"),
        health_interval_ns=duration(given.health_interval, "--health-interval"),
        options=parse_settings(given.set),
        trust=given.trust,
    )
    limits = Limits(
        header_timeout_ns=_at_least(duration(given.header_timeout, "--header-timeout"), 1, "--header-timeout"),
        body_timeout_ns=_at_least(duration(given.body_timeout, "--body-timeout"), 1, "--body-timeout"),
        max_body_bytes=_at_least(size(given.max_body, "--max-body"), 1, "--max-body"),
    )
    if not 0 <= given.port <= 65535:
        raise BenchError(f"--port {given.port} is not a port: write 0 (any free one) to 65535")
    return ServerSettings(
        engines=tuple(given.engines),
        on_demand=_named(given.on_demand),
        host=given.host,
        port=given.port,
        pool=pool,
        limits=limits,
        timeline=given.timeline,
        drain_timeout_ns=duration(given.drain_timeout, "--drain-timeout"),
        stop_with_stdin=given.stop_with_stdin,
        log_json=given.log_json,
        tell_phases=given.tell_phases,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reference_server",
        description="Serve engines over the Open Inference Protocol (V2), every wait accounted for.",
        epilog="Example: python -m reference_server engines/tiny --mode warm-pool --pool-size 2 --port 8000",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("engines", nargs="+", type=Path, metavar="ENGINE", help="engine directory; several get a pool each")
    add("--mode", choices=_MODES, default="warm-pool", help="when engines and slots are loaded (default: warm-pool)")
    add("--pool-size", type=int, default=1, metavar="N", help="slots of each model, or loads at a time in cold-load (default: 1)")
    add("--min", type=int, default=1, metavar="N", help="elastic: slots kept when nothing comes (default: 1)")
    add("--max", type=int, default=4, metavar="N", help="elastic: slots at most (default: 4)")
    add("--idle-timeout", default="30s", metavar="TIME", help="elastic: an idle slot is dropped after this (default: 30s)")
    add("--sharing", choices=("engine", "copy"), default="engine", help="one engine for all slots, or a copy each (default: engine)")
    add("--queue-limit", type=int, metavar="N", help="requests that may wait; more get 503 (default: no limit)")
    add("--acquire-timeout", metavar="TIME", help="longest wait for a slot, then 503 (default: no limit)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="runtime setting, such as threads=2; may be repeated")
    add("--health-interval", default="10s", metavar="TIME", help="probe idle slots this often; 0 is never (default: 10s)")
    add("--trust", type=Path, metavar="KEY", help="public key: load only engines signed with it")
    add(
        "--on-demand",
        action="append",
        default=[],
        metavar="NAME=ENGINE",
        help="engine that is loaded and unloaded as clients of this host ask, under a name of its own; may be repeated",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8000, help="port to listen on, 0 for any free one (default: 8000)")
    add("--timeline", type=Path, metavar="FILE", help="write the server's state every 50 ms to FILE")
    add("--drain-timeout", default="30s", metavar="TIME", help="time to finish after SIGTERM (default: 30s)")
    add("--max-body", default="64MiB", metavar="SIZE", help="largest request body (default: 64MiB)")
    add("--header-timeout", default="10s", metavar="TIME", help="time for a request's headers to arrive (default: 10s)")
    add("--body-timeout", default="60s", metavar="TIME", help="time for a body to arrive, or a reply to be taken (default: 60s)")
    add("--stop-with-stdin", action="store_true", help="drain when standard input ends: for programs that start the server")
    add("--log-json", action="store_true", help="one JSON object a line on standard error for each request and event")
    add("--tell-phases", action="store_true", help="where the time of the start went, as JSON behind the word `ready`")
    return parser


def _named(texts: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not path or not _MODEL_NAME.fullmatch(name):
            raise BenchError(f"--on-demand {text!r} is not NAME=ENGINE, such as second=engines/tiny")
        if name in found:
            raise BenchError(f"--on-demand: the name {name!r} is there twice")
        found[name] = Path(path)
    return found


def _at_least(value: int, least: int, what: str) -> int:
    if value < least:
        raise BenchError(f"{what} is {value}, it must be at least {least}")
    return value
