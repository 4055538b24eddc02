"""The precision put into the ONNX graph: fp16 weights and activations, or int8 through Quantize/DequantizeLinear pairs.

A strongly typed builder (TensorRT 10 and later, TensorRT-RTX) takes every tensor's type from the graph, so fp16 and int8
have to be there. Builders before that choose types themselves under flags: there fp16 needs no conversion, and int8 the
pairs alone, on the weights too. What the recipes must avoid is listed at each of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import ShapeRange, Tensor
from bench.engine.probe import UNREADABLE, read_array
from bench.engine.shapes import InputSource, make_values
from bench.errors import BenchError

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

PRECISIONS = ("fp32", "fp16", "int8")
CALIBRATION_BATCHES = 8
# Sums over many squares and exponentials leave fp16's range: these stay in fp32.
_KEPT_IN_FP32 = ("LayerNormalization", "Softmax", "ReduceMean", "Pow")
_QUANTIZED = ("Conv", "MatMul", "Gemm")
_TYPED_QDQ_OPSET = 19  # the first in which QuantizeLinear takes fp16 and a scale of that type


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The batches that int8 ranges are taken from. `origin` is `random` or the name of the user's file."""

    origin: str
    batches: tuple[Mapping[str, NDArray[Any]], ...]


def random_calibration(
    tensors: Sequence[Tensor], profile: Mapping[str, ShapeRange], sources: Mapping[str, InputSource], seed: int
) -> Calibration:
    """Seeded values of the most frequent shapes: enough to measure speed and size with, no ground for judging accuracy."""
    import numpy as np

    generator = np.random.default_rng([seed, 1 << 20])  # a stream apart from the probe's, which must not be calibrated on
    batches = tuple(
        {t.name: make_values(t, profile[t.name].opt, sources.get(t.name, InputSource()), generator) for t in tensors}
        for _ in range(CALIBRATION_BATCHES)
    )
    return Calibration(origin="random", batches=batches)


def read_calibration(path: Path, tensors: Sequence[Tensor], profile: Mapping[str, ShapeRange]) -> Calibration:
    """An .npz with one array an input, samples along the first axis; split into batches of the most frequent shape.

    A last batch that is not full is left out, unless it is the only one (its samples are then repeated). Raises BenchError.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: read_array(archive, name) for name in archive.files}
    except FileNotFoundError:
        raise BenchError(f"--calibration {path}: no such file") from None
    except UNREADABLE as error:
        raise BenchError(f"--calibration {path}: cannot be read as .npz without pickled objects ({error})") from None
    missing = [t.name for t in tensors if t.name not in arrays]
    if missing:
        raise BenchError(f"--calibration {path} has no array {missing[0]!r}, only {', '.join(arrays) or 'none'}; name one for each input")
    counts = {t.name: len(arrays[t.name]) // (profile[t.name].opt[0] if profile[t.name].opt else 1) for t in tensors if arrays[t.name].ndim}
    batches = []
    for number in range(max(1, min(counts.values(), default=1))):
        batch = {}
        for tensor in tensors:
            shape, array = profile[tensor.name].opt, arrays[tensor.name]
            rows = shape[0] if shape else 0
            part = array[number * rows : (number + 1) * rows] if shape and array.ndim else array
            if part.shape[1:] != shape[1:] or part.ndim != len(shape) or 0 in part.shape:
                raise BenchError(
                    f"--calibration {path}: array {tensor.name!r} has shape {list(array.shape)}, "
                    f"samples of {list(shape[1:])} along the first axis are wanted"
                )
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                raise BenchError(f"--calibration {path}: array {tensor.name!r} holds NaN or infinities")
            batch[tensor.name] = make_values(tensor, shape, InputSource(array=part), np.random.default_rng(0))
        batches.append(batch)
    return Calibration(origin=path.name, batches=tuple(batches))


def convert(source: Path, target: Path, precision: str, *, typed: bool, calibration: Calibration | None) -> bool:
    """Write the graph that a builder needs for `precision` to `target`. False, and no file, where it can take `source` as it is.

    `typed` is for strongly typed builders. `calibration` is needed for int8. Raises BenchError where the graph cannot be converted.
    """
    if precision == "fp32" or (precision == "fp16" and not typed):
        return False
    try:
        with _quiet():
            if precision == "int8":
                assert calibration is not None
                _quantize(source, target, calibration, typed=typed)
                if typed:
                    _save(_to_fp16(_load(target)), target)
            else:
                _save(_to_fp16(_load(source)), target)
    except BenchError:
        raise
    except Exception as error:  # the converters raise whatever meets them in a graph that they do not understand
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise BenchError(f"{source} cannot be converted to {precision}: {reason}; build it in another --precision") from None
    return True


def count_nodes(path: Path) -> int:
    """The operators of a graph, its subgraphs not counted."""
    import onnx

    return len(onnx.load(str(path), load_external_data=False).graph.node)


def _to_fp16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs and outputs keep their types. The converter leaves its casts unsorted, which onnx.checker and parsers refuse."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(convert_float_to_float16(model, keep_io_types=True, op_block_list=[*_default_blocked(), *_KEPT_IN_FP32]))
    converted.topological_sort()
    sorted_model: onnx.ModelProto = converted.model
    return sorted_model


def _default_blocked() -> Sequence[str]:
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    return tuple(DEFAULT_OP_BLOCK_LIST)


def _quantize(source: Path, target: Path, calibration: Calibration, *, typed: bool) -> None:
    """Static, symmetric int8 with scales by channel for weights.

    TensorRT refuses int32 biases behind DequantizeLinear, zero points other than 0 and uint8, hence the options; outputs of
    the quantised operators stay wide so that it can fuse what follows into them. Typed builders get int8 weights behind a
    DequantizeLinear. Before them, Myelin (which takes over a transformer as a whole) takes fp32 weights only, so those keep
    theirs, each through a pair, and the builder rounds them: the plan is as small, the graph is not.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(calibration.batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._left, None)
            return None if batch is None else dict(batch)

    prepared = target.with_name(f"{target.stem}.prepared.onnx")
    try:
        # Folds BatchNormalization into Conv before weights are rounded; symbolic shapes are not needed, and fail on BERT.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        model = _load(prepared)
        _only_standard_domain(model)
        if typed and model.opset_import[0].version < _TYPED_QDQ_OPSET:
            model = onnx.version_converter.convert_version(model, _TYPED_QDQ_OPSET)
            model.ir_version = max(model.ir_version, 9)
        wide = _products_of_activations(model)
        _save(model, prepared)
        quantize_static(
            str(prepared),
            str(target),
            Batches(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=list(_QUANTIZED),
            nodes_to_exclude=wide,
            extra_options={
                "AddQDQPairToWeight": not typed,
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "QuantizeBias": False,
                "OpTypesToExcludeOutputQuantization": list(_QUANTIZED),
            },
        )
    finally:
        prepared.unlink(missing_ok=True)
    model = _load(target)
    if not any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        raise BenchError(f"{source} has no {', '.join(_QUANTIZED)} with weights to quantise; build it in another --precision")
    _only_standard_domain(model)
    _save(model, target)


def _products_of_activations(model: onnx.ModelProto) -> list[str]:
    """The names of the products that hold no weights, as the two of an attention; a product without a name is given one.

    They are not quantised: no byte of the plan would be saved, and the many small numbers behind a Softmax would share 127 steps.
    """
    weights = {weight.name for weight in model.graph.initializer}
    names = []
    for number, node in enumerate(model.graph.node):
        if node.op_type in _QUANTIZED and weights.isdisjoint(node.input[:2]):
            node.name = node.name or f"product_{number}"
            names.append(node.name)
    return names


def _only_standard_domain(model: onnx.ModelProto) -> None:
    """Drop declared operator sets that no node uses: the preparation leaves some, and TensorRT's parser asks about each."""
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used or (entry.domain == "ai.onnx" and "" in used)]
    del model.opset_import[:]
    model.opset_import.extend(sorted(kept, key=lambda entry: entry.domain != ""))


def _load(path: Path) -> onnx.ModelProto:
    import onnx

    return onnx.load(str(path))


def _save(model: onnx.ModelProto, path: Path) -> None:
    path.write_bytes(model.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The converters' advice is about choices that are made here, and goes to the root logger and to warnings."""
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
