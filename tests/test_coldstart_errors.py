"""Bad input, through the real command: exit code 2, one clear sentence, never a traceback, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import graphs
import pytest
from conftest import BenchCommand

from bench.engine.manifest import read_manifest, write_manifest
from bench.records import open_run


@pytest.fixture
def engine(tiny_engine: Path, tmp_path: Path) -> Path:
    """A copy of the engine of `tiny` that a test may spoil."""
    shutil.copytree(tiny_engine, tmp_path / "engine")
    return tmp_path / "engine"


@pytest.fixture
def sentence(bench_command: BenchCommand, tmp_path: Path) -> Callable[..., str]:
    """Run `bench coldstart ...`, which must be refused; gives its one sentence."""

    def refused(*arguments: str | Path, command: str = "coldstart") -> str:
        ended = bench_command(command, *arguments)
        assert ended.returncode == 2, (ended.stdout, ended.stderr)
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        assert len(lines) == 1, ended.stderr
        assert lines[0].startswith("bench: ")
        assert len(lines[0]) < 500
        return lines[0].removeprefix("bench: ")

    return refused


def test_a_missing_file(sentence: Callable[..., str]) -> None:
    assert sentence("none.onnx").startswith("none.onnx is neither a built-in model (resnet50, bert-base, tiny), nor a model file, nor an ")


def test_a_folder_that_is_no_engine(sentence: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert sentence("folder") == "folder is a folder without manifest.json, so it is not an engine directory; make one with `bench build`"


def test_an_engine_is_not_built_again(sentence: Callable[..., str], synthetic: Callable[..., Path], tmp_path: Path) -> None:
    engine = synthetic(name="made")
    assert sentence(engine, "-o", "again", command="build") == f"{engine} is an engine already: name the model that it was built of"


def test_not_onnx_and_an_empty_file(sentence: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("It was a dark and stormy night.")
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert "text.onnx is not an ONNX model" in sentence("text.onnx")
    assert sentence("empty.onnx") == "empty.onnx is empty, not an ONNX model"


def test_a_truncated_engine(sentence: Callable[..., str], engine: Path) -> None:
    model = engine / "model.onnx"
    content = model.read_bytes()
    model.write_bytes(content[:-1000])
    said = sentence(engine, "--level", "process", "--trials", "1")
    assert said == f"{model} has {len(content) - 1000} bytes, its manifest says {len(content)}; build the engine again"


def test_a_flipped_byte(sentence: Callable[..., str], engine: Path) -> None:
    content = bytearray((engine / "model.onnx").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (engine / "model.onnx").write_bytes(content)
    said = sentence(engine, "--level", "process", "--trials", "1")
    assert f"{engine / 'model.onnx'} has sha256 " in said
    assert f"its manifest says {read_manifest(engine).engine_file.sha256[:12]}" in said


def test_another_runtime_version(sentence: Callable[..., str], engine: Path) -> None:
    manifest = read_manifest(engine)
    write_manifest(engine, dataclasses.replace(manifest, runtime_version="1.0.0"))
    said = sentence(engine, "--level", "process", "--trials", "1")
    assert said == f"engine tiny was built by onnxruntime 1.0.0, this is onnxruntime {manifest.runtime_version}; build it again"


def test_a_manifest_that_is_torn(sentence: Callable[..., str], engine: Path) -> None:
    (engine / "manifest.json").write_bytes((engine / "manifest.json").read_bytes()[:200])
    assert "manifest.json is not readable JSON" in sentence(engine)


def test_an_unsupported_operator(sentence: Callable[..., str], tmp_path: Path) -> None:
    graphs.stranger(tmp_path / "stranger.onnx")
    said = sentence("stranger.onnx")
    assert "stranger.onnx does not load in onnxruntime" in said
    assert "Levitate" in said


def test_a_dynamic_axis_without_a_size_says_which_flag(sentence: Callable[..., str], tmp_path: Path) -> None:
    graphs.doubler(tmp_path / "text.onnx", (None, "sequence", 4))
    assert sentence("text.onnx") == ("input 'x' has the dynamic axis 1 (sequence) without a size: give one with --shape x=1xNx4")


def test_zero_trials_and_other_wrong_numbers(sentence: Callable[..., str], tiny_engine: Path) -> None:
    assert sentence(tiny_engine, "--trials", "0") == "--trials 0: at least one trial is needed"
    assert "--trials" in sentence(tiny_engine, "--trials", "many")
    assert "--timeout '5' is not a time" in sentence(tiny_engine, "--timeout", "5")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--level", "lukewarm"), "--level lukewarm: levels are server, process, process-disk, engine, slot, warm"),
        (("--level", "slot", "--gate", "process.p50 < 1s"), "level 'process' is not measured by this run, only slot"),
        (("--gate", "process < 1s"), "is not LEVEL[.PHASE].p50"),
        (("--gate", "slot.p99 < 1s", "--trials", "99"), "99 trials are too few for p99, 100 are needed; ask for more with --trials"),
        (("--gate", "slot.buffer.p50 < 1s"), "there is no phase 'buffer', did you mean 'buffers'?"),
        (("--gate", "slot.p50 < 1e999s"), "gate bound '1e999s' is longer than 100 years"),
        (("--trials", "100001"), "--trials 100001: at most 100,000 are taken"),
        (("--timeout", "99999999h"), "--timeout '99999999h' is longer than 100 years"),
        (("--set", "threads=999999999999", "--trials", "1"), "runtime setting threads=999999999999 is not 0 to 4096"),
        (("--vary", "tread=1,2"), "unknown runtime setting 'tread': known are threads"),
        (("--vary", "threads=1"), "is not KEY=A,B"),
        (("--vary", "threads=1,1"), "is not KEY=A,B"),
        (("--vary", "threads=1,2", "--vary", "threads=3,4"), "names 'threads' twice"),
        (("--set", "threads"), "--set 'threads' is not NAME=VALUE"),
        (("--shape", "input=1x64"), "its shapes and options were fixed when it was built"),
        (("--set", "turbo=1", "--trials", "1"), "unknown runtime setting 'turbo': known are threads"),
        (("--python", "/no/such/python", "--trials", "1"), "/no/such/python cannot be started: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_flags(sentence: Callable[..., str], tiny_engine: Path, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in sentence(tiny_engine, *arguments)
    assert not list(tmp_path.glob("results/*"))  # nothing was measured


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/results"])
def test_a_results_folder_that_cannot_be_written(sentence: Callable[..., str], tiny_engine: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    said = sentence(tiny_engine, "--results", where, "--trials", "1")
    assert said.startswith(f"results folder {where} cannot be written (")
    assert said.endswith("; name another with --results")


def test_an_engine_that_cannot_be_written(sentence: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in sentence("tiny", "-o", "file/engine", command="build")
    assert "/proc/engines" in sentence("tiny", "-o", "/proc/engines/tiny", command="build")


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.argv = ["bench", *sys.argv[2:]]
runpy.run_module("bench", run_name="__main__")
"""


def with_file_limit(size: int, environment: dict[str, str], folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run bench with no file allowed to grow above this size, as on a disk that is full."""
    command = [sys.executable, "-c", LIMITED, str(size), *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE")
@pytest.mark.parametrize(("size", "file"), [(8_000, "cold_starts.arrows"), (300, "run.json"), (20_000, "waterfall.png")])
def test_a_disk_that_fills_up_during_the_run(
    synthetic: Callable[..., Path], bench_environment: dict[str, str], tmp_path: Path, size: int, file: str
) -> None:
    trials = {"waterfall.png": "1"}.get(file, "50")
    ended = with_file_limit(size, bench_environment, tmp_path, "coldstart", synthetic(), "--level", "slot", "--trials", trials)
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("bench: File too large: ")
    assert file.partition(".")[0] in line
    if file == "cold_starts.arrows":
        (folder,) = (tmp_path / "results").iterdir()
        table = open_run(folder).table("cold_starts")
        assert table is not None
        assert table.num_rows > 0


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE")
def test_a_disk_that_fills_up_during_a_build(bench_environment: dict[str, str], tmp_path: Path, tiny_engine: Path) -> None:
    model = tiny_engine.parent / "tiny.onnx"
    ended = with_file_limit(100_000, bench_environment, tmp_path, "build", model, "-o", "engine")
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line == f"bench: the engine of tiny.onnx cannot be written into {Path()}: the disk is full"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs here: {done.stderr.strip()}")
    return place


def test_a_full_disk(synthetic: Callable[..., Path], bench_command: BenchCommand, small_disk: Path) -> None:
    try:
        ended = bench_command("coldstart", synthetic(), "--level", "slot", "--trials", "500", "--results", small_disk)
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert line.startswith("bench: No space left on device: ")
        assert str(small_disk) in line
        (folder,) = small_disk.iterdir()
        table = open_run(folder).table("cold_starts")
        assert table is not None
        assert table.num_rows > 0
    finally:
        subprocess.run(["umount", str(small_disk)], check=True)
