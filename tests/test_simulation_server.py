"""The simulation against the server itself, whose engine has declared times: who waits for what, who is refused, how many slots are made.

Times are multiples of a step, which is long beside what this host adds to them, and whether two of them are the same is never left to
chance. A run in which somebody was woken up later than half a step says nothing, and is done again, in the end with longer steps.
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

STEPS_NS = (60_000_000, 60_000_000, 120_000_000, 240_000_000)  # of one attempt after the other
SERVICE, LOAD, SLOT = 6, 9, 4  # in steps
# A first request alone, a burst, another one while the first is not over, and a late request after a rest.
ARRIVALS = (0, 12, 13, 13.3, 14, 15, 15.3, 16, 21, 22, 45, 70, 71)
ELEMENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How a server is started, and what is simulated."""

    flags: tuple[str, ...]
    server: Server


def cases(step_ns: int) -> dict[str, Case]:
    def flag(name: str, count: float) -> str:
        return f"--{name}={count * step_ns / 1e6}ms"

    def steps(count: int) -> Times:
        return np.array([count * step_ns], np.int64)

    return {
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
            server=Server(mode="warm-pool", slots=2, queue_limit=4, acquire_timeout_ns=int(9.5 * step_ns)),
        ),
        "elastic": Case(
            flags=("--mode=elastic", "--min=0", "--max=3", flag("idle-timeout", 12.5)),
            server=Server(mode="elastic", slots=3, load_ns=steps(LOAD), slot_ns=steps(SLOT + SERVICE), idle_timeout_ns=int(12.5 * step_ns)),
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


def run(engine: Path, flags: tuple[str, ...], step_ns: int) -> list[Seen]:
    """One real run, in the order in which the requests were sent."""
    manifest = read_manifest(engine)
    body, headers = encode_request(manifest, {"input": np.zeros((1, ELEMENTS), np.float32)})
    found = [Seen() for _ in ARRIVALS]
    with ServerProcess([engine], [*flags, "--health-interval=0s"]) as server:
        server.wait_ready()
        begin_ns = now_ns() + 8 * step_ns
        dues = [begin_ns + int(came * step_ns) for came in ARRIVALS]
        threads = [threading.Thread(target=ask, args=(server.url, body, headers, due, seen)) for due, seen in zip(dues, found, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(found, key=lambda seen: seen.sent_ns)


def differences(found: list[Seen], expected: Simulated, step_ns: int) -> list[str]:
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
            if abs(took_ns - expected_ns) > step_ns / 2:
                wrong.append(f"request {n}: {name} took {took_ns / step_ns:.2f} steps, simulated {expected_ns / step_ns:.2f}")
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


def compare(engines: Mapping[int, Path], mode: str) -> list[str]:
    """Run and simulate, again where the host was late."""
    wrong: list[str] = []
    for step_ns in STEPS_NS:
        case = cases(step_ns)[mode]
        found = run(engines[step_ns], case.flags, step_ns)
        wrong = differences(found, simulated(found, case.server), step_ns)
        if not wrong:
            break
    return wrong


def test_the_server_does_what_the_simulation_says(synthetic: SyntheticFactory) -> None:
    engines = {
        step_ns: synthetic(
            service_ns=SERVICE * step_ns,
            load_ns=LOAD * step_ns,
            slot_ns=SLOT * step_ns,
            input_elements=ELEMENTS,
            output_elements=ELEMENTS,
            max_batch=1,
        )
        for step_ns in set(STEPS_NS)
    }
    one = np.array([1], np.int64)
    simulate(one, Service(levels=(one,)), Server(mode="lazy", slots=1), seed=1)  # compiles before anybody looks at a clock
    modes = list(cases(STEPS_NS[0]))
    with ThreadPoolExecutor(len(modes)) as side_by_side:  # they sleep nearly all the time
        wrong = dict(zip(modes, side_by_side.map(lambda mode: compare(engines, mode), modes), strict=True))
    assert wrong == {mode: [] for mode in modes}


def test_the_cases_try_what_they_are_for() -> None:
    """Every outcome, and slots that are made for others, dropped and made again."""
    step_ns = STEPS_NS[0]
    arrivals = np.array([came * step_ns for came in ARRIVALS], np.int64)
    service = Service(levels=(np.array([SERVICE * step_ns], np.int64),) * 3)
    found = {mode: simulate(arrivals, service, case.server, seed=1) for mode, case in cases(step_ns).items()}
    assert {mode: Counter(each.status.tolist()) for mode, each in found.items()} == {
        "cold-load": {OK: 9, SHED: 4},
        "lazy": {OK: 8, SHED: 5},
        "warm-pool": {OK: 11, SHED: 1, TIMEOUT: 1},
        "elastic": {OK: 13},
    }
    assert found["elastic"].slots.tolist() == [1, 2, 3, 2, 1, 0, 1, 2]
    assert found["lazy"].slots.tolist() == [1, 2, 3]
