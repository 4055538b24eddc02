"""Reading a user's ONNX model."""

from __future__ import annotations

from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.engine.source import read_source
from bench.errors import BenchError


def refusal(path: Path) -> str:
    with pytest.raises(BenchError) as refused:
        read_source(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_what_a_plain_model_declares(tmp_path: Path) -> None:
    source = read_source(graphs.dense(tmp_path / "dense.onnx"))
    assert [(t.name, t.datatype, t.dims) for t in source.inputs] == [("x", "FP32", ("batch", 4))]
    assert [(t.name, t.datatype, t.dims) for t in source.outputs] == [("y", "FP32", ("batch", 2))]
    assert source.precision == "fp32"
    assert source.bytes == (tmp_path / "dense.onnx").stat().st_size


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, b"\x08\x08", b"\x80" * 64, bytes(range(256))])
def test_what_is_not_onnx(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert "not an ONNX model" in refusal(tmp_path / "m.onnx")


def test_a_truncated_model_is_not_onnx(tmp_path: Path) -> None:
    path = graphs.dense(tmp_path / "dense.onnx")
    path.write_bytes(path.read_bytes()[:-20])
    assert "not an ONNX model" in refusal(path)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    assert "folder" in refusal(tmp_path)
    assert "no such model file" in refusal(tmp_path / "none.onnx")


def external_model(folder: Path) -> Path:
    model = onnx.load(graphs.dense(folder / "dense.onnx"))
    onnx.save_model(model, folder / "dense.onnx", save_as_external_data=True, location="dense.weights", size_threshold=0)
    return folder / "dense.onnx"


def test_weights_in_a_file_of_their_own_belong_to_the_model(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    source = read_source(path)
    assert source.external == ("dense.weights",)
    weights = tmp_path / "dense.weights"
    assert source.bytes == path.stat().st_size + weights.stat().st_size
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    assert read_source(path).sha256 != source.sha256
    weights.unlink()
    assert "keeps weights in dense.weights" in refusal(path)


def test_a_sequence_cannot_be_served(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    node = helper.make_node("SplitToSequence", ["x"], ["parts"])
    assert "output 'parts' is a sequence_type" in refusal(graphs.save(tmp_path / "m.onnx", [node], [graphs.value("x", [2, 2])], [sequence]))
    node = helper.make_node("SequenceLength", ["parts"], ["n"])
    counted = graphs.value("n", [], TensorProto.INT64)
    assert "input 'parts' is a sequence_type" in refusal(graphs.save(tmp_path / "n.onnx", [node], [sequence], [counted]))


def test_no_inputs_and_no_outputs(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["w"], ["y"])
    weight = graphs.constant("w", np.ones(2, np.float32))
    assert "no inputs" in refusal(graphs.save(tmp_path / "m.onnx", [node], [], [graphs.value("y", [2])], [weight]))
    assert "no outputs" in refusal(graphs.save(tmp_path / "n.onnx", [node], [graphs.value("w", [2])], []))


def test_an_input_without_a_shape_and_an_element_type_that_the_wire_has_not(tmp_path: Path) -> None:
    shapeless = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    node = helper.make_node("Identity", ["x"], ["y"])
    assert "input 'x' declares no shape" in refusal(graphs.save(tmp_path / "m.onnx", [node], [shapeless], [graphs.value("y", [2])]))
    odd = graphs.value("x", [2], TensorProto.BFLOAT16)
    assert "ONNX element type 16" in refusal(graphs.save(tmp_path / "n.onnx", [node], [odd], [graphs.value("y", [2])]))


@pytest.mark.parametrize("name", [None, "?", "unk__3", "batch size", "-1", ""])
def test_an_axis_without_a_usable_name_is_the_batch_if_it_is_the_first(tmp_path: Path, name: str | None) -> None:
    (given,) = read_source(graphs.doubler(tmp_path / "m.onnx", (name, 4, name))).inputs
    assert given.dims == ("batch", 4, "x.2")


def test_unnamed_axes_of_two_inputs_are_not_one(tmp_path: Path) -> None:
    a, b = read_source(graphs.adder(tmp_path / "m.onnx", (None, "?"), (None, "?"))).inputs
    assert a.dims == ("batch", "a.1")
    assert b.dims == ("batch", "b.1")


def test_axes_are_carried_to_an_output_that_does_not_name_them(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    (output,) = read_source(
        graphs.save(tmp_path / "m.onnx", [node], [graphs.value("x", [None, 4])], [graphs.value("y", [None, None])])
    ).outputs
    assert output.dims == ("batch", 4)


def test_weights_listed_among_the_inputs_are_not_inputs(tmp_path: Path) -> None:
    assert [t.name for t in read_source(graphs.dense(tmp_path / "m.onnx", listed_as_input=True)).inputs] == ["x"]


@pytest.mark.parametrize(("dtype", "precision"), [(np.float32, "fp32"), (np.float16, "fp16"), (np.int8, "int8"), (np.float64, "fp32")])
def test_the_precision_is_that_of_most_weights(tmp_path: Path, dtype: type, precision: str) -> None:
    assert read_source(graphs.dense(tmp_path / "m.onnx", dtype)).precision == precision


def test_a_few_weights_of_another_kind_do_not_change_the_precision(tmp_path: Path) -> None:
    weights = [graphs.constant("a", np.ones(100, np.float16)), graphs.constant("b", np.ones(99, np.float32))]
    node = helper.make_node("Identity", ["x"], ["y"])
    path = graphs.save(tmp_path / "m.onnx", [node], [graphs.value("x", [1])], [graphs.value("y", [1])], weights)
    assert read_source(path).precision == "fp16"


def test_without_weights_the_precision_is_that_of_the_inputs(tmp_path: Path) -> None:
    assert read_source(graphs.doubler(tmp_path / "h.onnx", (None, 4), TensorProto.FLOAT16)).precision == "fp16"
    assert read_source(graphs.doubler(tmp_path / "f.onnx")).precision == "fp32"
