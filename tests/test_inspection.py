"""`bench inspect` on an engine that runs here, and profiles that a comma divides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.engine.build import build_engine
from bench.engine.manifest import ShapeRange, Tensor, read_manifest
from bench.engine.request import BuildRequest
from bench.engine.resolve import measure_baseline
from bench.engine.shapes import resolve_profiles
from bench.errors import BenchError
from bench.models import write_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspection")
    write_model("tiny", 0, folder / "tiny.onnx")
    request = BuildRequest(model=folder / "tiny.onnx", shapes={"input": "1x64,2x64:4x64:16x64"})
    build_engine(request, folder / "engine", measure=measure_baseline)
    return folder / "engine"


def inspect(*arguments: object) -> str:
    command = [sys.executable, "-m", "bench", "inspect", *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_text_says_what_the_engine_is(engine: Path) -> None:
    rows = {line[:11].strip(): line[12:] for line in inspect(engine).splitlines()}
    assert rows["engine"].startswith("tiny, onnxruntime ")
    assert rows["profile 0"] == "input 1x64 : 1x64 : 1x64"
    assert rows["profile 1"] == "input 2x64 : 4x64 : 16x64"
    assert rows["layers"] == "5 operators in the model, 3 layers executed, 40% of the operators fused away"
    assert rows["parity"].startswith("logits ")
    assert "requests/s" in rows["one slot"]
    assert "not known" in inspect(engine, "--layers")


def test_the_json_is_the_manifest_with_what_follows_from_it(engine: Path) -> None:
    found = json.loads(inspect(engine, "--json"))
    assert found["share_fused"] == pytest.approx(0.4)
    assert found["layers"] == []
    assert found["baseline"]["errors"] == dict(read_manifest(engine).baseline.errors)  # type: ignore[union-attr]
    assert found["name"] == "tiny"


def test_what_is_no_engine(tmp_path: Path) -> None:
    answer = subprocess.run([sys.executable, "-m", "bench", "inspect", str(tmp_path)], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("bench: ")
    assert len(answer.stderr.splitlines()) == 1


def test_profiles() -> None:
    tensors = (Tensor(name="a", datatype="FP32", dims=("batch", 4)), Tensor(name="b", datatype="FP32", dims=(4,)))
    first, second = resolve_profiles(tensors, {"a": "1x4,2x4:4x4:8x4"})
    assert first["a"] == ShapeRange(min=(1, 4), opt=(1, 4), max=(1, 4))
    assert second["a"] == ShapeRange(min=(2, 4), opt=(4, 4), max=(8, 4))
    assert first["b"] == second["b"] == ShapeRange(min=(4,), opt=(4,), max=(4,))
    assert len(resolve_profiles(tensors, {})) == 1
    with pytest.raises(BenchError, match=r"names 3 profiles, another input names 2|names 2 profiles, another input names 3"):
        resolve_profiles(tensors, {"a": "1x4,2x4", "b": "4,4,4"})
