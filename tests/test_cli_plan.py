"""`bench plan`, `bench validate` and what reads their folders, as a user runs them; the loads are real traces too."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from plan_runs import cold_run, curve_run, load_run, load_runs
from shared_traces import shared_traces

from bench.capacity.saved_plan import read_plan
from bench.capacity.saved_validation import read_validation
from bench.cli.run import run as run_command
from bench.report.notebooks import write_notebook

LOAD = "train:base=20,peak=150,hold=1s,rest=2s,spikes=3"
_SECTION = re.search(r"\n## `bench plan`\n.*?\n\n(\|.*?)\n\n", (Path(__file__).parents[1] / "results/README.md").read_text(), re.DOTALL)
DOCUMENTED = set(re.findall(r"`([\w-]+\.\w+)`", " ".join(line.split(" | ")[0] for line in _SECTION[1].splitlines()))) if _SECTION else set()


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curve_run(tmp_path_factory.mktemp("curve") / "curve")


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cold_run(tmp_path_factory.mktemp("cold") / "cold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The folder of a plan, and what the command printed."""

    path: Path
    out: str


@pytest.fixture(scope="module")
def made(curve: Path, cold: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A whole plan."""
    results, out = tmp_path_factory.mktemp("results"), io.StringIO()
    question = ("--curve", curve, "--coldstart", cold, "--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 2)
    with contextlib.redirect_stdout(out):
        assert run("plan", *question, "--price", "2.5/h", "--memory", "1GiB", "--reserve", "10%", "--results", results) == 0
    (path,) = results.iterdir()
    return Made(path=path, out=out.getvalue())


@pytest.fixture
def plan(made: Made) -> Path:
    return made.path


def run(*arguments: object) -> int:
    """The command in this process; returns its exit code."""
    before, sys.argv = sys.argv, ["bench", *map(str, arguments)]
    try:
        return run_command()
    finally:
        sys.argv = before


def test_the_answer_comes_first_then_the_tables_and_a_plot(made: Made) -> None:
    assert made.out.startswith("Take warm-pool, ")
    for part in ("way to serve", "what limits: compute", "slots by rules of thumb: always 1: 1", "If the load is another one", "(planned)"):
        assert part in made.out
    for name in ("plan-frontier.svg", "plan-sensitivity.svg", "plan-service.svg"):
        assert (made.path / name).read_bytes().startswith(b"<?xml")
        assert str(made.path / name) in made.out
    assert {path.name for path in made.path.iterdir()} == DOCUMENTED


def test_a_plan_is_read_back_as_it_was_made(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    found = read_plan(plan).plan
    assert found.holds and found.answer is not None and found.price is not None and found.cost is not None
    assert found.cost.per_hour == 2.5 and len(found.variations) == 6 + 5 + 4
    assert run("report", plan, "--markdown") == 0
    assert found.sentence in capsys.readouterr().out


def test_json_is_the_summary_of_the_folder(curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    given = ("--curve", curve, "--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity")
    assert run("plan", *given, "--results", tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    (folder,) = tmp_path.iterdir()
    assert told.pop("run") == str(folder)
    assert told == json.loads((folder / "summary.json").read_text())


def test_a_plan_is_validated_and_both_become_pages(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slots = read_plan(plan).plan.answer.candidate.slots  # type: ignore[union-attr]
    runs = load_runs(tmp_path / "runs", LOAD, (slots - 1, slots, slots + 1), seeds=(21, 22, 23))
    capsys.readouterr()
    assert run("validate", plan, *runs, "--seeds", 5, "--results", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "In 3 cases (9 runs) the predicted P99 is off by "
    ) and "right in 1 of 1 load (rules of thumb, of the same loads: " in said.replace("\n", " ")
    (folder,) = (tmp_path / "out").iterdir()
    found = read_validation(folder)
    assert len(found.validation.cases) == 3 and found.plan == read_plan(plan).plan
    html = (folder / "report.html").read_text()
    assert "Spike by spike" in html and html.count("<img ") == 1
    write_notebook(folder, tmp_path / "capacity.html")
    page = (tmp_path / "capacity.html").read_text()
    assert page.count("<img ") == page.count('alt="') == 4  # service, validation, frontier, sensitivity
    for part in ("Take warm-pool, ", "Start warm-pool, ", "was off by", "right for 1 of 1 load.", "Why this one", "Valid: the run"):
        assert part in page
    for absent in ("Only a burst experiment", "Can the measured arms carry the load", "How long a spike hurts"):
        assert absent not in page


def test_a_measurement_that_refutes_the_plan_comes_first_and_takes_it_back(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that is set as planned and does what one slot can do; and a larger one that does what it should."""
    slots = read_plan(plan).plan.answer.candidate.slots  # type: ignore[union-attr]
    runs = [load_run(tmp_path / f"a{seed}", LOAD, seed=seed, slots=1, options={"pool": str(slots)}) for seed in (21, 22, 23)]
    runs += load_runs(tmp_path / "larger", LOAD, (slots + 2,), seeds=(21, 22, 23))
    capsys.readouterr()
    assert run("validate", plan, *runs, "--seeds", 5, "--results", tmp_path / "out") == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert said.startswith(f"The plan is refuted: its answer, warm-pool {slots}, was predicted to have a P99 of ")
    (folder,) = (tmp_path / "out").iterdir()
    assert run("validate", plan, *runs, "--seeds", 5, "--results", tmp_path / "again", "--json") == 0
    assert json.loads(capsys.readouterr().out)["refuted"].startswith("The plan is refuted: ")
    assert "PLAN REFUTED" in (folder / "report.html").read_text()
    write_notebook(folder, tmp_path / "capacity.html")
    page = (tmp_path / "capacity.html").read_text()
    assert "Valid: the run" not in page and "<strong>Take" not in page and "Start warm-pool" not in page
    first, withdrawn, decided = (
        page.index(part) for part in ("Refuted: do not size by this plan", "Withdrawn; before", "Do not start warm")
    )
    assert first < withdrawn < decided
    assert f"hold under the same load</strong>: warm-pool {slots + 2}: " in page


def test_runs_that_are_not_valid_are_not_planned_with(curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = cold_run(tmp_path / "bad", unattributed=400)
    given = ("plan", "--curve", curve, "--coldstart", bad, "--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 1, "--no-sensitivity")
    capsys.readouterr()
    assert run(*given, "--results", tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert (
        err.startswith("bench: the cold-start run is not valid: ") and "--anyway plans with it" in err and not list(tmp_path.glob("out/*"))
    )
    assert run(*given, "--results", tmp_path / "out", "--anyway") == 0
    out = capsys.readouterr().out
    assert out.startswith("Not valid: the cold-start run is not valid") and "INVALID  the cold-start run" in out


def test_a_full_disk_names_the_file_and_leaves_nothing(
    curve: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bench.capacity.measured.write_parquet", full)
    capsys.readouterr()
    given = ("--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity")
    assert run("plan", "--curve", curve, *given, "--results", tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert "measured.parquet" in err and "No space left" in err and not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "window", "spread", "most", "vary"),
    [
        ("azure_llm_code_2023.csv", "10m:14m", None, 3000, True),
        ("mooncake_conversation_first20min.jsonl", "0s:5m", "3s", 1500, False),
        ("apache_combined_a.log", "0s:61s", "1s", 500, False),
    ],
)
def test_real_traces_are_planned_end_to_end(
    name: str,
    window: str,
    spread: str | None,
    most: int,
    vary: bool,
    curve: Path,
    cold: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = ["--window", window, *(["--spread", spread] if spread else [])]
    assert run("trace", shared_traces() / name, "-o", tmp_path / "load.parquet", *steps) == 0
    capsys.readouterr()
    given = ("--curve", curve, "--coldstart", cold, "--schedule", tmp_path / "load.parquet", "--slo", "p99=100ms", "--seeds", 2)
    assert (
        run(
            "plan",
            *given,
            "--max-replicas",
            4,
            "--modes",
            "warm-pool,elastic,lazy",
            *(() if vary else ("--no-sensitivity",)),
            "--results",
            tmp_path / "out",
            "--json",
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert 1 < told["load"]["arrivals"] < most and told["load"]["fixed"]
    assert told["answer"] is not None and told["sentence"].startswith(("Take ", "Nothing holds "))
    assert {one["what"] for one in told["variations"]} == ({"peak", "burst length", "cv of the gaps"} if vary else set())


def test_nothing_that_holds_is_a_missed_gate_and_the_folder_stays(curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("plan", "--curve", curve, "--arrivals", "poisson:rate=900,duration=5s", "--slo", "p99=60ms", "--seeds", 1, "--max-replicas", 1)
    for number, more in enumerate(((), ("--json",))):
        capsys.readouterr()
        assert run(*given, "--modes", "warm-pool", "--no-sensitivity", "--results", tmp_path / str(number), *more) == 1
        out, err = capsys.readouterr()
        assert "Nothing holds p99 <= 60.0 ms" in out and err == ""
        (folder,) = (tmp_path / str(number)).iterdir()
        assert not read_plan(folder).plan.holds and (folder / "report.html").is_file()


def test_slots_beyond_the_curve_are_told_of(curve: Path, tmp_path: Path) -> None:
    given = ("--arrivals", LOAD, "--slo", "p99=1s", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity", "--results", tmp_path)
    assert run("plan", "--curve", curve, *given, "--max-slots", 99) == 0
    (folder,) = tmp_path.iterdir()
    assert "--max-slots 99 is more than the curve has: at most 8 slots a replica were tried" in read_plan(folder).plan.notes


def test_a_coarse_clock_is_told_of(curve: Path, tmp_path: Path) -> None:
    trace = tmp_path / "coarse.csv"
    trace.write_text("time\n" + "".join(f"{tick * 3}\n" * 4 for tick in range(100)), "utf-8")
    assert run("trace", trace, "-o", tmp_path / "raw.parquet", "--unit", "s") == 0
    assert run("trace", trace, "-o", tmp_path / "spread.parquet", "--unit", "s", "--spread", "3s") == 0
    for name, told in (("raw", True), ("spread", False)):
        given = ("--schedule", tmp_path / f"{name}.parquet", "--slo", "p99=1s", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity")
        assert run("plan", "--curve", curve, *given, "--results", tmp_path / name) == 0
        (folder,) = (tmp_path / name).iterdir()
        notes = [note for note in read_plan(folder).plan.notes if "clock" in note]
        assert [note.partition(",")[0] for note in notes] == ([f"the clock's tick of {name}.parquet is 3s"] if told else [])
    with_trace = ("--trace", shared_traces() / "mooncake_conversation_first20min.jsonl", "--slo", "p99=1s", "--seeds", 1)
    assert run("plan", "--curve", curve, *with_trace, "--modes", "warm-pool", "--no-sensitivity", "--results", tmp_path / "trace") == 0
    (folder,) = (tmp_path / "trace").iterdir()
    assert "tick of mooncake_conversation_first20min.jsonl" in (folder / "report.html").read_text()


def test_a_trace_that_tells_its_format_needs_no_other_step(curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = shared_traces() / "azure_llm_code_2023.csv"
    given = ("--curve", curve, "--trace", trace, "--slo", "p99=2s", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity")
    assert run("plan", *given, "--results", tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["load"]["arrivals"] == 8819 and told["holds"] and told["variations"] == []


def test_models_on_one_device_share_its_memory(plan: Path, curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = read_plan(plan).plan.answer.replica_bytes  # type: ignore[union-attr]
    given = ("plan", "--curve", curve, "--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity")
    memory = ("--memory", f"{int(2 * held + 1)}", "--reserve", "0%", "--results", tmp_path, "--json")
    capsys.readouterr()
    assert run(*given, *memory, "--beside", plan) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["usable_bytes"] == int(2 * held + 1) - held and told["notes"][0].startswith("beside known, ")
    assert run(*given, *memory, "--beside", plan, "--beside", plan, "--beside", plan) == 2
    assert "is all taken by the plans that are --beside" in capsys.readouterr().err


def test_only_ways_that_have_to_be_left_out_are_one_sentence(
    curve: Path, cold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("plan", "--curve", curve, "--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 1, "--results", tmp_path)
    for more, why in (
        (("--coldstart", cold, "--modes", "scale-out"), "scale-out is left out: one replica is enough"),
        (("--modes", "lazy"), "lazy is left out: what a start takes is not known without --coldstart"),
        (("--modes", "cold-load,scale-out"), "scale-out and cold-load are left out: what a start takes is not known without --coldstart"),
    ):
        capsys.readouterr()
        assert run(*given, *more) == 2
        err = capsys.readouterr().err
        assert err.startswith("bench: no way to serve that was asked for can be planned (") and why in err and err.count("\n") == 1
        assert not list(tmp_path.iterdir())


def test_a_defect_leaves_no_half_of_a_plan(curve: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("broken")

    monkeypatch.setattr("bench.report.build.build_page", broken)
    given = ("--arrivals", LOAD, "--slo", "p99=60ms", "--seeds", 1, "--modes", "warm-pool", "--no-sensitivity")
    assert run("plan", "--curve", curve, *given, "--results", tmp_path) == 70
    assert not list(tmp_path.iterdir())


NONSENSE = {
    "no load": ([], "a plan needs one load"),
    "two loads": (["--arrivals", LOAD, "--schedule", "a.parquet"], "and not both --arrivals and --schedule"),
    "no such schedule": (["--schedule", "nowhere.parquet", "--slo", "p99=1s"], "is not a file"),
    "no slo": (["--arrivals", LOAD], "give --slo"),
    "an slo without a unit": (["--arrivals", LOAD, "--slo", "p99=100"], "is not a time"),
    "an slo of 0": (["--arrivals", LOAD, "--slo", "p99=0s"], "leaves no time at all"),
    "an slo below the service time": (["--arrivals", LOAD, "--slo", "p99=5ms"], "half of the requests take longer"),
    "too little memory": (["--arrivals", LOAD, "--slo", "p99=1s", "--memory", "100MB"], "one slot of known"),
    "nothing of a memory": (["--arrivals", LOAD, "--slo", "p99=1s", "--memory", "0GiB"], "leaves nothing behind the reserve of 10%"),
    "a mode of nothing": (["--arrivals", LOAD, "--slo", "p99=1s", "--modes", ","], "names no way to serve"),
    "a trace of no format": (["--trace", "/etc/passwd", "--slo", "p99=1s"], "give that with --schedule"),
    "a long queue": (["--arrivals", LOAD, "--slo", "p99=1s", "--queue-limit", "9" * 23], "--queue-limit is"),
    "many replicas": (["--arrivals", LOAD, "--slo", "p99=1s", "--max-replicas", "9" * 20], "at most 10,000"),
    "a long seed": (["--arrivals", LOAD, "--slo", "p99=1s", "--seed", "9" * 23], "--seed is"),
    "many seeds": (["--arrivals", LOAD, "--slo", "p99=1s", "--seeds", "9" * 20], "at most 1,000"),
    "a high price": (["--arrivals", LOAD, "--slo", "p99=1s", "--price", "1e308/h"], "the highest price that is taken"),
    "another memory": (["--arrivals", LOAD, "--slo", "p99=1s", "--memory-by", "most"], "is neither peak nor mean"),
    "no memory": (["--arrivals", LOAD, "--slo", "p99=1s", "--memory", "much"], "is not a size"),
    "all of it reserved": (["--arrivals", LOAD, "--slo", "p99=1s", "--memory", "1GB", "--reserve", "100%"], "is not a share below 1"),
    "a negative price": (["--arrivals", LOAD, "--slo", "p99=1s", "--price", "-2/h"], "is below 0"),
    "a goodput above 1": (["--arrivals", LOAD, "--slo", "p99=1s", "--goodput", "99"], "is not a share"),
    "beside without memory": (["--arrivals", LOAD, "--slo", "p99=1s", "--beside", "somewhere"], "say with --memory"),
    "no mode": (["--arrivals", LOAD, "--slo", "p99=1s", "--modes", "hot"], "hot is none of"),
    "no replicas": (["--arrivals", LOAD, "--slo", "p99=1s", "--max-replicas", "0"], "must be at least 1"),
    "no seeds": (["--arrivals", LOAD, "--slo", "p99=1s", "--seeds", "0"], "must be at least 1"),
    "a wrong time": (["--arrivals", LOAD, "--slo", "p99=1s", "--detect", "soon"], "is not a time"),
    "a phase that is not there": (["--arrivals", LOAD, "--slo", "lunch.p99=1s"], "has no phase 'lunch'"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_one_sentence(case: str, curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, complaint = NONSENSE[case]
    capsys.readouterr()
    assert run("plan", "--curve", curve, *arguments, "--results", tmp_path / "out") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("bench: ") and err.count("\n") == 1 and complaint in err
    assert not list(tmp_path.glob("out/*"))


def test_what_is_no_curve_or_no_plan_is_one_sentence(curve: Path, cold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.csv").write_text("timestamp\n")
    load = ("--arrivals", LOAD, "--slo", "p99=1s", "--results", tmp_path / "out")
    for arguments, complaint in (
        (("plan", "--curve", tmp_path / "nowhere", *load), "not a run folder"),
        (("plan", "--curve", cold, *load), "no curve run: name one that `bench curve` left"),
        (("plan", "--curve", curve, "--coldstart", curve, *load), "no coldstart run: name one that `bench coldstart` left"),
        (("plan", "--curve", curve, "--trace", tmp_path / "empty.csv", "--slo", "p99=1s", "--results", tmp_path / "out"), "empty.csv"),
        (("plan", *load), "--curve"),
        (("validate", curve, cold, "--results", tmp_path / "out"), "no plan run: name one that `bench plan` left"),
    ):
        capsys.readouterr()
        assert run(*arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("bench: ") and err.count("\n") == 1 and complaint in err, err
