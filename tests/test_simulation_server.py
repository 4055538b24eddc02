"""The simulation against the server itself, whose engine has declared times: who waits for what, who is refused, how many slots are made.

Times are multiples of a step, which is long beside what this host adds to them, and whether two of them are the same is never left to
chance. A run in which somebody was woken up later than half a step says nothing, and is done again.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from conftest import SyntheticFactory

from bench.capacity.simulation import OK, SHED, TIMEOUT, Server, Service, Simulated, Times, simulate
from bench.clock import now_ns
from bench.engine.manifest import read_manifest
from bench.inference_client import InferenceClient, encode_request
from bench.server_process import ServerProcess

STEP_NS = 60_000_000
SERVICE, LOAD, SLOT = 6, 9, 4  # in steps
ATTEMPTS = 4
# A first request alone, a burst, another one while the first is not over, and a late request after a rest.
ARRIVALS = (0, 12, 13, 13.3, 14, 15, 15.3, 16, 21, 22, 45, 70, 71)
ELEMENTS = 64


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
        server=Server(mode="elastic", slots=3, load_ns=steps(LOAD), slot_ns=steps(SLOT + SERVICE), idle_timeout_ns=int(12.5 * STEP_NS)),
    ),
}


@dataclass(slots=True)
class Seen:
    """What a client saw of one request."""

    sent_ns: int = 0
    status: int = 0
    response_ns: int = 0
    parts: Mapping[str, float] | None = None


def ask(url: str, body: bytes, headers: Mapping[str, str], due_ns: int, seen: Seen) -> None:
    with InferenceClient(url) as client:
        client.ready()  # connects
        time.sleep(max(0, due_ns - now_ns()) / 1e9)
        seen.sent_ns = now_ns()
        seen.status, answer, _ = client.infer("synthetic", body, headers)
        seen.response_ns = now_ns() - seen.sent_ns
        seen.parts = {name: float(ms) * 1e6 for name, ms in re.findall(r"(\w+);dur=([\d.]+)", answer["server-timing"])}


def run(engine: Path, flags: tuple[str, ...]) -> list[Seen]:
    """One real run, in the order in which the requests were sent."""
    manifest = read_manifest(engine)
    body, headers = encode_request(manifest, {"input": np.zeros((1, ELEMENTS), np.float32)})
    found = [Seen() for _ in ARRIVALS]
    with ServerProcess([engine], [*flags, "--health-interval=0s"]) as server:
        server.wait_ready()
        begin_ns = now_ns() + 8 * STEP_NS
        dues = [begin_ns + int(came * STEP_NS) for came in ARRIVALS]
        threads = [threading.Thread(target=ask, args=(server.url, body, headers, due, seen)) for due, seen in zip(dues, found, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(found, key=lambda seen: seen.sent_ns)


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


def simulated(found: list[Seen], server: Server) -> Simulated:
    """With the arrivals as they were sent. What a run took on this host beyond the declared time, and a request's own load, is taken
    from what was measured (median), since it adds up over a queue."""
    sent_ns = np.array([seen.sent_ns for seen in found], np.int64)
    parts = [seen.parts for seen in found if seen.status == 200 and seen.parts is not None]
    times = np.array([np.median([each["infer"] for each in parts])], np.int64)
    if server.mode == "cold-load":
        server = replace(server, load_ns=np.array([np.median([each["load"] for each in parts])], np.int64))
    return simulate(sent_ns - sent_ns[0], Service(levels=(times,) * 3), server, seed=1)


def compare(engine: Path, case: Case) -> list[str]:
    """Run and simulate, again where the host was late."""
    wrong: list[str] = []
    for _ in range(ATTEMPTS):
        found = run(engine, case.flags)
        wrong = differences(found, simulated(found, case.server))
        if not wrong:
            break
    return wrong


def test_the_server_does_what_the_simulation_says(synthetic: SyntheticFactory) -> None:
    declared = {"service_ns": SERVICE * STEP_NS, "load_ns": LOAD * STEP_NS, "slot_ns": SLOT * STEP_NS}
    engine = synthetic(**declared, input_elements=ELEMENTS, output_elements=ELEMENTS, max_batch=1)
    simulate(steps(1), Service(levels=(steps(1),)), Server(mode="lazy", slots=1), seed=1)  # compiles before anybody looks at a clock
    with ThreadPoolExecutor(len(CASES)) as side_by_side:  # they sleep nearly all the time
        wrong = dict(zip(CASES, side_by_side.map(lambda case: compare(engine, case), CASES.values()), strict=True))
    assert wrong == {mode: [] for mode in CASES}


def test_the_cases_try_what_they_are_for() -> None:
    """Every outcome, and slots that are made for others, dropped and made again."""
    arrivals = np.array([came * STEP_NS for came in ARRIVALS], np.int64)
    found = {mode: simulate(arrivals, Service(levels=(steps(SERVICE),) * 3), case.server, seed=1) for mode, case in CASES.items()}
    assert {mode: Counter(each.status.tolist()) for mode, each in found.items()} == {
        "cold-load": {OK: 9, SHED: 4},
        "lazy": {OK: 8, SHED: 5},
        "warm-pool": {OK: 11, SHED: 1, TIMEOUT: 1},
        "elastic": {OK: 13},
    }
    assert found["elastic"].slots.tolist() == [1, 2, 3, 2, 1, 0, 1, 2]
    assert found["lazy"].slots.tolist() == [1, 2, 3]
