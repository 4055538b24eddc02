"""The modern, strongly typed builder for real, through TensorRT-RTX, which needs no GPU to build (skipped where it is not installed).

`pip install tensorrt-rtx`; what needs a GPU is in tests/gpu.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.engine.build import build_engine, check_request
from bench.engine.manifest import Manifest, read_manifest
from bench.engine.request import BuildRequest, TensorrtOptions
from bench.engine.resolve import BuildOptions, build_request
from bench.errors import BenchError
from bench.models import write_model

needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="tensorrt_rtx is not installed: pip install tensorrt-rtx"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    write_model("tiny", 0, path)
    return path


def build(model: Path, directory: Path, shapes: dict[str, str] | None = None, **options: Any) -> tuple[Manifest, list[str]]:
    """The manifest and the progress lines. An engine that this machine cannot run is not measured."""
    lines: list[str] = []
    request = BuildRequest(model=model, runtime="tensorrt", shapes=shapes or {}, tensorrt=TensorrtOptions(module="tensorrt_rtx", **options))

    def measure(_: Path) -> Any:
        raise AssertionError("there is no GPU to measure on")

    return build_engine(request, directory, measure=measure, progress=lines.append), lines


@needs_rtx
@pytest.mark.parametrize(("precision", "error"), [("fp32", 0.0), ("fp16", 1e-3), ("int8", 0.05)])
def test_three_precisions(precision: str, error: float, model: Path, tmp_path: Path) -> None:
    manifest, lines = build(model, tmp_path / "engine", precision=precision)
    assert read_manifest(tmp_path / "engine") == manifest
    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == ["manifest.json", "model.plan", "probe.npz"]
    assert (manifest.runtime, manifest.precision, manifest.device, manifest.options["module"]) == (
        "tensorrt",
        precision,
        "cuda",
        "tensorrt_rtx",
    )
    assert manifest.runtime_version.startswith("1.")
    assert manifest.baseline is None
    assert manifest.engine_bytes > 100_000
    details = manifest.details
    assert details is not None
    assert details.flags == ("STRONGLY_TYPED",)
    assert details.versions["TensorRT library"] in manifest.runtime_version
    assert details.source_nodes == 5
    assert details.network_layers is not None
    assert details.network_layers >= 5
    assert (manifest.options.get("calibration"), "logits" in details.conversion_errors) == (
        ("random", True) if precision == "int8" else (None, precision == "fp16")
    )
    assert manifest.parity_error <= error <= manifest.tolerance
    assert (manifest.parity_error > 0) == (precision != "fp32")
    assert ("comparing the converted graph with the source model" in lines) == (precision != "fp32")
    assert any(line.startswith("building the engine") for line in lines)


@needs_rtx
def test_profiles_options_and_calibration_of_ones_own(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", input=np.random.default_rng(0).random((8, 64), dtype=np.float32))
    manifest, _ = build(
        model, tmp_path / "engine", {"input": "1x64,2x64:4x64:16x64"}, precision="int8", calibration=tmp_path / "data.npz",
        optimization_level=2, workspace_bytes=1 << 28, timing_cache=tmp_path / "times",
    )  # fmt: skip
    assert [profile["input"].max for profile in manifest.profiles] == [(1, 64), (16, 64)]
    assert manifest.max_batch == 16
    assert {key: manifest.options[key] for key in ("calibration", "optimization_level", "workspace", "timing_cache")} == {
        "calibration": "data.npz", "optimization_level": "2", "workspace": str(1 << 28), "timing_cache": "times",
    }  # fmt: skip
    with np.load(tmp_path / "engine/probe.npz") as probe:
        assert [probe[f"{case}/input/input"].shape[0] for case in range(4)] == [1, 2, 4, 16]
    first = (tmp_path / "times").read_bytes()
    assert first
    build(model, tmp_path / "again", precision="int8", timing_cache=tmp_path / "times")  # it is taken again


@needs_rtx
def test_a_node_that_the_parser_does_not_know_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["input", "shape"], ["square"], name="to_matrix"),
        helper.make_node("Det", ["square"], ["det"], name="the_determinant"),
        helper.make_node("Add", ["input", "det"], ["output"], name="sum"),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("input", "output")]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [4, 4])
    graph = helper.make_graph(nodes, "det", tensors[:1], tensors[1:], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "det.onnx"))
    with pytest.raises(BenchError, match=r"cannot take the graph: node 'the_determinant' \(Det\): .+"):
        build(tmp_path / "det.onnx", tmp_path / "engine")
    assert [path.name for path in tmp_path.iterdir()] == ["det.onnx"]


@needs_rtx
def test_a_conversion_that_moves_the_answers_too_far_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"in int8, output 'logits' is off by 0\.0\d+ relative \(at most 0\.001 is allowed\); calibrate"):
        build(model, tmp_path / "engine", precision="int8", tolerance=1e-3)
    assert not (tmp_path / "engine").exists()


@needs_rtx
def test_by_the_command_line(model: Path, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    command = [sys.executable, "-m", "bench", "build", str(model), "--runtime", "tensorrt", "--module", "tensorrt_rtx", "-o", str(engine)]
    answer = subprocess.run([*command, "--precision", "fp16"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "tensorrt_rtx" in answer.stdout
    assert "not measured" in answer.stdout
    shown = subprocess.run([sys.executable, "-m", "bench", "inspect", str(engine), "--json"], capture_output=True, text=True)
    assert json.loads(shown.stdout)["precision"] == "fp16"
    loaded = subprocess.run([sys.executable, "-m", "reference_server.probe", str(engine)], capture_output=True, text=True)
    assert loaded.returncode == 2  # no CUDA here, or a GPU that TensorRT-RTX does not run on
    assert len(loaded.stderr.splitlines()) == 1, loaded.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"precision": "fp8"}, "--precision fp8 is not one of fp32, fp16, int8"),
        ({"module": "tensorrt_lean"}, "--module tensorrt_lean builds no engines"),
        ({"calibration": Path("x.npz")}, "--calibration is for --precision int8"),
        ({"module": "tensorrt_rtx", "version_compatible": True}, "has no lean runtime"),
        ({"optimization_level": 6}, "not between 0 and 5"),
        ({"workspace_bytes": 0}, "larger than 0"),
        ({"tolerance": 1.5}, "not between 0 and 1"),
        ({"timing_cache": Path("/no/such/folder/cache")}, "there is no such folder"),
        ({"timing_cache": Path("/dev/null")}, "--timing-cache /dev/null is no regular file"),
    ],
)
def test_options_that_are_wrong_are_told_before_anything_is_done(options: dict[str, Any], reason: str, model: Path, tmp_path: Path) -> None:
    request = BuildRequest(model=model, runtime="tensorrt", tensorrt=TensorrtOptions(**options))
    with pytest.raises(BenchError, match=reason):
        check_request(request, tmp_path / "engine")


def test_options_of_onnxruntime_are_no_options_of_tensorrt(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="--optimize is for --runtime onnxruntime"):
        check_request(BuildRequest(model=model, runtime="tensorrt", optimize="none"), tmp_path / "engine")


def test_options_of_tensorrt_are_no_options_of_onnxruntime(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="options of --runtime tensorrt"):
        check_request(BuildRequest(model=model, tensorrt=TensorrtOptions(precision="fp16")), tmp_path / "engine")
    with pytest.raises(BenchError, match="knows onnxruntime, tensorrt"):
        check_request(BuildRequest(model=model, runtime="openvino"), tmp_path / "engine")


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="tensorrt is installed here")
def test_without_tensorrt_the_build_says_what_to_install(model: Path, tmp_path: Path) -> None:
    request = BuildRequest(model=model, runtime="tensorrt")
    with pytest.raises(BenchError, match=r"tensorrt cannot be imported .*pip install tensorrt"):
        build_engine(request, tmp_path / "engine", measure=lambda _: pytest.fail("not reached"))
    assert list(tmp_path.iterdir()) == []


def test_the_options_reach_the_request(model: Path) -> None:
    options = BuildOptions(runtime="tensorrt", tensorrt=TensorrtOptions(precision="int8"))
    request, _ = build_request(str(model), options)
    assert (request.runtime, request.tensorrt.precision) == ("tensorrt", "int8")
