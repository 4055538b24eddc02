"""The same load on a V2 server that is not ours: MLServer, in an environment of its own.

Every arrival is accounted for there too, and the server's parts are empty, because it does not send them. The second
test prints what each server does with the same bodies: requests per second in closed loop (wrk, 16 connections).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from side_environment import side_environment

from bench.analysis.validity import check_run
from bench.engine.synthetic_builder import build_synthetic
from bench.records import open_run
from bench.scenario_files import scenario_file
from bench.server_process import ServerProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROUNDS = int(os.environ.get("COLDBURST_ROUNDS", "3"))
SECONDS = int(os.environ.get("COLDBURST_SECONDS", "3"))
ELEMENTS = {"4KB": 1024, "602KB": 150_528}
PARTS = ("queue_ns", "pool_ns", "load_ns", "input_ns", "infer_ns", "output_ns")

pytestmark = pytest.mark.timeout(1800)  # the first time it installs MLServer


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of MLServer with a model `4KB` and a model `602KB`, in one process as our server is."""
    programs = side_environment("mlserver>=1.7.1,<2")
    folder = tmp_path_factory.mktemp("mlserver")
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}))
    for name, elements in ELEMENTS.items():
        (folder / name).mkdir()
        shutil.copy(HERE / "mlserver_double.py", folder / name)
        tensors = {"inputs": "input", "outputs": "output"}
        sizes = {"inputs": elements, "outputs": 1024}
        described = {key: [{"name": tensors[key], "datatype": "FP32", "shape": [-1, sizes[key]]}] for key in tensors}
        settings = {"name": name, "implementation": "mlserver_double.Double", "platform": "python", **described}
        (folder / name / "model-settings.json").write_text(json.dumps(settings))
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen([str(programs / "mlserver"), "start", "."], cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        give_up = time.monotonic() + 120
        while not all(ready(http_port, name) for name in ELEMENTS):
            assert process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{http_port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ready(port: int, model: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"/v2/models/{model}/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.mark.parametrize("model", ELEMENTS)
def test_every_arrival_is_accounted_for_on_a_server_of_others(mlserver: str, tmp_path: Path, model: str) -> None:
    arguments = [f"--host={mlserver}", f"--model={model}", f"--results={tmp_path / 'results'}", "--verify-every=10"]
    load = ["--base-rate=5", "--peak-rate=40", "--spikes=3", "--hold=1s", "--rest=2s"]
    command = [sys.executable, "-m", "locust", "-f", str(scenario_file("burst")), "--headless", "--only-summary", *arguments, *load]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    saved = open_run(Path(done.stdout.strip().splitlines()[-1]))
    rows, schedule = saved.table("requests"), saved.table("schedule")
    assert rows is not None and schedule is not None and not saved.partial
    assert sorted(rows.column("seq").to_pylist()) == schedule.column("seq").to_pylist()
    for part in PARTS:
        assert rows.column(part).null_count == len(rows), part
    target = saved.run["target"]
    assert target["server"].startswith("mlserver ") and target["encoding"] == "json"
    assert target["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [1, ELEMENTS[model]]}]
    validity = check_run(saved.path)
    assert next(check for check in validity.checks if check.name == "arrivals").problem is None
    print(f"\n{target['server']}, {model}: {dict(validity.counts)}, {'valid' if validity.valid else 'INVALID'}")
    assert validity.counts["ok"] == len(schedule), validity.counts


def json_body(elements: int) -> bytes:
    data = np.random.default_rng(1).random(elements, dtype=np.float32).tolist()
    return json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, elements], "data": data}]}).encode()


def binary_body(elements: int) -> tuple[bytes, int]:
    """The same values in the binary tensor extension, and the length of its JSON."""
    raw = np.random.default_rng(1).random(elements, dtype=np.float32).tobytes()
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, elements], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}).encode()
    return head + raw, len(head)


def status_of(url: str, model: str, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def wrk(url: str, body: Path, *head_length: str) -> tuple[float, float]:
    """Requests per second, and the median round trip in ms."""
    command = ["wrk", "-t1", "-c16", f"-d{SECONDS}s", "--timeout=30s", "-s", str(HERE / "post.lua"), url, "--", str(body), *head_length]
    counted = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert counted["failed"] == 0 and counted["requests"] > 0, counted
    return counted["requests"] / counted["duration_us"] * 1e6, counted["p50_us"] / 1e3


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_requests_per_second_beside_ours(mlserver: str, tmp_path: Path) -> None:
    engines = []
    for name, elements in ELEMENTS.items():
        build_synthetic(tmp_path / name, name=name, input_elements=elements, output_elements=1024)
        engines.append(tmp_path / name)
    cases: dict[tuple[str, str], tuple[Path, tuple[str, ...]]] = {}
    for name, elements in ELEMENTS.items():
        binary, head_length = binary_body(elements)
        for encoding, body, arguments in (("json", json_body(elements), ()), ("binary", binary, (str(head_length),))):
            file = tmp_path / f"{name}.{encoding}"
            file.write_bytes(body)
            cases[name, encoding] = file, arguments
    with ServerProcess(engines, ["--pool-size=2"]) as ours:
        ours.wait_ready()
        servers = {"ours": ours.url, "mlserver": mlserver}
        print(f"\n{'body':>7} {'encoding':>8} {'bytes':>9} {'ours /s':>9} {'p50 ms':>8} {'mlserver /s':>12} {'p50 ms':>8} {'ratio':>6}")
        for (name, encoding), (file, arguments) in cases.items():
            seen: dict[str, list[tuple[float, float]]] = {"ours": [], "mlserver": []}
            headers = {"Content-Type": "application/json", **({"Inference-Header-Content-Length": arguments[0]} if arguments else {})}
            can = {server: status_of(url, name, file.read_bytes(), headers) == 200 for server, url in servers.items()}
            assert can["ours"] and (can["mlserver"] or encoding == "binary")
            for round_ in range(ROUNDS):
                for server in sorted(servers, reverse=bool(round_ % 2)):
                    if can[server]:
                        seen[server].append(wrk(f"{servers[server]}/v2/models/{name}/infer", file, *arguments))
            rates = {
                server: [statistics.median(column) for column in zip(*rounds, strict=True)] for server, rounds in seen.items() if rounds
            }
            theirs = rates.get("mlserver")
            line = f"{name:>7} {encoding:>8} {file.stat().st_size:>9,} {rates['ours'][0]:>9,.0f} {rates['ours'][1]:>8.2f} "
            if theirs is None:
                print(f"{line}{'not taken':>12}")
                continue
            print(f"{line}{theirs[0]:>12,.0f} {theirs[1]:>8.2f} {rates['ours'][0] / theirs[0]:>6.1f}")
