"""Small ONNX graphs made by hand, each with one thing that is unusual about real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name: str, shape: Sequence[int | str | None], kind: int = FLOAT) -> onnx.ValueInfoProto:
    """An input or output; None is an axis without a name."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def constant(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    domains: Sequence[str] = (),
) -> Path:
    """Write the graph (opset 17, IR 8), unchecked."""
    graph = helper.make_graph(list(nodes), path.stem, list(inputs), list(outputs), list(weights))
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def doubler(path: Path, shape: Sequence[int | str | None] = (None, 4), kind: int = FLOAT) -> Path:
    """y = x + x."""
    return save(path, [helper.make_node("Add", ["x", "x"], ["y"])], [value("x", shape, kind)], [value("y", shape, kind)])


def adder(path: Path, a: Sequence[int | str | None], b: Sequence[int | str | None]) -> Path:
    """y = a + b, broadcast."""
    return save(path, [helper.make_node("Add", ["a", "b"], ["y"])], [value("a", a), value("b", b)], [value("y", [None] * len(a))])


def finder(path: Path) -> Path:
    """Where x is not zero: the output's second axis follows from the values, so nobody can know it ahead."""
    return save(path, [helper.make_node("NonZero", ["x"], ["y"])], [value("x", ["batch", 4])], [value("y", [2, None], TensorProto.INT64)])


def dice(path: Path) -> Path:
    """x plus noise that no two runs share."""
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["noise"]), helper.make_node("Add", ["x", "noise"], ["y"])]
    return save(path, nodes, [value("x", ["batch", 4])], [value("y", ["batch", 4])])


def stranger(path: Path) -> Path:
    """An operator of a domain that no runtime knows."""
    node = helper.make_node("Levitate", ["x"], ["y"], domain="org.example")
    return save(path, [node], [value("x", ["batch", 4])], [value("y", ["batch", 4])], domains=["org.example"])


def dense(path: Path, dtype: type = np.float32, *, listed_as_input: bool = False) -> Path:
    """y = x @ weight, [batch, 4] to [batch, 2]; older exporters list the weight among the inputs too."""
    weight = constant("weight", np.linspace(-1, 1, 8).reshape(4, 2).astype(dtype))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [value("x", ["batch", 4], kind), *([value("weight", [4, 2], kind)] if listed_as_input else [])]
    return save(path, [helper.make_node("MatMul", ["x", "weight"], ["y"])], inputs, [value("y", ["batch", 2], kind)], [weight])
