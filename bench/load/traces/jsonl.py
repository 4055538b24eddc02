"""Traces with one JSON object a line: Mooncake (timestamp in ms) and Qwen-Bailian (in s).

Source: kvcache-ai/Mooncake, FAST25-release/README.md; alibaba-edu/qwen-bailian-usagetraces-anon, README.md.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa

from bench.load.traces.rows import Batch, Options, Tally
from bench.load.traces.source import Source
from bench.load.traces.times import UNIT_DIGITS, numbers_to_ns, strings

_BATCH_LINES = 16_384
_MOST_DIGITS = 30
_WHOLE_COLUMNS = ("input_length", "output_length", "turn", "chat_id", "parent_chat_id")
_FIXED: dict[str, pa.DataType] = {"hash_ids": pa.list_(pa.int64()), "type": pa.string(), **{name: pa.int64() for name in _WHOLE_COLUMNS}}


def matches_mooncake(lines: Sequence[str]) -> bool:
    """Objects with Mooncake's keys."""
    known = _first_objects(lines)
    if not known or any("chat_id" in value for value in known):
        return False
    return any({"timestamp", "input_length", "output_length", "hash_ids"} <= set(value) for value in known)


def matches_qwen(lines: Sequence[str]) -> bool:
    """Objects with Qwen-Bailian's keys."""
    known = _first_objects(lines)
    return any({"timestamp", "chat_id"} <= set(value) for value in known)


def _first_objects(lines: Sequence[str]) -> list[dict[str, Any]]:
    parsed = (_parse(line) for line in lines)
    return [value for value in parsed if isinstance(value, dict)]


def read_mooncake(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """timestamp, input_length, output_length, hash_ids."""
    del options
    return _read(source, tally, unit="ms")


def read_qwen(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """chat_id, parent_chat_id, timestamp, input_length, output_length, type, turn, hash_ids."""
    del options
    return _read(source, tally, unit="s")


def _read(source: Source, tally: Tally, *, unit: str) -> Iterator[Batch]:
    """The columns are those of the first readable line; a key that later lines lack is missing there."""
    names: list[str] | None = None
    numbered = enumerate(source.lines(), 1)
    while chunk := list(islice(numbered, _BATCH_LINES)):
        objects: list[dict[str, Any]] = []
        stamps: list[str] = []
        for line, text in chunk:
            if not text.strip():
                tally.blank += 1
                continue
            value = _parse(text)
            why = _why_not(value)
            if why is None:
                why = None if _fits(value["timestamp"], unit) else f"timestamp is {str(value['timestamp'])[:40]}, out of range"
            if why is not None:
                tally.refuse(line, why)
                continue
            tally.rows += 1
            objects.append(value)
            stamps.append(str(value["timestamp"]))
        if not objects:
            continue
        if names is None:
            names = [name for name in objects[0] if name != "timestamp"]
        times, _ = numbers_to_ns(strings(stamps), unit)
        yield Batch(times_ns=times, columns={name: _column([o.get(name) for o in objects], _FIXED.get(name)) for name in names})


def _fits(stamp: int | Decimal, unit: str) -> bool:
    if isinstance(stamp, Decimal) and stamp and not -_MOST_DIGITS < stamp.adjusted() < _MOST_DIGITS:
        return False  # before any arithmetic, which such exponents make overflow
    return bool(abs(stamp) * 10 ** UNIT_DIGITS[unit] < 2**63)


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, RecursionError, ArithmeticError):  # the last: an exponent that Decimal does not take
        return None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _why_not(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "not one JSON object"
    if "timestamp" not in value:
        return "no timestamp"
    stamp = value["timestamp"]
    if isinstance(stamp, bool) or not isinstance(stamp, int | Decimal):
        return f"timestamp is {str(stamp)[:40]!r}, not a number"
    bad = next((name for name in _WHOLE_COLUMNS if value.get(name) is not None and not _is_int64(value[name])), None)
    if bad:
        return f"{bad} is {str(value[bad])[:40]!r}, not a whole number"
    hashes = value.get("hash_ids")
    if hashes is not None and not (isinstance(hashes, list) and all(_is_int64(one) for one in hashes)):
        return f"hash_ids is {str(hashes)[:40]!r}, not a list of whole numbers"
    if not isinstance(value.get("type"), str | None):
        return f"type is {str(value['type'])[:40]!r}, not a text"
    return None


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None:
        try:
            column = pa.array(values, kind)
            return column.dictionary_encode() if kind == pa.string() else column
        except (pa.ArrowException, OverflowError, TypeError):
            pass
    if all(value is None or isinstance(value, Decimal) or type(value) is int for value in values):
        with contextlib.suppress(OverflowError):
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else json.dumps(value, default=str) for value in values], pa.string()).dictionary_encode()
