"""What the reference server costs beside a bare handler: wrk against both in turn, five rounds, medians of ratios.

Needs wrk (https://github.com/wg/wrk) on the PATH. Both servers are one process with one worker, on the same loopback.
Once as the kernel schedules them, and once with a core for the servers and another for wrk: on a virtual machine a request's
way to its slot's thread and back wakes a halted core twice, which costs more than all the rest.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.engine.synthetic_builder import build_synthetic

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROUNDS = int(os.environ.get("COLDBURST_ROUNDS", "5"))
SECONDS = int(os.environ.get("COLDBURST_SECONDS", "3"))
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
ELEMENTS = {"4 KB": 1024, "602 KB": 150_528}
BARS = {("4 KB", 16): 0.40, ("602 KB", 16): 0.85, ("4 KB", 1): 0.65, ("602 KB", 1): 0.85}

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


def on_core(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "--cpu-list", str(core)]


@contextmanager
def started(*command: str, until: str, core: int | None = None) -> Iterator[str]:
    """Run a server until the block ends, on one core where given; gives its URL once it has printed the line `until`."""
    process = subprocess.Popen([*on_core(core), sys.executable, *command], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    url = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("listening on "):
                url = line.split()[-1]
            if line.startswith(until):
                break
        assert url
        yield url
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def reference_server(tmp_path: Path, slots: int, core: int | None = None) -> Iterator[str]:
    engines = []
    for name, elements in ELEMENTS.items():
        directory = tmp_path / name.replace(" ", "")
        build_synthetic(directory, name=directory.name, input_elements=elements, output_elements=1024)
        engines.append(str(directory))
    with started("-m", "reference_server", *engines, "--port", "0", "--pool-size", str(slots), until="ready", core=core) as url:
        yield url


def binary_request(elements: int) -> tuple[bytes, int]:
    """A V2 body with one binary tensor, and the length of its JSON."""
    tensor = np.random.default_rng(1).random(elements, dtype=np.float32).tobytes()
    entry = {"name": "input", "datatype": "FP32", "shape": [1, elements], "parameters": {"binary_data_size": len(tensor)}}
    head = json.dumps({"inputs": [entry], "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}).encode()
    return head + tensor, len(head)


def wrk(url: str, connections: int, body: Path, head_length: int, core: int | None) -> float:
    """Requests per second."""
    command = [
        *on_core(core),
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{SECONDS}s",
        "-s",
        str(HERE / "post.lua"),
        url,
        "--",
        str(body),
        str(head_length),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    counted = json.loads(run.stdout.splitlines()[-1])
    assert counted["failed"] == 0 and counted["requests"] > 0, run.stdout
    return counted["requests"] / counted["duration_us"] * 1e6


@needs_wrk
@pytest.mark.parametrize("pinned", [pytest.param(False, id="free"), pytest.param(True, id="a-core-each")])
def test_throughput_against_a_bare_handler(tmp_path: Path, pinned: bool) -> None:
    server_core, wrk_core = sorted(os.sched_getaffinity(0))[:2] if pinned else (None, None)
    ratios: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in BARS}
    bare_handler = started(str(HERE / "bare_server.py"), until="listening", core=server_core)
    with reference_server(tmp_path, slots=2, core=server_core) as server, bare_handler as bare:
        for round_ in range(ROUNDS):
            for (size, connections), seen in ratios.items():
                body = tmp_path / "body"
                content, head_length = binary_request(ELEMENTS[size])
                body.write_bytes(content)
                path = f"/v2/models/{size.replace(' ', '')}/infer"
                order = [bare, server] if round_ % 2 else [server, bare]
                rates = {url: wrk(url + path, connections, body, head_length, wrk_core) for url in order}
                seen.append((rates[server], rates[bare]))
    missed = []
    for (size, connections), seen in ratios.items():
        ratio = statistics.median(ours / theirs for ours, theirs in seen)
        ours, theirs = (statistics.median(column) for column in zip(*seen, strict=True))
        bar = BARS[size, connections]
        print(f"{size:>7} {connections:>3} connections: {ours:7.0f} /s, bare {theirs:7.0f} /s, ratio {ratio:.2f} (bar {bar:.2f})")
        if ratio < bar:
            missed.append((size, connections, ratio, bar))
    assert not missed


def test_what_the_parts_leave_out(tmp_path: Path) -> None:
    """Round trip less the Server-Timing parts at one connection: at most 1.5 times a whole bare round trip, in the median."""
    body, head_length = binary_request(1024)
    headers = {"Inference-Header-Content-Length": str(head_length)}
    rest_ns: list[int] = []
    bare_ns: list[int] = []
    with reference_server(tmp_path, slots=1) as server, started(str(HERE / "bare_server.py"), until="listening") as bare:
        connections = {url: http.client.HTTPConnection(url.removeprefix("http://")) for url in (server, bare)}
        for _ in range(3000):
            for url, connection in connections.items():
                sent = time.perf_counter_ns()
                connection.request("POST", "/v2/models/4KB/infer", body, headers)
                response = connection.getresponse()
                response.read()
                round_trip = time.perf_counter_ns() - sent
                assert response.status == 200
                if url == bare:
                    bare_ns.append(round_trip)
                    continue
                parts = re.findall(r"dur=([0-9.]+)", response.headers["Server-Timing"])
                rest_ns.append(round_trip - sum(round(float(part) * 1e6) for part in parts))
    rest, whole = statistics.median(rest_ns[500:]), statistics.median(bare_ns[500:])
    print(f"unattributed rest p50 {rest / 1e3:.0f} us, bare round trip p50 {whole / 1e3:.0f} us, ratio {rest / whole:.2f} (bar 1.50)")
    assert min(rest_ns) > 0
    assert rest <= 1.5 * whole


def test_imports_and_start(tmp_path: Path) -> None:
    """The server's own imports take at most 400 ms, a start until live at most 600 ms (the best of seven, warm)."""
    build_synthetic(tmp_path / "engine", name="engine")

    def run_ms(*command: str, until: str | None = None) -> float:
        began = time.perf_counter_ns()
        if until is None:
            subprocess.run([sys.executable, *command], cwd=ROOT, env=ENVIRONMENT, check=True)
            return (time.perf_counter_ns() - began) / 1e6
        with started(*command, until=until) as url:
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            connection.request("GET", "/v2/health/live")
            assert connection.getresponse().status == 200
            return (time.perf_counter_ns() - began) / 1e6

    empty = statistics.median(run_ms("-c", "pass") for _ in range(7))
    imports = statistics.median(run_ms("-c", "import reference_server.serving") for _ in range(7)) - empty
    command = ("-m", "reference_server", str(tmp_path / "engine"), "--port", "0")
    live = statistics.median(run_ms(*command, until="listening") for _ in range(7))
    print(f"imports {imports:.0f} ms (bar 400), start to live {live:.0f} ms (bar 600)")
    assert imports <= 400
    assert live <= 600
