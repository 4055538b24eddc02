"""`bench serve`: the server's flags, its words and its exit code, through one more process."""

from __future__ import annotations

import http.client
import inspect
import re
import signal
import subprocess
import sys
from pathlib import Path

from conftest import SyntheticFactory

import bench.cli.serve

ROOT = Path(__file__).parents[1]


def test_serve_forwards_signals_and_the_exit_code(synthetic: SyntheticFactory) -> None:
    command = [sys.executable, "-m", "bench", "serve", str(synthetic()), "--port", "0", "--set", "threads=1", "--pool-size", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix("listening on http://")
        assert process.stdout.readline() == "ready\n"
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_start_that_fails_is_one_sentence_here_too(synthetic: SyntheticFactory) -> None:
    engine = synthetic(fail_every_loads=1)
    command = [sys.executable, "-m", "bench", "serve", str(engine), "--port", "0"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert "declared to fail" in run.stderr


def test_serve_has_all_flags_of_the_server() -> None:
    run = subprocess.run([sys.executable, "-m", "reference_server", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    flags = set(re.findall(r"--[a-z-]+", run.stdout.partition("Example:")[0])) - {"--help"}
    source = inspect.getsource(bench.cli.serve)
    assert len(flags) > 15
    assert {flag for flag in flags if f'"{flag}"' not in source and f"{flag}=" not in source} == set()
