"""How many requests a second a server can answer: closed loop, as many senders as it can work on at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.clock import now_ns
from bench.closed_loop import Request, ask, closed_loop
from bench.engine.manifest import Manifest
from bench.engine.probe import read_probe
from bench.errors import BenchError
from bench.inference_client import InferenceClient, encode_request

_AT_LEAST_REQUESTS = 10
_LONGEST_FACTOR = 5  # a slow server gets up to this many times the asked time to answer that many


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests answered a second in closed loop; `requests` were counted over `duration_ns`."""

    rate_per_s: float
    requests: int
    duration_ns: int
    senders: int


def measure_capacity(url: str, engine_dir: Path, manifest: Manifest, *, senders: int, duration_s: float) -> Capacity:
    """Load the server with `senders` connections for `duration_s` (more, until 10 requests were answered).

    One request goes ahead, uncounted, so that a lazy server has loaded. Raises BenchError where an answer is not 200.
    """
    case = read_probe(engine_dir, manifest)
    body, headers = encode_request(manifest, case.inputs)
    request = Request(model=manifest.name, body=body, headers=headers)
    with InferenceClient(url) as client:
        ask(client, request)
    done: list[int] = []
    began = now_ns()
    soft_end, hard_end = began + int(duration_s * 1e9), began + int(duration_s * _LONGEST_FACTOR * 1e9)

    def goes_on() -> bool:
        now = now_ns()
        return now <= hard_end and (now <= soft_end or len(done) < _AT_LEAST_REQUESTS)

    closed_loop(url, request, senders=senders, take=lambda answer: done.append(answer.done_ns), goes_on=goes_on)
    if not done:
        raise BenchError(f"{url} answered no request within {duration_s * _LONGEST_FACTOR:g} s; calibrate longer with --calibrate")
    return Capacity(rate_per_s=len(done) / ((max(done) - began) / 1e9), requests=len(done), duration_ns=max(done) - began, senders=senders)
