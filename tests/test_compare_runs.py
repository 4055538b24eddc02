"""`bench compare A B`: what may be compared, what may not and why, and the numbers of what may."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import bench.cli.run  # noqa: F401  (it adds the commands)
from bench.analysis.compare_runs import compare_runs
from bench.cli.app import app as commands
from bench.errors import BenchError
from tests.experiments import ENGINE, cold_and_warm, write_experiment

WARM = ({"name": "warm-pool", "mode": "warm-pool", "options": {}, "settings": {}},)


def slower(arm: str, block: int, spike: int | None, position: int) -> tuple[int, dict[str, int]]:
    took, _ = cold_and_warm(arm, block, spike, position)
    return took * 3 // 2, {}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("before") / "a", cold_and_warm, arms=WARM)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("after") / "b", slower, arms=WARM)


def test_a_slowdown_by_half(before: Path, after: Path) -> None:
    found = compare_runs(before, after)
    assert found.obstacles == ()
    (arm,) = found.arms
    assert arm.p99 is not None and arm.p99.ratio_interval is not None
    assert arm.p99.ratio == pytest.approx(1.5)
    assert math.isclose(arm.p99.ratio_interval.low, 1.5, rel_tol=1e-6) and arm.p99.distinguishable


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("source_sha256", "bb", "another model: aa and bb"),
        ("precision", "fp16", "another precision: fp32 and fp16"),
        ("device", "gpu:sm_90", "another device: cpu:x86_64 and gpu:sm_90"),
        ("runtime_version", "2", "another runtime version: 1 and 2"),
    ],
)
def test_another_engine_is_refused(before: Path, tmp_path: Path, key: str, value: str, why: str) -> None:
    other = write_experiment(tmp_path / "b", cold_and_warm, arms=WARM, engine={**ENGINE, key: value})
    assert compare_runs(before, other).obstacles == (why,)
    assert compare_runs(before, other).arms == ()


def test_another_schedule_is_refused(before: Path, tmp_path: Path) -> None:
    other = write_experiment(tmp_path / "b", cold_and_warm, arms=WARM, spikes=4)
    (why,) = compare_runs(before, other).obstacles
    assert why.startswith("another schedule")


def test_an_invalid_run_is_refused(before: Path, tmp_path: Path) -> None:
    other = write_experiment(tmp_path / "b", cold_and_warm, arms=WARM, status=lambda arm, block, seq: "not_sent" if seq < 100 else "ok")
    assert all("is not valid" in why for why in compare_runs(before, other).obstacles)
    assert len(compare_runs(before, other).obstacles) == 2


def test_half_an_experiment_is_refused(before: Path, tmp_path: Path) -> None:
    other = write_experiment(tmp_path / "b.partial", cold_and_warm, arms=WARM, leave_out=["01-warm-pool"])
    assert any("is not whole: 1 runs are missing" in why for why in compare_runs(before, other).obstacles)


def test_the_command_refuses_and_does_it_anyway(before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_experiment(tmp_path / "b", slower, arms=WARM, engine={**ENGINE, "precision": "fp16"})
    with pytest.raises(BenchError, match=r"cannot be compared: another precision: fp32 and fp16; --anyway"):
        commands(["compare", str(before), str(other)], standalone_mode=False)
    commands(["compare", str(before), str(other), "--anyway"], standalone_mode=False)
    told = capsys.readouterr()
    assert "NOT ALIKE  another precision" in told.err
    assert "warm-pool of b against warm-pool of a: " in told.out and ", 1.5x " in told.out
    commands(["compare", str(before), str(other), "--anyway", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["arms"][0]["p99"]["ratio"] == pytest.approx(1.5)


def test_a_run_is_not_compared_with_itself(before: Path) -> None:
    with pytest.raises(BenchError, match="are the same run"):
        compare_runs(before, before)


def test_two_single_runs_of_one_experiment(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "e", cold_and_warm)
    found = compare_runs(path / "runs" / "00-cold-load", path / "runs" / "00-warm-pool")
    assert found.obstacles == ()
    assert found.arms[0].p99 is not None and found.arms[0].p99.units == 3
