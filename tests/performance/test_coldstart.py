"""The timed bars of `bench coldstart`. Run them on a machine that does nothing else: `make performance`."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.statistics import median

HERE = Path(__file__).parent


def coldstart(arguments: list[str], results: Path) -> dict[str, Any]:
    """The command's own JSON. Exit code 0: the run is valid by its own checks."""
    command = [sys.executable, "-m", "bench", "coldstart", *arguments, "--results", str(results), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = coldstart(["resnet50", "--trials", "20"], tmp_path_factory.mktemp("results"))
    print(f"\nresnet50: {found['subject']}, 20 trials a level: {found['sentence']}")
    return found


def level(run: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in run["levels"] if entry["level"] == name)


def test_less_than_three_percent_is_unattributed(resnet50: dict[str, Any]) -> None:
    for name in ("process", "process-disk"):
        rest = next(phase for phase in level(resnet50, name)["phases"] if phase["name"] == "unattributed")
        share = rest["spread"]["median"] / level(resnet50, name)["total"]["median"]
        print(f"{name}: unattributed {share:.2%} of the total (medians of {rest['spread']['samples']})")
        assert share < 0.03


def test_time_before_inference_is_ordered(resnet50: dict[str, Any]) -> None:
    spreads = [level(resnet50, name)["before_inference"] for name in ("process", "engine", "slot")]
    for name, spread in zip(("process", "engine", "slot"), spreads, strict=True):
        interval = spread["interval"]
        print(f"{name}: {spread['median'] / 1e6:.3f} ms before inference, {interval['low'] / 1e6:.3f} to {interval['high'] / 1e6:.3f}")
    for slower, faster in itertools.pairwise(spreads):
        assert slower["interval"]["low"] > faster["interval"]["high"]


def test_differences_carry_an_interval(resnet50: dict[str, Any]) -> None:
    pairs = {(entry["second"], entry["first"]): entry["shift"] for entry in resnet50["comparisons"]}
    for pair in (("slot", "warm"), ("process-disk", "process")):
        shift = pairs[pair]
        low, high = shift["interval"]["low"] / 1e6, shift["interval"]["high"] / 1e6
        print(f"{pair[0]} - {pair[1]}: {shift['difference'] / 1e6:+.2f} ms, {low:+.2f} to {high:+.2f}")
        assert shift["interval"]["low"] <= shift["difference"] <= shift["interval"]["high"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the outside stopwatch is a C program")
def test_the_total_agrees_with_an_outside_stopwatch(tmp_path: Path) -> None:
    """A C program stands where the interpreter does: it starts the real one and stops at the byte that reports the answer."""
    stopwatch, log = tmp_path / "python-under-stopwatch", tmp_path / "stopwatch.txt"
    subprocess.run(
        ["gcc", "-O2", f'-DPYTHON="{sys.executable}"', f'-DLOG="{log}"', "-o", str(stopwatch), str(HERE / "stopwatch.c")], check=True
    )
    arguments = ["resnet50", "--level", "process", "--trials", "20", "--python", str(stopwatch)]
    run = coldstart(arguments, tmp_path / "results")
    # The resident child is under the stopwatch too; only fresh processes count.
    seconds = [float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("process ")]
    assert len(seconds) == 20
    outside, inside = median(seconds) * 1e9, level(run, "process")["total"]["median"]
    print(f"\ntotal by phases {inside / 1e6:.1f} ms, outside stopwatch {outside / 1e6:.1f} ms, {outside / inside - 1:+.2%} (medians of 20)")
    assert abs(outside - inside) / inside < 0.03
