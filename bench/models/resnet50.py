"""ResNet-50 in its v1.5 form: 25.5 million weights, 102 MB.

He et al., "Deep Residual Learning for Image Recognition", 2015 (arXiv:1512.03385), table 1; v1.5 puts a stage's stride on the 3x3
convolution instead of the first 1x1. Batch normalisation is folded into the convolutions, as exporters write a network for inference.
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from bench.models.graph import Graph

IMAGE = (3, 224, 224)
CLASSES = 1000
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of the 3x3 convolutions, number of blocks
EXPANSION = 4

# Variance gains of the weights. 2 keeps the size of activations through a ReLU; the last convolution of a block has less, because its
# output is added to the shortcut and sixteen such sums would otherwise grow beyond the range of fp16.
_THROUGH_RELU = 2.0
_BRANCH_END = 0.25
_SHORTCUT = 1.0


def build(seed: int) -> onnx.ModelProto:
    """Input `input` FP32 [batch, 3, 224, 224], output `logits` FP32 [batch, 1000]."""
    graph = Graph("resnet50", seed=seed)
    value = _convolution(graph, "stem", "input", IMAGE[0], 64, kernel=7, stride=2, gain=_THROUGH_RELU)
    value = graph.node("Relu", "stem.relu", [value])
    value = graph.node("MaxPool", "stem.pool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            value = _bottleneck(graph, f"stage{stage}.block{block}", value, channels, width, stride)
            channels = width * EXPANSION
    value = graph.node("GlobalAveragePool", "pool", [value])
    value = graph.node("Flatten", "features", [value], axis=1)
    weight = graph.weight("classifier.weight", (CLASSES, channels), std=math.sqrt(1 / channels))
    bias = graph.weight("classifier.bias", (CLASSES,), std=0.1)
    graph.node("Gemm", "logits", [value, weight, bias], transB=1)
    return graph.model(
        inputs={"input": (TensorProto.FLOAT, ("batch", *IMAGE))},
        outputs={"logits": (TensorProto.FLOAT, ("batch", CLASSES))},
    )


def _bottleneck(graph: Graph, name: str, value: str, channels: int, width: int, stride: int) -> str:
    """1x1 down to `width`, 3x3, 1x1 up to four times `width`, added to the shortcut."""
    out_channels = width * EXPANSION
    branch = _convolution(graph, f"{name}.conv1", value, channels, width, kernel=1, stride=1, gain=_THROUGH_RELU)
    branch = graph.node("Relu", f"{name}.relu1", [branch])
    branch = _convolution(graph, f"{name}.conv2", branch, width, width, kernel=3, stride=stride, gain=_THROUGH_RELU)
    branch = graph.node("Relu", f"{name}.relu2", [branch])
    branch = _convolution(graph, f"{name}.conv3", branch, width, out_channels, kernel=1, stride=1, gain=_BRANCH_END)
    shortcut = value
    if stride != 1 or channels != out_channels:
        shortcut = _convolution(graph, f"{name}.shortcut", value, channels, out_channels, kernel=1, stride=stride, gain=_SHORTCUT)
    return graph.node("Relu", f"{name}.relu3", [graph.node("Add", f"{name}.sum", [branch, shortcut])])


def _convolution(graph: Graph, name: str, value: str, channels: int, filters: int, *, kernel: int, stride: int, gain: float) -> str:
    weight = graph.weight(f"{name}.weight", (filters, channels, kernel, kernel), std=math.sqrt(gain / (channels * kernel * kernel)))
    bias = graph.weight(f"{name}.bias", (filters,), std=0.1)
    return graph.node(
        "Conv",
        name,
        [value, weight, bias],
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[kernel // 2] * 4,
        dilations=[1, 1],
        group=1,
    )
