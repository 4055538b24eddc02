"""The server under load, as it describes itself: which model, which inputs fit it, which answer is right.

Any server of the Open Inference Protocol (KServe V2) over HTTP will do. Nothing here runs an inference: the first request of a run
may be the one that starts a cold server, and must be the schedule's.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import gevent
import numpy as np
import orjson

from bench.engine.manifest import DATATYPES, MANIFEST_FILE, read_manifest
from bench.errors import BenchError
from scenarios.openloop.verify import Output

_PATIENCE_S = 10
_SEQUENCE = 128
_BATCH = 1
_MAX_DOCUMENT = 16 << 20
_MAX_REQUEST = 2 << 30
_MAX_AXES = 32
_PLAIN = re.compile("[!-~]+")  # all that may stand in a request line or a Host header

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input as it is sent, its shape without any -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and what to send. `request` is the whole HTTP request, made once; `expected` the right values, where known.
    `server_parameters`: what the server says of how it serves (the reference server: its mode), None where it says nothing."""

    host: str
    address: tuple[str, int]
    model: str
    platform: str
    server: str
    server_parameters: Mapping[str, Any] | None
    encoding: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    batch: int | None
    request: bytes
    expected: Arrays | None
    tolerance: float | None  # relative, of the engine whose probe it is


def find_target(host: str, *, model: str | None, shape: str | None, encoding: str | None, probe: Path | None, seed: int) -> Target:
    """Ask the server for its model and make the request. Raises BenchError: nobody there, not V2, no such model, shapes that do not fit."""
    address, prefix = address_of(host)
    server = _ask(host, address, "GET", f"{prefix}/v2")
    if not isinstance(server, dict) or "name" not in server:
        raise BenchError(f"{host} answers, but not as a V2 inference server (GET /v2 gives no server metadata); name another with --host")
    name = model or _only_model(host, address, prefix, server)
    metadata = _ask(host, address, "GET", f"{prefix}/v2/models/{quote(name, safe='')}")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("inputs"), list) or not isinstance(metadata.get("outputs"), list):
        raise BenchError(f"{host} has no model {name!r}; name one that it serves with --model")
    extensions = _list(server.get("extensions"))
    chosen = encoding or ("binary" if any(str(extension).startswith("binary_tensor_data") for extension in extensions) else "json")
    try:
        declared = _tensors(metadata["inputs"])
        outputs = tuple(Output(name=tensor, datatype=datatype, shape=sizes) for tensor, datatype, sizes in _tensors(metadata["outputs"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BenchError(f"{host} describes model {name!r} without names, datatypes and shapes, so no request can be made for it") from None
    expected: Arrays | None = None
    tolerance: float | None = None
    if probe is not None:
        if shape is not None:
            raise BenchError("--probe brings its own shapes: leave out --shape")
        arrays, expected = _read_probe(probe, declared, outputs)
        if (probe / MANIFEST_FILE).is_file():
            tolerance = read_manifest(probe).tolerance
        inputs = tuple(Input(name=tensor, datatype=datatype, shape=arrays[tensor].shape) for tensor, datatype, _ in declared)
    else:
        shapes = _shapes(declared, shape)
        inputs = tuple(Input(name=tensor, datatype=datatype, shape=shapes[tensor]) for tensor, datatype, _ in declared)
        _refuse_huge(inputs)
        arrays = {one.name: _values(one, seed) for one in inputs}
    batch = inputs[0].shape[0] if inputs and declared[0][2] and declared[0][2][0] == -1 else None
    body, json_length = _body(inputs, arrays, outputs, chosen)
    head = [
        f"POST {prefix}/v2/models/{quote(name, safe='')}/infer HTTP/1.1",
        f"Host: {urlsplit(host).netloc}",
        f"Content-Type: {'application/octet-stream' if json_length else 'application/json'}",
        f"Content-Length: {len(body)}",
    ]
    if json_length:
        head.append(f"Inference-Header-Content-Length: {json_length}")
    return Target(
        host=host,
        address=address,
        model=name,
        platform=str(metadata.get("platform", "")),
        server=f"{server['name']} {server.get('version', '')}".strip(),
        server_parameters=server["parameters"] if isinstance(server.get("parameters"), dict) else None,
        encoding=chosen,
        inputs=inputs,
        outputs=outputs,
        batch=batch,
        request="\r\n".join([*head, "", ""]).encode() + body,
        expected=expected,
        tolerance=tolerance,
    )


def address_of(host: str) -> tuple[tuple[str, int], str]:
    """((name, port), path in front of every other path). Raises BenchError where it is no http:// address."""
    try:
        parts = urlsplit(host)
        name, port = parts.hostname or "", 80 if parts.port is None else parts.port
        name.encode("idna")  # what resolving it would raise UnicodeError for
        fits = parts.scheme == "http" and name != "" and port != 0 and _PLAIN.fullmatch(host) is not None
    except ValueError:
        fits = False
    if not fits:
        raise BenchError(f"--host {host!r} is not an address like http://127.0.0.1:8000")
    return (name, port), parts.path.rstrip("/")


def _ask(host: str, address: tuple[str, int], method: str, path: str) -> Any:
    """The JSON at `path`, None where the server answers something else."""
    connection = http.client.HTTPConnection(*address, timeout=_PATIENCE_S)
    try:
        with gevent.Timeout(_PATIENCE_S, TimeoutError):  # in all: the connection's own is for each piece
            connection.request(method, path, body=b"{}" if method == "POST" else None, headers={"Content-Type": "application/json"})
            reply = connection.getresponse()
            body = reply.read(_MAX_DOCUMENT)
    except http.client.HTTPException:
        raise BenchError(f"{host} does not speak HTTP, so it is not a V2 inference server; name another with --host") from None
    except TimeoutError:
        raise BenchError(f"{host} takes connections, but does not answer GET {path} within {_PATIENCE_S} s") from None
    except OSError as error:
        raise BenchError(
            f"nobody listens at {host} ({error.strerror or error}); start a server with `bench serve tiny`, or name one with --host"
        ) from None
    finally:
        connection.close()
    if reply.status != 200:
        return None
    try:
        return orjson.loads(body)  # unlike json it takes no NaN and no half character, which a run.json could not hold
    except orjson.JSONDecodeError:
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tensors(described: list[dict[str, Any]]) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, datatype, shape with -1 for any size) of each.

    Raises KeyError, TypeError, ValueError, OverflowError where one is not described.
    """
    tensors = [(one["name"], one["datatype"], tuple(int(size) for size in one["shape"])) for one in described]
    for one, (name, datatype, shape) in zip(described, tensors, strict=True):
        if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(one["shape"], list):
            raise ValueError
        if min(shape, default=0) < -1 or len(shape) > _MAX_AXES:
            raise ValueError
    if len({name for name, _, _ in tensors}) < len(tensors):
        raise ValueError
    return tensors


def _refuse_huge(inputs: tuple[Input, ...]) -> None:
    total = 0
    for one in inputs:
        size = math.prod(one.shape) * np.dtype(DATATYPES.get(one.datatype, "u1") if one.datatype != "BYTES" else "u1").itemsize
        if size > _MAX_REQUEST:
            shape = "x".join(map(str, one.shape))
            raise BenchError(f"input {one.name!r} of shape {shape} would have {size:,} bytes, more than 2 GiB; give a smaller --shape")
        total += size
    if total > _MAX_REQUEST:
        raise BenchError(f"the inputs would have {total:,} bytes together, more than 2 GiB; give a smaller --shape")


def _only_model(host: str, address: tuple[str, int], prefix: str, server: dict[str, Any]) -> str:
    """The one model that is loaded. V2 itself has no list of models; the repository extension has one."""
    index = _ask(host, address, "POST", f"{prefix}/v2/repository/index")
    if isinstance(index, list):
        names = [
            str(entry["name"]) for entry in index if isinstance(entry, dict) and "name" in entry and entry.get("state", "READY") == "READY"
        ]
        names = names or [str(entry["name"]) for entry in index if isinstance(entry, dict) and "name" in entry]
    else:
        names = [str(name) for name in _list(server.get("models"))]
    names = sorted(set(names))
    if len(names) == 1:
        return names[0]
    if names:
        raise BenchError(f"{host} serves several models ({', '.join(names)}); choose one with --model")
    raise BenchError(f"{host} does not tell which models it serves; name one with --model")


def _shapes(declared: list[tuple[str, str, tuple[int, ...]]], asked: str | None) -> dict[str, tuple[int, ...]]:
    """One full shape for each input: `--shape 1x3x224x224` or `ids:1x128,mask:1x128`; otherwise batch 1 and length 128."""
    given: dict[str, tuple[int, ...]] = {}
    known = {name: shape for name, _, shape in declared}
    for item in asked.split(",") if asked else ():
        name, _, sizes = item.strip().rpartition(":")
        if not name and len(declared) == 1:
            name = declared[0][0]
        elif not name:
            raise BenchError(
                f"--shape {asked!r} does not say which input it is for; write {declared[0][0]}:{sizes} (inputs: {', '.join(known)})"
            )
        try:
            shape = tuple(int(size) for size in sizes.split("x"))
        except ValueError:
            raise BenchError(f"--shape {item!r} is not a shape such as 1x3x224x224") from None
        if name not in known:
            raise BenchError(f"--shape names input {name!r}; the model has {', '.join(known)}")
        wanted = known[name]
        if len(shape) != len(wanted) or any(size < 1 or want not in (-1, size) for want, size in zip(wanted, shape, strict=False)):
            raise BenchError(f"--shape {item!r} does not fit input {name!r}, whose shape is {'x'.join(map(str, wanted))} (-1: any)")
        given[name] = shape
    return {
        name: given.get(name, tuple(size if size >= 0 else _BATCH if axis == 0 else _SEQUENCE for axis, size in enumerate(shape)))
        for name, shape in known.items()
    }


def _values(one: Input, seed: int) -> np.ndarray[Any, Any]:
    """Seeded input values: normal floats, small whole numbers (they are ids and masks as a rule), short texts."""
    rng = np.random.default_rng([seed, *one.name.encode()])
    if one.datatype == "BYTES":
        return np.full(one.shape, b"coldburst", dtype=object)
    kind = DATATYPES.get(one.datatype)
    if kind is None:
        raise BenchError(f"input {one.name!r} has datatype {one.datatype}, which this program cannot make")
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        return rng.standard_normal(one.shape).astype(dtype)
    low, high = (1, 2) if dtype.kind == "b" or "mask" in one.name.lower() else (0, 10)
    return rng.integers(low, high, one.shape).astype(dtype)


def _body(inputs: tuple[Input, ...], arrays: Arrays, outputs: tuple[Output, ...], encoding: str) -> tuple[bytes, int | None]:
    """(body, length of its JSON; None for JSON alone)."""
    tensors: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for one in inputs:
        tensor: dict[str, Any] = {"name": one.name, "shape": list(one.shape), "datatype": one.datatype}
        values = arrays[one.name]
        if encoding == "binary":
            data = _bytes_elements(values) if one.datatype == "BYTES" else np.ascontiguousarray(values).tobytes()
            tensor["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        elif one.datatype == "BYTES":
            tensor["data"] = [value.decode() for value in values.ravel()]
        elif one.datatype == "FP16":
            raise BenchError(f"input {one.name!r} is FP16, which V2 cannot carry as JSON; use --encoding binary")
        else:
            tensor["data"] = values.ravel().tolist()
        tensors.append(tensor)
    wanted: list[dict[str, Any]] = [
        {"name": output.name, "parameters": {"binary_data": True}} if encoding == "binary" else {"name": output.name} for output in outputs
    ]
    text = json.dumps({"inputs": tensors, "outputs": wanted}, separators=(",", ":")).encode()
    return (text + b"".join(raw), len(text)) if encoding == "binary" else (text, None)


def _bytes_elements(values: np.ndarray[Any, Any]) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values.ravel())


def _read_probe(path: Path, inputs: list[tuple[str, str, tuple[int, ...]]], outputs: tuple[Output, ...]) -> tuple[Arrays, Arrays]:
    """Inputs and right outputs of an engine's probe (case 0). Raises BenchError where it is no probe, or another engine's."""
    file = path / "probe.npz" if path.is_dir() else path
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[f"0/input/{name}"] for name, _, _ in inputs}
            expected = {key.removeprefix("0/output/"): stored[key] for key in stored.files if key.startswith("0/output/")}
    except KeyError as error:
        raise BenchError(f"probe {file} does not fit the model: {error.args[0]}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BenchError(f"probe {file} cannot be read ({error}); name an engine directory or its probe.npz") from None
    if any(math.prod(array.shape) == 0 for array in arrays.values()):
        raise BenchError(f"probe {file} has an input without values")
    names = {output.name for output in outputs}
    if set(expected) != names:
        theirs, ours = ", ".join(sorted(expected)) or "none", ", ".join(sorted(names))
        raise BenchError(f"probe {file} has the outputs {theirs}, but the model has {ours}: it belongs to another engine; name this one's")
    for name, datatype, shape in inputs:
        _refuse_other(file, f"input {name!r}", arrays[name], datatype, shape)
    for output in outputs:
        _refuse_other(file, f"output {output.name!r}", expected[output.name], output.datatype, output.shape)
    return arrays, expected


def _refuse_other(file: Path, what: str, values: np.ndarray[Any, Any], datatype: str, shape: tuple[int, ...]) -> None:
    kind = None if datatype == "BYTES" else DATATYPES.get(datatype)
    fits = len(values.shape) == len(shape) and all(size in (-1, given) for size, given in zip(shape, values.shape, strict=True))
    if not fits or (kind is not None and values.dtype != np.dtype(kind)):
        raise BenchError(
            f"probe {file} has {what} as {values.dtype} of shape {list(values.shape)}, but the model has {datatype} of {list(shape)}: "
            "it belongs to another engine; name this one's"
        )
