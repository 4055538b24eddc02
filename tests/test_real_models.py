"""Models that nobody here made work as well as ours: built, started cold, and answered correctly, through the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import real_models
from conftest import BenchCommand

from bench.records import open_run

CHOSEN = ("ocr-orientation", "voice-activity-named-axes", "file-type", "sentence-embedding")
MODELS = {model.name: model for model in real_models.REAL_MODELS}


@pytest.mark.parametrize("name", CHOSEN)
def test_is_built_and_measured_in_one_command(name: str, bench_command: BenchCommand, tmp_path: Path) -> None:
    model = MODELS[name]
    path = real_models.fetch_or_skip(model)
    flags = [f"--shape={key}={value}" for key, value in model.shapes.items()]
    flags += [f"--input={key}={value}" for key, value in model.inputs.items()]
    ended = bench_command("coldstart", path, *flags, "--level", "process,warm", "--trials", "1", "--json")
    assert ended.stdout, ended.stderr
    summary = json.loads(ended.stdout)
    # Every trial checked its answer against the unoptimised model's. One trial on a busy machine may not be valid.
    assert ended.returncode == (0 if summary["valid"] else 3), ended.stderr
    assert [(level["level"], level["total"]["samples"]) for level in summary["levels"]] == [("process", 1), ("warm", 1)]
    (folder,) = (tmp_path / "results").iterdir()
    engine = open_run(folder).run["variants"][0]["engine"]
    assert engine["name"] == name
    assert engine["source_sha256"] == model.sha256
    assert engine["parity_error"] <= engine["tolerance"]
    assert engine["baseline"]["samples"] > 0


def test_the_unusual_things_are_there(bench_command: BenchCommand) -> None:
    refused = bench_command("coldstart", real_models.fetch_or_skip(MODELS["ocr-orientation"]), "--trials", "1")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "input 'x' has the dynamic axis 2 (x.2) without a size: give one with --shape x=1x3xNxN" in line
