"""The simulation against the server itself, whose engine has declared times: who waits for what, who is refused, how many slots are made.

All times are multiples of 40 ms, and whether two of them are the same is never left to chance: every decision has 40 ms of room.
A run in which this host woke somebody up later than that says nothing, and is done again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import SyntheticFactory

from bench.capacity.simulation import OK, Server, Service, Simulated, Times, simulate
from bench.clock import now_ns
from bench.engine.manifest import read_manifest
from bench.inference_client import InferenceClient, encode_request
from bench.server_process import ServerProcess

STEP_NS = 40_000_000
SERVICE, LOAD, SLOT = 6, 9, 4  # in steps
ATTEMPTS = 4
# A first request alone, a burst, another one while the first is not over, and a late request after a rest.
ARRIVALS = (0, 12, 13, 13, 14, 15, 15, 16, 21, 22, 45, 70, 71)


def steps(count: int) -> Times:
    return np.array([count * STEP_NS], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How a server is started, and what is simulated."""

    flags: tuple[str, ...]
    server: Server


def flag(name: str, count: float) -> str:
    return f"--{name}={count * STEP_NS / 1e6}ms"


CASES = {
    "cold-load": Case(
        flags=("--mode=cold-load", "--pool-size=2", "--queue-limit=3"),
        server=Server(mode="cold-load", slots=2, load_ns=steps(LOAD + SLOT), queue_limit=3),
    ),
    "lazy": Case(
        flags=("--mode=lazy", "--pool-size=3", "--queue-limit=2"),
        server=Server(mode="lazy", slots=3, load_ns=steps(LOAD), slot_ns=steps(SLOT + SERVICE), queue_limit=2),
    ),
    "warm-pool": Case(
        flags=("--mode=warm-pool", "--pool-size=2", "--queue-limit=4", flag("acquire-timeout", 9.5)),
        server=Server(mode="warm-pool", slots=2, queue_limit=4, acquire_timeout_ns=int(9.5 * STEP_NS)),
    ),
    "elastic": Case(
        flags=("--mode=elastic", "--min=0", "--max=3", flag("idle-timeout", 12.5)),
        server=Server(
            mode="elastic", slots=3, load_ns=steps(LOAD), slot_ns=steps(SLOT + SERVICE), idle_timeout_ns=int(12.5 * STEP_NS)
        ),
    ),
}


@dataclass(slots=True)
class Seen:
    """What a client saw of one request, and how late it was sent."""

    late_ns: int = 0
    status: int = 0
    response_ns: int = 0
    parts: Mapping[str, float] | None = None


def ask(url: str, body: bytes, headers: Mapping[str, str], due_ns: int, seen: Seen) -> None:
    with InferenceClient(url) as client:
        client.ready()  # connects
        time.sleep(max(0, due_ns - now_ns()) / 1e9)
        seen.late_ns = now_ns() - due_ns
        seen.status, answer, _ = client.infer("synthetic", body, headers)
        seen.response_ns = now_ns() - due_ns
        seen.parts = {name: float(ms) * 1e6 for name, ms in re.findall(r"(\w+);dur=([\d.]+)", answer["server-timing"])}


def run(engine: Path, flags: tuple[str, ...], arrivals: Times) -> list[Seen]:
    manifest = read_manifest(engine)
    inputs = {tensor.name: np.zeros((1, *(64 for _ in tensor.shape[1:])), np.float32) for tensor in manifest.inputs}
    body, headers = encode_request(manifest, inputs)
    with ServerProcess([engine], [*flags, "--health-interval=0s"]) as server:
        server.wait_ready()
        begin_ns = now_ns() + STEP_NS * 8
        found = [Seen() for _ in arrivals]
        threads = [
            threading.Thread(target=ask, args=(server.url, body, headers, begin_ns + int(came), seen), daemon=True)
            for came, seen in zip(arrivals, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return found


def differences(found: list[Seen], expected: Simulated) -> list[str]:
    """Where they differ, in words: status, and pool wait, load, run and response to within half a step."""
    wrong = []
    for n, seen in enumerate(found):
        assert seen.parts is not None
        outcome = "ok" if seen.status == 200 else "refused" if seen.status == 503 else str(seen.status)
        if outcome != ("ok" if expected.status[n] == OK else "refused"):
            wrong.append(f"request {n} was {outcome}")
            continue
        pairs = {
            "pool": (seen.parts["pool"], expected.pool_ns[n]),
            "load": (seen.parts["load"], expected.load_ns[n]),
            "infer": (seen.parts["infer"], expected.service_ns[n]),
            "response": (seen.response_ns, expected.response_ns[n]),
        }
        for name, (took_ns, expected_ns) in pairs.items():
            if abs(took_ns - expected_ns) > STEP_NS / 2:
                wrong.append(f"request {n}: {name} took {took_ns / STEP_NS:.2f} steps, simulated {expected_ns / STEP_NS:.2f}")
    return wrong


@pytest.mark.parametrize("mode", list(CASES))
def test_the_server_does_what_the_simulation_says(mode: str, synthetic: SyntheticFactory) -> None:
    case = CASES[mode]
    engine = synthetic(
        service_ns=SERVICE * STEP_NS, load_ns=LOAD * STEP_NS, slot_ns=SLOT * STEP_NS, input_elements=64, output_elements=64, max_batch=1
    )
    arrivals = (np.array(ARRIVALS) * STEP_NS + np.arange(len(ARRIVALS)) * STEP_NS // 50).astype(np.int64)
    expected = simulate(arrivals, Service(levels=(steps(SERVICE),) * 3), case.server, seed=1)
    for attempt in range(ATTEMPTS):
        found = run(engine, case.flags, arrivals)
        wrong = differences(found, expected)
        if not wrong:
            return
        if attempt + 1 < ATTEMPTS and max(seen.late_ns for seen in found) < STEP_NS / 4:
            time.sleep(1)
    raise AssertionError("; ".join(wrong))
