"""Fixtures that many tests share: engines are built once a session, into a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bench.engine.build import BuildRequest, build_engine
from bench.engine.resolve import measure_baseline
from bench.engine.synthetic_builder import build_synthetic
from bench.models import write_model

ROOT = Path(__file__).resolve().parents[1]

# The same code gets the same verdict, on a slow or busy machine too: no limits of time, and the same examples each time.
# `pytest --hypothesis-profile=search` draws new ones.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", settings.get_profile("search"), derandomize=True)
settings.load_profile("repeat")

SyntheticFactory = Callable[..., Path]
BenchCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def synthetic(tmp_path: Path) -> SyntheticFactory:
    """Build a synthetic engine with declared times: `synthetic(load_ns=..., service_ns=...)` gives its directory."""
    made = 0

    def build(*, name: str = "synthetic", max_batch: int = 8, **declared: Any) -> Path:
        nonlocal made
        made += 1
        directory = tmp_path / f"engine-{made}" / name
        build_synthetic(directory, name=name, max_batch=max_batch, **declared)
        return directory

    return build


@pytest.fixture(scope="session")
def bench_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment for commands: this tree's packages, and a cache of engines that is the session's own."""
    own = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    fonts = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "matplotlib"  # seconds of work, and the same for all
    try:
        fonts.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written
        fonts = tmp_path_factory.mktemp("fonts")
    return {"MPLCONFIGDIR": str(fonts), **os.environ, **own}


@pytest.fixture
def bench_command(tmp_path: Path, bench_environment: dict[str, str]) -> BenchCommand:
    """`bench_command("coldstart", "tiny", ...)` runs the real command, in the test's temporary folder."""

    def run(*arguments: str | Path, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "bench", *map(str, arguments)]
        given = {"cwd": tmp_path, "env": bench_environment, "stdin": subprocess.DEVNULL, **options}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **given)  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of `tiny`, with its baseline. Tests that change files copy it."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model("tiny", 0, folder / "tiny.onnx")
    build_engine(BuildRequest(model=folder / "tiny.onnx"), folder / "engine", measure=measure_baseline)
    return folder / "engine"


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
    import onnx

    folder = tmp_path_factory.mktemp("linear")
    weights = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "linear.onnx").write_bytes(model.SerializeToString())
    request = BuildRequest(model=folder / "linear.onnx", shapes={"x": "1x16:1x16:4x16"})
    build_engine(request, folder / "linear", measure=measure_baseline)
    return folder / "linear"
