"""The server as its clients meet it: a real process, real sockets, and the V2 client that others use."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as triton
from conftest import SyntheticFactory

ROOT = Path(__file__).parents[1]
ELEMENTS = 4
MS = 10**6


@dataclass(kw_only=True)
class Server:
    """A server process and what it said."""

    process: subprocess.Popen[str]
    port: int
    stderr: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, content

    def infer(self, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self.ask("POST", INFER, good_body(), headers)

    def open(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(data)
        return connection

    def metric(self, line: str) -> float:
        text = self.ask("GET", "/metrics")[2].decode()
        return next((float(found.group(1)) for found in re.finditer(rf"^{re.escape(line)} (\S+)$", text, re.M)), 0.0)

    def errors(self) -> str:
        return self.stderr.read_text()


INFER = "/v2/models/synthetic/infer"


def good_body(**more: Any) -> bytes:
    entry = {"name": "input", "shape": [1, ELEMENTS], "datatype": "FP32", "data": [1.5] * ELEMENTS}
    return json.dumps({"inputs": [entry], **more}).encode()


def raw_request(body: bytes, *headers: str, path: str = INFER) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "reference_server", *map(str, arguments), "--port", "0"]


@pytest.fixture
def engine(synthetic: SyntheticFactory) -> Callable[..., Path]:
    def build(**declared: Any) -> Path:
        return synthetic(input_elements=ELEMENTS, output_elements=ELEMENTS, **declared)

    return build


@contextmanager
def serving(tmp_path: Path, *arguments: str | Path, until: str = "ready", errors_to: int | None = None) -> Iterator[Server]:
    stderr = tmp_path / f"stderr-{time.monotonic_ns()}"
    with stderr.open("w") as file, ExitStack() as stack:
        errors: Any = file if errors_to is None else errors_to
        process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        stack.callback(end, process)
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            if line.startswith("listening on http://"):
                port = int(line.rsplit(":", 1)[1])
            if line.startswith(until):
                break
        assert port, stderr.read_text()
        yield Server(process=process, port=port, stderr=stderr)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s in vain: {what}"
        time.sleep(0.01)


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    connection.close()
    return b"".join(pieces)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that leave it as it was."""
    from bench.engine.synthetic_builder import build_synthetic

    folder = tmp_path_factory.mktemp("shared")
    build_synthetic(folder / "synthetic", name="synthetic", input_elements=ELEMENTS, output_elements=ELEMENTS)
    build_synthetic(folder / "slow", name="slow", input_elements=ELEMENTS, output_elements=ELEMENTS, service_ns=100 * MS)
    with serving(folder, folder / "synthetic", folder / "slow", "--pool-size", "2", "--max-body", "100KB") as server:
        yield server


# Protocol


def test_health_and_metadata(shared: Server) -> None:
    assert shared.ask("GET", "/v2/health/live")[0] == 200
    assert shared.ask("GET", "/v2/health/ready")[0] == 200
    for base in ("/v2/models/synthetic", "/v2/models/synthetic/versions/1"):
        assert shared.ask("GET", f"{base}/ready")[0] == 200
        assert json.loads(shared.ask("GET", base)[2])["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, ELEMENTS]}]
        assert shared.ask("POST", f"{base}/infer", good_body())[0] == 200
    about = json.loads(shared.ask("GET", "/v2")[2])
    assert "binary_tensor_data" in about["extensions"]
    assert about["parameters"]["mode"] == "warm-pool" and about["parameters"]["pool_size"] >= 1
    assert int(about["parameters"]["settings"]["threads"]) >= 1 and about["parameters"]["idle_timeout_ns"] == 30 * 10**9
    described = json.loads(shared.ask("GET", "/openapi.json")[2])["paths"][INFER]["post"]["requestBody"]["content"]["application/json"]
    (tensor,) = described["schema"]["properties"]["inputs"]["items"]["oneOf"]
    assert [size["maximum"] for size in tensor["properties"]["shape"]["prefixItems"]] == [8, ELEMENTS]
    assert shared.ask("POST", INFER, json.dumps(described["example"]).encode())[0] == 200
    assert shared.ask("HEAD", "/v2/health/live")[2] == b""
    models = json.loads(shared.ask("POST", "/v2/repository/index", b"{}")[2])
    assert [(model["name"], model["version"], model["state"]) for model in models] == [("synthetic", "1", "READY"), ("slow", "1", "READY")]
    assert re.search(rb"^process_start_time_seconds [0-9.e+]+$", shared.ask("GET", "/metrics")[2], re.MULTILINE)


@pytest.mark.parametrize(
    ("method", "path", "status", "names"),
    [
        ("GET", "/", 404, "nothing at '/'"),
        ("GET", "/v2/models/nope", 404, "unknown model 'nope'; served here: synthetic, slow"),
        ("POST", "/v2/models/nope/infer", 404, "unknown model 'nope'"),
        ("POST", "/v2/models/synthetic/versions/9/infer", 404, "no version '9'"),
        ("GET", "/v2/models/synthetic/versions/9/ready", 404, "no version '9'"),
        ("GET", "/v2/models//ready", 404, "nothing at"),
        ("GET", INFER, 405, "takes POST, not GET"),
        ("POST", "/v2/health/live", 405, "takes GET, HEAD, not POST"),
    ],
)
def test_paths_that_do_not_exist(shared: Server, method: str, path: str, status: int, names: str) -> None:
    got, headers, body = shared.ask(method, path)
    assert got == status
    assert names in json.loads(body)["error"]
    assert (got == 405) == ("allow" in headers)


def test_triton_client_unchanged(shared: Server) -> None:
    client = triton.InferenceServerClient(shared.address)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("synthetic", "1")
    assert client.get_model_metadata("synthetic")["platform"] == "synthetic"
    array = np.random.default_rng(0).random((3, ELEMENTS), dtype=np.float32)
    for binary_in in (False, True):
        for outputs in (
            None,
            [triton.InferRequestedOutput("output", binary_data=False)],
            [triton.InferRequestedOutput("output", binary_data=True)],
        ):
            given = triton.InferInput("input", list(array.shape), "FP32")
            given.set_data_from_numpy(array, binary_data=binary_in)
            result = client.infer("synthetic", [given], outputs=outputs, request_id="an id")
            assert np.array_equal(result.as_numpy("output"), array * 2)
            assert result.get_response()["id"] == "an id"
    statistics = client.get_inference_statistics("synthetic")["model_stats"][0]
    assert statistics["execution_count"] >= 6
    assert [model["name"] for model in client.get_inference_statistics()["model_stats"]] == ["synthetic", "slow"]
    with pytest.raises(triton.InferenceServerException, match="maximum batch is 8"):
        given = triton.InferInput("input", [9, ELEMENTS], "FP32")
        given.set_data_from_numpy(np.zeros((9, ELEMENTS), np.float32))
        client.infer("synthetic", [given])
    client.close()


def test_the_parts_add_up(shared: Server) -> None:
    began = time.monotonic_ns()
    status, headers, _ = shared.ask("POST", "/v2/models/slow/infer", good_body())
    round_trip_ns = time.monotonic_ns() - began
    parts = {name: round(float(ms) * MS) for name, ms in re.findall(r"(\w+);dur=([0-9.]+)", headers["server-timing"])}
    assert status == 200
    assert list(parts) == ["queue", "pool", "load", "input", "infer", "output"]
    assert parts["infer"] >= 100 * MS
    assert sum(parts.values()) <= round_trip_ns


def test_bodies_that_are_not_taken(shared: Server) -> None:
    large = b" " * 100_001
    for body, headers, status, names in (
        (good_body(), {"Content-Encoding": "gzip"}, 415, "compressed"),
        (good_body(), {"Transfer-Encoding": "gzip, chunked"}, 415, "transfer encoding"),
        (large, {}, 413, "the limit is 100000"),
        (b"{", {}, 400, "not JSON"),
    ):
        if "Transfer-Encoding" in headers:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        got, answered, content = shared.ask("POST", INFER, body, headers)
        assert (got, names in json.loads(content)["error"]) == (status, True), content
        assert "server-timing" in answered
    for twice, status in (("Content-Encoding: br\r\nContent-Encoding: identity", b"415"), ("Accept: a\r\nAccept: b", b"200")):
        assert read_all(shared.open(raw_request(good_body(), twice, "Connection: close")))[9:12] == status
    chunked = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode() + b"3000\r\n" + b" " * 0x3000 + b"\r\n"
    with shared.open(chunked + (b"3000\r\n" + b" " * 0x3000 + b"\r\n") * 8) as connection:
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_connection_survives_a_body_that_was_too_large(shared: Server) -> None:
    connection = http.client.HTTPConnection(shared.address, timeout=60)
    for body, status in ((b" " * 500_000, 413), (good_body(), 200)):
        connection.request("POST", INFER, body)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_rubbish_instead_of_http(shared: Server) -> None:
    for rubbish in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
    ):
        answer = read_all(shared.open(rubbish))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    for too_long in (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 80_000)):
        assert read_all(shared.open(too_long)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("line", [b"GET /v2 HTTP/2.0", b"GET /v2 HTTP/0.9", b"GET /v2"])
def test_versions_of_http_that_are_not_spoken(shared: Server, line: bytes) -> None:
    answer = read_all(shared.open(line + b"\r\nHost: x\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 505 ") and b"connection: close" in answer
    assert b"speaks HTTP/1.1 and HTTP/1.0, not HTTP/" in answer


def test_a_body_longer_than_declared_is_the_next_request(shared: Server) -> None:
    body = good_body()
    answer = read_all(shared.open(raw_request(body) + b"surplus\r\n\r\n"))
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert answer.count(b"HTTP/1.1") == 1  # the surplus is no request: the connection is closed after the answer


def test_an_upgrade_is_ignored(shared: Server) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    answer = read_all(shared.open("\r\n".join(("GET /v2 HTTP/1.1", "Host: x", *upgrade, "", "")).encode()))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    answer = read_all(shared.open(raw_request(good_body(), *upgrade)))
    assert answer.startswith(b"HTTP/1.1 400 ") and b"without an Upgrade header" in answer
    assert "upgrade" not in shared.errors()


def test_pipelined_requests_are_answered_in_order(shared: Server) -> None:
    requests = [
        raw_request(good_body(id=str(number)), path=f"/v2/models/{'slow' if number % 3 == 0 else 'synthetic'}/infer") for number in range(9)
    ]
    last = raw_request(good_body(id="9"), "Connection: close")
    answer = read_all(shared.open(b"".join(requests) + last))
    assert re.findall(rb'"id":"(\d)"', answer) == [str(number).encode() for number in range(10)]


@pytest.mark.parametrize("seed", range(3))
def test_bodies_of_any_size_in_pieces_of_any_size(shared: Server, seed: int) -> None:
    """The parser does not see the rest of a large body; what follows in the same piece is the next request all the same."""
    random = np.random.default_rng(seed)
    padded = [good_body(id=str(number)) + b" " * int(random.choice([0, 20_000, 90_000])) for number in range(9)]
    requests = [raw_request(body) for body in padded] + [raw_request(good_body(id="9"), "Connection: close")]
    stream = memoryview(b"".join(requests))
    connection = shared.open()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while stream:
        size = int(random.choice([7, 900, 16_384, 60_000, 200_000]))
        connection.sendall(stream[:size])
        stream = stream[size:]
    answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 10
    assert re.findall(rb'"id":"(\d)"', answer) == [str(number).encode() for number in range(10)]


@pytest.fixture
def wide(tmp_path: Path, synthetic: SyntheticFactory) -> Path:
    """An engine whose binary requests have a megabyte, which is received in place."""
    return synthetic(input_elements=250_000, output_elements=4)


def binary_request(value: float, *headers: str) -> bytes:
    tensor = np.full(250_000, value, "<f4").tobytes()
    entry = {"name": "input", "shape": [1, 250_000], "datatype": "FP32", "parameters": {"binary_data_size": len(tensor)}}
    head = json.dumps({"inputs": [entry]}).encode()
    return raw_request(head + tensor, f"Inference-Header-Content-Length: {len(head)}", *headers)


@pytest.mark.parametrize("seed", range(3))
def test_large_bodies_keep_their_order_and_content(tmp_path: Path, wide: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    with serving(tmp_path, wide) as server:
        stream = memoryview(b"".join([*map(binary_request, range(8)), binary_request(8, "Connection: close")]))
        connection = server.open()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while stream:
            size = int(random.choice([7, 20_000, 300_000, 1_100_000]))
            connection.sendall(stream[:size])
            stream = stream[size:]
        answer = read_all(connection)
        assert re.findall(rb'"data":\[([^]]*)\]', answer) == [b",".join([b"%.1f" % (2 * value)] * 4) for value in range(9)]
        assert server.errors() == ""


def test_a_large_body_that_stops_half_way(tmp_path: Path, wide: Path) -> None:
    request = binary_request(1)
    with serving(tmp_path, wide, "--pool-size", "1", "--body-timeout", "600ms") as server:
        answer = read_all(server.open(request[:500_000]))
        assert answer.startswith(b"HTTP/1.1 408 ") and b"body did not arrive in time" in answer and b"server-timing" in answer
        server.open(request[:500_000]).close()
        until(lambda: requests_total(server, "cancelled") == 1, "the second one is counted")
        assert requests_total(server, "invalid") == 1
        until(lambda: open_sockets(server) == 0, "the connection is gone")
        assert read_all(server.open(binary_request(1, "Connection: close"))).endswith(b'"data":[2.0,2.0,2.0,2.0]}]}')
        assert server.errors() == ""


def test_the_rest_of_a_large_body_may_come_after_its_answer(tmp_path: Path, wide: Path) -> None:
    refused, good = binary_request(1, "Content-Encoding: gzip"), binary_request(3, "Connection: close")
    with serving(tmp_path, wide) as server:
        connection = server.open(refused[:500_000])
        assert connection.recv(12) == b"HTTP/1.1 415"
        connection.sendall(refused[500_000:] + good)
        assert read_all(connection).endswith(b'"data":[6.0,6.0,6.0,6.0]}]}')


def test_expect_continue(shared: Server) -> None:
    body = good_body()
    head, _, _ = raw_request(body, "Expect: 100-continue", "Connection: close").partition(b"\r\n\r\n")
    connection = shared.open(head + b"\r\n\r\n")
    assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    assert read_all(connection).startswith(b"HTTP/1.1 200 OK")
    connection = shared.open(head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n")  # knows of no interim replies
    connection.sendall(body)
    assert read_all(connection).startswith(b"HTTP/1.1 200 OK")


# Load and clients that misbehave


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Where an engine with `gate=gate` stands still while there is a file, so that a state lasts until the test has seen it."""
    return tmp_path / "gate"


def test_live_while_loading_ready_when_loaded(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    gate.touch()
    with serving(tmp_path, engine(gate=gate), until="listening") as server:
        assert server.ask("GET", "/v2/health/live")[0] == 200
        assert server.ask("GET", "/v2/health/ready")[0] == 503
        assert server.ask("GET", "/v2/models/synthetic/ready")[0] == 503
        gate.unlink()
        assert server.process.stdout is not None and server.process.stdout.readline() == "ready\n"
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        assert server.infer()[0] == 200


def test_the_queue_limit_sheds(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    with serving(tmp_path, engine(gate=gate), "--queue-limit", "1") as server:
        gate.touch()
        first, second = (server.open(raw_request(good_body(), "Connection: close")) for _ in range(2))
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 1, "one request waits")
        status, headers, body = server.infer()
        assert status == 503 and int(headers["retry-after"]) >= 1
        assert "wait for model synthetic" in json.loads(body)["error"]
        gate.unlink()
        assert read_all(first).startswith(b"HTTP/1.1 200") and read_all(second).startswith(b"HTTP/1.1 200")


def test_a_client_that_goes_away_frees_its_place(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    with serving(tmp_path, engine(gate=gate), "--queue-limit", "1") as server:
        gate.touch()
        running = server.open(raw_request(good_body(), "Connection: close"))
        until(lambda: server.metric('coldburst_slots{model="synthetic",state="busy"}') == 1, "the first one runs")
        waiting = server.open(raw_request(good_body(), "Connection: close"))
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 1, "one request waits")
        waiting.close()
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 0, "its place is free")
        next_one = server.open(raw_request(good_body(), "Connection: close"))
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 1, "another one took it")
        gate.unlink()
        assert read_all(running).startswith(b"HTTP/1.1 200")
        assert read_all(next_one).startswith(b"HTTP/1.1 200")
        assert server.metric('coldburst_requests_total{model="synthetic",outcome="cancelled"}') == 1
        assert server.metric('coldburst_requests_total{model="synthetic",outcome="ok"}') == 2
        assert "Traceback" not in server.errors()


def test_slow_and_silent_clients_are_sent_away(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(), "--header-timeout", "500ms", "--body-timeout", "600ms") as server:
        silent = server.open()
        half_headers = server.open(b"POST /v2/models/synthetic/infer HTTP/1.1\r\nHost")
        half_body = server.open(raw_request(good_body())[:-5])
        dripping = server.open(b"GET /v2 HTTP/1.1\r\n")

        def drip() -> bool:
            try:
                dripping.sendall(b"X: y\r\n")
            except OSError:
                return True
            return False

        until(drip, "a client that sends a header at a time is cut off")
        dripping.close()
        assert read_all(silent) == b""
        assert read_all(half_headers).startswith(b"HTTP/1.1 408 ")
        answer = read_all(half_body)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"body did not arrive in time" in answer
        assert server.infer()[0] == 200


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    big = synthetic(input_elements=ELEMENTS, output_elements=1_000_000)
    body = good_body(parameters={"binary_data_output": True})
    with serving(tmp_path, big, "--body-timeout", "300ms") as server:
        connection = server.open(raw_request(body) * 4)
        until(lambda: server.metric('coldburst_requests_total{model="synthetic",outcome="ok"}') > 0, "the first answer is written")
        until(lambda: open_sockets(server) == 0, "the connection is gone")
        assert len(read_all(connection)) < 4 * 4_000_000
        assert server.infer()[0] == 200


def requests_total(server: Server, outcome: str) -> float:
    return server.metric(f'coldburst_requests_total{{model="synthetic",outcome="{outcome}"}}')


def open_sockets(server: Server) -> int:
    return sum(found.status == "ESTABLISHED" for found in psutil.Process(server.process.pid).net_connections("tcp"))


def test_failures_of_the_model_are_stated(tmp_path: Path, engine: Callable[..., Path]) -> None:
    # The probe's runs count too: two cases before ready, so the fourth run is the second request's.
    with serving(tmp_path, engine(fail_every_runs=4)) as server:
        answers = [server.infer() for _ in range(2)]
        assert [status for status, _, _ in answers] == [200, 500]
        assert "declared to fail" in json.loads(answers[1][2])["error"]
        assert "server-timing" in answers[1][1]


def test_a_failed_load_is_reported_to_those_that_waited(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(fail_every_loads=2), "--mode", "cold-load") as server:  # the first load is the start's
        answers = [server.infer() for _ in range(2)]
        assert [status for status, _, _ in answers] == [500, 200]
        assert "declared to fail" in json.loads(answers[0][2])["error"]


def test_json_lines(tmp_path: Path, engine: Callable[..., Path]) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with serving(tmp_path, engine(), "--log-json") as server:
        server.infer(traceparent=trace)
        for bad in ("00-0-0-00", trace.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), f"{trace}-more", "ff" + trace[2:]):
            server.infer(traceparent=bad)
        server.ask("POST", INFER, good_body(id='a "quoted" id'))
        server.ask("POST", INFER, b"{")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        lines = [json.loads(line) for line in server.errors().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["trace_id"] for line in requests] == ["0af7651916cd43dd8448eb211c80319c"] + [None] * 6
    assert requests[0]["parent_id"] == "b7ad6b7169203331"
    assert [line["status"] for line in requests] == [200] * 6 + [400]
    assert requests[5]["id"] == 'a "quoted" id'
    for line in requests:
        assert line["duration_ns"] == sum(line[f"{part}_ns"] for part in ("queue", "pool", "load", "input", "infer", "output"))


# Hostile clients


def resident_bytes(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_a_client_that_pipelines_without_end_is_held_back(tmp_path: Path, engine: Callable[..., Path]) -> None:
    flood = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 500
    with serving(tmp_path, engine()) as server:
        server.infer()
        before = resident_bytes(server)
        connection = server.open()
        connection.settimeout(0.3)
        sent = 0
        try:
            while sent < 40_000_000:  # without the limit this took 1.5 GB
                sent += connection.send(flood)
        except TimeoutError:
            pass
        assert sent < 40_000_000
        assert server.infer()[0] == 200
        assert resident_bytes(server) - before < 30_000_000
        connection.close()
        until(lambda: open_sockets(server) == 0, "the connection is gone")
        assert server.infer()[0] == 200
        assert server.errors() == ""


def test_a_client_that_pipelines_and_reads_gets_every_answer_in_bounded_memory(tmp_path: Path, engine: Callable[..., Path]) -> None:
    count, answers = 12_000, 0
    with serving(tmp_path, engine()) as server:
        server.infer()
        before = resident_bytes(server)
        connection = server.open()
        requests = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * (count - 1)
        last = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        sender = threading.Thread(target=connection.sendall, args=(requests + last,))
        sender.start()
        tail, most = b"", before
        while piece := connection.recv(65536):
            text = tail + piece
            answers += text.count(b'{"live":true}')
            tail = text[-12:]
            most = max(most, resident_bytes(server))
        sender.join()
        connection.close()
        assert answers == count
        assert most - before < 30_000_000


def test_a_body_in_tiny_chunks_takes_no_more_memory_than_another(tmp_path: Path, engine: Callable[..., Path]) -> None:
    chunks = 500_000
    with serving(tmp_path, engine()) as server:
        server.infer()
        before = resident_bytes(server)
        connection = server.open(b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode())
        connection.sendall(b"2\r\n  \r\n" * chunks)
        until(lambda: unread(connection) == 0, "the server has read all")
        assert server.infer()[0] == 200
        assert resident_bytes(server) - before < 10_000_000  # of 1 MB; it was 27 MB
        connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(good_body()), good_body()))
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()


CHUNKED = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"


def flood(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send pieces until `most` bytes are sent, or nobody takes them. Returns how many went out."""
    connection.settimeout(0.5)
    sent = 0
    try:
        while sent < most:
            sent += connection.send(piece)
    except (TimeoutError, ConnectionError):
        pass
    connection.settimeout(60)
    return sent


def test_of_a_body_over_the_limit_nothing_is_kept(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(), "--max-body", "1MB") as server:
        server.infer()
        before = resident_bytes(server)
        connection = server.open(CHUNKED % INFER.encode())
        assert flood(connection, CHUNK, 64_000_000) >= 64_000_000  # it is read, so that the client comes to read the answer
        assert connection.recv(12) == b"HTTP/1.1 413"
        assert resident_bytes(server) - before < 10_000_000
        assert requests_total(server, "invalid") == 1
        connection.close()


def test_a_body_that_nobody_asks_for_is_not_read(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    """Behind a request that runs, and of a load that takes its time."""
    first, beside = engine(gate=gate), engine(name="beside", gate=gate)
    with serving(tmp_path, first, f"--on-demand=beside={beside}", "--max-body", "20MB") as server:
        server.infer()
        gate.touch()
        running, before = raw_request(good_body()), resident_bytes(server)
        for head, answers in (
            (running + CHUNKED % INFER.encode(), [b"200", b"413"]),
            (running + raw_request(b"")[:-4].replace(b"Length: 0", b"Length: 100000000000") + b"\r\n\r\n", [b"200", b"413"]),
            (CHUNKED % b"/v2/repository/models/beside/load", [b"200"]),
        ):
            gate.touch()
            connection = server.open(head)
            assert flood(connection, CHUNK, 60_000_000) < 60_000_000
            assert resident_bytes(server) - before < 30_000_000
            gate.unlink()
            sender = threading.Thread(target=flood, args=(connection, CHUNK, 60_000_000))
            sender.start()
            received = b""
            while len(re.findall(rb"HTTP/1\.1 (\d+)", received)) < len(answers):
                received += connection.recv(65536)
            assert re.findall(rb"HTTP/1\.1 (\d+)", received) == answers
            sender.join()
            connection.close()
        until(lambda: open_sockets(server) == 0, "the connections are gone")
        assert resident_bytes(server) - before < 30_000_000
        assert server.errors() == ""


def test_pipelined_bodies_wait_outside(tmp_path: Path, wide: Path) -> None:
    """Of the requests behind the one that is answered, no more is in memory than a read or two brought."""
    gate = tmp_path / "gate"
    gated = build_gated(tmp_path / "gated", gate)
    with serving(tmp_path, wide, gated) as server:
        server.ask("POST", "/v2/models/gated/infer", good_body())
        before = resident_bytes(server)
        gate.touch()
        first = raw_request(good_body(), path="/v2/models/gated/infer")
        connection = server.open(first * 8)
        sender = threading.Thread(target=flood, args=(connection, binary_request(1), 60_000_000))
        sender.start()
        sender.join()
        assert resident_bytes(server) - before < 10_000_000
        gate.unlink()
        connection.close()


def build_gated(directory: Path, gate: Path) -> Path:
    from bench.engine.synthetic_builder import build_synthetic

    build_synthetic(directory, name="gated", input_elements=ELEMENTS, output_elements=ELEMENTS, gate=gate)
    return directory


def test_tiny_chunks_leave_the_others_their_turn(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine()) as server:
        connection = server.open(CHUNKED % INFER.encode())
        sender = threading.Thread(target=connection.sendall, args=(b"1\r\n \r\n" * 500_000,))
        sender.start()
        answered = 0
        while sender.is_alive() or unread(connection):
            assert server.ask("GET", "/v2/health/live")[0] == 200
            answered += 1
        assert answered >= 10  # it was 0 or 1
        connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(good_body()), good_body()))
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()


def test_trailers_are_no_headers(shared: Server) -> None:
    body = b"%x\r\n%b\r\n0\r\n" % (len(good_body()), good_body())
    for trailers in (b"Inference-Header-Content-Length: 7\r\n", b"X: y\r\n" * 1000):
        with shared.open(CHUNKED % INFER.encode() + body + trailers + b"\r\n") as connection:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("endless", [b"0\r\nX: ", b"0\r\n", b"5;"])
def test_trailers_and_chunk_sizes_have_a_limit(shared: Server, endless: bytes) -> None:
    for path, already in ((INFER, False), ("/v2/models/nope/infer", True)):
        connection = shared.open(CHUNKED % path.encode() + b"5\r\nabcde\r\n" + endless)
        piece = b"y" * 65536 if endless != b"0\r\n" else b"a: b\r\n" * 10_000
        assert flood(connection, piece, 20_000_000) < 20_000_000
        answer = read_all(connection)
        if answer:  # else it was lost with the connection, which the client was still writing to
            assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"404" if already else b"431"]


def test_a_broken_chunk_is_told_at_once_and_in_turn(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    broken = CHUNKED % INFER.encode() + b"5\r\nabcde\r\n"
    with serving(tmp_path, engine(gate=gate)) as server:
        answer = read_all(server.open(broken + b"zz\r\n"))
        assert answer.startswith(b"HTTP/1.1 400 ") and b"server-timing" in answer and b"connection: close" in answer
        assert requests_total(server, "invalid") == 1
        gate.touch()
        connection = server.open(raw_request(good_body()) + broken)
        until(lambda: server.metric('coldburst_slots{model="synthetic",state="busy"}') == 1, "the first one runs")
        connection.sendall(b"zz\r\n")
        gate.unlink()
        assert re.findall(rb"HTTP/1\.1 (\d+)", read_all(connection)) == [b"200", b"400"]
        assert requests_total(server, "invalid") == 2 and requests_total(server, "cancelled") == 0


@pytest.mark.parametrize("cut", [20, -30])
def test_each_request_has_its_own_time(tmp_path: Path, engine: Callable[..., Path], cut: int) -> None:
    """Also where each packet ends one request and begins the next, in its head or in its body."""
    request = raw_request(good_body())
    with serving(tmp_path, engine(), "--header-timeout", "1s", "--body-timeout", "1s") as server:
        connection = server.open(request[:cut])
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            time.sleep(0.25)
            connection.sendall(request[cut:] + request[:cut])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.close()


def unread(connection: socket.socket) -> int:
    """Bytes sent that the peer's kernel has not acknowledged (SIOCOUTQ, tcp(7))."""
    import array
    import fcntl
    import termios

    held = array.array("i", [0])
    fcntl.ioctl(connection, termios.TIOCOUTQ, held)
    return held[0]


def test_the_header_limit_holds_however_they_come(shared: Server) -> None:
    long_header = f"X: {'a' * 100_000}"
    whole = read_all(shared.open(raw_request(good_body(), long_header)))
    assert whole.startswith(b"HTTP/1.1 431 ") and b"connection: close" in whole
    behind = read_all(shared.open(raw_request(good_body()) + raw_request(good_body(), long_header)))
    assert re.findall(rb"HTTP/1\.1 (\d+)", behind) == [b"200", b"431"]
    endless = read_all(shared.open(raw_request(good_body(), path="/v2/models/slow/infer") + b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 200_000))
    assert re.findall(rb"HTTP/1\.1 (\d+)", endless) == [b"200", b"431"]
    many = "\r\n".join(f"X{number}: {'a' * 50}" for number in range(1000))
    assert read_all(shared.open(raw_request(good_body(), many, "Connection: close"))).startswith(b"HTTP/1.1 200")
    # A long body is not counted as the headers of what follows it.
    padded = good_body() + b" " * 90_000
    two = raw_request(padded) + raw_request(good_body(), "Connection: close")
    connection = shared.open(two[: len(raw_request(padded)) + 30])
    time.sleep(0.05)
    connection.sendall(two[len(raw_request(padded)) + 30 :])
    assert re.findall(rb"HTTP/1\.1 (\d+)", read_all(connection)) == [b"200", b"200"]


@pytest.mark.parametrize("hosts", [[], ["Host: x", "Host: y"]])
def test_a_request_has_one_host(shared: Server, hosts: list[str]) -> None:
    answer = read_all(shared.open("\r\n".join(["GET /v2 HTTP/1.1", *hosts, "", ""]).encode()))
    assert answer.startswith(b"HTTP/1.1 400 ") and b"Host" in answer
    assert read_all(shared.open(b"GET /v2 HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


def test_two_lengths_of_the_json_are_refused(shared: Server) -> None:
    body = good_body()
    length = f"Inference-Header-Content-Length: {len(body)}"
    answer = read_all(shared.open(raw_request(body, length, "Inference-Header-Content-Length: 7", "Connection: close")))
    assert answer.startswith(b"HTTP/1.1 400 ") and b"two different Inference-Header-Content-Length" in answer and b"server-timing" in answer
    assert read_all(shared.open(raw_request(body, length, length, "Accept: a", "Accept: b", "Connection: close"))).startswith(
        b"HTTP/1.1 200 "
    )


@pytest.mark.parametrize("place", ["name", "datatype", "shape", "size", "id", "output", "names"])
def test_json_that_is_nested_deeply_is_a_bad_request(shared: Server, place: str) -> None:
    deep: Any = "@"
    entry: dict[str, Any] = {"name": "input", "shape": [1, ELEMENTS], "datatype": "FP32", "data": [1.5] * ELEMENTS}
    request: dict[str, Any] = {"inputs": [entry]}
    if place == "id":
        request["id"] = deep
    elif place == "output":
        request["outputs"] = [{"name": deep}]
    elif place == "names":
        request["inputs"] = [{"name": deep}, {"name": deep}]
    elif place == "size":
        entry["shape"] = [deep, ELEMENTS]
    else:
        entry[place] = deep
    body = json.dumps(request).replace('"@"', "[" * 1000 + "]" * 1000).encode()
    counted = 'coldburst_requests_total{model="synthetic",outcome="invalid"}'
    before = shared.metric(counted)
    status, headers, content = shared.ask("POST", INFER, body)
    assert status == 400, content
    assert len(content) < 300
    assert "server-timing" in headers
    assert shared.metric(counted) == before + 1


@pytest.mark.parametrize(
    "accept", [b"application/openmetrics-text;version=zz", b"application/openmetrics-text;version=\xff", b"\xff", b";=,"]
)
def test_metrics_for_those_who_ask_oddly(shared: Server, accept: bytes) -> None:
    answer = read_all(shared.open(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: " + accept + b"\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 OK") and b"content-type: text/plain" in answer


def test_a_client_that_vanishes_is_no_defect(tmp_path: Path, engine: Callable[..., Path]) -> None:
    infer = raw_request(good_body())
    with serving(tmp_path, engine(), "--body-timeout", "200ms") as server:
        for request in (infer, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"):
            for resets in (False, True):
                connection = socket.socket()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(0.1)
                connection.connect(("127.0.0.1", server.port))
                try:
                    for _ in range(20):
                        connection.sendall(request * 500)
                except OSError:
                    pass
                if resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    until(lambda: open_sockets(server) == 0, "the server cuts it off")
                connection.close()
        until(lambda: open_sockets(server) == 0, "all connections are gone")
        assert server.infer()[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert server.errors() == "reference_server: SIGTERM: finishing what was accepted\n"


def test_no_wait_for_a_slot_ends_early(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(service_ns=50 * MS), "--acquire-timeout", "15ms", "--log-json") as server:
        answers: list[bytes] = []

        def ask() -> None:
            answers.extend(server.infer()[2] for _ in range(6))

        clients = [threading.Thread(target=ask) for _ in range(5)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        lines = [json.loads(line) for line in server.errors().splitlines()]
    waits = [line["pool_ns"] + line["load_ns"] for line in lines if line.get("outcome") == "shed"]
    assert len(waits) >= 5
    assert min(waits) >= 15 * MS
    assert any(b"became free within 15.0 ms" in answer for answer in answers)


def test_the_phases_of_a_start_are_told(tmp_path: Path, engine: Callable[..., Path]) -> None:
    arguments = command(engine(load_ns=30 * MS), "--tell-phases")
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        word, _, facts = process.stdout.readline().partition(" ")
    finally:
        end(process)
    assert word == "ready"
    phases = json.loads(facts)["phases"]
    names = [phase["name"] for phase in phases]
    assert names[-1] == "collect" and "verify" in names and names.count("warmup") == names.count("probe") == 2
    assert [phase["model"] for phase in phases] == ["synthetic"] * (len(phases) - 1) + [None]
    assert sum(phase["end_ns"] - phase["start_ns"] for phase in phases if phase["name"] == "deserialise") >= 30 * MS
    assert all(first["end_ns"] <= second["start_ns"] for first, second in itertools.pairwise(phases))


# Life


def test_sigterm_under_load_drains(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    with serving(tmp_path, engine(gate=gate), "--pool-size", "2") as server:
        gate.touch()
        idle = http.client.HTTPConnection(server.address, timeout=60)
        idle.request("GET", "/v2/health/live")
        idle.getresponse().read()
        accepted = [server.open(raw_request(good_body())) for _ in range(4)]
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 2, "two run, two wait")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in server.errors(), "the server says that it drains")
        idle.request("POST", INFER, good_body())
        refused = idle.getresponse()
        assert (refused.status, refused.headers["Connection"]) == (503, "close")
        assert "shutting down" in json.loads(refused.read())["error"]
        assert server.ask("GET", "/v2/health/ready")[0] == 503
        gate.unlink()
        assert [read_all(connection)[:15] for connection in accepted] == [b"HTTP/1.1 200 OK"] * 4
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.errors()


def test_a_second_signal_ends_at_once(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(service_ns=20_000 * MS), "--health-interval", "0", "--mode", "lazy") as server:
        connection = server.open(raw_request(good_body()))
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 1, "the request is there")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in server.errors(), "the first signal is seen")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 128 + signal.SIGTERM
        assert read_all(connection) == b""


def test_the_drain_timeout_cuts_off(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(service_ns=20_000 * MS), "--mode", "lazy", "--drain-timeout", "200ms") as server:
        connection = server.open(raw_request(good_body()))
        until(lambda: server.metric('coldburst_waiting{model="synthetic"}') == 1, "the request is there")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1
        assert "1 requests were cut off" in server.errors()
        assert read_all(connection) == b""


def test_the_drain_timeout_cuts_off_a_reply_that_is_not_taken(tmp_path: Path, synthetic: SyntheticFactory) -> None:
    big = synthetic(input_elements=ELEMENTS, output_elements=4_000_000, max_batch=1)
    with serving(tmp_path, big, "--drain-timeout", "200ms") as server:
        connection = server.open(raw_request(good_body(parameters={"binary_data_output": True})))
        until(lambda: requests_total(server, "ok") == 1, "the reply is on its way")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1
        assert "1 requests were cut off" in server.errors()
        connection.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process has handlers for is Linux' to tell")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_server_is_imported(engine: Callable[..., Path], number: signal.Signals) -> None:
    process = subprocess.Popen(command(engine()), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def handled() -> bool:
        caught = re.search(r"^SigCgt:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.M)
        return caught is not None and bool(int(caught.group(1), 16) >> (signal.SIGTERM - 1) & 1)

    until(handled, "it has begun")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("log", [(), ("--log-json",)])
@pytest.mark.parametrize("full", [False, True])
def test_nobody_takes_what_the_server_says(tmp_path: Path, engine: Callable[..., Path], full: bool, log: tuple[str, ...]) -> None:
    if full:
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        errors = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, errors = os.pipe()
        os.close(reader)
    try:
        with serving(tmp_path, engine(fail_every_runs=4), *log, errors_to=errors) as server:
            assert [server.infer()[0] for _ in range(3)].count(200) == 2  # and one of them is logged in any case
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        failing = subprocess.run(
            [*command(engine(fail_every_loads=1)), *log], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, timeout=60
        )
        assert failing.returncode == 2
    finally:
        os.close(errors)


def test_a_full_pipe_of_the_log_makes_nobody_wait(tmp_path: Path, engine: Callable[..., Path]) -> None:
    reader, errors = os.pipe()
    os.set_blocking(errors, False)
    filled = 0
    try:
        while True:
            filled += os.write(errors, b" " * 1024)
    except BlockingIOError:
        os.set_blocking(errors, True)
    with serving(tmp_path, engine(), "--log-json", errors_to=errors) as server:
        os.close(errors)
        assert [server.infer()[0] for _ in range(20)] == [200] * 20
        while filled:
            filled -= len(os.read(reader, filled))
        with os.fdopen(reader) as said:  # now that it is read again, nothing is missing
            assert [json.loads(said.readline())["event"] for _ in range(20)] == ["request"] * 20
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="another process' limits are Linux' to set")
def test_no_open_file_is_left_for_a_slot(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(), "--mode", "lazy") as server:
        connection = http.client.HTTPConnection(server.address, timeout=60)
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        process = psutil.Process(server.process.pid)
        before = process.rlimit(psutil.RLIMIT_NOFILE)
        taken = {int(name.name) for name in Path(f"/proc/{process.pid}/fd").iterdir()}
        process.rlimit(psutil.RLIMIT_NOFILE, (next(number for number in itertools.count() if number not in taken), before[1]))
        statuses = []
        for limits in (None, before):
            if limits is not None:
                process.rlimit(psutil.RLIMIT_NOFILE, limits)
            connection.request("POST", INFER, good_body())
            response = connection.getresponse()
            statuses.append(response.status)
            content = response.read()
            assert response.status == 200 or b"no further slot of model synthetic can be made (Too many open files)" in content
        connection.close()
        assert statuses == [500, 200]
        assert requests_total(server, "load_failed") == 1
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def test_sigterm_while_loading_does_not_wait_for_the_load(tmp_path: Path, engine: Callable[..., Path]) -> None:
    with serving(tmp_path, engine(load_ns=600_000 * MS), "--drain-timeout", "200ms", until="listening") as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.errors()


def test_kill_nine_loses_only_what_was_in_flight(tmp_path: Path, engine: Callable[..., Path], gate: Path) -> None:
    directory = engine(gate=gate)
    with serving(tmp_path, directory) as server:
        gate.touch()
        connection = server.open(raw_request(good_body()))
        until(lambda: server.metric('coldburst_slots{model="synthetic",state="busy"}') == 1, "it runs")
        server.process.kill()
        assert server.process.wait(60) == -signal.SIGKILL
        assert read_all(connection) == b""
        gate.unlink()
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", server.port))
    with serving(tmp_path, directory, "--host", "127.0.0.1") as server:  # nothing was left behind that stops a new start
        assert server.infer()[0] == 200
        again = subprocess.run([*command(directory)[:-1], str(server.port)], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert again.returncode == 2
        assert (
            again.stderr
            == f"reference_server: cannot listen on 127.0.0.1:{server.port} (Address already in use); choose another --host or --port\n"
        )


def test_an_engine_deleted_under_a_running_server(tmp_path: Path, engine: Callable[..., Path]) -> None:
    directory = engine()
    with serving(tmp_path, directory, "--health-interval", "50ms") as server:
        shutil.rmtree(directory)
        assert server.infer()[0] == 200
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["{missing}"], "is not an engine directory"),
        (["{engine}", "--port", "99999"], "is not a port"),
        (["{engine}", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["{engine}", "--host", "a" * 64 + ".example"], "this is not a host's name"),
        (["{engine}", "--host", ".."], "this is not a host's name"),
        (["{engine}/manifest.json"], "is not an engine directory"),
        (["{failing}", "--timeline", "{missing}"], "declared to fail"),
        (["{engine}", "--set", "threads"], "is not KEY=VALUE"),
        (["{engine}", "--set", "no_such=1"], "unknown runtime setting 'no_such'"),
        (["{engine}", "--idle-timeout", "30"], "--idle-timeout '30' is not a time"),
        (["{engine}", "--pool-size", "0"], "--pool-size is 0"),
        (["{engine}", "--mode", "elastic", "--min", "3", "--max", "2"], "--max is 2"),
        (["{engine}", "{engine}"], "both called 'synthetic'"),
        (["{failing}"], "declared to fail"),
        (["{engine}", "--trust", "{missing}"], "is not an Ed25519 public key"),
        (["{engine}", "--mode", "lazy", "--set", "no_such=1"], "unknown runtime setting 'no_such'"),
        (["{engine}", "--mode", "lazy", "--trust", "{missing}"], "is not an Ed25519 public key"),
        (["{engine}", "--mode", "elastic", "--min", "0", "--set", "threads=many"], "threads='many' is not a whole number"),
    ],
)
def test_a_start_that_fails_says_why_in_one_sentence(tmp_path: Path, engine: Callable[..., Path], arguments: list[str], names: str) -> None:
    places = {"engine": engine(), "failing": engine(fail_every_loads=1), "missing": tmp_path / "missing"}
    filled = [argument.format(**places) for argument in arguments]
    run = subprocess.run(
        [sys.executable, "-m", "reference_server", "--port", "0", *filled], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 2, run.stderr
    assert names in run.stderr
    assert run.stderr.count("\n") == 1 and run.stderr.startswith("reference_server: ")
    assert not places["missing"].exists()


def test_concurrent_clients_get_their_own_answers(shared: Server) -> None:
    wrong: list[object] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(shared.address, timeout=60)
        for step in range(50):
            value = float(number * 1000 + step)
            entry = {"name": "input", "shape": [1, ELEMENTS], "datatype": "FP32", "data": [value] * ELEMENTS}
            connection.request("POST", INFER, json.dumps({"id": f"{number}-{step}", "inputs": [entry]}))
            answer = json.loads(connection.getresponse().read())
            if answer.get("id") != f"{number}-{step}" or answer["outputs"][0]["data"] != [value * 2] * ELEMENTS:
                wrong.append(answer)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_inference_library_is_imported_by_the_server_itself() -> None:
    heavy = ("onnxruntime", "onnx", "starlette", "prometheus_client", "pyarrow", "pandas")
    code = f"import sys, reference_server.serving; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True
    )
    assert run.stdout == "[]\n"
