"""Engine directories: what they hold, and that they appear as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import BenchCommand
from onnx import helper

from bench.drafts import draft_folder
from bench.engine.build import BuildRequest, build_engine
from bench.engine.manifest import Baseline, Manifest, cpu_device, describe_file, read_manifest
from bench.engine.probe import count_probe_cases, read_probe
from bench.engine.resolve import BuildOptions, build_request, provide_built_in, resolve_engine
from bench.errors import BenchError
from reference_server.loader import load_engine, run_probe
from reference_server.phases import Phases

BASELINE = Baseline(rate_per_s=100.0, p50_ns=10, p99_ns=None, samples=1)


def build(model: Path, directory: Path, **request: Any) -> Manifest:
    """Build without the process that measures a slot; then load it and let it answer its whole probe."""
    manifest = build_engine(BuildRequest(model=model, **request), directory, measure=lambda _: BASELINE)
    engine = load_engine(directory, {}, Phases())
    slot = engine.make_slot(Phases())
    for case in range(count_probe_cases(directory)):
        run_probe(slot, engine.manifest, read_probe(directory, engine.manifest, case))
    return manifest


def refusal(model: Path, directory: Path, **request: Any) -> str:
    """Why it cannot be built, and that nothing is left of the attempt."""
    before = sorted(directory.parent.iterdir())
    with pytest.raises(BenchError) as refused:
        build_engine(BuildRequest(model=model, **request), directory, measure=lambda _: BASELINE)
    assert sorted(directory.parent.iterdir()) == before
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_the_engine_of_tiny_holds(tiny_engine: Path) -> None:
    assert sorted(path.name for path in tiny_engine.iterdir()) == ["manifest.json", "model.onnx", "probe.npz"]
    manifest = read_manifest(tiny_engine)
    assert manifest.name == "tiny"
    assert manifest.runtime == "onnxruntime"
    assert manifest.runtime_version == onnxruntime.__version__
    assert (manifest.device, manifest.device_features) == cpu_device()
    assert manifest.source_sha256 == describe_file(tiny_engine.parent / "tiny.onnx").sha256
    assert [file.name for file in manifest.files] == ["model.onnx", "probe.npz"]
    assert all(file == describe_file(tiny_engine / file.name) for file in manifest.files)
    assert manifest.precision == "fp32"
    assert manifest.tolerance == 1e-3
    assert 0 <= manifest.parity_error <= 1e-3
    assert [(t.name, t.dims) for t in (*manifest.inputs, *manifest.outputs)] == [("input", ("batch", 64)), ("logits", ("batch", 16))]
    profile = manifest.profiles[0]["input"]
    assert (profile.min, profile.opt, profile.max) == ((1, 64), (4, 64), (8, 64))
    assert manifest.options == {"optimize": "all", "seed": "0"}


def test_the_baseline_was_measured(tiny_engine: Path) -> None:
    baseline = read_manifest(tiny_engine).baseline
    assert baseline is not None
    assert baseline.samples == 200
    assert baseline.p99_ns is not None
    assert 0 < baseline.p50_ns <= baseline.p99_ns
    assert baseline.rate_per_s <= 1e9 / (baseline.p50_ns / 2)  # half of all runs took p50 or longer


def test_the_probe_is_what_the_unoptimised_model_answers(tiny_engine: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(tiny_engine.parent / "tiny.onnx"), options, providers=["CPUExecutionProvider"])
    for case in range(3):
        probe = read_probe(tiny_engine, read_manifest(tiny_engine), case)
        (answer,) = session.run(["logits"], probe.inputs)
        np.testing.assert_allclose(probe.expected["logits"], answer, rtol=1e-5, atol=1e-6)


def test_the_seed_gives_the_probe(tmp_path: Path) -> None:
    model = graphs.dense(tmp_path / "m.onnx")
    probes = [build(model, tmp_path / name, seed=seed).files[1].sha256 for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert probes[0] == probes[1] != probes[2]


@pytest.mark.parametrize("level", ["all", "basic", "none"])
def test_each_level_of_optimisation(tmp_path: Path, level: str) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    model = graphs.save(tmp_path / "m.onnx", nodes, [graphs.value("x", ["batch", 4])], [graphs.value("y", ["batch", 4])])
    assert build(model, tmp_path / "engine", optimize=level).options["optimize"] == level
    left = [node.op_type for node in onnx.load(tmp_path / "engine" / "model.onnx").graph.node]
    assert left == (["Identity", "Identity", "Relu"] if level == "none" else ["Relu"])


def test_names_and_versions(tmp_path: Path) -> None:
    model = graphs.dense(tmp_path / "stem.onnx")
    assert build(model, tmp_path / "a").name == "stem"
    named = build(model, tmp_path / "b", name="other", version="7")
    assert (named.name, named.version) == ("other", "7")


@pytest.mark.parametrize("name", ["../../up", "a/b", "", ".", "..", " ", "a\nb", "a\0b", "x" * 300, "tiny/ready"])
def test_names_and_versions_are_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = graphs.dense(tmp_path / "m.onnx")
    assert f"--name {name[:80]!r} may only hold letters" in refusal(model, tmp_path / "engine", name=name)
    assert f"--model-version {name[:80]!r} may only hold letters" in refusal(model, tmp_path / "engine", version=name)
    with pytest.raises(BenchError, match="may only hold letters"):
        resolve_engine(str(model), BuildOptions(name=name))
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_file_of_any_name_gives_a_plain_one(tmp_path: Path) -> None:
    assert build(graphs.dense(tmp_path / "größe & $HOME; 2.onnx"), tmp_path / "engine").name == "größe - -HOME- 2"


def test_half_precision_is_known_and_its_tolerance_is_measured(tmp_path: Path) -> None:
    manifest = build(graphs.dense(tmp_path / "m.onnx", np.float16), tmp_path / "engine")
    assert manifest.precision == "fp16"
    assert manifest.tolerance >= max(1e-3, 2 * manifest.parity_error)


def test_weights_in_a_file_of_their_own_go_into_the_engine(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    model = onnx.load(graphs.dense(source / "m.onnx"))
    onnx.save_model(model, source / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)
    build(source / "m.onnx", tmp_path / "engine")
    shutil.rmtree(source)
    manifest = read_manifest(tmp_path / "engine")
    engine = load_engine(tmp_path / "engine", {}, Phases())
    run_probe(engine.make_slot(Phases()), manifest, read_probe(tmp_path / "engine", manifest))


def test_outputs_whose_shape_is_lost_are_found_by_trying(tmp_path: Path) -> None:
    manifest = build(graphs.adder(tmp_path / "m.onnx", (None, 4), (1, 4)), tmp_path / "engine")
    assert manifest.outputs[0].dims == ("batch", 4)


def test_an_unsupported_operator_is_named(tmp_path: Path) -> None:
    said = refusal(graphs.stranger(tmp_path / "m.onnx"), tmp_path / "engine")
    assert "m.onnx does not load in onnxruntime" in said
    assert "Levitate" in said


def test_a_model_that_never_answers_the_same_is_refused(tmp_path: Path) -> None:
    said = refusal(graphs.dice(tmp_path / "m.onnx"), tmp_path / "engine")
    assert "output 'y' differs between two runs on the same input" in said


def test_strings_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    strings = [graphs.value(name, ["batch"], onnx.TensorProto.STRING) for name in "xy"]
    assert "has string tensors" in refusal(graphs.save(tmp_path / "m.onnx", [node], strings[:1], strings[1:]), tmp_path / "engine")


def test_shapes_that_do_not_go_together_are_refused_with_the_flags(tmp_path: Path) -> None:
    model = graphs.adder(tmp_path / "m.onnx", (1, "left"), (1, "right"))
    said = refusal(model, tmp_path / "engine", shapes={"a": "1x3", "b": "1x4"})
    assert "does not run with a [1, 3], b [1, 4]" in said
    assert "--shape" in said
    assert "without a size" in refusal(model, tmp_path / "engine", shapes={"a": "1x3"})


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"inputs": {"nobody": "uniform:0:1"}}, "--input names 'nobody', but the model's inputs are x"),
        ({"inputs": {"x": "zeros"}}, "neither uniform:LO:HI nor an .npz file"),
        ({"inputs": {"x": "none.npz"}}, "no such file"),
        ({"shapes": {"nobody": "1"}}, "--shape names 'nobody', but the model's inputs are x"),
        ({"shapes": {"x": "1x5"}}, "axis 1 is fixed at 4"),
        ({"shapes": {"x": "99999999999999x4"}}, "does not fit into memory"),
        ({"optimize": "most"}, "--optimize most is not one of all, basic, none"),
        ({"runtime": "abacus"}, "--runtime abacus cannot build here"),
    ],
)
def test_wrong_requests_are_one_sentence(tmp_path: Path, request_: dict[str, Any], says: str) -> None:
    assert says in refusal(graphs.dense(tmp_path / "m.onnx"), tmp_path / "engine", **request_)


def test_an_engine_that_is_there_is_kept_unless_replaced(tmp_path: Path) -> None:
    model, directory = graphs.dense(tmp_path / "m.onnx"), tmp_path / "engine"
    build(model, directory, version="1")
    assert "exists already and is not overwritten; name another with -o, or say --force" in refusal(model, directory, version="2")
    assert read_manifest(directory).version == "1"
    build(model, directory, version="3", replace=True)
    assert read_manifest(directory).version == "3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine", "m.onnx"]


def test_only_an_engine_is_replaced(tmp_path: Path) -> None:
    model = graphs.dense(tmp_path / "m.onnx")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    assert "is not an engine directory, so --force does not replace it" in refusal(model, tmp_path / "precious", replace=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    assert "is not an engine directory" in refusal(model, tmp_path / "file", replace=True)
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    build(model, tmp_path / "empty", replace=True)
    (tmp_path / "empty" / "notes.txt").write_text("mine")
    assert "holds 'notes.txt', which is not the engine's, so --force does not" in refusal(model, tmp_path / "empty", replace=True)
    (tmp_path / "extension").mkdir()  # other programs have a manifest.json too
    (tmp_path / "extension" / "manifest.json").write_text('{"manifest_version": 3}')
    assert "is not an engine directory (" in refusal(model, tmp_path / "extension", replace=True)
    assert (tmp_path / "extension" / "manifest.json").read_text() == '{"manifest_version": 3}'


def test_a_link_to_an_engine_stays_a_link(tmp_path: Path) -> None:
    model = graphs.dense(tmp_path / "m.onnx")
    (tmp_path / "current").symlink_to("engine-1")
    build(model, tmp_path / "current", version="1")
    build(model, tmp_path / "current", version="2", replace=True)
    assert (tmp_path / "current").is_symlink()
    assert read_manifest(tmp_path / "engine-1").version == "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "engine-1", "m.onnx"]


def test_of_two_builds_at_once_the_later_one_says_so(tmp_path: Path) -> None:
    model, directory = graphs.dense(tmp_path / "m.onnx"), tmp_path / "engine"

    def other_was_quicker(_: Path) -> Baseline:
        build(model, directory, version="other")
        return BASELINE

    with pytest.raises(BenchError, match="engine was made by another process meanwhile; name another with -o"):
        build_engine(BuildRequest(model=model), directory, measure=other_was_quicker)
    assert read_manifest(directory).version == "other"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine", "m.onnx"]


def test_what_killed_builds_left_is_cleared_away(tmp_path: Path) -> None:
    model = graphs.dense(tmp_path / "m.onnx")
    old = [tmp_path / ".engine.01234567.building", tmp_path / ".m.onnx.01234567.partial", tmp_path / ".lost.01234567.replaced"]
    kept = [tmp_path / ".engine.0123456.building", tmp_path / ".mine.building", tmp_path / "other.01234567.building"]
    for path in (*old, *kept):
        path.mkdir()
        os.utime(path, (1, 1))
    with draft_folder(tmp_path / "under-way") as under_way:
        os.utime(under_way, (1, 1))
        build(model, tmp_path / "engine")
        assert under_way.is_dir()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"engine", "m.onnx", "lost", *(path.name for path in kept)}


def test_a_damaged_model_in_the_cache_is_made_again(tmp_path: Path) -> None:
    model = tmp_path / "tiny.onnx"
    provide_built_in("tiny", model)
    content, made = model.read_bytes(), model.stat().st_mtime_ns
    provide_built_in("tiny", model)
    assert model.stat().st_mtime_ns == made
    model.write_bytes(content[:1000])
    provide_built_in("tiny", model)
    assert model.read_bytes() == content


def test_a_model_with_two_outputs_of_one_name_is_refused(tmp_path: Path) -> None:
    proto = onnx.load(graphs.dense(tmp_path / "m.onnx"))
    proto.graph.output.append(proto.graph.output[0])
    onnx.save(proto, tmp_path / "m.onnx")
    assert "has two outputs of the name" in refusal(tmp_path / "m.onnx", tmp_path / "engine")


# An array file of 128 bytes that claims to hold 160 terabytes.
HUGE = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999, 4)}".ljust(117) + b"\n"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("uniform:-1e308:1e308", "both and their difference must be finite"),
        ("uniform:0:1e39", "does not fit FP32"),
        (np.full((1, 4), 1e39), "holds NaN, infinities or values that FP32 cannot hold"),
        (np.full((1, 4), np.nan), "holds NaN, infinities"),
        (b"no array", "cannot be read as .npz"),
        (HUGE, "cannot be read as .npz"),
    ],
    ids=["spread", "uniform", "too-large", "nan", "no-array", "huge"],
)
def test_values_that_an_input_cannot_take(tmp_path: Path, values: Any, says: str) -> None:
    if isinstance(values, bytes):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("x.npy" if values.startswith(b"\x93") else "x", values)
    elif not isinstance(values, str):
        np.savez(tmp_path / "x.npz", x=values)
    given = values if isinstance(values, str) else str(tmp_path / "x.npz")
    assert says in refusal(graphs.dense(tmp_path / "m.onnx"), tmp_path / "engine", inputs={"x": given})


@pytest.mark.parametrize("error", [BenchError("the slot did not answer"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def fail(workplace: Path) -> Baseline:
        assert (workplace / "manifest.json").exists()
        raise error

    model = graphs.dense(tmp_path / "m.onnx")
    with pytest.raises(type(error)):
        build_engine(BuildRequest(model=model), tmp_path / "deep" / "engine", measure=fail)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["m.onnx"]
    build(model, tmp_path / "engine", version="old")
    with pytest.raises(type(error)):
        build_engine(BuildRequest(model=model, replace=True), tmp_path / "engine", measure=fail)
    assert read_manifest(tmp_path / "engine").version == "old"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_stopped_leaves_nothing(tmp_path: Path, bench_environment: dict[str, str], number: signal.Signals) -> None:
    model = graphs.dense(tmp_path / "m.onnx")
    command = [sys.executable, "-m", "bench", "build", str(model), "-o", str(tmp_path / "out" / "engine")]
    child = subprocess.Popen(command, env=bench_environment, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("out/.engine.*.building/manifest.json")) and child.poll() is None:
        time.sleep(0.002)  # until it measures one slot, in a process of its own
    child.send_signal(number)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_prints_what_it_built(bench_command: BenchCommand, tmp_path: Path) -> None:
    built = bench_command("build", graphs.dense(tmp_path / "m.onnx"), "-o", "engine", "--json", "--model-version", "2")
    assert built.returncode == 0, built.stderr
    printed = json.loads(built.stdout)
    assert printed == json.loads((tmp_path / "engine" / "manifest.json").read_text())
    assert printed["version"] == "2"
    assert printed["baseline"]["samples"] == 200


def test_engines_made_on_the_way_are_kept_by_all_that_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("bench.engine.resolve.measure_baseline", lambda _: BASELINE)
    model = graphs.dense(tmp_path / "m.onnx")
    first = resolve_engine(str(model), BuildOptions())
    assert resolve_engine(str(model), BuildOptions()) == first
    assert resolve_engine(str(model), BuildOptions(optimize="none")) != first
    assert resolve_engine(str(model), BuildOptions(shapes={"x": "2x4"})) != first
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4), np.float32))
    given = BuildOptions(inputs={"x": str(tmp_path / "x.npz")})
    with_ones = resolve_engine(str(model), given)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 4), np.float32))
    with_zeros = resolve_engine(str(model), given)
    assert len({first, with_ones, with_zeros}) == 3
    proto = onnx.load(model)
    proto.doc_string = "another file"
    model.write_bytes(proto.SerializeToString())
    assert resolve_engine(str(model), BuildOptions()) != first


def test_weights_that_changed_in_a_file_of_their_own_are_another_model(tmp_path: Path) -> None:
    model = onnx.load(graphs.dense(tmp_path / "m.onnx"))
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)
    _, before = build_request(str(tmp_path / "m.onnx"), BuildOptions())
    weights = bytearray((tmp_path / "m.weights").read_bytes())
    weights[0] ^= 1
    (tmp_path / "m.weights").write_bytes(weights)
    _, after = build_request(str(tmp_path / "m.onnx"), BuildOptions())
    assert before != after
