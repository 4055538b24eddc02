"""Is an answer what the model promised? Names, datatypes, shapes and sizes of every answer; values of one in N."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from bench.engine.manifest import DATATYPES, relative_error

_REMEMBERED = 64
_TOLERANCE = {"FP16": 1e-2, "FP32": 1e-3, "FP64": 1e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One declared output; -1 in `shape` stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ReplyCheck:
    """Call it with a 200 answer: None, or the sentence that says what is wrong.

    A head seen before (the JSON in front of binary tensors is the same from answer to answer) is not parsed again.
    With `verify_every` N > 0 the values of every N-th answer are compared with the expected ones; where none are known,
    with those of the first answer: the same input must give the same output, within 1e-3 of its largest magnitude for
    FP32 (1e-2 FP16, 1e-6 FP64) and exactly for whole numbers; `tolerance` is an engine's own, where that is known.
    """

    def __init__(
        self,
        outputs: tuple[Output, ...],
        *,
        batch: int | None,
        verify_every: int,
        expected: Mapping[str, np.ndarray[Any, Any]] | None = None,
        tolerance: float | None = None,
    ) -> None:
        self._tolerance = tolerance
        self._outputs = {output.name: output for output in outputs}
        self._batch = batch
        self._every = verify_every
        self._heads: dict[bytes, tuple[str | None, int]] = {}
        self._against = "the expected ones" if expected else "the first answer to the same input"
        self._right = {name: np.ravel(values) for name, values in expected.items()} if expected else None
        self._countdown = 0
        self._samples: list[tuple[int, bytes, int]] = []
        self.compared = 0

    def __call__(self, body: bytes | bytearray, json_length: int, seq: int) -> str | None:
        if json_length < 0:
            reason, _ = self._judge(bytes(body), binary=False)
        elif json_length > len(body):
            return f"the answer's JSON is said to be {json_length} bytes long, but the body has {len(body)}"
        else:
            head = bytes(body[:json_length])
            known = self._heads.get(head)
            if known is None:
                known = self._judge(head, binary=True)
                if len(self._heads) < _REMEMBERED:
                    self._heads[head] = known
            reason, binary_size = known
            if reason is None and binary_size != len(body) - json_length:
                reason = f"the answer has {len(body) - json_length} bytes of tensors where its JSON says {binary_size}"
        if reason is None and self._every:
            if self._countdown == 0:
                self._countdown = self._every
                self._samples.append((seq, bytes(body), json_length))
            self._countdown -= 1
        return reason

    def compare_samples(self) -> dict[int, str]:
        """Compare the values kept since the last call, off the hot path: what is wrong, by seq."""
        samples, self._samples = self._samples, []
        return {seq: reason for seq, body, json_length in samples if (reason := self._compare_safely(body, json_length)) is not None}

    def _judge(self, head: bytes, *, binary: bool) -> tuple[str | None, int]:
        """(What is wrong or None, bytes of binary tensors that must follow)."""
        try:
            outputs = orjson.loads(head)["outputs"]
            given = {output["name"]: output for output in outputs}
            if len(given) < len(outputs):
                return "an output is there twice in one answer", 0
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return "the answer is not a V2 inference answer", 0
        size = 0
        for name, declared in self._outputs.items():
            output = given.pop(name, None)
            if output is None:
                return f"output {name!r} is missing", 0
            reason, count = self._judge_output(declared, output, binary)
            if reason is not None:
                return reason, 0
            size += count
        if given:
            return f"output {next(iter(given))!r} was not declared", 0
        return None, size

    def _judge_output(self, declared: Output, output: dict[str, Any], binary: bool) -> tuple[str | None, int]:
        name = declared.name
        if output.get("datatype") != declared.datatype:
            return f"output {name!r} has datatype {output.get('datatype')}, declared is {declared.datatype}", 0
        shape = output.get("shape")
        if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            return f"output {name!r} has no shape", 0
        wanted = list(declared.shape)
        if self._batch is not None and wanted and wanted[0] == -1:
            wanted[0] = self._batch
        if len(shape) != len(wanted) or any(want not in (-1, size) for size, want in zip(shape, wanted, strict=False)):
            return f"output {name!r} has shape {shape}, declared is {wanted}", 0
        elements = math.prod(shape)
        parameters = output.get("parameters")
        if not isinstance(parameters, dict | None):
            return f"output {name!r} has parameters that are not an object", 0
        size = (parameters or {}).get("binary_data_size")
        if size is not None:
            if not binary:
                return f"output {name!r} is said to be binary, but no tensor bytes follow", 0
            item = None if declared.datatype == "BYTES" else DATATYPES.get(declared.datatype)
            if not isinstance(size, int) or (item is not None and size != elements * np.dtype(item).itemsize):
                return f"output {name!r} has {size} bytes, its shape {shape} of {declared.datatype} needs another number", 0
            return None, size
        data = output.get("data")
        if not isinstance(data, list) or _flat_length(data) != elements:
            return f"output {name!r} has not the {elements} values of its shape {shape}", 0
        return None, 0

    def _compare_safely(self, body: bytes, json_length: int) -> str | None:
        try:
            return self._compare(body, json_length)
        except Exception as error:  # one odd answer may cost its own row, never the run
            return f"the answer's values cannot be compared ({type(error).__name__}: {error})"[:200]

    def _compare(self, body: bytes, json_length: int) -> str | None:
        try:
            values = self._values(body, json_length)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return "the answer's values are not of the datatype that it names"
        self.compared += 1
        if self._right is None:
            self._right = values
            return None
        for name, right in self._right.items():
            allowed = _TOLERANCE.get(self._outputs[name].datatype, 0.0)
            if allowed and self._tolerance is not None:
                allowed = max(allowed, self._tolerance)
            if not relative_error(right, values[name]) <= allowed:
                return f"output {name!r} has other values than {self._against}"
        return None

    def _values(self, body: bytes, json_length: int) -> dict[str, np.ndarray[Any, Any]]:
        values: dict[str, np.ndarray[Any, Any]] = {}
        at = json_length
        for output in orjson.loads(body[:json_length] if json_length >= 0 else body)["outputs"]:
            datatype = output["datatype"]
            size = (output.get("parameters") or {}).get("binary_data_size")
            kind = DATATYPES.get(datatype, "object")
            if size is None:
                values[output["name"]] = np.array(output["data"], dtype=kind).ravel()
            else:
                raw = body[at : at + size]
                at += size
                values[output["name"]] = np.frombuffer(raw, dtype="uint8" if kind == "object" else kind)
        return values


def _flat_length(data: list[Any]) -> int:
    """Number of values in a list, flat or nested (V2 allows both); without recursion, as a server may nest them deeply."""
    count = 0
    waiting = [data]
    while waiting:
        inner = waiting.pop()
        if inner and isinstance(inner[0], list):
            for one in inner:
                if isinstance(one, list):
                    waiting.append(one)
                else:
                    count += 1
        else:
            count += len(inner)
    return count
