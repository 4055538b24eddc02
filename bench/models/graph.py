"""An ONNX graph under construction: nodes in order, initializers with seeded weights.

Weights are uniform numbers made from the raw words of PCG64. Raw words are the part of numpy's generators that is promised to stay the
same (NEP 19; the distributions are not), and one multiplication and one subtraction in float32 round the same everywhere, so a seed
gives the same bytes in any process and with any numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

OPSET = 17  # TensorRT 8.6 reads up to opset 17 and IR 8
IR_VERSION = 8

Dims = Sequence[int | str]


class Graph:
    """Collects the nodes and weights of one model. Every method returns the name of the tensor it made."""

    def __init__(self, name: str, *, seed: int) -> None:
        self._name = name
        self._bits = np.random.PCG64(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []

    def weight(self, name: str, shape: Sequence[int], *, std: float) -> str:
        """A float32 initializer, uniform around 0 with standard deviation `std`."""
        count = math.prod(shape)
        words = self._bits.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]
        bound = std * math.sqrt(3)
        values = (words >> np.uint32(8)).astype(np.float32)  # 24 bits fit a float32 exactly
        values *= np.float32(2 * bound / 2**24)
        values -= np.float32(bound)
        return self.constant(name, values.reshape(shape))

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """An initializer with these values; float32 or int64."""
        kind = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}[values.dtype.name]
        little_endian = values.astype(values.dtype.newbyteorder("<"), copy=False)
        self._initializers.append(TensorProto(name=name, data_type=kind, dims=values.shape, raw_data=little_endian.tobytes()))
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """One operator with one output, which gets the node's name."""
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def model(self, inputs: Mapping[str, tuple[int, Dims]], outputs: Mapping[str, tuple[int, Dims]]) -> onnx.ModelProto:
        """The finished model. Inputs and outputs are NAME: (element type of TensorProto, dims with names for dynamic axes)."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
            [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in outputs.items()],
        )
        # Moved in one by one: handing the list to make_graph would copy all weights once more.
        for tensor in self._initializers:
            graph.initializer.append(tensor)
        self._initializers.clear()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="coldburst")
        model.ir_version = IR_VERSION
        return model
