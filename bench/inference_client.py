"""A plain client of the Open Inference Protocol (KServe V2) over HTTP, one request at a time on one connection.

For questions to a server outside of a load run (is it ready, does it answer correctly); load comes from scenarios/.
"""

from __future__ import annotations

import http.client
import json
import math
import re
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from bench.engine.manifest import DATATYPES, Manifest
from bench.errors import BenchError
from bench.json_rules import parse_foreign

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PART = re.compile(r"([A-Za-z_]+)\s*;[^,]*?dur=([0-9]+(?:\.[0-9]+)?)")

_MOST_PART_MS = 1e9  # a longer part than eleven days is nonsense


class InferenceClient:
    """`url` is the server's root, such as http://127.0.0.1:8000; a path in it goes before every other path.

    Raises BenchError where nobody answers.
    """

    def __init__(self, url: str, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        self._url = url
        self._prefix = parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)

    def ready(self) -> bool:
        """Whether the server says that it is ready; by the status code, as clients should judge it."""
        return self._ask("GET", "/v2/health/ready", None, {})[0] == 200

    def infer(self, model: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """One request; returns status, headers (names in lower case) and body."""
        return self._ask("POST", f"/v2/models/{quote(model, safe='')}/infer", body, headers)

    def metadata(self, model: str) -> dict[str, Any]:
        """What the server says of the model. Raises BenchError where it does not serve it."""
        status, _, body = self._ask("GET", f"/v2/models/{quote(model, safe='')}", None, {})
        try:
            found = parse_foreign(body)
        except ValueError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise BenchError(f"{self._url} does not serve {model}: {status} {_error_of(body)}")
        return found

    def load(self, model: str) -> None:
        """Ask the server to load a model, and wait until it has (model repository extension). Raises BenchError with its words."""
        self._change(model, "load")

    def unload(self, model: str) -> None:
        """The same, the other way round."""
        self._change(model, "unload")

    def _change(self, model: str, what: str) -> None:
        path = f"/v2/repository/models/{quote(model, safe='')}/{what}"
        status, _, body = self._ask("POST", path, b"{}", {"Content-Type": "application/json"})
        if status != 200:
            raise BenchError(f"{self._url} did not {what} {model}: {status} {_error_of(body)}")

    def statistics(self, model: str) -> dict[str, Any]:
        """The model's entry of the statistics extension. Raises BenchError where the server has none of it."""
        status, _, body = self._ask("GET", f"/v2/models/{quote(model, safe='')}/stats", None, {})
        if status != 200:
            raise BenchError(f"{self._url} has no statistics of {model}: {status} {_error_of(body)}")
        try:
            entries: list[dict[str, Any]] = parse_foreign(body)["model_stats"]
            return next(entry for entry in entries if entry["name"] == model)
        except (ValueError, KeyError, TypeError, StopIteration):
            raise BenchError(f"{self._url} answers with something else than statistics of {model}") from None

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        try:
            self._connection.request(method, self._prefix + path, body=body, headers=dict(headers))
            reply = self._connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise BenchError(f"{self._url} does not answer {method} {path} ({error or type(error).__name__})") from None

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> InferenceClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _error_of(body: bytes) -> str:
    """The sentence of a V2 error, or the beginning of what came instead."""
    try:
        return str(parse_foreign(body)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return body[:80].decode(errors="replace")


def server_parts_ns(server_timing: str) -> dict[str, int]:
    """What the value of a Server-Timing header tells, in ns by the name of the part."""
    told = {name: float(duration) for name, duration in _PART.findall(server_timing)}
    return {name: round(duration_ms * 1e6) for name, duration_ms in told.items() if duration_ms < _MOST_PART_MS}


def encode_request(manifest: Manifest, inputs: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request in the binary tensor extension, asking for binary outputs."""
    tensors = []
    for tensor in manifest.inputs:
        array = inputs[tensor.name]
        parameters = {"binary_data_size": array.nbytes}
        tensors.append({"name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape), "parameters": parameters})
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([head, *(inputs[t.name].tobytes() for t in manifest.inputs)])
    return body, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}


def decode_reply(headers: Mapping[str, str], body: bytes) -> dict[str, NDArray[Any]]:
    """The outputs of a reply, JSON or binary, as arrays. Raises BenchError for what is not a V2 reply."""
    import numpy as np

    try:
        head_bytes = int(headers.get("inference-header-content-length", len(body)))
        document, offset = parse_foreign(body[:head_bytes]), head_bytes
        outputs: dict[str, NDArray[Any]] = {}
        for tensor in document["outputs"]:
            dtype, shape = np.dtype(DATATYPES[tensor["datatype"]]), tuple(tensor["shape"])
            size = tensor.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[tensor["name"]] = np.array(tensor["data"], dtype=dtype).reshape(shape)
                continue
            outputs[tensor["name"]] = np.frombuffer(body, dtype, count=math.prod(shape), offset=offset).reshape(shape)
            offset += size
        return outputs
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BenchError(f"the reply is not of the Open Inference Protocol ({type(error).__name__}: {error})") from None
