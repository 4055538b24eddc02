"""Fixtures that many tests share: engines are built once a session, into a temporary folder."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.engine.manifest import PROBE_FILE, SCHEMA_VERSION, Manifest, ShapeRange, Tensor, cpu_device, describe_file, write_manifest
from bench.engine.synthetic_builder import build_synthetic

ROOT = Path(__file__).resolve().parents[1]

SyntheticFactory = Callable[..., Path]


@pytest.fixture
def synthetic(tmp_path: Path) -> SyntheticFactory:
    """Build a synthetic engine with declared times: `synthetic(load_ns=..., service_ns=...)` gives its directory."""
    made = 0

    def build(*, name: str = "synthetic", max_batch: int = 8, **declared: int) -> Path:
        nonlocal made
        made += 1
        directory = tmp_path / f"engine-{made}" / name
        build_synthetic(directory, name=name, max_batch=max_batch, **declared)
        return directory

    return build


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """What git tracks or would track; without git, everything outside hidden folders and built ones."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        files = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        built = {"results", "build", "dist", "__pycache__"}
        folders = {path: path.relative_to(ROOT).parts[:-1] for path in ROOT.rglob("*")}
        files = [path for path, parts in folders.items() if not any(p.startswith(".") or p in built for p in parts)]
    return [path for path in files if path.is_file()]


@pytest.fixture(scope="session")
def linear_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x W) in ONNX, batches of 1 to 4."""
    import numpy as np

    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    directory = tmp_path_factory.mktemp("engines") / "linear"
    directory.mkdir()
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((16, 8)).astype(np.float32)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    arrays = {}
    for case, batch in enumerate((1, 4)):
        x = rng.standard_normal((batch, 16)).astype(np.float32)
        arrays |= {f"{case}/input/x": x, f"{case}/output/y": np.maximum(x @ weights, 0)}
    np.savez(directory / PROBE_FILE, allow_pickle=False, **arrays)
    file = describe_file(directory / "model.onnx")
    device, features = cpu_device()
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name="linear",
        version="1",
        source_sha256=file.sha256,
        files=(file,),
        runtime="onnxruntime",
        runtime_version=onnxruntime.__version__,
        precision="fp32",
        device=device,
        device_features=features,
        inputs=(Tensor(name="x", datatype="FP32", dims=("batch", 16)),),
        outputs=(Tensor(name="y", datatype="FP32", dims=("batch", 8)),),
        profiles=({"x": ShapeRange(min=(1, 16), opt=(1, 16), max=(4, 16))},),
        options={},
        tolerance=1e-5,
        parity_error=0.0,
        built_at="2026-01-31T12:00:00Z",
        build_duration_ns=0,
        host=platform.node(),
        baseline=None,
    )
    write_manifest(directory, manifest)
    return directory
