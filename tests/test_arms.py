"""What `bench burst` refuses before it makes anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import BenchError
from bench.experiment.arms import MOST_SLOTS, parse_arms
from reference_server import pool_settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("warm-pool:pool=0", "pool is 0, and must be at least 1"),
        ("warm-pool:pool=²", "not a whole number"),
        ("warm-pool:pool=99999999999", "pool is 99999999999, and must be at most 1,024"),
        ("elastic:max=" + "9" * 5000, "max is 9+, and must be at most 1,024"),
        ("elastic:max=0", "max is 0"),
        ("elastic:min=5,max=2", "min is above max"),
        ("warm-pool:sharing=some", "not one of engine, copy"),
        ("elastic:idle=3", "idle '3' is not a time"),
        ("warm-pool:acquire=0s", "acquire must be above 0"),
        ("warm-pool:pool=4,sharing=copy,pool=2", "pool is there twice in one arm"),
    ],
)
def test_an_arm_that_cannot_be_served_is_refused(text: str, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        parse_arms(text)


def test_what_an_arm_may_have_is_what_the_server_takes() -> None:
    assert MOST_SLOTS == pool_settings.MOST_SLOTS
    pool_settings.PoolSettings(size=MOST_SLOTS)
    for wrong in ({"size": MOST_SLOTS + 1}, {"mode": "elastic", "max": MOST_SLOTS + 1}):
        with pytest.raises(BenchError, match="at most 1,024"):
            pool_settings.PoolSettings(**wrong)  # type: ignore[arg-type]


def test_arms_that_can() -> None:
    (arm,) = parse_arms("elastic:min=0,max=2,idle=0s,queue=0,acquire=1s,sharing=copy,threads=1")
    assert arm.concurrency == 2 and arm.settings == {"threads": "1"} and len(arm.flags()) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        ["--deadline", "0s"],
        ["--slo", "0s"],
        ["--slo", "spike.p99=1s"],
        ["--slo", "p50=1s"],
        ["--seed", "-1"],
        ["--spikes", "1000000000"],
        ["--arms", "warm-pool:pool=0"],
    ],
)
def test_wrong_bounds_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["bench", "burst", "tiny", "--results", str(tmp_path / "r"), "--base", "5", "--peak", "50", *wrong])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said and not (tmp_path / "r").exists(), said
