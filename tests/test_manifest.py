"""Manifests: what is written is read back, and every refusal names both sides in one sentence."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.manifest import (
    MANIFEST_FILE,
    PROBE_FILE,
    Manifest,
    ShapeRange,
    Tensor,
    axis_sizes,
    check_answer,
    check_bytes,
    check_cpu,
    check_request_shapes,
    check_runtime_version,
    cpu_device,
    read_manifest,
    relative_error,
    write_manifest,
)
from bench.engine.probe import read_probe
from bench.errors import BenchError, EngineRefused, WrongAnswer
from reference_server.loader import load_engine
from reference_server.phases import Phases


@pytest.fixture
def manifest(synthetic: Callable[..., Path]) -> Manifest:
    return read_manifest(synthetic())


def test_what_is_written_is_read_back(tiny_engine: Path, tmp_path: Path, manifest: Manifest) -> None:
    for one in (manifest, read_manifest(tiny_engine)):
        write_manifest(tmp_path, one)
        assert read_manifest(tmp_path) == one


def test_what_follows_from_it(tiny_engine: Path, manifest: Manifest) -> None:
    tiny = read_manifest(tiny_engine)
    assert tiny.max_batch == 8
    assert tiny.engine_file.name == "model.onnx"
    assert tiny.engine_bytes == (tiny_engine / "model.onnx").stat().st_size
    assert [t.shape for t in tiny.inputs] == [(-1, 64)]
    assert dataclasses.replace(manifest, inputs=(Tensor(name="x", datatype="FP32", dims=(1, 4)),)).max_batch is None


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw.pop("schema_version"), "schema version None, this program reads 1"),
        (lambda raw: raw.update(schema_version=2), "schema version 2, this program reads 1"),
        (lambda raw: raw.pop("runtime"), "runtime"),
        (lambda raw: raw.pop("files"), "files"),
        (lambda raw: raw.update(surprise=1), "surprise"),
        (lambda raw: raw.update(files=[]), "no file"),
        (lambda raw: raw.update(files=[{"name": "../model.onnx", "bytes": 1, "sha256": ""}]), "leaves the engine directory"),
        (lambda raw: raw.update(files=[{"name": "..", "bytes": 1, "sha256": ""}]), "leaves the engine directory"),
        (lambda raw: raw["files"][0].pop("sha256"), "sha256"),
        (lambda raw: raw.update(files=7), "not a complete manifest"),
        (lambda raw: raw.update(profiles=[]), "no profile"),
        (lambda raw: raw.update(profiles=[{}]), "profile"),
        (lambda raw: raw["profiles"][0]["input"].pop("max"), "max"),
        (lambda raw: raw["inputs"][0].pop("dims"), "dims"),
        (lambda raw: raw["inputs"][0].update(datatype="FP8"), "FP8"),
        (lambda raw: raw.update(tolerance="loose"), "loose"),
        (lambda raw: raw.update(baseline={"rate_per_s": 1}), "not a complete manifest"),
        (lambda raw: raw.update(name=5), "name is 5, not a string"),
        (lambda raw: raw.update(name="../up"), "name '../up' may only hold letters"),
        (lambda raw: raw.update(name="\ud800"), "not a string of Unicode characters"),
        (lambda raw: raw.update(version=None), "version is null, not a string"),
        (lambda raw: raw.update(version=""), "version '' may only hold letters"),
        (lambda raw: raw.update(runtime=[]), "runtime is a list, not a string"),
        (lambda raw: raw["files"][0].update(bytes="x"), "files[0].bytes is 'x', not a whole number"),
        (lambda raw: raw["files"][0].update(bytes=10**30), "files[0].bytes is a huge number"),
        (lambda raw: raw["files"][0].update(bytes=True), "files[0].bytes is true, not a whole number"),
        (lambda raw: raw["files"][0].update(sha256=5), "files[0].sha256 is 5, not a string"),
        (lambda raw: raw["files"][0].update(sha256="abc"), "not 64 hexadecimal digits"),
        (lambda raw: raw["files"][0].update(name="a\0b"), "files[0].name is 'a\\x00b'"),
        (lambda raw: raw["files"][0].update(name="manifest.json"), "is the manifest's own"),
        (lambda raw: raw["files"].pop(), "and probe.npz"),
        (lambda raw: raw["files"].pop(0), "and probe.npz"),
        (lambda raw: raw["files"].append(raw["files"][0]), "each once"),
        (lambda raw: raw.update(device_features="avx2"), "device_features is 'avx2', not a list"),
        (lambda raw: raw.update(device_features=[1]), "device_features[0] is 1, not a string"),
        (lambda raw: raw.update(options=None), "options is null, not an object"),
        (lambda raw: raw.update(options={"threads": 1}), "options.threads is 1, not a string"),
        (lambda raw: raw.update(inputs=[]), "it has no inputs"),
        (lambda raw: raw.update(outputs=[]), "it has no outputs"),
        (lambda raw: raw["outputs"].append(raw["outputs"][0]), "two of one name"),
        (lambda raw: raw["inputs"][0].update(dims=[-1, 64]), "inputs[0].dims[0] is -1"),
        (lambda raw: raw["inputs"][0].update(dims=[0, 1024]), "has an axis of size 0"),
        (lambda raw: raw["inputs"][0].update(dims=[[1], 64]), "inputs[0].dims[0] is a list"),
        (lambda raw: raw["inputs"][0].update(dims=[]), "has not its 0 axes"),
        (lambda raw: raw["outputs"][0].update(dims=["batch", 2**60]), "more than 2^59 elements"),
        (lambda raw: raw["profiles"][0]["input"].update(max=[2**60, 1024]), "more than 2^59 elements"),
        (lambda raw: raw["profiles"][0]["input"].update(max=[10**30, 1024]), "profiles[0].input.max[0] is a huge number"),
        (lambda raw: raw["profiles"][0]["input"].update(max=["a", 1024]), "profiles[0].input.max[0] is 'a'"),
        (lambda raw: raw["profiles"][0]["input"].update(min=[9, 1024]), "does not grow"),
        (lambda raw: raw["profiles"][0]["input"].update(min=[1, 1], opt=[1, 1], max=[1, 1]), "leaves a fixed axis"),
        (lambda raw: raw["profiles"][0]["input"].update(min=[1], opt=[1], max=[1]), "has not its 2 axes"),
        (lambda raw: raw.update(tolerance=math.nan), "tolerance is nan, not a finite number"),
        (lambda raw: raw.update(tolerance=math.inf), "tolerance is inf, not a finite number"),
        (lambda raw: raw.update(tolerance=0), "not above 0 and at most 1"),
        (lambda raw: raw.update(tolerance=-1), "not above 0 and at most 1"),
        (lambda raw: raw.update(details={"versions": []}), "details.versions is a list, not an object"),
    ],
)  # fmt: skip
def test_a_manifest_of_another_form_is_refused_in_one_sentence(synthetic: Callable[..., Path], change: Change, says: str) -> None:
    engine = synthetic()
    raw = json.loads((engine / MANIFEST_FILE).read_text())
    change(raw)
    (engine / MANIFEST_FILE).write_text(json.dumps(raw))
    with pytest.raises(EngineRefused) as refused:
        read_manifest(engine)
    assert str(engine / MANIFEST_FILE) in str(refused.value)
    assert says in str(refused.value)
    assert "build the engine again" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_truncated_manifest_is_refused(synthetic: Callable[..., Path], keep: int) -> None:
    engine = synthetic()
    whole = (engine / MANIFEST_FILE).read_bytes()
    (engine / MANIFEST_FILE).write_bytes(whole[:keep])
    with pytest.raises(EngineRefused, match="is not readable JSON"):
        read_manifest(engine)


@pytest.mark.parametrize("content", [b"[]", b"null", b'"x"', b"\xff\xfe{}", b"{}", b"[" * 200_000, b'{"a":' * 100_000, b"9" * 5000])
def test_json_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(EngineRefused, match=r"manifest.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("file", [MANIFEST_FILE, PROBE_FILE, "engine.json"])
def test_a_pipe_is_refused_where_a_file_is_due(synthetic: Callable[..., Path], file: str) -> None:
    engine = synthetic()
    (engine / file).unlink()
    os.mkfifo(engine / file)
    with pytest.raises(EngineRefused, match=f"{file} is not a regular file; build the engine again"):
        load_engine(engine, {}, Phases())


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"0/input/input": np.zeros((1, 1024), np.int64)}, r"'input' is int64\[1, 1024\], not FP32\[-1, 1024\]"),
        ({"0/output/output": np.zeros((1, 8), np.float32)}, r"'output' is float32\[1, 8\], not FP32\[-1, 1024\]"),
        ({"0/input/input": np.zeros((99, 1024), np.float32)}, r"input 'input' has shape \[99, 1024\]"),
        ({"0/input/input": np.zeros((), np.float32)}, r"'input' is float32\[\], not"),
    ],
)
def test_a_probe_of_other_arrays_is_refused(synthetic: Callable[..., Path], arrays: dict[str, Any], says: str) -> None:
    engine = synthetic()
    with np.load(engine / PROBE_FILE) as archive:
        np.savez(engine / "other.npz", **{**archive, **arrays})
    (engine / "other.npz").replace(engine / PROBE_FILE)
    with pytest.raises(EngineRefused, match=says):
        read_probe(engine, read_manifest(engine))


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match=r"is not an engine directory: it has no manifest.json"):
        read_manifest(tmp_path)


def test_another_runtime_version_is_refused_with_both(manifest: Manifest) -> None:
    check_runtime_version(manifest, "1")
    with pytest.raises(EngineRefused, match=r"built by synthetic 1, this is synthetic 1.0.1; build it again"):
        check_runtime_version(manifest, "1.0.1")


def test_another_cpu_is_refused_with_both_sides(manifest: Manifest) -> None:
    device, features = cpu_device()
    here = dataclasses.replace(manifest, device=device, device_features=features)
    check_cpu(here)
    with pytest.raises(EngineRefused, match=f"was built for cpu:vax, this host is {device}; build it here"):
        check_cpu(dataclasses.replace(here, device="cpu:vax"))
    with pytest.raises(EngineRefused, match="a CPU with avx9000, this CPU has only ") as refused:
        check_cpu(dataclasses.replace(here, device_features=(*features, "avx9000")))
    assert all(feature in str(refused.value) for feature in features)


def test_a_layout_of_narrower_vectors_is_not_used_on_wider_ones(manifest: Manifest) -> None:
    device, features = cpu_device()
    narrow = tuple(f for f in features if f != "avx512f")
    engine = dataclasses.replace(manifest, device=device, device_features=narrow, options={"optimize": "all"})
    if narrow == features:
        check_cpu(engine)
        pytest.skip("this CPU has no avx512f")
    with pytest.raises(EngineRefused, match="without avx512f, this CPU has it"):
        check_cpu(engine)
    check_cpu(dataclasses.replace(engine, options={"optimize": "basic"}))


def test_other_bytes_are_refused_with_both_sides(tmp_path: Path, manifest: Manifest) -> None:
    file = manifest.engine_file
    check_bytes(tmp_path, file, file.sha256, file.bytes)
    with pytest.raises(EngineRefused, match=f"has {file.bytes - 1} bytes, its manifest says {file.bytes}"):
        check_bytes(tmp_path, file, file.sha256, file.bytes - 1)
    with pytest.raises(EngineRefused, match=f"has sha256 000000000000..., its manifest says {file.sha256[:12]}"):
        check_bytes(tmp_path, file, "0" * 64, file.bytes)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("expected", "actual", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -4.0], 0.125),  # relative to the largest magnitude
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-30], INF),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([2.0, INF], [1.0, INF], 0.5),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, 2.0], [1.0, INF], INF),
        ([NAN, INF], [NAN, INF], 0.0),
        ([NAN, INF], [INF, NAN], INF),
        ([], [], 0.0),
        ([1.0], [1.0, 1.0], INF),
        ([[1.0]], [1.0], INF),
    ],
)
def test_relative_error(expected: list[float], actual: list[float], error: float) -> None:
    for dtype in (np.float64, np.float32, np.float16):
        if dtype is np.float16 and 1e-30 in actual:
            continue  # smaller than its smallest number
        assert relative_error(np.array(expected, dtype), np.array(actual, dtype)) == error


def test_whole_numbers_booleans_and_other_datatypes_are_equal_or_not() -> None:
    for dtype in (np.int64, np.uint8, np.bool_):
        ones, zeros = np.ones(3, dtype), np.zeros(3, dtype)
        assert relative_error(ones, ones) == 0
        assert relative_error(ones, zeros) == INF
        assert relative_error(np.zeros(0, dtype), np.zeros(0, dtype)) == 0
    assert relative_error(np.ones(3, np.float32), np.ones(3, np.float64)) == INF


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_relative_error_does_not_depend_on_the_scale(values: list[float], factor: float) -> None:
    expected = np.array(values)
    actual = expected + np.linspace(0, 1, len(values))
    assert relative_error(expected * factor, actual * factor) == pytest.approx(relative_error(expected, actual), rel=1e-9)


def test_a_correct_answer_has_every_output_with_its_form_and_value(manifest: Manifest) -> None:
    loose = dataclasses.replace(manifest, tolerance=0.01)
    want = {"output": np.array([[1.0, 2.0]], np.float32)}
    check_answer(loose, want, want)
    check_answer(loose, want, {"output": want["output"] + np.float32(0.019), "extra": want["output"]})
    for wrong, says in [
        ({}, "output 'output' is missing from the answer"),
        ({"output": want["output"].astype(np.float64)}, r"is float64\[1, 2\], the probe says float32\[1, 2\]"),
        ({"output": want["output"][0]}, r"is float32\[2\], the probe says float32\[1, 2\]"),
        ({"output": want["output"] + np.float32(0.03)}, "is off by 0.015 relative, the manifest allows 0.01"),
        ({"output": want["output"] * np.float32(NAN)}, "is off by inf relative"),
    ]:
        with pytest.raises(WrongAnswer, match=says):
            check_answer(loose, want, wrong)


def test_a_tolerance_that_is_not_a_number_accepts_nothing_but_equality(manifest: Manifest) -> None:
    want = {"output": np.ones(2, np.float32)}
    with pytest.raises(WrongAnswer):
        check_answer(dataclasses.replace(manifest, tolerance=NAN), want, {"output": want["output"] + 1})


def test_axis_sizes_are_read_off_and_an_axis_of_two_sizes_has_none() -> None:
    a, b = (Tensor(name=name, datatype="FP32", dims=("batch", "length", 3, "")) for name in "ab")
    assert axis_sizes([a, b], {"a": (2, 5, 3, 7), "b": (2, 6, 3, 9)}) == {"batch": 2}


def test_a_request_outside_the_profile_is_refused_with_the_range(manifest: Manifest) -> None:
    for batch in (1, 5, 8):
        check_request_shapes(manifest, {"input": (batch, 1024)})
    for shape, says in [
        ((9, 1024), r"\[9, 1024\].*takes \[1, 1024\] to \[8, 1024\] \(the maximum batch is 8\)"),
        ((0, 1024), r"\[0, 1024\].*takes \[1, 1024\] to \[8, 1024\]$"),
        ((1, 1023), r"\[1, 1023\].*takes \[1, 1024\] to \[8, 1024\]$"),
        ((1024,), r"\[1024\]"),
        ((), r"shape \[\]"),
    ]:
        with pytest.raises(BenchError, match=says):
            check_request_shapes(manifest, {"input": shape})


def test_shapes_that_no_single_profile_takes_together_are_refused(manifest: Manifest) -> None:
    inputs = tuple(Tensor(name=name, datatype="FP32", dims=("batch",)) for name in "ab")
    small, large = (ShapeRange(min=(n,), opt=(n,), max=(n,)) for n in (1, 2))
    two = dataclasses.replace(manifest, inputs=inputs, profiles=({"a": small, "b": small}, {"a": large, "b": large}))
    check_request_shapes(two, {"a": (2,), "b": (2,)})
    with pytest.raises(BenchError, match=r"no profile .* takes these shapes together"):
        check_request_shapes(two, {"a": (1,), "b": (2,)})
