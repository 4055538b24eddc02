"""Reading a user's ONNX model: its inputs, outputs and precision, with one clear sentence for what cannot be used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.engine.manifest import Tensor
from bench.engine.shapes import BATCH_AXIS
from bench.errors import BenchError

if TYPE_CHECKING:
    import onnx

# onnx.TensorProto.DataType -> Open Inference Protocol datatype.
_DATATYPE_OF_ONNX = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL", 10: "FP16", 11: "FP64",
    12: "UINT32", 13: "UINT64",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """A model as its file declares it. `bytes` counts weights in files of their own; `external` are their names."""

    path: Path
    sha256: str
    bytes: int
    external: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    precision: str


def read_source(path: Path) -> SourceModel:
    """Read an ONNX file. Raises BenchError: missing, empty, not ONNX, no graph, inputs that are not tensors."""
    import onnx

    model = _parse(path)
    graph = model.graph
    weights = {w.name for w in graph.initializer} | {w.values.name for w in graph.sparse_initializer}
    external = _external_files(model, path)
    size = path.stat().st_size + sum((path.parent / name).stat().st_size for name in external)
    inputs = tuple(_tensor(value, path, "input") for value in graph.input if value.name not in weights)
    if not inputs:
        raise BenchError(f"{path} has no inputs, so there is nothing to request of it")
    if not graph.output:
        raise BenchError(f"{path} has no outputs, so there is nothing to check an answer by")
    for role, names in (("inputs", [t.name for t in inputs]), ("outputs", [value.name for value in graph.output])):
        if len(set(names)) < len(names):
            raise BenchError(f"{path} has two {role} of the name {max(names, key=names.count)!r}; export it with a name for each")
    # Inputs are named first, so that shape inference carries their axes through to the outputs.
    for value, tensor in zip((v for v in graph.input if v.name not in weights), inputs, strict=True):
        for dim, name in zip(value.type.tensor_type.shape.dim, tensor.dims, strict=True):
            if isinstance(name, str):
                dim.dim_param = name
    inferred = model
    if size < 2**31 - 2**20:  # protobuf's limit; a larger model keeps the outputs as declared
        try:
            inferred = onnx.shape_inference.infer_shapes(model)
        except Exception:  # a model that inference stumbles over may run all the same
            inferred = model
    outputs = tuple(_tensor(value, path, "output") for value in inferred.graph.output)
    return SourceModel(
        path=path,
        sha256=_digest(path, external),
        bytes=size,
        external=external,
        inputs=inputs,
        outputs=outputs,
        precision=_precision(model),
    )


def source_digest(path: Path) -> str:
    """The sha256 of SourceModel, without reading the model as ONNX where no weights can lie in other files. Raises BenchError."""
    if b"location" not in path.read_bytes():  # the key under which a model names such a file
        return _digest(path, ())
    return _digest(path, _external_files(_parse(path), path))


def _external_files(model: onnx.ModelProto, path: Path) -> tuple[str, ...]:
    """Names of the files with weights beside the model. Raises BenchError for one that is not there."""
    names = tuple(sorted({e.value for w in model.graph.initializer for e in w.external_data if e.key == "location"}))
    for name in names:
        if not (path.parent / name).is_file():
            raise BenchError(f"{path} keeps weights in {name}, which is not beside it; put the two files into one folder")
    return names


def _digest(path: Path, external: tuple[str, ...]) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    for name in external:
        with (path.parent / name).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _parse(path: Path) -> onnx.ModelProto:
    import onnx

    if path.is_dir():
        raise BenchError(f"{path} is a folder, not an ONNX file, and holds no manifest.json")
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise BenchError(f"{path} is not a regular file")
    except FileNotFoundError:
        raise BenchError(f"{path}: no such model file") from None
    if size == 0:
        raise BenchError(f"{path} is empty, not an ONNX model")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf raises DecodeError, whose module differs from version to version
        raise BenchError(f"{path} is not an ONNX model ({type(error).__name__}); export it again, or check the file") from None
    if not model.graph.node and not model.graph.output:
        raise BenchError(f"{path} is not an ONNX model: it holds no graph")
    return model


def _tensor(value: onnx.ValueInfoProto, path: Path, role: str) -> Tensor:
    if not value.name or "\0" in value.name:
        raise BenchError(f"{path}: {role} {value.name!r} has no name that can be sent; export the model with another")
    if not value.type.HasField("tensor_type"):
        raise BenchError(
            f"{path}: {role} {value.name!r} is a {value.type.WhichOneof('value') or 'value of no type'}, only tensors can be served"
        )
    kind = value.type.tensor_type
    datatype = _DATATYPE_OF_ONNX.get(kind.elem_type)
    if datatype is None:
        raise BenchError(f"{path}: {role} {value.name!r} has ONNX element type {kind.elem_type}, which the protocol cannot carry")
    if role == "input" and not kind.HasField("shape"):
        raise BenchError(f"{path}: input {value.name!r} declares no shape, not even its number of axes; export the model with one")
    dims: list[int | str] = []
    for axis, dim in enumerate(kind.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        elif dim.dim_param.isidentifier() and not dim.dim_param.startswith("unk__"):  # exporters write `?` and `unk__7` for unnamed
            dims.append(dim.dim_param)
        elif role == "input":
            dims.append(BATCH_AXIS if axis == 0 else f"{value.name}.{axis}")
        else:
            dims.append("")
    return Tensor(name=value.name, datatype=datatype, dims=tuple(dims))


def _precision(model: onnx.ModelProto) -> str:
    """By what most weight elements are: fp32, fp16 or int8; without weights, by the inputs."""
    counts = {"fp32": 0, "fp16": 0, "int8": 0}
    kinds = {1: "fp32", 10: "fp16", 3: "int8", 2: "int8"}
    for weight in model.graph.initializer:
        kind = kinds.get(weight.data_type)
        if kind is not None:
            elements = 1
            for size in weight.dims:
                elements *= size
            counts[kind] += elements
    if any(counts.values()):
        return max(counts, key=lambda kind: counts[kind])
    return "fp16" if any(value.type.tensor_type.elem_type == 10 for value in model.graph.input) else "fp32"
