"""`bench burst` with real servers and a real generator: killed, stopped, resumed, and whole in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.analysis.experiment import summarize
from bench.analysis.subject import open_subject
from bench.errors import EXIT_FINE, EXIT_INTERRUPTED, EXIT_INVALID_RUN, EXIT_WRONG_INPUT, BenchError
from bench.experiment.arms import parse_targets
from tests.conftest import BenchCommand
from tests.small_server import SmallServer

ARMS = "warm-pool,lazy"
FLAGS = ("--arms", ARMS, "--spikes", "1", "--blocks", "1", "--base", "40", "--peak", "300", "--hold", "400ms", "--rest", "400ms")


STARTED: list[subprocess.Popen[bytes]] = []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, "the command ended before its time"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("runs/*/run.json"))


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def start(environment: dict[str, str], folder: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "bench", "burst", *map(str, arguments)]
    log = (folder / "log").open("ab")
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def nothing_is_left_over() -> Iterator[None]:
    """A test that fails in the middle leaves no experiment behind, whose lock the next one would meet."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send the signal and wait until the command and everything that it had started are gone."""
    wait_for(lambda: bool(family_of(process)), process)  # between two runs there is nobody for a moment
    family = family_of(process)
    os.kill(process.pid, number)
    code = process.wait(60)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    return code


@pytest.mark.timeout(240)
def test_killed_stopped_and_resumed(tmp_path: Path, bench_environment: dict[str, str], bench_command: BenchCommand) -> None:
    results = tmp_path / "results"
    process = start(bench_environment, tmp_path, "tiny", *FLAGS, "--results", results)
    wait_for(lambda: any(results.glob("*.partial/runs/*/run.json")), process)
    (folder,) = results.glob("*.partial")
    second = bench_command("burst", "tiny", *FLAGS)
    assert second.returncode == EXIT_WRONG_INPUT
    assert f"another bench burst or bench curve is running (process {process.pid})" in second.stderr
    assert end(process, signal.SIGKILL) == -signal.SIGKILL

    half = summarize(open_subject(folder))
    assert half.partial and half.missing_runs == 1
    assert bench_command("check", folder).returncode == EXIT_INVALID_RUN
    told = bench_command("report", folder, "--markdown").stdout
    assert "missing" in told and "not finished" in told

    process = start(bench_environment, tmp_path, "--resume", folder)
    wait_for(lambda: any(folder.glob("runs/*.partial/*.partial/requests.arrows")), process)
    assert end(process, signal.SIGINT) == EXIT_INTERRUPTED
    assert json.loads((folder / "summary.json").read_text())["missing_runs"] == 1
    assert (folder / "report.html").stat().st_size > 10_000

    done = bench_command("burst", "--resume", folder, "--json")
    assert done.returncode in (EXIT_FINE, EXIT_INVALID_RUN), done.stderr
    whole = folder.with_suffix("")
    assert not folder.exists() and len(finished(whole)) == 2
    printed = json.loads(done.stdout)
    kept = json.loads((whole / "summary.json").read_text())
    assert printed == {"run": str(whole), **kept}
    assert (kept["missing_runs"], kept["partial"], kept["on_cpu"]) == (0, False, True)
    assert [arm["name"] for arm in kept["arms"]] == ["warm-pool", "lazy"]  # as asked for, whichever came first
    assert kept == json.loads(json.dumps(summarize(open_subject(whole)).to_json()))
    for arm in kept["arms"]:
        every = arm["latency"][0]
        assert every["arrivals"] == arm["goodput"][0]["arrivals"] == sum(arm["goodput"][0]["counts"].values())
        assert arm["memory"][0]["median"] > 10_000_000
    lazy = kept["arms"][1]
    assert lazy["pool"]["loaded_share"] > 0  # each block's server loads at its first request
    assert kept["arms"][0]["latency"][0]["arrivals"] == lazy["latency"][0]["arrivals"]
    assert (whole / "report.html").stat().st_size < 3_000_000


def test_servers_that_are_already_there(tmp_path: Path, bench_command: BenchCommand) -> None:
    """Two servers that tell nothing of their parts: what can be known is told, the rest is said not to be known."""
    load = ("--spikes", "1", "--blocks", "1", "--base", "40", "--peak", "300", "--hold", "400ms", "--rest", "400ms")
    with SmallServer() as one, SmallServer() as two:
        targets = ("--target", f"one={one.url}", "--target", f"two={two.url}", "--name", "m")
        done = bench_command("burst", *targets, *load, "--results", tmp_path / "results", "--json")
        assert done.returncode in (EXIT_FINE, EXIT_INVALID_RUN), done.stderr
        sent = [len(server.times) for server in (one, two)]
    found = json.loads(done.stdout)
    arms = found["arms"]
    assert [arm["name"] for arm in arms] == ["one", "two"]
    assert sent == [arm["goodput"][0]["counts"]["ok"] for arm in arms]
    assert all(arm["pool"]["known"] == 0 and arm["memory"] == [] and arm["ready_ns"] is None for arm in arms)
    assert {part["name"]: part["mean_ns"] for part in arms[0]["tail"]["parts"]}["pool"] is None
    assert found["device"] is None and any("was not started here" in caveat for caveat in found["caveats"])
    assert (Path(found["run"]) / "report.html").exists()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["http://127.0.0.1:1"], "is not NAME=URL"),
        (["a/b=http://127.0.0.1:1"], "is not NAME=URL"),
        (["a=127.0.0.1:1"], "is not NAME=URL"),
        (["a=http://192.0.2.1:1"], "is another host: .*--allow-remote"),
        (["a=http://127.0.0.1:1", "a=http://127.0.0.1:2"], "the name a is there twice"),
    ],
)
def test_targets_that_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse_targets(texts, allow_remote=False)
    assert parse_targets(["a=http://192.0.2.1:1/"], allow_remote=True)[0].url == "http://192.0.2.1:1"
