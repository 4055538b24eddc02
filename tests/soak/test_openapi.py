"""The server against its own description: Schemathesis makes requests of `/openapi.json`, good ones and bad ones.

It asks every path in every way that the description allows or forbids: no 5xx, no status, header or body that is not
described, no bad request taken as a good one. COLDBURST_SOAK_EXAMPLES sets how many requests a path gets.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from side_environment import side_environment

from bench.engine.synthetic_builder import build_synthetic
from bench.server_process import ServerProcess

EXAMPLES = int(os.environ.get("COLDBURST_SOAK_EXAMPLES", "100"))
SECONDS = 100


@pytest.fixture
def server(tmp_path: Path, tiny_engine: Path) -> Iterator[ServerProcess]:
    """A synthetic model of one shape, so that made-up values often fit, and one of ONNX Runtime with several."""
    engine = tmp_path / "synthetic"
    build_synthetic(engine, input_elements=4, output_elements=4, max_batch=1)
    with ServerProcess([engine, tiny_engine], ["--header-timeout=2s", "--body-timeout=2s"], timeout_s=600) as running:
        running.wait_ready()
        yield running


def ask(url: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path, body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


@pytest.mark.timeout(1800)  # the first time it installs Schemathesis
def test_what_the_server_does_is_what_it_describes(server: ServerProcess, tmp_path: Path) -> None:
    programs = side_environment("schemathesis>=4.3,<5")
    document = json.loads(ask(server.url, "GET", "/openapi.json")[1])

    def schemathesis(*arguments: str) -> str:
        command = [str(programs / "schemathesis"), "run", f"{server.url}/openapi.json", "--seed=1", "--request-timeout=20", "--no-color"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=2 * SECONDS)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
        return done.stdout

    # The examples must be taken. Of what is made up, a good shape with another number of values is refused, which JSON
    # Schema has no way to say: "positive_data_acceptance" would call that an error.
    examples = schemathesis("--phases=examples")
    print(examples)
    assert "no issues found" in examples.lower()
    fuzzed = schemathesis(
        "--phases=coverage,fuzzing,stateful",
        "--exclude-checks=positive_data_acceptance",
        f"--max-examples={EXAMPLES}",
        f"--max-time={SECONDS}",
    )
    print(fuzzed)
    assert f"Tested: {len(document['paths'])}" in fuzzed
    server.check_alive()
    for path, operations in document["paths"].items():
        if path.endswith("/infer"):
            example = operations["post"]["requestBody"]["content"]["application/json"]["example"]
            assert ask(server.url, "POST", path, json.dumps(example).encode())[0] == 200
    metrics = ask(server.url, "GET", "/metrics")[1].decode()
    outcomes = {name: float(count) for name, count in re.findall(r'requests_total{model="synthetic",outcome="(\w+)"} ([0-9.e+]+)', metrics)}
    print(outcomes)
    assert outcomes.keys() <= {"ok", "invalid", "cancelled"} and outcomes["ok"] >= 10 and outcomes["invalid"] >= 10
