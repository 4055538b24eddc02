"""A perceptron with two hidden layers, under 1 MB: what tests and a first try use."""

from __future__ import annotations

import math
from itertools import pairwise

import onnx
from onnx import TensorProto

from bench.models.graph import Graph

FEATURES = 64
HIDDEN = 256
CLASSES = 16


def build(seed: int) -> onnx.ModelProto:
    """Input `input` FP32 [batch, 64], output `logits` FP32 [batch, 16]."""
    graph = Graph("tiny", seed=seed)
    value = "input"
    sizes = (FEATURES, HIDDEN, HIDDEN, CLASSES)
    for layer, (width, units) in enumerate(pairwise(sizes), start=1):
        last = layer == len(sizes) - 1
        weight = graph.weight(f"dense{layer}.weight", (units, width), std=math.sqrt((1 if last else 2) / width))
        bias = graph.weight(f"dense{layer}.bias", (units,), std=0.1)
        value = graph.node("Gemm", "logits" if last else f"dense{layer}", [value, weight, bias], transB=1)
        if not last:
            value = graph.node("Relu", f"relu{layer}", [value])
    return graph.model(
        inputs={"input": (TensorProto.FLOAT, ("batch", FEATURES))},
        outputs={"logits": (TensorProto.FLOAT, ("batch", CLASSES))},
    )
