"""The lighter real model of the study: six convolutions on a 96x96 image, 0.4 GMAC: a tenth of resnet50."""

from __future__ import annotations

import math
from pathlib import Path

from onnx import TensorProto

from bench.models.graph import Graph

IMAGE = (3, 96, 96)
LAYERS = ((64, 2), (64, 1), (64, 1), (64, 1), (128, 2), (128, 1))  # channels, stride
CLASSES = 100


def write(path: Path, seed: int = 0) -> None:
    """Input `input` FP32 [batch, 3, 96, 96], output `logits` FP32 [batch, 100]; the same seed gives the same bytes."""
    graph, value, channels = Graph("convnet", seed=seed), "input", IMAGE[0]
    for number, (width, stride) in enumerate(LAYERS):
        weight = graph.weight(f"conv{number}.weight", (width, channels, 3, 3), std=math.sqrt(2 / (channels * 9)))
        value = graph.node("Conv", f"conv{number}", [value, weight], kernel_shape=[3, 3], strides=[stride, stride], pads=[1, 1, 1, 1])
        value, channels = graph.node("Relu", f"relu{number}", [value]), width
    value = graph.node("Flatten", "flatten", [graph.node("GlobalAveragePool", "pool", [value])])
    dense = graph.weight("dense.weight", (CLASSES, channels), std=math.sqrt(1 / channels))
    graph.node("Gemm", "logits", [value, dense], transB=1)
    model = graph.model(
        inputs={"input": (TensorProto.FLOAT, ("batch", *IMAGE))}, outputs={"logits": (TensorProto.FLOAT, ("batch", CLASSES))}
    )
    path.write_bytes(model.SerializeToString(deterministic=True))
