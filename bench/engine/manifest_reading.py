"""From JSON to a manifest: every value of its declared type, names that lead nowhere else, shapes that agree with one another.

A leaf that imports only the standard library, like bench.engine.manifest: the server reads manifests inside the cold start it measures.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.engine.manifest import DATATYPES, MANIFEST_FILE, PROBE_FILE, EngineFile, Manifest, ShapeRange, axis_sizes

PLAIN_NAME = "letters, digits, spaces and -_.+@:,=()[] (at most 200 bytes), and not . or .."
_PLAIN_MARKS = frozenset(" -_.+@:,=()[]")
_LONGEST_NAME_BYTES = 200  # with a cache key and a suffix still a file name
_MOST_ELEMENTS = 2**59  # of 8 bytes each: what numpy can count


def is_plain_name(text: str) -> bool:
    """Whether this can be a model's name or version: a part of paths, URLs and metrics that leads nowhere else."""
    return (
        all(c.isalnum() or c in _PLAIN_MARKS for c in text)
        and text.strip() == text
        and text not in ("", ".", "..")
        and len(text.encode()) <= _LONGEST_NAME_BYTES
    )


def plain_name(text: str) -> str:
    """The text with `-` for what a plain name may not hold; it may still be none, where it is empty or too long."""
    return "".join(c if c.isalnum() or c in _PLAIN_MARKS else "-" for c in text).strip()


def parse_manifest(raw: dict[str, Any]) -> Manifest:
    """The manifest from its JSON object. Raises ValueError, with the place, where it is not whole or contradicts itself."""
    manifest: Manifest = decode(Manifest, raw)
    for what, name in (("name", manifest.name), ("version", manifest.version)):
        if not is_plain_name(name):
            raise ValueError(f"{what} {name[:80]!r} may only hold {PLAIN_NAME}")
    _check_files(manifest.files)
    for role, tensors in (("input", manifest.inputs), ("output", manifest.outputs)):
        names = [t.name for t in tensors]
        if not names or "" in names or len(set(names)) < len(names):
            raise ValueError(f"it has no {role}s, or two of one name")
        for tensor in tensors:
            if tensor.datatype not in DATATYPES:
                raise ValueError(f"datatype {tensor.datatype!r} is not one of the protocol's")
            if 0 in tensor.dims:
                raise ValueError(f"{role} {tensor.name!r} has an axis of size 0")
    if not manifest.profiles:
        raise ValueError("it has no profile of shapes")
    for profile in manifest.profiles:
        _check_profile(manifest, profile)
    if not 0 < manifest.tolerance <= 1:
        raise ValueError(f"tolerance {manifest.tolerance:g} is not above 0 and at most 1")
    return manifest


def _check_files(files: Sequence[EngineFile]) -> None:
    if not files:
        raise ValueError("it lists no file")
    for file in files:
        if Path(file.name).name != file.name or file.name in ("", "..", ".", MANIFEST_FILE):
            raise ValueError(f"file name {file.name!r} leaves the engine directory, or is the manifest's own")
        if len(file.sha256) != 64 or not set(file.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"the sha256 of {file.name} is {file.sha256[:80]!r}, not 64 hexadecimal digits")
    names = [file.name for file in files]
    if len(set(names)) < len(names) or PROBE_FILE not in names[1:]:
        raise ValueError(f"its files must be the engine's, each once, and {PROBE_FILE}")


def _check_profile(manifest: Manifest, profile: Mapping[str, ShapeRange]) -> None:
    """One range of shapes for each input, that its dims allow; and tensors of a size that memory could hold."""
    if set(profile) != {t.name for t in manifest.inputs}:
        raise ValueError("it has a profile that is not of its inputs")
    for tensor in manifest.inputs:
        sizes = profile[tensor.name]
        if not len(sizes.min) == len(sizes.opt) == len(sizes.max) == len(tensor.dims):
            raise ValueError(f"the profile of input {tensor.name!r} has not its {len(tensor.dims)} axes")
        for dim, low, opt, high in zip(tensor.dims, sizes.min, sizes.opt, sizes.max, strict=True):
            if not 0 < low <= opt <= high or (isinstance(dim, int) and not low == high == dim):
                raise ValueError(f"the profile of input {tensor.name!r} does not grow from above 0, or leaves a fixed axis")
    largest = {name: sizes.max for name, sizes in profile.items()}
    axes = axis_sizes(manifest.inputs, largest)
    for tensor in manifest.outputs:
        largest[tensor.name] = tuple(dim if isinstance(dim, int) else axes.get(dim, 1) for dim in tensor.dims)
    for name, shape in largest.items():
        if math.prod(shape) > _MOST_ELEMENTS:
            raise ValueError(f"tensor {name!r} has more than 2^59 elements at the largest shape")


def decode(kind: Any, value: Any, where: str = "") -> Any:
    """`value`, as json.loads gives it, as a `kind`: str, int, float, bool, None, unions, tuple[X, ...], Mapping[str, X] or a dataclass.

    Integers are 0 to 2^63 - 1, numbers are finite, strings are Unicode without NUL. Raises ValueError with the place.
    """
    if dataclasses.is_dataclass(kind):
        return _decode_object(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for one in arguments:
            if _fits(one, value):
                return decode(one, value, where)
        raise ValueError(f"{where} is {short(value)}")
    if not _fits(kind, value):
        raise ValueError(f"{where} is {short(value)}, not {_WORDS[origin or kind]}")
    if origin is tuple:
        return tuple(decode(arguments[0], one, f"{where}[{number}]") for number, one in enumerate(value))
    if origin is collections.abc.Mapping:
        return {decode(str, name, f"a name in {where}"): decode(arguments[1], one, f"{where}.{name}") for name, one in value.items()}
    if kind is float:
        return float(value)
    return value


def _decode_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'it'} is {short(value)}, not an object")
    hints, prefix = typing.get_type_hints(kind), f"{where}." if where else ""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise ValueError(f"{prefix}{name[:80]!r} is not known")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{prefix}{name} is missing")
    return kind(**{name: decode(hints[name], one, prefix + name) for name, one in value.items()})


def _fits(kind: Any, value: Any) -> bool:
    """Whether a JSON value has the outer form of a type; what is inside of it is looked at later."""
    origin = typing.get_origin(kind)
    if kind is types.NoneType:
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300 and math.isfinite(value)
    if origin is tuple:
        return isinstance(value, list)
    return isinstance(value, dict)


_WORDS = {
    bool: "true or false",
    str: "a string of Unicode characters",
    int: "a whole number of 0 to 2^63 - 1",
    float: "a finite number",
    tuple: "a list",
    collections.abc.Mapping: "an object",
}


def short(value: Any) -> str:
    """A value of a JSON file as an error may quote it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
