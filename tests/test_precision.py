"""The graph in fp16 and in int8: what a strongly typed builder and one with flags are given, and how far the answers move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import constant, save, value
from onnx import TensorProto, helper, numpy_helper

from bench.engine import onnxruntime_builder
from bench.engine.manifest import ShapeRange
from bench.engine.precision import Calibration, convert, count_nodes, random_calibration, read_calibration
from bench.engine.shapes import InputSource, resolve_profiles
from bench.engine.source import SourceModel, read_source
from bench.errors import BenchError
from bench.models import write_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    write_model("tiny", 0, path)
    return read_source(path)


@pytest.fixture(scope="module")
def profile(source: SourceModel) -> dict[str, ShapeRange]:
    return resolve_profiles(source.inputs, {})[0]


@pytest.fixture(scope="module")
def calibration(source: SourceModel, profile: dict[str, ShapeRange]) -> Calibration:
    return random_calibration(source.inputs, profile, {}, 0)


def error(source: SourceModel, path: Path) -> float:
    cases = [{"input": np.random.default_rng(5).random((size, 64), dtype=np.float32)} for size in (1, 8)]
    return onnxruntime_builder.parity_error(path, cases, onnxruntime_builder.reference_answers(source, cases))["logits"]


def weight_types(model: onnx.ModelProto) -> dict[int, int]:
    """Elements of the weights by their ONNX type."""
    counts: dict[int, int] = {}
    for weight in model.graph.initializer:
        counts[weight.data_type] = counts.get(weight.data_type, 0) + int(np.prod(weight.dims))
    return counts


def test_fp32_and_flags_need_no_conversion(source: SourceModel, tmp_path: Path) -> None:
    target = tmp_path / "x.onnx"
    assert not convert(source.path, target, "fp32", typed=True, calibration=None)
    assert not convert(source.path, target, "fp16", typed=False, calibration=None)
    assert list(tmp_path.iterdir()) == []


def test_fp16(source: SourceModel, tmp_path: Path) -> None:
    target = tmp_path / "fp16.onnx"
    assert convert(source.path, target, "fp16", typed=True, calibration=None)
    model = onnx.load(str(target))
    onnx.checker.check_model(model, full_check=True)
    assert read_source(target).precision == "fp16"
    assert [t.datatype for t in (*read_source(target).inputs, *read_source(target).outputs)] == ["FP32", "FP32"]
    assert target.stat().st_size < 0.55 * source.path.stat().st_size
    assert 0 < error(source, target) < 2e-3


def check_pairs(model: onnx.ModelProto) -> None:
    """What every builder asks of the pairs: symmetric int8, and nothing in int32 or uint8."""
    onnx.checker.check_model(model, full_check=True)
    values = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for node in pairs:
        assert not values[node.input[2]].any(), "symmetric: zero points are 0"
        assert values[node.input[2]].dtype == np.int8
        assert (values[node.input[1]] > 0).all()
    assert {TensorProto.INT32, TensorProto.UINT8}.isdisjoint(weight_types(model))


def history(model: onnx.ModelProto, tensor: str) -> tuple[list[onnx.NodeProto], str]:
    """The Quantize and DequantizeLinear that a tensor went through, the last one first, and the tensor before them."""
    makers = {node.output[0]: node for node in model.graph.node}
    passed: list[onnx.NodeProto] = []
    while tensor in makers and makers[tensor].op_type in ("QuantizeLinear", "DequantizeLinear"):
        passed.append(makers[tensor])
        tensor = makers[tensor].input[0]
    return passed, tensor


def test_int8_for_a_typed_builder(source: SourceModel, calibration: Calibration, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    assert convert(source.path, target, "int8", typed=True, calibration=calibration)
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]  # nothing of the way there is left
    model = onnx.load(str(target))
    check_pairs(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 19)]
    types = weight_types(model)
    assert types[TensorProto.INT8] >= 64 * 256 + 256 * 256 + 256 * 16  # every weight of a matrix
    assert types[TensorProto.FLOAT16] < 2000  # scales and biases
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) >= 3
    assert 1e-4 < error(source, target) < 0.05


def test_int8_for_a_builder_with_flags(source: SourceModel, calibration: Calibration, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    assert convert(source.path, target, "int8", typed=False, calibration=calibration)
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]
    model = onnx.load(str(target))
    check_pairs(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    weights = {weight.name: numpy_helper.to_array(weight) for weight in onnx.load(str(source.path)).graph.initializer}
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    assert len(products) == 3
    for node in products:
        pair, name = history(model, node.input[1])
        assert [one.op_type for one in pair] == ["DequantizeLinear", "QuantizeLinear"]
        kept = numpy_helper.to_array(next(weight for weight in model.graph.initializer if weight.name == name))
        assert np.array_equal(kept, weights[name]), "the builder rounds them, not we"
        assert [one.op_type for one in history(model, node.input[0])[0]] == ["DequantizeLinear", "QuantizeLinear"]
    assert weight_types(model)[TensorProto.INT8] < 2000  # zero points: no weight is int8
    assert 1e-4 < error(source, target) < 0.05


def attention(path: Path) -> Path:
    """One head over [batch, 6, 16]: four products with weights, and two of activations that have no names."""
    generator = np.random.default_rng(3)
    weights = [constant(name, generator.normal(0, 0.3, (16, 16)).astype(np.float32)) for name in ("wq", "wk", "wv", "wo")]
    nodes = [helper.make_node("MatMul", ["x", f"w{one}"], [one], name=f"make_{one}") for one in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["attended"], axis=-1),
        helper.make_node("MatMul", ["attended", "v"], ["context"]),
        helper.make_node("MatMul", ["context", "wo"], ["y"], name="make_y"),
    ]
    return save(path, nodes, [value("x", ["batch", 6, 16])], [value("y", ["batch", 6, 16])], weights)


@pytest.mark.parametrize("typed", [True, False])
def test_products_of_two_activations_stay_wide(typed: bool, tmp_path: Path) -> None:
    source = read_source(attention(tmp_path / "attention.onnx"))
    profile = resolve_profiles(source.inputs, {"x": "1x6x16"})[0]
    target = tmp_path / "int8.onnx"
    convert(source.path, target, "int8", typed=typed, calibration=random_calibration(source.inputs, profile, {}, 0))
    model = onnx.load(str(target))
    check_pairs(model)
    quantised, wide = [], 0
    for node in model.graph.node:
        if node.op_type == "MatMul":
            passed = [history(model, name)[0] for name in node.input]
            if all(passed):
                quantised.append(node.name)
                (scale,) = [numpy_helper.to_array(w) for w in model.graph.initializer if w.name == passed[1][0].input[1]]
                assert scale.shape == (16,)  # one for each column
                assert {attribute.i for one in passed[1] for attribute in one.attribute if attribute.name == "axis"} == {1}
                assert len(passed[1]) == (1 if typed else 2)
            else:
                assert passed == [[], []]
                wide += 1
    assert sorted(quantised) == ["make_k", "make_q", "make_v", "make_y"]
    assert wide == 2
    cases = [{"x": np.random.default_rng(5).random((2, 6, 16), dtype=np.float32)}]
    answers = onnxruntime_builder.reference_answers(source, cases)
    assert 1e-4 < onnxruntime_builder.parity_error(target, cases, answers)["y"] < 0.05


def test_calibration_decides_the_ranges(source: SourceModel, calibration: Calibration, tmp_path: Path) -> None:
    far_off = Calibration(origin="x", batches=tuple({"input": 100 * batch["input"]} for batch in calibration.batches))
    for name, data in (("good", calibration), ("bad", far_off)):
        convert(source.path, tmp_path / name, "int8", typed=True, calibration=data)
    assert error(source, tmp_path / "bad") > 5 * error(source, tmp_path / "good")


def test_random_calibration_is_seeded_and_not_the_probe(source: SourceModel, profile: dict[str, ShapeRange]) -> None:
    first, again, other = (random_calibration(source.inputs, profile, {}, seed) for seed in (0, 0, 1))
    assert first.origin == "random"
    assert len(first.batches) == 8
    assert all(np.array_equal(a["input"], b["input"]) for a, b in zip(first.batches, again.batches, strict=True))
    assert not np.array_equal(first.batches[0]["input"], other.batches[0]["input"])
    assert not np.array_equal(first.batches[0]["input"], np.random.default_rng([0, 0]).uniform(0, 1, (4, 64)).astype("float32"))
    bounded = random_calibration(source.inputs, profile, {"input": InputSource(low=5, high=6)}, 0)
    assert all(batch["input"].min() >= 5 for batch in bounded.batches)


@pytest.mark.parametrize(("rows", "batches"), [(4, 1), (11, 2), (12, 3), (3, 1)])
def test_calibration_of_the_users(rows: int, batches: int, source: SourceModel, profile: dict[str, ShapeRange], tmp_path: Path) -> None:
    data = np.arange(rows * 64, dtype=np.float64).reshape(rows, 64)
    np.savez(tmp_path / "data.npz", input=data)
    found = read_calibration(tmp_path / "data.npz", source.inputs, profile)
    assert found.origin == "data.npz"
    assert [batch["input"].shape for batch in found.batches] == [(4, 64)] * batches
    assert found.batches[0]["input"].dtype == np.float32
    assert np.array_equal(found.batches[-1]["input"][0], data[4 * (batches - 1)].astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"image": np.zeros((8, 64))}, "no array 'input', only image"),
        ({"input": np.zeros((8, 32))}, r"has shape \[8, 32\], samples of \[64\]"),
        ({"input": np.zeros((0, 64))}, r"has shape \[0, 64\]"),
        ({"input": np.zeros(64)}, r"has shape \[64\]"),
        ({"input": np.full((8, 64), np.nan)}, "--calibration .* array 'input' holds NaN or infinities"),
    ],
)
def test_calibration_that_does_not_fit(
    arrays: dict[str, Any], reason: str, source: SourceModel, profile: dict[str, ShapeRange], tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(BenchError, match=reason):
        read_calibration(tmp_path / "data.npz", source.inputs, profile)


def test_calibration_that_cannot_be_read(source: SourceModel, profile: dict[str, ShapeRange], tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such file"):
        read_calibration(tmp_path / "none.npz", source.inputs, profile)
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(BenchError, match=r"cannot be read as \.npz"):
        read_calibration(tmp_path / "text.npz", source.inputs, profile)


def test_a_graph_with_nothing_to_quantise(calibration: Calibration, tmp_path: Path) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Relu", ["input"], ["output"])], "relu", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "relu.onnx"))
    assert count_nodes(tmp_path / "relu.onnx") == 1
    with pytest.raises(BenchError, match="no Conv, MatMul, Gemm with weights to quantise"):
        convert(tmp_path / "relu.onnx", tmp_path / "int8.onnx", "int8", typed=True, calibration=calibration)
