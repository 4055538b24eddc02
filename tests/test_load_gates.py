"""`bench check RUN --slo ... --goodput ...`: validity first, then the bounds, by the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench.cli.run  # noqa: F401  (it adds the commands)
from bench.analysis.experiment import summarize
from bench.analysis.subject import open_subject
from bench.cli.app import app as commands
from bench.errors import EXIT_FINE, EXIT_GATE_MISSED, EXIT_INVALID_RUN, BenchError
from bench.slo import parse_slo, parse_slo_time_ns
from tests.experiments import MS, cold_and_warm, write_experiment


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("gates") / "e", cold_and_warm, slo_ns=None)


def check(*arguments: object) -> int:
    code = commands(["check", *map(str, arguments)], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_forms() -> None:
    gate = parse_slo("spike.p99 = 1.5s")
    assert (gate.phase, gate.statistic, gate.bound_ns) == ("spike", "p99", 1500 * MS)
    assert parse_slo(" 200ms") == parse_slo("p99= 200ms") != parse_slo("p50=200ms")
    for text in ("p99", "p98=1s", "p99=1", "p99<1s", "=1s", "", "0s", "max=0s", "200"):
        with pytest.raises(BenchError, match="--slo"):
            parse_slo(text)


def test_a_time_that_counts_as_good_is_a_bare_one_or_a_p99() -> None:
    assert parse_slo_time_ns("200ms") == parse_slo_time_ns("p99=200ms") == 200 * MS
    for text, named in (("p50=200ms", "another percentile"), ("max=1s", "another percentile"), ("spike.p99=1s", "a phase")):
        with pytest.raises(BenchError, match=f"names {named}.*such as --slo 200ms or"):
            parse_slo_time_ns(text)


# The warm pool's spikes end at 20 * 1.5 + 19.9 = 49.9 ms, the cold load's at 169.9 ms.
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), EXIT_FINE),
        (("--slo", "max=170ms"), EXIT_FINE),
        (("--slo", "170ms"), EXIT_FINE),
        (("--slo", "50ms"), EXIT_GATE_MISSED),
        (("--slo", "max=160ms"), EXIT_GATE_MISSED),
        (("--slo", "max=50ms", "--arm", "warm-pool"), EXIT_FINE),
        (("--slo", "p50=12ms", "--slo", "spike.p50=12ms", "--arm", "warm-pool"), EXIT_GATE_MISSED),
        (("--slo", "max=50ms", "--goodput", "1", "--arm", "warm-pool"), EXIT_FINE),
        (("--slo", "p50=45ms", "--goodput", "0.99", "--arm", "warm-pool"), EXIT_GATE_MISSED),
    ],
)
def test_exit_codes(experiment: Path, arguments: tuple[str, ...], code: int) -> None:
    assert check(experiment, *arguments) == code


def test_what_is_missed_is_said_with_what_was_measured(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(experiment, "--slo", "max=160ms") == EXIT_GATE_MISSED
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gate")]
    assert lines == [
        "gate MISSED: max=160ms [cold-load], measured 170 ms",
        "gate passed: max=160ms [warm-pool], measured 49.9 ms",
    ]


def test_json(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(experiment, "--slo", "max=160ms", "--json") == EXIT_GATE_MISSED
    found = json.loads(capsys.readouterr().out)
    assert found["valid"] and [gate["passed"] for gate in found["gates"]] == [False, True]


def test_json_without_bounds_tells_validity_and_key_figures(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(experiment, "--json") == EXIT_FINE
    found = json.loads(capsys.readouterr().out)
    kept = summarize(open_subject(experiment)).to_json()
    assert (found["valid"], found["reasons"], found["missing_runs"], found["gates"]) == (True, [], 0, [])
    assert found["sentence"] == kept["sentence"] and len(found["runs"]) == 4
    for one, arm in zip(found["arms"], kept["arms"], strict=True):
        spike = next(phase for phase in arm["latency"] if phase["phase"] == "spike")
        assert (one["arm"], one["spike_p99_ns"]) == (arm["name"], spike["response"]["p99"])
        assert one["attainment"] == arm["goodput"][0]["attainment"] and one["recovery_median_ns"] == arm["recovery"]["median_ns"]


def test_json_of_what_is_not_valid_has_reasons_and_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = write_experiment(tmp_path / "e.partial", cold_and_warm, leave_out=["01-warm-pool"])
    assert check(half, "--json") == EXIT_INVALID_RUN
    found = json.loads(capsys.readouterr().out)
    assert not found["valid"] and found["reasons"] == ["run 01-warm-pool is missing"] and found["arms"] == []
    bad = write_experiment(tmp_path / "e", cold_and_warm, status=lambda arm, block, seq: "not_sent" if seq % 20 == 0 else "ok")
    assert check(bad, "--json", "--slo", "p99=1s") == EXIT_INVALID_RUN
    found = json.loads(capsys.readouterr().out)
    assert len(found["reasons"]) >= 4 and found["arms"] == [] and found["gates"] == [] and found["sentence"] is None


def test_an_invalid_run_is_no_missed_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_experiment(tmp_path / "e", cold_and_warm, status=lambda arm, block, seq: "not_sent" if seq % 20 == 0 else "ok")
    assert check(path, "--slo", "max=1ns") == EXIT_INVALID_RUN
    assert "gate" not in capsys.readouterr().out


def test_half_an_experiment_passes_no_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_experiment(tmp_path / "e.partial", cold_and_warm, leave_out=["01-warm-pool"])
    assert check(path, "--slo", "max=10s") == EXIT_INVALID_RUN
    assert "1 runs of the experiment are missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--goodput", "0.99"), "needs to know what is good"),
        (("--slo", "p99=1s", "--goodput", "99"), "is not a share"),
        (("--slo", "p99=1s", "--arm", "no"), "has no such arm, only cold-load, warm-pool"),
        (("--slo", "peak.p99=1s"), "has no phase 'peak', only base, spike, rest"),
    ],
)
def test_wrong_bounds_are_one_sentence(experiment: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        check(experiment, *arguments)
