"""Nothing is loaded that the manifest does not vouch for."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.engine.manifest import describe_file, read_manifest, write_manifest
from bench.engine.probe import count_probe_cases, read_probe
from bench.errors import BenchError, EngineRefused, WrongAnswer
from reference_server.loader import load_engine, run_probe
from reference_server.phases import Phases


@pytest.fixture
def engine(tiny_engine: Path, tmp_path: Path) -> Path:
    """A copy of the engine of `tiny` that a test may spoil."""
    shutil.copytree(tiny_engine, tmp_path / "engine")
    return tmp_path / "engine"


def refusal(engine: Path, **settings: str) -> str:
    phases = Phases()
    with pytest.raises(BenchError) as refused:
        load_engine(engine, settings, phases)
    assert "deserialise" not in [phase.name for phase in phases.recorded]
    return str(refused.value)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_whole_engine_loads_phase_by_phase_and_answers(engine: Path) -> None:
    phases = Phases()
    loaded = load_engine(engine, {"threads": "1"}, phases)
    assert [phase.name for phase in phases.recorded] == ["manifest", "imports", "library", "device", "read", "verify", "deserialise"]
    ends = [phase.end_ns for phase in phases.recorded]
    assert all(start >= end for start, end in zip([p.start_ns for p in phases.recorded][1:], ends, strict=False))
    slot = loaded.make_slot(phases)
    for case in range(count_probe_cases(engine)):
        run_probe(slot, loaded.manifest, read_probe(engine, loaded.manifest, case))


@pytest.mark.parametrize("name", ["model.onnx", "probe.npz"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_changed_bit_is_refused_by_both_digests(engine: Path, name: str, where: str) -> None:
    path = engine / name
    before = describe_file(path)
    flip(path, {"first": 0, "middle": before.bytes // 2, "last": before.bytes - 1}[where])
    said = refusal(engine)
    assert str(path) in said
    assert before.sha256[:12] in said
    assert describe_file(path).sha256[:12] in said


@pytest.mark.parametrize("name", ["model.onnx", "probe.npz"])
@pytest.mark.parametrize("change", [-1, 1, None])
def test_another_size_is_refused_with_both(engine: Path, name: str, change: int | None) -> None:
    path = engine / name
    content = path.read_bytes()
    path.write_bytes(b"" if change is None else content[:change] if change < 0 else content + b"\0")
    assert f"{path} has {path.stat().st_size} bytes, its manifest says {len(content)}; build the engine again" == refusal(engine)


@pytest.mark.parametrize("name", ["model.onnx", "probe.npz"])
def test_a_missing_file_is_refused(engine: Path, name: str) -> None:
    (engine / name).unlink()
    assert f"{engine / name} is missing; build the engine again" == refusal(engine)


def test_another_version_of_the_runtime_is_refused(engine: Path) -> None:
    manifest = read_manifest(engine)
    write_manifest(engine, dataclasses.replace(manifest, runtime_version="0.9"))
    assert refusal(engine).endswith(f"was built by onnxruntime 0.9, this is onnxruntime {manifest.runtime_version}; build it again")


def test_another_cpu_is_refused(engine: Path) -> None:
    write_manifest(engine, dataclasses.replace(read_manifest(engine), device_features=("avx9000",)))
    assert "avx9000" in refusal(engine)


def test_an_unknown_runtime_is_refused_with_the_known_ones(engine: Path) -> None:
    write_manifest(engine, dataclasses.replace(read_manifest(engine), runtime="abacus"))
    assert "unknown runtime 'abacus': this build knows onnxruntime" in refusal(engine)


def test_bytes_that_are_vouched_for_but_no_model_are_refused(engine: Path) -> None:
    (engine / "model.onnx").write_bytes(b"not a graph")
    manifest = read_manifest(engine)
    write_manifest(engine, dataclasses.replace(manifest, files=(describe_file(engine / "model.onnx"), *manifest.files[1:])))
    assert "does not load in onnxruntime" in refusal(engine)


def test_an_unsound_probe_is_refused_in_one_sentence(engine: Path) -> None:
    manifest = read_manifest(engine)
    with pytest.raises(EngineRefused, match="is not the probe of engine tiny"):
        read_probe(engine, manifest, 7)
    whole = (engine / "probe.npz").read_bytes()
    for content in (b"", b"rubbish", whole[: len(whole) // 2], whole[:300] + b"\0\0" + whole[302:]):
        (engine / "probe.npz").write_bytes(content)
        with pytest.raises(EngineRefused, match=r"is not an engine's probe .*; build the engine again"):
            read_probe(engine, manifest)
    for content in (b"", b"rubbish", whole[: len(whole) // 2]):
        (engine / "probe.npz").write_bytes(content)
        with pytest.raises(EngineRefused, match="build the engine again"):
            count_probe_cases(engine)


def test_a_wrong_answer_is_seen(synthetic: Callable[..., Path]) -> None:
    engine = synthetic(wrong_every_runs=2)
    loaded = load_engine(engine, {}, Phases())
    slot, case = loaded.make_slot(Phases()), read_probe(engine, loaded.manifest)
    run_probe(slot, loaded.manifest, case)
    with pytest.raises(WrongAnswer, match="is off by"):
        run_probe(slot, loaded.manifest, case)


def test_the_probe_covers_the_smallest_and_the_largest_batch(engine: Path) -> None:
    manifest = read_manifest(engine)
    assert count_probe_cases(engine) == 3
    shapes = [read_probe(engine, manifest, case).inputs["input"].shape for case in range(3)]
    assert shapes == [(1, 64), (4, 64), (8, 64)]
    assert not np.array_equal(read_probe(engine, manifest, 0).inputs["input"], read_probe(engine, manifest, 1).inputs["input"][:1])
