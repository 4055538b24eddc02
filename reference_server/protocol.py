"""The Open Inference Protocol (V2) over HTTP without the HTTP: bodies in, arrays out, and back.

Source: KServe "Open Inference Protocol", and its binary tensor extension as Triton documents it. The only header that
matters here is Inference-Header-Content-Length: how many bytes of a body are JSON when binary tensors follow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bench.engine.manifest import Manifest, Tensor, check_request_shapes
from bench.errors import BenchError
from reference_server.tensors import DATATYPE_OF, WIRE_DTYPES, RequestRefused, from_binary, from_json, shorten, to_binary, to_json

HEADER_LENGTH = "Inference-Header-Content-Length"
_LONGEST_KNOWN_HEAD = 2048  # bytes
_REMEMBERED = 1024  # shapes and reply headers kept ready, so that a client of random shapes cannot fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownTensor:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownHead:
    """The JSON of a good request without an id, all of whose inputs were binary and of a datatype without bad values."""

    tensors: tuple[_KnownTensor, ...]
    binary_bytes: int
    shapes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] | None
    binary: Mapping[str, bool]


@dataclass(slots=True, kw_only=True)  # not frozen, which would triple the time that making one takes
class InferRequest:
    """`binary` maps each output of the reply to whether it goes back binary; `names` is None where the client named none."""

    id: bytes | None  # already JSON
    inputs: dict[str, NDArray[Any]]
    shapes: tuple[tuple[int, ...], ...]  # of the inputs, in the manifest's order
    names: tuple[str, ...] | None
    binary: Mapping[str, bool]


@dataclass(slots=True, kw_only=True)
class InferReply:
    """A body in pieces; `header_length` is the JSON's length where binary tensors follow it, else None."""

    chunks: list[bytes | memoryview]
    header_length: int | None
    content_length: int


class Codec:
    """Requests and replies of one model, checked against its manifest. `decode` is for one thread, `encode` for any."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._inputs = {tensor.name: tensor for tensor in manifest.inputs}
        self._outputs = {tensor.name: tensor for tensor in manifest.outputs}
        self._all_json = dict.fromkeys(self._outputs, False)
        self._all_binary = dict.fromkeys(self._outputs, True)
        self._good_shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._heads: dict[tuple[str, tuple[int, ...], bool], bytes] = {}
        self._known: dict[bytes, _KnownHead] = {}
        name, version = orjson.dumps(manifest.name), orjson.dumps(manifest.version)
        self._prefix = b'{"model_name":%b,"model_version":%b,' % (name, version)

    # Requests

    def decode(self, body: bytes | memoryview, header_length: str | None) -> InferRequest:
        """Raises RequestRefused (400) naming what was wrong. Binary inputs are read-only views of `body`."""
        json_end = len(body) if header_length is None else _parse_length(header_length, len(body))
        known = self._known.get(bytes(body[:json_end])) if header_length is not None else None
        if known is not None and json_end + known.binary_bytes == len(body):
            return _decode_known(known, body, json_end)
        try:
            raw = orjson.loads(body if json_end == len(body) else memoryview(body)[:json_end])
        except orjson.JSONDecodeError as error:
            raise RequestRefused(400, f"the request is not JSON: {error}") from None
        if type(raw) is not dict:
            raise RequestRefused(400, "the request is not a JSON object")
        entries = raw.get("inputs")
        if type(entries) is not list:
            raise RequestRefused(400, "'inputs' is missing or not a list")
        if len(entries) > len(self._inputs):
            raise RequestRefused(400, self._too_many(entries))
        inputs: dict[str, NDArray[Any]] = {}
        offset = json_end
        for entry in entries:
            offset = self._decode_input(entry, body, offset, header_length is not None, inputs)
        if offset != len(body):
            raise RequestRefused(400, f"{len(body) - offset} bytes follow the last binary tensor that 'inputs' declares")
        if len(inputs) != len(self._inputs):
            missing = next(name for name in self._inputs if name not in inputs)
            raise RequestRefused(400, f"input {missing!r} is missing")
        shapes = tuple([inputs[name].shape for name in self._inputs])
        if shapes not in self._good_shapes:
            self._check_shapes(shapes)
        names, binary = self._decode_outputs(raw)
        request = InferRequest(id=_request_id(raw), inputs=inputs, shapes=shapes, names=names, binary=binary)
        if header_length is not None and request.id is None:
            self._learn(bytes(body[:json_end]), entries, request)
        return request

    def _learn(self, head: bytes, entries: list[dict[str, Any]], request: InferRequest) -> None:
        """Keep what a good JSON head says, so that a client that sends it again need not be understood again."""
        if len(self._known) >= _REMEMBERED or len(head) > _LONGEST_KNOWN_HEAD or any("data" in entry for entry in entries):
            return
        if any(entry["datatype"] in ("BOOL", "BYTES") for entry in entries):
            return  # their data can be wrong
        tensors = tuple(
            _KnownTensor(
                name=entry["name"],
                dtype=WIRE_DTYPES[entry["datatype"]],
                shape=tuple(entry["shape"]),
                size=entry["parameters"]["binary_data_size"],
            )
            for entry in entries
        )
        self._known[head] = _KnownHead(
            tensors=tensors,
            binary_bytes=sum(tensor.size for tensor in tensors),
            shapes=request.shapes,
            names=request.names,
            binary=request.binary,
        )

    def _decode_input(self, entry: object, body: bytes | memoryview, offset: int, has_binary: bool, inputs: dict[str, NDArray[Any]]) -> int:
        """Add one input to `inputs`; returns where the next binary tensor starts."""
        if type(entry) is not dict:
            raise RequestRefused(400, "an entry of 'inputs' is not an object")
        name = entry.get("name")
        tensor = self._inputs.get(name) if type(name) is str else None
        if tensor is None:
            raise RequestRefused(400, f"unknown input {shorten(name)}; model {self._manifest.name} takes {', '.join(self._inputs)}")
        if name in inputs:
            raise RequestRefused(400, f"input {name!r} is given twice")
        datatype = entry.get("datatype")
        if datatype != tensor.datatype:
            raise RequestRefused(400, f"input {name!r} has datatype {shorten(datatype)}, the model takes {tensor.datatype}")
        shape, elements = _parse_shape(tensor, entry.get("shape"))
        parameters = entry.get("parameters")
        size = None
        if parameters is not None:
            if type(parameters) is not dict:
                raise RequestRefused(400, f"input {name!r}: 'parameters' is not an object")
            if "shared_memory_region" in parameters:
                raise RequestRefused(400, f"input {name!r}: shared memory is not supported; send the data in the request")
            size = parameters.get("binary_data_size")
        if size is None:
            inputs[tensor.name] = from_json(tensor.name, tensor.datatype, shape, elements, entry.get("data"))
            return offset
        if type(size) is not int or size < 0:
            raise RequestRefused(400, f"input {name!r}: binary_data_size is {shorten(size)}, not a size in bytes")
        if not has_binary:
            raise RequestRefused(400, f"input {name!r} has a binary_data_size, but the request has no {HEADER_LENGTH} header")
        if "data" in entry:
            raise RequestRefused(400, f"input {name!r} has both 'data' and a binary_data_size")
        if offset + size > len(body):
            raise RequestRefused(400, f"input {name!r}: {len(body) - offset} bytes of binary data came, binary_data_size is {size}")
        inputs[tensor.name] = from_binary(tensor.name, tensor.datatype, shape, elements, body, offset, size)
        return offset + size

    def _too_many(self, entries: list[Any]) -> str:
        names = [entry.get("name") for entry in entries[: 2 + len(self._inputs)] if type(entry) is dict]
        for index, name in enumerate(names):
            if type(name) is str and name in names[:index]:
                return f"input {shorten(name)} is given twice"
        return f"the request has {len(entries)} inputs, model {self._manifest.name} takes {len(self._inputs)}: {', '.join(self._inputs)}"

    def _check_shapes(self, given: tuple[tuple[int, ...], ...]) -> None:
        shapes = dict(zip(self._inputs, given, strict=True))
        try:
            check_request_shapes(self._manifest, shapes)
        except BenchError as error:
            raise RequestRefused(400, str(error)) from None
        axes: dict[str, tuple[str, int]] = {}
        for tensor in self._manifest.inputs:
            for axis, size in zip(tensor.dims, shapes[tensor.name], strict=True):
                if isinstance(axis, str) and axis:
                    first, expected = axes.setdefault(axis, (tensor.name, size))
                    if expected != size:
                        raise RequestRefused(400, f"axis {axis!r} is {expected} in input {first!r} and {size} in input {tensor.name!r}")
        if len(self._good_shapes) < _REMEMBERED:
            self._good_shapes.add(given)

    def _decode_outputs(self, raw: dict[str, Any]) -> tuple[tuple[str, ...] | None, Mapping[str, bool]]:
        parameters = raw.get("parameters")
        default = False
        if parameters is not None:
            if type(parameters) is not dict:
                raise RequestRefused(400, "'parameters' is not an object")
            default = _flag(parameters, "binary_data_output", False, "the request")
        entries = raw.get("outputs")
        names: tuple[str, ...] | None
        if entries is None or entries == []:
            names, binary = None, self._all_binary if default else self._all_json
        else:
            if type(entries) is not list:
                raise RequestRefused(400, "'outputs' is not a list")
            binary = {}
            for entry in entries:
                self._decode_output(entry, default, binary)
            names = tuple(binary)
        for name, is_binary in binary.items():
            if not is_binary and self._outputs[name].datatype == "FP16":
                raise RequestRefused(400, f"output {name!r} is FP16, which JSON data cannot carry; ask for it with binary_data")
        return names, binary

    def _decode_output(self, entry: object, default: bool, binary: dict[str, bool]) -> None:
        name = entry.get("name") if isinstance(entry, dict) else None
        if type(entry) is not dict or type(name) is not str or name not in self._outputs:
            raise RequestRefused(400, f"unknown output {shorten(name)}; model {self._manifest.name} gives {', '.join(self._outputs)}")
        if name in binary:
            raise RequestRefused(400, f"output {name!r} is asked for twice")
        parameters = entry.get("parameters")
        if parameters is None:
            binary[name] = default
            return
        if type(parameters) is not dict:
            raise RequestRefused(400, f"output {name!r}: 'parameters' is not an object")
        if parameters.get("classification") or "shared_memory_region" in parameters:
            raise RequestRefused(400, f"output {name!r}: classification and shared memory are not supported")
        binary[name] = _flag(parameters, "binary_data", default, f"output {name!r}")

    # Replies

    def encode(self, request: InferRequest, outputs: Mapping[str, NDArray[Any]]) -> InferReply:
        """The reply's JSON, and behind it the binary tensors. Raises RequestRefused (406) where JSON cannot carry a value."""
        entries: list[bytes] = []
        tensors: list[bytes | memoryview] = []
        for name, is_binary in request.binary.items():
            array = outputs[name]
            if is_binary:
                data = to_binary(array)
                tensors.append(data)
                entries.append(self._heads.get((name, array.shape, True)) or self._remember(name, array, len(data)))
            else:
                head = self._heads.get((name, array.shape, False)) or self._remember(name, array, None)
                entries.append(head + to_json(name, array) + b"}")
        request_id = b"" if request.id is None else b'"id":%b,' % request.id
        json = b'%b%b"outputs":[%b]}' % (self._prefix, request_id, b",".join(entries))
        length = len(json) + sum(map(len, tensors))
        return InferReply(chunks=[json, *tensors], header_length=len(json) if tensors else None, content_length=length)

    def _remember(self, name: str, array: NDArray[Any], binary_size: int | None) -> bytes:
        """What an output's JSON says before its data (all of it, where the data is binary), kept for the next reply."""
        described = (orjson.dumps(name), DATATYPE_OF[array.dtype].encode(), orjson.dumps(array.shape))
        head = b'{"name":%b,"datatype":"%b","shape":%b,' % described
        head += b'"data":' if binary_size is None else b'"parameters":{"binary_data_size":%d}}' % binary_size
        if len(self._heads) < _REMEMBERED and array.dtype.kind != "O":  # BYTES have other sizes in the same shape
            self._heads[name, array.shape, binary_size is not None] = head
        return head


def _decode_known(known: _KnownHead, body: bytes | memoryview, offset: int) -> InferRequest:
    inputs: dict[str, NDArray[Any]] = {}
    for tensor in known.tensors:
        inputs[tensor.name] = np.ndarray(tensor.shape, tensor.dtype, body, offset)
        offset += tensor.size
    return InferRequest(id=None, inputs=inputs, shapes=known.shapes, names=known.names, binary=known.binary)


def _parse_length(text: str, body_length: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise RequestRefused(400, f"{HEADER_LENGTH} is {shorten(text)}, not a length in bytes")
    length = int(text)
    if length > body_length:
        raise RequestRefused(400, f"{HEADER_LENGTH} is {length}, the body has {body_length} bytes")
    return length


def _parse_shape(tensor: Tensor, raw: object) -> tuple[tuple[int, ...], int]:
    """The shape and its number of elements. Sizes below 1 and a wrong number of axes are refused here, ranges later."""
    if type(raw) is not list:
        raise RequestRefused(400, f"input {tensor.name!r}: 'shape' is missing or not a list")
    if len(raw) != len(tensor.dims):
        raise RequestRefused(400, f"input {tensor.name!r} has {len(raw)} axes, the model takes {list(tensor.shape)}")
    for size in raw:
        if type(size) is not int:
            raise RequestRefused(400, f"input {tensor.name!r}: shape {shorten(raw)} holds {shorten(size, 40)}, which is not an integer")
        if size < 1:
            raise RequestRefused(400, f"input {tensor.name!r}: shape {shorten(raw)} holds {size}, sizes start at 1")
    return tuple(raw), math.prod(raw)


def _flag(parameters: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = parameters.get(key, default)
    if type(value) is not bool:
        raise RequestRefused(400, f"{where}: {key} is {shorten(value)}, not true or false")
    return value


def _request_id(raw: Mapping[str, Any]) -> bytes | None:
    value = raw.get("id")
    if value is None:
        return None
    if type(value) is not str:
        raise RequestRefused(400, f"'id' is {shorten(value)}, not a string")
    return orjson.dumps(value)
