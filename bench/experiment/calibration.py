"""How many requests a second a server can answer: closed loop, as many senders as it can work on at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from bench.clock import now_ns
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
    _ask(url, manifest, body, headers, 1)
    done: list[int] = []
    failures: list[BenchError] = []
    began = now_ns()
    soft_end, hard_end = began + int(duration_s * 1e9), began + int(duration_s * _LONGEST_FACTOR * 1e9)

    def send() -> None:
        try:
            with InferenceClient(url) as client:
                while not failures:
                    now = now_ns()
                    if now > hard_end or (now > soft_end and len(done) >= _AT_LEAST_REQUESTS):
                        return
                    _check(client.infer(manifest.name, body, headers))
                    done.append(now_ns())
        except BenchError as error:
            failures.append(error)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if not done:
        raise BenchError(f"{url} answered no request within {duration_s * _LONGEST_FACTOR:g} s; calibrate longer with --calibrate")
    return Capacity(rate_per_s=len(done) / ((max(done) - began) / 1e9), requests=len(done), duration_ns=max(done) - began, senders=senders)


def _ask(url: str, manifest: Manifest, body: bytes, headers: dict[str, str], times: int) -> None:
    with InferenceClient(url) as client:
        for _ in range(times):
            _check(client.infer(manifest.name, body, headers))


def _check(answer: tuple[int, object, bytes]) -> None:
    if answer[0] != 200:
        raise BenchError(f"calibration: the server answered {answer[0]}: {answer[2][:200].decode(errors='replace')}")
