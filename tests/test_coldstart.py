"""`bench coldstart` as its users run it: real processes, engines whose times are declared, and signals in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import BenchCommand

from bench.coldstart import FLOOR, FLOOR_DISK, LEVELS, Plan, Variant, order_trials
from bench.records import SavedRun, open_run

Row = dict[str, Any]
ATTRIBUTED = {
    "server": ["listen", "manifest", "imports", "library", "device", "read", "verify", "deserialise", "slot", "buffers",
               *["probe", "warmup"] * 3, "collect", "connect", "first_inference", "check"],
    "process": ["spawn", "imports", "manifest", "imports", "library", "device", "read", "verify", "deserialise", "slot", "buffers", "probe",
                "first_inference", "check"],
    "engine": ["manifest", "imports", "library", "device", "read", "verify", "deserialise", "slot", "buffers", "first_inference", "check"],
    "slot": ["slot", "buffers", "first_inference", "check"],
    "warm": ["pool", "inference"],
    "floor": ["read_file", "copy_memory"],
}  # fmt: skip
ATTRIBUTED |= {"process-disk": ATTRIBUTED["process"], "floor-disk": ATTRIBUTED["floor"]}
AFTER = {
    "server": ["ready_before_right", "second_inference", "steady"],
    "process": ["second_inference", "steady"],
    "warm": ["check"],
    "floor": [],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A run that ended, and what it printed."""

    folder: Path
    summary: dict[str, Any]
    exit_code: int

    @property
    def trials(self) -> list[list[Row]]:
        return trials_of(open_run(self.folder))


def trials_of(run: SavedRun) -> list[list[Row]]:
    """The rows of each trial, in the order in which they ran."""
    table = run.table("cold_starts")
    found: dict[int, list[Row]] = {}
    for row in [] if table is None else table.to_pylist():
        found.setdefault(row["order"], []).append(row)
    return [found[order] for order in sorted(found)]


def one(trial: list[Row], phase: str) -> int:
    """The duration of a phase that occurs once."""
    (row,) = [row for row in trial if row["phase"] == phase]
    return int(row["duration_ns"])


@pytest.fixture(scope="module")
def done(tiny_engine: Path, bench_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """All levels of `tiny`, three trials each."""
    results = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "bench", "coldstart", str(tiny_engine), "--trials", "3", "--seed", "7", "--json"]
    ended = subprocess.run([*command, "--results", str(results)], env=bench_environment, capture_output=True, text=True, timeout=120)
    assert ended.stdout, ended.stderr
    (folder,) = results.iterdir()
    return Done(folder=folder, summary=json.loads(ended.stdout), exit_code=ended.returncode)


def test_the_exit_code_says_whether_the_run_is_valid(done: Done) -> None:
    # On a busy machine the clock outside may disagree with the phases, and then the run says so.
    assert done.exit_code == (0 if done.summary["valid"] else 3)
    assert done.summary["valid"] == (not done.summary["invalid"])


def test_every_trial_of_every_level_is_there_once(done: Done) -> None:
    seen = [(trial[0]["trial"], trial[0]["level"]) for trial in done.trials]
    assert sorted(seen) == sorted((n, level) for n in range(3) for level in (*LEVELS, FLOOR, FLOOR_DISK))


def test_trials_ran_in_the_order_of_the_plan(done: Done, tiny_engine: Path) -> None:
    plan = Plan(variants=(Variant(label="", engine_dir=tiny_engine),), trials=3, seed=7)
    assert [(t[0]["trial"], t[0]["level"]) for t in done.trials] == [(p.trial, p.level) for p in order_trials(plan)]


def test_phases_and_the_rest_add_up_to_the_total_exactly(done: Done) -> None:
    for trial in done.trials:
        assert sum(row["duration_ns"] for row in trial if row["in_total"]) == one(trial, "total")
        assert one(trial, "unattributed") >= 0
        assert one(trial, "total_outside") >= one(trial, "total")


def test_each_level_has_its_phases_one_after_the_other(done: Done) -> None:
    for trial in done.trials:
        level = trial[0]["level"]
        attributed = [row for row in trial if row["in_total"] and row["phase"] != "unattributed"]
        assert [row["phase"] for row in attributed] == ATTRIBUTED[level]
        end = 0
        for row in attributed:
            assert row["start_ns"] >= end
            end = row["start_ns"] + row["duration_ns"]
        assert end <= one(trial, "total")
        after = [row["phase"] for row in trial if not row["in_total"] and not row["phase"].startswith("total")]
        assert after == AFTER.get(level.removesuffix("-disk"), AFTER["process"])


def test_a_server_is_not_ready_before_its_answers_are_right(done: Done) -> None:
    early = [one(trial, "ready_before_right") for trial in done.trials if trial[0]["level"] == "server"]
    assert early == [0, 0, 0]


def test_memory_and_page_cache_are_known_or_null(done: Done) -> None:
    for trial in done.trials:
        states = {row["page_cache"] for row in trial}
        disk = trial[0]["level"].endswith("-disk")
        assert states <= ({None} if trial[0]["level"] in ("slot", "warm") else {"dropped" if disk else "warm", "unknown"})
        if sys.platform == "linux":
            assert all(row["resident_bytes"] > 2**20 for row in trial if row["phase"] != "spawn")


def test_the_folder_holds_all_that_the_answer_rests_on(done: Done, tiny_engine: Path) -> None:
    names = {path.name for path in done.folder.iterdir()}
    assert names == {"cold_starts.parquet", "report.html", "run.json", "summary.json", "waterfall.png"}
    assert (done.folder / "waterfall.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((done.folder / "summary.json").read_text())
    assert {**summary, "run": str(done.folder)}.items() <= done.summary.items()
    run = open_run(done.folder)
    assert not run.partial
    assert summary["subject"].startswith("tiny, onnxruntime ") and summary["subject"].endswith(", input 1x64, one request at a time")
    table = run.table("cold_starts")
    assert table is not None and table.schema.metadata[b"coldburst.subject"].decode() == summary["subject"]
    assert run.run["settings"]["trials"] == 3
    assert run.run["settings"]["seed"] == 7
    assert run.run["variants"][0]["engine"] == json.loads((tiny_engine / "manifest.json").read_text())
    assert run.run["environment"]["software"]["packages"]["onnxruntime"]
    assert "NaN" not in (done.folder / "summary.json").read_text()


def test_the_medians_are_those_of_the_rows(done: Done) -> None:
    for level in done.summary["levels"]:
        totals = sorted(one(trial, "total") for trial in done.trials if trial[0]["level"] == level["level"])
        assert level["total"]["median"] == totals[1]
        assert level["total"]["samples"] == 3
    answers = {level["level"]: level["total"]["median"] for level in done.summary["levels"]}
    assert answers["process"] > answers["engine"]  # a factor of 50: an interpreter and its imports against one load


def test_the_order_is_random_balanced_and_that_of_the_seed() -> None:
    variants = tuple(Variant(label=label, engine_dir=Path("engine")) for label in "ab")

    def order(seed: int) -> list[tuple[int, str, str]]:
        return [(p.trial, p.variant.label, p.level) for p in order_trials(Plan(variants=variants, trials=10, seed=seed))]

    orders, again = {seed: order(seed) for seed in (1, 2)}, order(1)
    assert orders[1] == again != orders[2]
    kinds = {(v, level) for v in "ab" for level in (*LEVELS, FLOOR, FLOOR_DISK)}
    rounds = [orders[1][n : n + len(kinds)] for n in range(0, len(again), len(kinds))]
    assert [{(v, level) for _, v, level in block} for block in rounds] == [kinds] * 10  # an interrupted run is balanced
    assert [{trial for trial, _, _ in block} for block in rounds] == [{n} for n in range(10)]
    assert len({tuple(block_[1:] for block_ in block) for block in rounds}) == 10
    without = order_trials(Plan(variants=variants[:1], levels=("warm",), trials=1))
    assert {p.level for p in without} == {"warm", FLOOR}


def only_run(tmp_path: Path) -> SavedRun:
    (folder,) = (tmp_path / "results").iterdir()
    return open_run(folder)


def test_time_between_the_phases_is_unattributed_and_makes_the_run_invalid(
    synthetic: Callable[..., Path], bench_command: BenchCommand, tmp_path: Path
) -> None:
    ended = bench_command("coldstart", synthetic(gap_ns=200_000_000), "--level", "process,engine", "--trials", "2")
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert line.startswith("bench: the run is not valid: process: ")
    assert "lies in no phase" in line
    assert ended.stdout.startswith("INVALID  process: ")  # before any number
    trials = [trial for trial in trials_of(only_run(tmp_path)) if trial[0]["level"] in ("process", "engine")]
    assert len(trials) == 4
    for trial in trials:
        assert one(trial, "unattributed") >= 200_000_000
        assert one(trial, "deserialise") < one(trial, "unattributed")


def test_declared_times_are_found_in_their_phases(synthetic: Callable[..., Path], bench_command: BenchCommand, tmp_path: Path) -> None:
    """Settings and environment variables are varied against each other; nothing here can be invalid by noise."""
    engine = synthetic(load_ns=40_000_000, slot_ns=20_000_000, service_ns=5_000_000, first_service_ns=10_000_000)
    varied = ("--vary", "threads=1,2", "--vary", "SOME_VARIABLE=x,y")
    gates = ("--gate", "engine.deserialise.p50 >= 40ms", "--gate", "warm.max >= 5ms")
    ended = bench_command("coldstart", engine, "--level", "engine", "--level", "slot,warm", "--trials", "2", "--json", *varied, *gates)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    labels = [f"threads={threads} SOME_VARIABLE={value}" for threads in "12" for value in "xy"]
    assert [level["variant"] for level in summary["levels"] if level["level"] == "warm"] == labels
    assert [line.partition(":")[0] for line in ended.stderr.splitlines()] == ["gate passed"] * 8
    run = only_run(tmp_path)
    assert [variant["settings"] for variant in run.run["variants"]] == [{"threads": t} for t in "1122"]
    assert [variant["environment"] for variant in run.run["variants"]] == [{"SOME_VARIABLE": v} for v in "xyxy"]
    trials = trials_of(run)
    assert len(trials) == 4 * 2 * 4  # variants, trials, levels and the floor
    for trial in trials:
        level = trial[0]["level"]
        if level == "engine":
            assert one(trial, "deserialise") >= 40_000_000
        if level in ("engine", "slot"):
            assert one(trial, "slot") >= 20_000_000
            assert one(trial, "first_inference") >= 15_000_000
            assert one(trial, "second_inference") >= 5_000_000
        if level == "warm":
            assert 5_000_000 <= one(trial, "inference") <= one(trial, "total")
    against = {(c["first"], c["second"]) for c in summary["comparisons"] if c["quantity"] == "total"}
    assert against == {(f"{labels[0]} {level}", f"{label} {level}") for label in labels[1:] for level in ("engine", "slot", "warm")}


def test_an_environment_variable_reaches_the_process_that_is_measured(synthetic: Callable[..., Path], bench_command: BenchCommand) -> None:
    ended = bench_command("coldstart", synthetic(), "--level", "warm", "--trials", "1", "--vary", "PYTHONHASHSEED=0,rubbish")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "the child process ended with code 1" in line  # Python does not start with such a seed


def test_a_gate_that_is_missed_and_one_that_passes(synthetic: Callable[..., Path], bench_command: BenchCommand) -> None:
    gates = ("--gate", "slot.p50 < 30ms", "--gate", "slot.slot.max > 29ms")
    ended = bench_command("coldstart", synthetic(slot_ns=30_000_000), "--level", "slot", "--trials", "1", *gates)
    assert ended.returncode == 1
    assert ended.stderr == "bench: 1 of 2 gates missed\n"
    told = [line.partition(", measured")[0] for line in ended.stdout.splitlines() if line.startswith("gate ")]
    assert told == ["gate MISSED: slot.p50 < 30ms", "gate passed: slot.slot.max > 29ms"]


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"wrong_every_runs": 1}, "output 'output' is off by"),
        ({"fail_every_runs": 1}, "of the runtime that it runs: RuntimeError: synthetic: this run was declared to fail"),
    ],
)
def test_an_engine_that_fails_says_so_in_one_sentence(
    synthetic: Callable[..., Path], bench_command: BenchCommand, declared: dict[str, int], says: str
) -> None:
    ended = bench_command("coldstart", synthetic(**declared), "--level", "slot", "--trials", "1")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert says in line


@pytest.fixture
def started(tmp_path: Path, bench_environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `bench coldstart ...` and do not wait for its end."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench", "coldstart", *map(str, arguments)]
        child = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=bench_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        running.append(child)
        return child

    yield start
    for child in running:
        if child.poll() is None:
            child.kill()
        child.communicate()


def wait_for_trials(bench: subprocess.Popen[str], results: Path, count: int) -> SavedRun:
    """The run under way, when that many trials are in its folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and bench.poll() is None:
        for folder in results.glob("*.partial"):
            if (folder / "run.json").exists():
                run = open_run(folder)
                if len(trials_of(run)) >= count:
                    return run
        time.sleep(0.01)
    raise AssertionError(f"bench ended or stood still before {count} trials: {bench.poll()}")


def resident(bench: subprocess.Popen[str]) -> psutil.Process:
    (found,) = [child for child in psutil.Process(bench.pid).children() if "--resident" in child.cmdline()]
    return found


def assert_whole_trials(run: SavedRun, count: int) -> None:
    trials = trials_of(run)
    assert len(trials) >= count
    for trial in trials:
        assert sum(row["duration_ns"] for row in trial if row["in_total"]) == one(trial, "total")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_keeps_its_trials_and_leaves_no_process(
    synthetic: Callable[..., Path], started: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    bench = started(synthetic(load_ns=20_000_000), "--level", "process,slot", "--trials", "10000")
    run = wait_for_trials(bench, tmp_path / "results", 5)
    children = psutil.Process(bench.pid).children(recursive=True)
    assert children
    bench.send_signal(number)
    out, err = bench.communicate(timeout=120)
    assert bench.returncode == 130
    assert err.strip() == "bench: stopped"
    assert "stopped before its end" in out
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    kept = open_run(run.path)
    assert kept.partial
    assert_whole_trials(kept, 5)
    summary = kept.read_json("summary.json")
    assert summary is not None
    assert any("of 10000 trials were done" in caveat for caveat in summary["caveats"])
    counted = [*(level["total"]["samples"] for level in summary["levels"]), summary["floors"]["copy in memory"]["samples"]]
    assert sum(counted) == len(trials_of(kept))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_bench_that_is_killed_leaves_a_readable_run_and_no_process(
    synthetic: Callable[..., Path], started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    bench = started(synthetic(), "--level", "process,slot", "--trials", "10000")
    run = wait_for_trials(bench, tmp_path / "results", 5)
    children = psutil.Process(bench.pid).children(recursive=True)
    bench.kill()
    bench.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []  # their standard input has ended
    assert open_run(run.path).partial
    assert_whole_trials(open_run(run.path), 5)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_child_that_is_killed_is_one_sentence_and_the_trials_are_kept(
    synthetic: Callable[..., Path], started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    bench = started(synthetic(service_ns=1_000_000), "--level", "warm", "--trials", "10000")
    run = wait_for_trials(bench, tmp_path / "results", 5)
    resident(bench).kill()
    _, err = bench.communicate(timeout=120)
    assert bench.returncode == 2
    (line,) = err.splitlines()
    assert line == "bench: the child process was killed by SIGKILL"
    assert_whole_trials(open_run(run.path), 5)
