"""`bench burst` with real servers and a real generator: killed, stopped, resumed, and whole in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import psutil
import pyarrow.parquet as pq
import pytest

from bench.analysis.experiment import summarize
from bench.analysis.subject import open_subject
from bench.engine.manifest import read_manifest
from bench.errors import EXIT_FINE, EXIT_INTERRUPTED, EXIT_INVALID_RUN, EXIT_WRONG_INPUT, BenchError
from bench.experiment.arms import parse_targets
from bench.experiment.plan import Spikes, plan_runs
from bench.server_process import ServerProcess
from tests.conftest import BenchCommand, SyntheticFactory
from tests.experiments import cold_and_warm, write_experiment
from tests.plain_proxy import PlainProxy
from tests.small_server import SmallServer

ARMS = "warm-pool,lazy"
FLAGS = ("--arms", ARMS, "--spikes", "1", "--blocks", "1", "--base", "40", "--peak", "300", "--hold", "400ms", "--rest", "400ms")


STARTED: list[subprocess.Popen[bytes]] = []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 150) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, "the command ended before its time"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("runs/*/run.json"))


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none of one that ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


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
    code = process.wait(150)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    return code


@pytest.mark.timeout(480)
def test_killed_stopped_and_resumed(tmp_path: Path, bench_environment: dict[str, str], bench_command: BenchCommand) -> None:
    results = tmp_path / "results"
    process = start(bench_environment, tmp_path, "tiny", *FLAGS, "--results", results)
    wait_for(lambda: any(results.glob("*.partial/runs/*/run.json")), process)
    (folder,) = results.glob("*.partial")
    second = bench_command("burst", "tiny", *FLAGS)
    assert second.returncode == EXIT_WRONG_INPUT
    assert f"another bench burst, curve or demo is running (process {process.pid})" in second.stderr
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


@pytest.mark.timeout(480)
@pytest.mark.parametrize("who", ["reference_server", "locust"])
def test_a_killed_child_ends_the_run_and_keeps_what_was_measured(
    tmp_path: Path, bench_environment: dict[str, str], bench_command: BenchCommand, who: str
) -> None:
    """In the middle of the second run, one beside which an engine is loaded: said, nothing orphaned, resumed to the end."""
    results = tmp_path / "results"
    load = ("--spikes", "1", "--blocks", "1", "--base", "40", "--peak", "150", "--hold", "400ms", "--rest", "400ms")
    process = start(bench_environment, tmp_path, "tiny", "--arms", "warm-pool", "--during", "load", *load, "--results", results)
    wait_for(lambda: any(results.glob("*.partial/runs/*/run.json")), process)
    wait_for(lambda: any(results.glob("*.partial/runs/*.partial/*.partial/requests.arrows")), process)
    family = family_of(process)
    (victim,) = (one for one in family if who in words_of(one))
    victim.kill()
    assert process.wait(150) == EXIT_WRONG_INPUT
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    said = (tmp_path / "log").read_text()
    assert "was killed by SIGKILL" in said and "Traceback" not in said, said
    (folder,) = results.glob("*.partial")
    assert len(finished(folder)) == 1 and json.loads((folder / "summary.json").read_text())["missing_runs"] == 1
    done = bench_command("burst", "--resume", folder, "--json")
    assert done.returncode in (EXIT_FINE, EXIT_INVALID_RUN), done.stderr
    found = json.loads(done.stdout)
    assert (found["missing_runs"], found["loads_beside"][0]["loads"]) == (0, 1)


@pytest.mark.timeout(480)
def test_a_folder_that_is_taken_away_ends_the_experiment(tmp_path: Path, bench_environment: dict[str, str]) -> None:
    """In one sentence, and nobody is told to go on with what is not there."""
    results = tmp_path / "results"
    load = ("--arms", "warm-pool", "--spikes", "9", "--blocks", "1", "--base", "40", "--peak", "150", "--hold", "5s", "--rest", "5s")
    process = start(bench_environment, tmp_path, "tiny", *load, "--results", results)
    wait_for(lambda: any(results.glob("*.partial/runs/*.partial/*.partial/requests.arrows")), process)
    (folder,) = results.glob("*.partial")
    family = family_of(process)
    shutil.rmtree(results)
    assert process.wait(150) == EXIT_WRONG_INPUT
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive and not results.exists()
    (said,) = (tmp_path / "log").read_text().splitlines()
    assert said.startswith(f"bench: {folder} was removed or moved while the run went on")


def test_a_full_disk_loses_no_run(bench_command: BenchCommand, tmp_path: Path, tiny_engine: Path) -> None:
    """No file may grow beyond what a run needs: the report does not fit, the runs and what is printed are there."""
    load = ("--spikes", "1", "--blocks", "1", "--base", "40", "--peak", "150", "--hold", "400ms", "--rest", "400ms")
    limit = (60_000, 60_000)
    done = bench_command(
        "burst", tiny_engine, "--arms", "warm-pool", *load, "--results", "r", preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, limit)
    )
    assert done.returncode == EXIT_WRONG_INPUT and "Traceback" not in done.stderr, done.stderr
    assert "File too large: r/" in done.stderr and "the runs are kept, so: bench report r/" in done.stderr
    assert "P99 in spikes" in done.stdout
    (folder,) = (tmp_path / "r").iterdir()
    assert len(finished(folder)) == 1 and not (folder / "report.html").exists() and not list(folder.glob("*.new"))
    assert bench_command("report", folder, "-o", "report.html").returncode == EXIT_FINE


def test_an_engine_that_cannot_be_loaded_is_refused_before_anything_is_made(
    bench_command: BenchCommand, tmp_path: Path, tiny_engine: Path
) -> None:
    """A lazy server would start with it, and answer nothing."""
    engine = shutil.copytree(tiny_engine, tmp_path / "engine")
    with (engine / "model.onnx").open("ab") as file:
        file.write(b"x")
    load = ("--spikes", "1", "--blocks", "1", "--base", "5", "--peak", "20", "--hold", "300ms", "--rest", "300ms")
    done = bench_command("burst", engine, "--arms", "lazy", *load, "--results", "r")
    assert done.returncode == EXIT_WRONG_INPUT and "build the engine again" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list((tmp_path / "r").iterdir())


def test_resume_of_what_cannot_go_on_is_refused(tmp_path: Path, bench_command: BenchCommand) -> None:
    arms = parse_targets(["a=http://127.0.0.1:9"], allow_remote=False)
    described = [dataclasses.asdict(arm) for arm in arms]
    path = write_experiment(tmp_path / "e.partial", cold_and_warm, arms=described, leave_out=["01-a"])
    record = json.loads((path / "run.json").read_text())
    order = plan_runs(Spikes(**record["spikes"]), arms)
    record |= {"engine_dir": None, "model": "m", "shape": None, "order": [dataclasses.asdict(run) for run in order]}
    (path / "run.json").write_text(json.dumps(record))
    done = bench_command("burst", "--resume", path)
    assert done.returncode == EXIT_WRONG_INPUT and done.stderr.count("\n") == 1, done.stderr
    assert "01.parquet is gone, so block 2 cannot be run any more" in done.stderr


def test_a_target_that_cannot_be_asked_leaves_no_folder(tmp_path: Path, bench_command: BenchCommand) -> None:
    """Its first run shows that: nothing was measured, and going on would end there again."""
    with SmallServer() as one:
        targets = ("--target", f"one={one.url}", "--name", "m", "--shape", "nosuch=7x7")
        done = bench_command("burst", *targets, "--base", "5", "--peak", "20", "--spikes", "1", "--blocks", "1", "--results", "r")
    assert done.returncode == EXIT_WRONG_INPUT and "--shape" in done.stderr and "--resume" not in done.stderr, done.stderr
    assert not list((tmp_path / "r").iterdir())


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
    assert not found["values_known"] and "correctly" not in found["sentence"]
    assert (Path(found["run"]) / "report.html").exists()


@pytest.mark.parametrize("hidden", [(), ("/stats",)])
def test_a_server_without_server_timing_tells_means_or_why_not(
    tmp_path: Path, bench_command: BenchCommand, tiny_engine: Path, hidden: tuple[str, ...]
) -> None:
    """A real server twice: as it is, and behind a proxy that takes Server-Timing away (and the statistics too)."""
    load = ("--spikes", "1", "--blocks", "1", "--base", "20", "--peak", "100", "--hold", "400ms", "--rest", "400ms")
    name = read_manifest(tiny_engine).name
    with ServerProcess([tiny_engine]) as server, PlainProxy(server.url, hidden) as proxy:
        server.wait_ready()
        targets = ("--target", f"ours={server.url}", "--target", f"other={proxy.url}", "--name", name)
        done = bench_command("burst", *targets, *load, "--results", tmp_path / "results", "--json")
        assert done.returncode in (EXIT_FINE, EXIT_INVALID_RUN), done.stderr
    ours, other = json.loads(done.stdout)["arms"]
    assert ours["pool"]["known"] > 0 and ours["server_means"] is None  # single requests are better than means
    means, sent = other["server_means"], other["goodput"][0]["counts"]["ok"]
    assert other["pool"]["known"] == 0 and means["source"] == "V2 statistics extension"
    page = (Path(json.loads(done.stdout)["run"]) / "report.html").read_text()
    assert "means of the window" in page
    if hidden:
        assert means["requests"] == 0 and means["infer_ns"] is None and "404 nothing here" in means["absent"]
        assert "404 nothing here" in page
    else:
        assert means["absent"] is None
        assert sent <= means["requests"] <= sent + 10  # the generator asks a few times before it starts
        parts = sum(means[f"{part}_ns"] for part in ("waiting", "input", "infer", "output"))
        assert 0 < means["infer_ns"] < parts <= means["total_ns"] + 10_000


LOAD_NS = 400_000_000  # many samples of the timeline, which is told every 50 ms


@pytest.mark.timeout(480)
def test_an_engine_is_loaded_beside_the_traffic(tmp_path: Path, bench_command: BenchCommand, synthetic: SyntheticFactory) -> None:
    engine = synthetic(name="slow", load_ns=LOAD_NS, service_ns=2_000_000)
    load = ("--spikes", "2", "--blocks", "1", "--base", "20", "--peak", "120", "--hold", "900ms", "--rest", "900ms")
    done = bench_command("burst", engine, "--arms", "warm-pool", "--during", "load", *load, "--results", "r", "--json")
    assert done.returncode in (EXIT_FINE, EXIT_INVALID_RUN), done.stderr
    found = json.loads(done.stdout)
    assert [arm["name"] for arm in found["arms"]] == ["warm-pool", "warm-pool+load"]
    (beside,) = found["loads_beside"]
    assert (beside["planned"], beside["loads"], beside["errors"]) == (2, 2, [])
    assert beside["took_ns"] >= LOAD_NS and beside["arrivals"] > 0
    assert beside["extra_ns"] is not None and beside["extra_interval"] is None  # two loads are too few
    assert beside["held_bytes"] is not None
    run = tmp_path / found["run"] / "runs" / "00-warm-pool+load"
    loads = json.loads((run / "run.json").read_text())["loads"]
    spikes = json.loads(pq.read_schema(run / "schedule.parquet").metadata[b"coldburst.schedule"])["spikes"]
    assert [load["planned_ns"] for load in loads] == [spike["start_ns"] for spike in spikes]
    for load in loads:
        assert load["planned_ns"] <= load["began_ns"] < load["ended_ns"] - LOAD_NS < load["unloaded_ns"]
    rows = pq.read_table(run / "timeline.parquet").to_pylist()
    second = [row for row in rows if row["model"] == "slow-beside"]
    for load in loads:  # the server's own account of it
        loading = [row for row in second if load["began_ns"] < row["t_ns"] < load["ended_ns"]]
        there = [row for row in second if load["ended_ns"] + 1e8 < row["t_ns"] < load["unloaded_ns"] - 1e8]
        assert any(row["slots_loading"] for row in loading) and all(row["slots_idle"] for row in there)
    assert "A load beside the traffic" in (tmp_path / found["run"] / "report.html").read_text()
    told = bench_command("report", found["run"], "--markdown").stdout
    assert "while one more engine is loaded" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny", "--during", "unload"), "--during 'unload' is not known"),
        (("--target", "a=http://127.0.0.1:9", "--name", "m", "--during", "load"), "is for servers that are started here"),
    ],
)
def test_what_cannot_be_loaded_beside_is_refused(
    bench_command: BenchCommand, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = bench_command("burst", *arguments, "--base", "5", "--peak", "20", "--results", "r")
    assert done.returncode == EXIT_WRONG_INPUT and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["http://127.0.0.1:1"], "is not NAME=URL"),
        (["a/b=http://127.0.0.1:1"], "is not NAME=URL"),
        (["a=127.0.0.1:1"], "is not NAME=URL"),
        (["a=http://127.0.0.1:99999"], "is not NAME=URL"),
        (["a=http://[::1"], "is not NAME=URL"),
        (["a=https://127.0.0.1:1"], "is sent over plain http"),
        (["a=http://192.0.2.1:1"], "is another host: .*--allow-remote"),
        (["a=http://127.0.0.1:1", "a=http://127.0.0.1:2"], "the name a is there twice"),
    ],
)
def test_targets_that_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse_targets(texts, allow_remote=False)
    assert parse_targets(["a=http://192.0.2.1:1/"], allow_remote=True)[0].url == "http://192.0.2.1:1"
