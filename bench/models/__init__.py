"""The models that every command knows by name: ONNX graphs with seeded random weights.

A model's time does not depend on the values of its weights, as long as they are ordinary numbers, so nothing has to be downloaded and
a seed names a model exactly. Accuracy means nothing here. numpy and onnx are imported when a model is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bench.drafts import clear_abandoned, draft_file, file_to_replace
from bench.errors import BenchError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A model that is built here. `default_shapes` and `default_inputs` are what `--shape` and `--input` are taken to say for it."""

    name: str
    description: str
    build: Callable[[int], onnx.ModelProto]  # seed -> model; the same seed gives the same bytes
    default_shapes: Mapping[str, str] = field(default_factory=dict)  # input: `1x128` or `min:opt:max`
    default_inputs: Mapping[str, str] = field(default_factory=dict)  # input: `uniform:LO:HI`


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """A model file as it lies on the disk."""

    path: Path
    bytes: int
    sha256: str
    opset: int
    inputs: tuple[str, ...]  # `input FP32 [batch, 3, 224, 224]`
    outputs: tuple[str, ...]


def _resnet50(seed: int) -> onnx.ModelProto:
    from bench.models import resnet50

    return resnet50.build(seed)


def _bert_base(seed: int) -> onnx.ModelProto:
    from bench.models import bert_base

    return bert_base.build(seed)


def _tiny(seed: int) -> onnx.ModelProto:
    from bench.models import tiny

    return tiny.build(seed)


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        model.name: model
        for model in (
            BuiltIn(name="resnet50", description="image classifier, 102 MB: ResNet-50 v1.5 at 224x224", build=_resnet50),
            BuiltIn(
                name="bert-base",
                description="text encoder, 438 MB: BERT-base with 12 layers of 768",
                build=_bert_base,
                default_shapes={
                    "input_ids": "1x128:4x128:8x128",
                    "attention_mask": "1x128:4x128:8x128",
                    "token_type_ids": "1x128:4x128:8x128",
                },
                default_inputs={"input_ids": "uniform:0:30521", "attention_mask": "uniform:1:1", "token_type_ids": "uniform:0:1"},
            ),
            BuiltIn(name="tiny", description="three dense layers, 0.3 MB: for tests and a first try", build=_tiny),
        )
    }
)


def built_in(name: str) -> BuiltIn:
    """The built-in model of this name. Raises BenchError naming those there are."""
    if name not in BUILT_IN:
        raise BenchError(f"there is no built-in model {name!r}: choose one of {', '.join(BUILT_IN)}")
    return BUILT_IN[name]


def write_model(name: str, seed: int, path: Path, *, force: bool = False) -> WrittenModel:
    """Build a model and write it to one .onnx file, which is there whole or not at all.

    Missing folders are made. Raises BenchError for an unknown name, a negative seed, a file that exists (unless `force`), and a file
    that cannot be written.
    """
    model = built_in(name)
    if seed < 0:
        raise BenchError(f"seed {seed} is negative: choose 0 or a positive integer")
    if path.is_dir():
        raise BenchError(f"{path} is a folder: name the file to write, such as {path / name}.onnx")
    if path.exists() and not force:
        raise BenchError(f"{path} exists already: choose another name, or overwrite it with --force")
    path = file_to_replace(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"folder {path.parent} cannot be made: {error.strerror}") from None
    clear_abandoned(path.parent)
    try:
        with draft_file(path) as partial:  # an unwritable folder is found before the model is built
            proto = model.build(seed)
            content = proto.SerializeToString(deterministic=True)
            partial.write_bytes(content)
            partial.replace(path)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}") from None
    return WrittenModel(
        path=path,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        opset=proto.opset_import[0].version,
        inputs=tuple(_described(value) for value in proto.graph.input),
        outputs=tuple(_described(value) for value in proto.graph.output),
    )


def _described(value: onnx.ValueInfoProto) -> str:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    datatype = "FP32" if tensor.elem_type == TensorProto.FLOAT else "INT64"  # the built-in models have no other
    return f"{value.name} {datatype} [{', '.join(dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim)}]"
