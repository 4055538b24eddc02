"""Ten minutes at 70 % load among clients that cancel, stall and send rubbish: nothing is lost, stuck or unstated.

COLDBURST_SOAK_SECONDS shortens it. The seed of the misbehaviour is fixed, the interleaving is not.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from bench.engine.synthetic_builder import build_synthetic

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("COLDBURST_SOAK_SECONDS", "600"))
SLOTS, SERVICE_NS, ELEMENTS = 2, 5_000_000, 8
GOOD_CLIENTS = 7
RATE_PER_CLIENT = 0.7 * SLOTS / (SERVICE_NS / 1e9) / GOOD_CLIENTS
INFER = "/v2/models/synthetic/infer"


def body_of(value: float, request_id: str) -> bytes:
    entry = {"name": "input", "shape": [1, ELEMENTS], "datatype": "FP32", "data": [value] * ELEMENTS}
    return json.dumps({"id": request_id, "inputs": [entry]}).encode()


def head_of(length: int) -> bytes:
    return f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


class GoodClient(threading.Thread):
    """Asks at its rate, checks every answer, and expects one for every request."""

    def __init__(self, port: int, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.port, self.number, self.stop = port, number, stop
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        due = time.monotonic() + self.number / GOOD_CLIENTS / RATE_PER_CLIENT
        step = 0
        while not self.stop.wait(max(0.0, due - time.monotonic())):
            due += 1 / RATE_PER_CLIENT
            step += 1
            try:
                self.seen[self.ask(connection, f"{self.number}-{step}", float(step % 1000))] += 1
            except (OSError, http.client.HTTPException) as error:
                self.seen[f"lost: {error!r}"] += 1
                connection.close()
        connection.close()

    def ask(self, connection: http.client.HTTPConnection, request_id: str, value: float) -> str:
        connection.request("POST", INFER, body_of(value, request_id))
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status == 503:
            return "shed" if response.headers["Retry-After"] else "503 without Retry-After"
        right = response.status == 200 and answer["id"] == request_id and answer["outputs"][0]["data"] == [2 * value] * ELEMENTS
        return "ok" if right else f"wrong: {response.status} {answer}"


class BadClient(threading.Thread):
    """Does one wrong thing after the other."""

    def __init__(self, port: int, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self.port, self.stop, self.random = port, stop, random.Random(seed)
        self.statuses: Counter[str] = Counter()

    def run(self) -> None:
        acts: list[Callable[[socket.socket], None]] = [self.cancel, self.stall, self.rubbish, self.mutate, self.pipeline, self.reset]
        while not self.stop.wait(self.random.uniform(0, 0.1)):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                    self.random.choice(acts)(connection)
            except OSError:
                self.statuses["connection closed"] += 1

    def read(self, connection: socket.socket) -> None:
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        for status in re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.M):
            self.statuses[status.decode()] += 1

    def cancel(self, connection: socket.socket) -> None:
        body = body_of(1.0, "cancelled")
        connection.sendall(head_of(len(body)) + body[: self.random.choice([0, 10, len(body)])])
        time.sleep(self.random.uniform(0, 0.02))

    def stall(self, connection: socket.socket) -> None:
        body = body_of(1.0, "stalled")
        whole = head_of(len(body)) + body
        connection.sendall(whole[: self.random.randrange(len(whole))])
        self.read(connection)

    def rubbish(self, connection: socket.socket) -> None:
        connection.sendall(self.random.randbytes(self.random.randrange(1, 3000)))
        connection.shutdown(socket.SHUT_WR)
        self.read(connection)

    def mutate(self, connection: socket.socket) -> None:
        body = bytearray(body_of(1.0, "mutated"))
        for _ in range(self.random.randrange(1, 5)):
            body[self.random.randrange(len(body))] = self.random.randrange(256)
        connection.sendall(head_of(len(body)).replace(b"Host: x", b"Connection: close") + body)
        self.read(connection)

    def pipeline(self, connection: socket.socket) -> None:
        body = body_of(1.0, "piped")
        connection.sendall((head_of(len(body)) + body) * self.random.randrange(2, 6) + b"GARBAGE\r\n\r\n")
        self.read(connection)

    def reset(self, connection: socket.socket) -> None:
        body = body_of(1.0, "reset")
        connection.sendall(head_of(len(body)) + body)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() sends RST


def test_load_among_clients_that_misbehave(tmp_path: Path) -> None:
    build_synthetic(tmp_path / "engine", name="synthetic", service_ns=SERVICE_NS, input_elements=ELEMENTS, output_elements=ELEMENTS)
    command = [sys.executable, "-m", "reference_server", str(tmp_path / "engine"), "--port", "0", "--pool-size", str(SLOTS)]
    command += ["--queue-limit", "64", "--header-timeout", "500ms", "--body-timeout", "1s", "--health-interval", "1s"]
    errors = (tmp_path / "stderr").open("w+")
    with errors, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as server, ExitStack() as ending:
        ending.callback(server.kill)  # a failure below must not leave it running
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        assert server.stdout.readline() == "ready\n"
        process = psutil.Process(server.pid)
        before = (process.num_threads(), process.num_fds())
        stop = threading.Event()
        good = [GoodClient(port, number, stop) for number in range(GOOD_CLIENTS)]
        bad = [BadClient(port, seed, stop) for seed in range(6)]
        for client in (*good, *bad):
            client.start()
        not_ready = 0
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(0.1)
            not_ready += ask(port, "/v2/health/ready")[0] != 200
        stop.set()
        for client in (*good, *bad):
            client.join(60)
        seen = sum((client.seen for client in good), Counter[str]())
        statuses = sum((client.statuses for client in bad), Counter[str]())
        print(f"good clients: {dict(seen)}; bad clients: {dict(statuses)}; rss {process.memory_info().rss >> 20} MB")
        assert set(seen) <= {"ok", "shed"} and seen["ok"] > 0.9 * seen.total() > 0
        assert set(statuses) <= {"200", "400", "408", "503", "connection closed"}
        assert not_ready == 0
        wait_for(lambda: (process.num_threads(), process.num_fds()) <= before, "threads and files are as before")
        # More than once: a health check takes a slot, some 5 ms of each second.
        wait_for(lambda: all_rest(ask(port, "/metrics")[1].decode()), "all slots rest, nobody waits")
        server.terminate()
        assert server.wait(30) == 0
        errors.seek(0)
        said = errors.read()
        assert "Traceback" not in said and "defect" not in said


def all_rest(metrics: str) -> bool:
    lines = metrics.splitlines()
    return f'coldburst_slots{{model="synthetic",state="idle"}} {SLOTS}.0' in lines and 'coldburst_waiting{model="synthetic"} 0.0' in lines


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"waited 30 s in vain: {what}"
        time.sleep(0.1)
