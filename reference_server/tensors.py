"""Tensors on the wire and as arrays: JSON numbers and the binary tensor extension of the Open Inference Protocol (V2).

Whatever a client may have sent is either an array of the declared datatype and shape, or a RequestRefused that names
what was wrong. Binary tensors are little-endian, row-major (KServe V2, "Binary Tensor Data Extension").
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bench.engine.manifest import DATATYPES

# On the wire: little-endian, also where the host is not.
WIRE_DTYPES = {name: np.dtype(kind).newbyteorder("<") for name, kind in DATATYPES.items()}
DATATYPE_OF = {np.dtype(kind): name for name, kind in DATATYPES.items()}
_LITTLE_ENDIAN = sys.byteorder == "little"
_JSON_TYPES: dict[str, frozenset[type]] = {"b": frozenset({bool}), "f": frozenset({float, int}), "O": frozenset({str})}
_INTEGER_TYPES = frozenset({int})
_JSON_WORDS = {bool: "a boolean", int: "an integer", float: "a number with a fraction", str: "a string", list: "a list", dict: "an object"}


# repr() of what a client sent may be as long as its body, or nested too deeply for the stack.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict, _REPR.maxstring = 4, 20, 20, 100


class RequestRefused(Exception):
    """A request that is answered with `status` (4xx, or a stated 5xx) and `{"error": message}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def shorten(value: object, limit: int = 80) -> str:
    """What a client sent, quoted for an error message and never longer than `limit` characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]  # as JSON has it
    text = repr(value[:limit]) if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def from_json(name: str, datatype: str, shape: tuple[int, ...], elements: int, data: object) -> NDArray[Any]:
    """An array of JSON `data`, either flat in row-major order or nested as `shape` says. Raises RequestRefused."""
    if datatype == "FP16":
        raise RequestRefused(400, f"input {name!r} is FP16, which JSON data cannot carry; send it with the binary tensor extension")
    if not isinstance(data, list):
        raise RequestRefused(400, f"input {name!r}: 'data' is not a list")
    flat = _flatten(name, shape, data) if data and isinstance(data[0], list) else data
    if len(flat) != elements:
        raise RequestRefused(400, f"input {name!r} has {len(flat)} values, its shape {list(shape)} needs {elements}")
    dtype = WIRE_DTYPES[datatype]
    allowed = _JSON_TYPES.get(dtype.kind, _INTEGER_TYPES)
    if not allowed.issuperset(map(type, flat)):
        wrong = next(value for value in flat if type(value) not in allowed)
        word = "null" if wrong is None else _JSON_WORDS.get(type(wrong), "a value")
        raise RequestRefused(400, f"input {name!r} is {datatype}, its data holds {word}: {shorten(wrong, 40)}")
    if datatype == "BYTES":
        return _objects([text.encode() for text in flat]).reshape(shape)
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype)
    except OverflowError:
        limits = np.iinfo(dtype)
        wrong = next(value for value in flat if not limits.min <= value <= limits.max)
        raise RequestRefused(400, f"input {name!r} is {datatype}, its data holds {shorten(wrong, 40)}, which is out of range") from None
    if dtype.kind == "f" and not np.isfinite(array).all():
        wrong = flat[int(np.flatnonzero(~np.isfinite(array))[0])]
        raise RequestRefused(400, f"input {name!r} is {datatype}, its data holds {shorten(wrong, 40)}, which is out of range")
    return array.reshape(shape)


def _flatten(name: str, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    """Nested lists made flat level by level, each list as long as the shape says; the shape bounds the levels."""
    level: list[Any] = [data]
    for axis, size in enumerate(shape):
        for part in level:
            if not isinstance(part, list) or len(part) != size:
                raise RequestRefused(400, f"input {name!r}: nested data is not of shape {list(shape)} (axis {axis} is not {size} long)")
        level = list(chain.from_iterable(level))
    return level


def from_binary(
    name: str, datatype: str, shape: tuple[int, ...], elements: int, body: bytes | memoryview, offset: int, size: int
) -> NDArray[Any]:
    """A read-only view of `size` bytes of `body` (BYTES: new objects). Raises RequestRefused."""
    if datatype == "BYTES":
        return _objects(_split_bytes(name, memoryview(body)[offset : offset + size], elements)).reshape(shape)
    dtype = WIRE_DTYPES[datatype]
    if size != elements * dtype.itemsize:
        raise RequestRefused(
            400,
            f"input {name!r}: binary_data_size is {size}, {datatype}{list(shape)} takes {elements * dtype.itemsize} bytes",
        )
    array: NDArray[Any] = np.frombuffer(body, dtype, elements, offset).reshape(shape)
    if dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise RequestRefused(400, f"input {name!r} is BOOL, its binary data holds a byte other than 0 and 1")
    return array


def _split_bytes(name: str, data: memoryview, elements: int) -> list[bytes]:
    """BYTES elements: each a little-endian uint32 length and that many bytes."""
    values: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        start = position + 4
        length = int.from_bytes(data[position:start], "little")
        if start > end or start + length > end:
            raise RequestRefused(400, f"input {name!r}: BYTES element {len(values)} is longer than the binary data")
        values.append(bytes(data[start : start + length]))
        position = start + length
    if len(values) != elements:
        raise RequestRefused(400, f"input {name!r} has {len(values)} BYTES elements, its shape needs {elements}")
    return values


def _objects(values: Sequence[bytes]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def to_json(name: str, array: NDArray[Any]) -> bytes:
    """Row-major JSON data, each number with the digits that give it back exactly. Raises RequestRefused (406)."""
    kind = array.dtype.kind
    if kind == "O":
        try:
            return orjson.dumps([value if isinstance(value, str) else bytes(value).decode() for value in array.flat])
        except UnicodeDecodeError:
            raise RequestRefused(406, f"output {name!r} holds bytes that are not UTF-8; ask for it with binary_data") from None
    if kind == "f" and not np.isfinite(array).all():
        raise RequestRefused(406, f"output {name!r} holds NaN or infinity, which JSON cannot carry; ask for it with binary_data")
    return orjson.dumps(np.ascontiguousarray(array).reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)


def to_binary(array: NDArray[Any]) -> bytes | memoryview:
    """The array's little-endian bytes in row-major order: its own memory where that is what it holds."""
    if array.dtype.kind == "O":
        parts = [value.encode() if isinstance(value, str) else bytes(value) for value in array.flat]
        return b"".join(chain.from_iterable((len(part).to_bytes(4, "little"), part) for part in parts))
    if not (_LITTLE_ENDIAN and array.dtype.isnative and array.flags.c_contiguous):
        array = array.astype(array.dtype.newbyteorder("<"), order="C")
    return array.data.cast("B") if array.size and array.ndim else array.tobytes()
