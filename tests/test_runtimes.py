"""What every runtime promises, tested on all that run here; then what only one of them has."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import pytest
from numpy.typing import NDArray

from bench.engine.build import BuildRequest, build_engine
from bench.engine.manifest import Baseline, Tensor, check_answer, read_manifest
from bench.engine.probe import count_probe_cases, read_probe
from bench.engine.shapes import InputSource, make_values
from bench.errors import BenchError
from reference_server.loader import load_engine, run_probe
from reference_server.phases import Phases
from reference_server.runtimes import Engine, open_runtime, parse_settings

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(params=["onnxruntime", "synthetic"])
def engine_dir(request: pytest.FixtureRequest, tiny_engine: Path, synthetic: Callable[..., Path]) -> Path:
    return tiny_engine if request.param == "onnxruntime" else synthetic()


@pytest.fixture
def engine(engine_dir: Path) -> Engine:
    return load_engine(engine_dir, {"threads": "1"}, Phases())


def request(engine: Engine, batch: int, seed: int) -> Arrays:
    """Values for one request."""
    generator = np.random.default_rng(seed)
    profile = engine.manifest.profiles[0]
    return {t.name: make_values(t, (batch, *profile[t.name].min[1:]), InputSource(), generator) for t in engine.manifest.inputs}


def reference(engine: Engine, inputs: Arrays) -> Arrays:
    """The right answer, one row at a time, by a slot that does nothing else."""
    slot = engine.make_slot(Phases())
    size = next(iter(inputs.values())).shape[0]
    parts = [slot.run({name: value[row : row + 1] for name, value in inputs.items()}).outputs for row in range(size)]
    slot.close()
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_the_phases_of_load_and_slot_are_recorded_in_order(engine_dir: Path) -> None:
    phases = Phases()
    engine = load_engine(engine_dir, {"threads": "1"}, phases)
    engine.make_slot(phases)
    names = [phase.name for phase in phases.recorded if phase.name != "device"]
    assert names == ["manifest", "imports", "library", "read", "verify", "deserialise", "slot", "buffers"]
    assert all(phase.end_ns >= phase.start_ns for phase in phases.recorded)
    assert phases.total_ns <= phases.recorded[-1].end_ns - phases.recorded[0].start_ns


def test_every_case_of_the_probe_is_answered_correctly(engine_dir: Path, engine: Engine) -> None:
    slot = engine.make_slot(Phases())
    for case in [*range(count_probe_cases(engine_dir)), 0]:
        answer = run_probe(slot, engine.manifest, read_probe(engine_dir, engine.manifest, case))
        assert min(answer.input_ns, answer.infer_ns, answer.output_ns) >= 0


def test_any_batch_up_to_the_largest_gives_the_answers_of_its_rows(engine: Engine) -> None:
    slot = engine.make_slot(Phases())
    assert engine.manifest.max_batch == 8
    for batch in (3, 8, 1, 5, 8, 2, 7, 4, 6):  # down as well as up: what a larger one left in the buffers must not be seen
        inputs = request(engine, batch, seed=batch)
        check_answer(engine.manifest, reference(engine, inputs), slot.run(inputs).outputs)


def test_an_answer_belongs_to_the_caller(engine: Engine) -> None:
    slot = engine.make_slot(Phases())
    first = slot.run(request(engine, 4, seed=1)).outputs
    kept = {name: value.copy() for name, value in first.items()}
    second = slot.run(request(engine, 4, seed=2)).outputs
    for name, value in first.items():
        assert np.array_equal(value, kept[name])
        assert not np.array_equal(value, second[name])
        assert not np.shares_memory(value, second[name])
        value[:] = 0  # writable, and nobody else's
    check_answer(engine.manifest, kept, slot.run(request(engine, 4, seed=1)).outputs)
    slot.close()
    assert not any(np.array_equal(value, kept[name]) for name, value in first.items())


def test_inputs_are_left_alone(engine: Engine) -> None:
    slot = engine.make_slot(Phases())
    inputs = request(engine, 2, seed=1)
    for value in inputs.values():
        value.flags.writeable = False
    before = {name: value.copy() for name, value in inputs.items()}
    slot.run(inputs)
    assert all(np.array_equal(inputs[name], before[name]) for name in inputs)


def test_slots_of_one_engine_run_at_once(engine: Engine) -> None:
    """Four threads, each with a slot and batches of its own: every answer is that of its own request."""
    runs, threads = 25, 4
    work = [[request(engine, 1 + (n + run) % 8, seed=100 * n + run) for run in range(runs)] for n in range(threads)]
    right = [[reference(engine, inputs) for inputs in requests] for requests in work]
    wrong: list[object] = []
    together = threading.Barrier(threads)

    def client(n: int) -> None:
        try:
            slot = engine.make_slot(Phases())
            together.wait(60)
            for inputs, expected in zip(work[n], right[n], strict=True):
                check_answer(engine.manifest, expected, slot.run(inputs).outputs)
            slot.close()
        except BaseException as error:
            wrong.append(error)

    clients = [threading.Thread(target=client, args=(n,)) for n in range(threads)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(60)
    assert not any(one.is_alive() for one in clients)
    assert wrong == []


def test_an_engine_that_was_closed_can_be_loaded_again(engine_dir: Path) -> None:
    for _ in range(3):
        engine = load_engine(engine_dir, {"threads": "1"}, Phases())
        slots = [engine.make_slot(Phases()) for _ in range(2)]
        for slot in slots:
            run_probe(slot, engine.manifest, read_probe(engine_dir, engine.manifest))
            slot.close()
        engine.close()


def test_a_loaded_engine_does_not_keep_the_file_it_came_from(engine_dir: Path) -> None:
    manifest = read_manifest(engine_dir)
    content = (engine_dir / manifest.engine_file.name).read_bytes()
    before = sys.getrefcount(content)
    engine = open_runtime(manifest.runtime).load(manifest, engine_dir, content, {"threads": "1"}, Phases())
    assert sys.getrefcount(content) == before
    engine.close()


def test_closing_one_slot_leaves_the_others(engine_dir: Path, engine: Engine) -> None:
    first, second = engine.make_slot(Phases()), engine.make_slot(Phases())
    first.close()
    run_probe(second, engine.manifest, read_probe(engine_dir, engine.manifest))


def test_an_unknown_setting_names_the_known_ones(engine_dir: Path) -> None:
    with pytest.raises(BenchError, match="unknown runtime setting 'turbo': known are threads"):
        load_engine(engine_dir, {"turbo": "1"}, Phases())
    with pytest.raises(BenchError, match="runtime setting threads='many' is not a whole number"):
        load_engine(engine_dir, {"threads": "many"}, Phases())


def test_an_unknown_runtime_names_the_known_ones() -> None:
    with pytest.raises(BenchError, match="unknown runtime 'abacus': this build knows onnxruntime, synthetic"):
        open_runtime("abacus")


def test_settings_are_key_and_value() -> None:
    assert parse_settings(["a=1", "b=", "c=d=e"]) == {"a": "1", "b": "", "c": "d=e"}
    for text in ("a", "=1", ""):
        with pytest.raises(BenchError, match="is not KEY=VALUE"):
            parse_settings([text])
    with pytest.raises(BenchError, match="--set names 'threads' twice"):
        parse_settings(["threads=1", "threads=2"])


# Only ONNX Runtime


def build(model: Path, **request: Any) -> Path:
    directory = model.with_suffix(".engine")
    nothing = Baseline(rate_per_s=1.0, p50_ns=1, p99_ns=None, samples=1)
    build_engine(BuildRequest(model=model, **request), directory, measure=lambda _: nothing)
    return directory


@pytest.mark.parametrize(
    "settings",
    [{"threads": "2"}, {"threads": "0"}, {"spinning": "yes"}, {"load_optimization": "all"}, {"memory_pattern": "false"}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_do_not_change_the_answer(tiny_engine: Path, settings: dict[str, str]) -> None:
    engine = load_engine(tiny_engine, settings, Phases())
    run_probe(engine.make_slot(Phases()), engine.manifest, read_probe(tiny_engine, engine.manifest))


@pytest.mark.parametrize(("setting", "says"), [("load_optimization", "none, basic, extended, all"), ("spinning", "is not true or false")])
def test_a_wrong_value_of_a_setting_says_what_is_right(tiny_engine: Path, setting: str, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        load_engine(tiny_engine, {setting: "perhaps"}, Phases())


def test_an_output_whose_shape_follows_from_values_is_the_callers_too(tmp_path: Path) -> None:
    engine_dir = build(graphs.finder(tmp_path / "finder.onnx"))
    assert read_manifest(engine_dir).outputs == (Tensor(name="y", datatype="INT64", dims=(2, "")),)
    engine = load_engine(engine_dir, {}, Phases())
    slot = engine.make_slot(Phases())
    one = slot.run({"x": np.eye(4, dtype=np.float32)}).outputs["y"]
    two = slot.run({"x": np.eye(4, dtype=np.float32)[::-1].copy()}).outputs["y"]
    assert one.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert two.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert slot.run({"x": np.zeros((1, 4), np.float32)}).outputs["y"].shape == (2, 0)
    one[:] = 7
    slot.close()
    engine.close()
    assert two.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]


def test_some_outputs_only_and_other_datatypes(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Add", ["a", "a"], ["sum"]),
        helper.make_node("Not", ["flag"], ["not"]),
        helper.make_node("Mul", ["half", "half"], ["square"]),
    ]
    kinds = {"a": TensorProto.INT64, "flag": TensorProto.BOOL, "half": TensorProto.FLOAT16}
    shapes: dict[str, list[int | str | None]] = {"a": ["batch", 3], "flag": [], "half": [2]}
    inputs = [graphs.value(name, shapes[name], kind) for name, kind in kinds.items()]
    outputs = [
        graphs.value("sum", ["batch", 3], TensorProto.INT64),
        graphs.value("not", [], TensorProto.BOOL),
        graphs.value("square", [2], TensorProto.FLOAT16),
    ]
    engine_dir = build(graphs.save(tmp_path / "mixed.onnx", nodes, inputs, outputs))
    engine = load_engine(engine_dir, {}, Phases())
    slot = engine.make_slot(Phases())
    given = {"a": np.array([[1, 2, 3]]), "flag": np.array(False), "half": np.array([2, 3], np.float16)}
    assert {name: value.tolist() for name, value in slot.run(given).outputs.items()} == {"sum": [[2, 4, 6]], "not": True, "square": [4, 9]}
    assert list(slot.run(given, outputs=["not"]).outputs) == ["not"]
    assert slot.run(given, outputs=["square"]).outputs["square"].dtype == np.float16


# Only the synthetic one


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 4), (4, 10), (10, 4), (3, 9)])
def test_its_answer_is_twice_its_input_repeated(synthetic: Callable[..., Path], inputs: int, outputs: int) -> None:
    engine_dir = synthetic(input_elements=inputs, output_elements=outputs)
    engine = load_engine(engine_dir, {}, Phases())
    slot = engine.make_slot(Phases())
    given = np.arange(2 * inputs, dtype=np.float32).reshape(2, inputs)
    expected = [[2 * row[j % inputs] for j in range(outputs)] for row in given.tolist()]
    assert slot.run({"input": given}).outputs["output"].tolist() == expected
    for case in range(count_probe_cases(engine_dir)):
        run_probe(slot, engine.manifest, read_probe(engine_dir, engine.manifest, case))


def test_declared_times_are_taken_and_declared_failures_happen(synthetic: Callable[..., Path]) -> None:
    engine_dir = synthetic(load_ns=20_000_000, slot_ns=10_000_000, first_service_ns=15_000_000, service_ns=1_000_000, fail_every_runs=3)
    phases = Phases()
    engine = load_engine(engine_dir, {}, phases)
    slot = engine.make_slot(phases)
    took = {phase.name: phase.end_ns - phase.start_ns for phase in phases.recorded}
    assert took["deserialise"] >= 20_000_000
    assert took["slot"] >= 10_000_000
    inputs = request(engine, 1, seed=0)
    assert slot.run(inputs).infer_ns >= 16_000_000
    assert slot.run(inputs).infer_ns >= 1_000_000
    with pytest.raises(RuntimeError, match="declared to fail"):
        slot.run(inputs)
    slot.run(inputs)


def test_declared_service_times_spread_around_their_median(synthetic: Callable[..., Path]) -> None:
    engine = load_engine(synthetic(service_ns=1_000_000, spread_percent=100), {}, Phases())
    slot, inputs = engine.make_slot(Phases()), request(engine, 1, seed=0)
    took = [slot.run(inputs).infer_ns for _ in range(60)]
    assert sum(ns < 1_000_000 for ns in took) >= 10  # half of them are expected; without a spread none sleeps less than declared
    assert max(took) > 3_000_000  # 14 % are expected beyond e times the median


def test_declared_slots_slow_each_other(synthetic: Callable[..., Path]) -> None:
    engine = load_engine(synthetic(service_ns=100_000_000, slow_percent=100), {}, Phases())
    slots, inputs = [engine.make_slot(Phases()) for _ in range(2)], request(engine, 1, seed=0)
    took: list[int] = []
    threads = [threading.Thread(target=lambda slot=slot: took.append(slot.run(inputs).infer_ns)) for slot in slots]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(took) >= 200_000_000  # the one that began while the other ran
    assert slots[0].run(inputs).infer_ns >= 100_000_000


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "from bench.engine.onnxruntime_builder import runtime_version; runtime_version()"),
        ("-m", "reference_server.probe", "{engine}"),
    ],
)
def test_onnxruntime_keeps_no_telemetry(tmp_path: Path, tiny_engine: Path, arguments: tuple[str, ...]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, *(argument.format(engine=tiny_engine) for argument in arguments)]
    subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=True, capture_output=True)
    assert list(tmp_path.rglob("*onnxruntime*")) == []
