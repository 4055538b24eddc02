"""BERT-base, uncased size, with its pooler: 109 million weights, 438 MB, one file.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018 (arXiv:1810.04805). Gelu is written with Erf (ONNX has Gelu
only from opset 20) in the order of operators that the runtimes recognise and fuse. Masked positions get -10000, which fp16 can hold.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from bench.models.graph import Graph

LAYERS = 12
HIDDEN = 768
HEADS = 12
HEAD_SIZE = HIDDEN // HEADS
INTERMEDIATE = 3072
VOCABULARY = 30522
POSITIONS = 512
TOKEN_TYPES = 2
EPSILON = 1e-12  # as in the original; LayerNormalization computes its statistics in fp32

_INITIAL_STD = 0.02  # the paper's own initialisation of all weights


def build(seed: int) -> onnx.ModelProto:
    """Inputs `input_ids`, `attention_mask`, `token_type_ids` INT64 [batch, sequence], the sequence up to 512.

    Outputs `last_hidden_state` FP32 [batch, sequence, 768] and `pooler_output` FP32 [batch, 768].
    """
    graph = Graph("bert-base", seed=seed)
    _shared_constants(graph)
    mask = _mask(graph)
    hidden = _embeddings(graph)
    for layer in range(LAYERS):
        last = layer == LAYERS - 1
        hidden = _layer(graph, f"layer{layer}", hidden, mask, output="last_hidden_state" if last else f"layer{layer}.output")
    first_token = graph.node("Gather", "pooler.first_token", [hidden, "index_0"], axis=1)
    graph.node("Tanh", "pooler_output", [_dense(graph, "pooler.dense", first_token, HIDDEN, HIDDEN)])
    ids = (TensorProto.INT64, ("batch", "sequence"))
    return graph.model(
        inputs={"input_ids": ids, "attention_mask": ids, "token_type_ids": ids},
        outputs={
            "last_hidden_state": (TensorProto.FLOAT, ("batch", "sequence", HIDDEN)),
            "pooler_output": (TensorProto.FLOAT, ("batch", HIDDEN)),
        },
    )


def _shared_constants(graph: Graph) -> None:
    for name, number in (("one", 1.0), ("half", 0.5), ("sqrt_2", math.sqrt(2)), ("sqrt_head", math.sqrt(HEAD_SIZE)), ("masked", -10000.0)):
        graph.constant(name, np.array(number, np.float32))
    graph.constant("index_0", np.array(0, np.int64))
    for name, numbers in (
        ("axis_0", [0]), ("axis_1", [1]), ("axis_2", [2]), ("split_heads", [0, 0, HEADS, HEAD_SIZE]), ("join_heads", [0, 0, HIDDEN]),
    ):  # fmt: skip
        graph.constant(name, np.array(numbers, np.int64))


def _mask(graph: Graph) -> str:
    """0 where a position may be attended to, -10000 where not: FP32 [batch, 1, 1, sequence]."""
    mask = graph.node("Unsqueeze", "mask.heads", ["attention_mask", "axis_1"])
    mask = graph.node("Unsqueeze", "mask.queries", [mask, "axis_2"])
    mask = graph.node("Cast", "mask.float", [mask], to=TensorProto.FLOAT)
    return graph.node("Mul", "mask.added", [graph.node("Sub", "mask.inverse", ["one", mask]), "masked"])


def _embeddings(graph: Graph) -> str:
    def table(name: str, rows: int) -> str:
        return graph.weight(f"embeddings.{name}", (rows, HIDDEN), std=_INITIAL_STD)

    words = graph.node("Gather", "embeddings.words", [table("word_table", VOCABULARY), "input_ids"], axis=0)
    types = graph.node("Gather", "embeddings.types", [table("type_table", TOKEN_TYPES), "token_type_ids"], axis=0)
    length = graph.node("Gather", "embeddings.length", [graph.node("Shape", "embeddings.shape", ["input_ids"]), "axis_1"], axis=0)
    position_ids = graph.constant("embeddings.position_ids", np.arange(POSITIONS, dtype=np.int64)[np.newaxis])
    used = graph.node("Slice", "embeddings.used_positions", [position_ids, "axis_0", length, "axis_1"])
    positions = graph.node("Gather", "embeddings.positions", [table("position_table", POSITIONS), used], axis=0)
    total = graph.node("Add", "embeddings.words_types", [words, types])
    return _layer_norm(graph, "embeddings.norm", graph.node("Add", "embeddings.sum", [total, positions]))


def _layer(graph: Graph, name: str, hidden: str, mask: str, output: str) -> str:
    """Self-attention and feed-forward, each with its residual sum and layer normalisation after it."""
    query = _heads(graph, f"{name}.query", hidden, (0, 2, 1, 3))
    key = _heads(graph, f"{name}.key", hidden, (0, 2, 3, 1))  # transposed for the product
    value = _heads(graph, f"{name}.value", hidden, (0, 2, 1, 3))
    scores = graph.node("Div", f"{name}.scores", [graph.node("MatMul", f"{name}.products", [query, key]), "sqrt_head"])
    weights = graph.node("Softmax", f"{name}.weights", [graph.node("Add", f"{name}.masked_scores", [scores, mask])], axis=-1)
    context = graph.node("MatMul", f"{name}.head_contexts", [weights, value])
    context = graph.node("Transpose", f"{name}.contexts", [context], perm=[0, 2, 1, 3])
    context = graph.node("Reshape", f"{name}.context", [context, "join_heads"])
    attended = _dense(graph, f"{name}.attention_output", context, HIDDEN, HIDDEN)
    attended = _layer_norm(graph, f"{name}.attention_norm", graph.node("Add", f"{name}.attention_sum", [attended, hidden]))
    widened = _gelu(graph, f"{name}.gelu", _dense(graph, f"{name}.intermediate", attended, HIDDEN, INTERMEDIATE))
    narrowed = _dense(graph, f"{name}.feed_forward", widened, INTERMEDIATE, HIDDEN)
    return _layer_norm(graph, output, graph.node("Add", f"{name}.feed_forward_sum", [narrowed, attended]))


def _heads(graph: Graph, name: str, hidden: str, permutation: tuple[int, int, int, int]) -> str:
    """A projection cut into heads: [batch, sequence, hidden] to [batch, sequence, head, size], then permuted."""
    split = graph.node("Reshape", f"{name}.split", [_dense(graph, name, hidden, HIDDEN, HIDDEN), "split_heads"])
    return graph.node("Transpose", f"{name}.heads", [split], perm=list(permutation))


def _dense(graph: Graph, name: str, value: str, width: int, units: int) -> str:
    weight = graph.weight(f"{name}.weight", (width, units), std=_INITIAL_STD)
    bias = graph.weight(f"{name}.bias", (units,), std=_INITIAL_STD)
    return graph.node("Add", f"{name}.biased", [graph.node("MatMul", f"{name}.product", [value, weight]), bias])


def _layer_norm(graph: Graph, name: str, value: str) -> str:
    scale = graph.constant(f"{name}.scale", np.ones(HIDDEN, np.float32))
    bias = graph.weight(f"{name}.bias", (HIDDEN,), std=_INITIAL_STD)
    return graph.node("LayerNormalization", name, [value, scale, bias], axis=-1, epsilon=EPSILON)


def _gelu(graph: Graph, name: str, value: str) -> str:
    """x * (1 + erf(x / sqrt 2)) * 0.5, in the order that runtimes look for."""
    erf = graph.node("Erf", f"{name}.erf", [graph.node("Div", f"{name}.scaled", [value, "sqrt_2"])])
    product = graph.node("Mul", f"{name}.product", [value, graph.node("Add", f"{name}.shifted", [erf, "one"])])
    return graph.node("Mul", name, [product, "half"])
