"""What the values of a JSON file must be: rules that are put together, each of which says where something else stands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.engine.manifest_reading import short
from bench.errors import BenchError

Rule = Callable[[Any, str], str | None]
"""Given a value and the name of its place: what is wrong with it, or None."""

MOST_WHOLE = 2**62
EXACT = 2**53
"""Up to here whole numbers stay exact as float64; as ns these are 104 days, as bytes 9 PB."""
DEEPEST = 60
"""Lists and objects inside one another. What is deeper was made to break a reader."""
DAMAGED = "it was edited, damaged, or written by another program: use a copy of it as it was written, or run it again"
_PATHS = frozenset('/\\\0"')


def anything(value: Any, where: str) -> str | None:
    """Of a foreign server, or only kept."""
    return None


def whole(least: int = 0, most: int = MOST_WHOLE) -> Rule:
    """A whole number from `least` to `most`."""

    def check(value: Any, where: str) -> str | None:
        if type(value) is int and least <= value <= most:
            return None
        return f"{where} is {short(value)}, not a whole number from {_power(least)} to {_power(most)}"

    return check


def number(least: float = 0.0, most: float = 1e18) -> Rule:
    """A finite number from `least` to `most`."""

    def check(value: Any, where: str) -> str | None:
        if type(value) in (int, float) and least <= value <= most:  # NaN is not
            return None
        return f"{where} is {short(value)}, not a number from {least:g} to {most:g}"

    return check


def text(*allowed: str) -> Rule:
    """A string, one of the `allowed` where there are such."""

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, str):
            return f"{where} is {short(value)}, not a string"
        if allowed and value not in allowed:
            return f"{where} is {short(value)}, not one of {', '.join(allowed)}"
        return None

    return check


def file_name(value: Any, where: str) -> str | None:
    """A string that is the name of one file or folder, and leads nowhere else."""
    if isinstance(value, str) and value not in ("", ".", "..") and not _PATHS & set(value):
        return None
    return f"{where} is {short(value)}, not a name of one file"


def flag(value: Any, where: str) -> str | None:
    """true or false."""
    return None if isinstance(value, bool) else f"{where} is {short(value)}, not true or false"


def nullable(rule: Rule) -> Rule:
    """null, or what the rule says."""
    return lambda value, where: None if value is None else rule(value, where)


def each(rule: Rule, least: int = 0) -> Rule:
    """A list of at least so many values, each of the rule."""

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, list):
            return f"{where} is {short(value)}, not a list"
        if len(value) < least:
            return f"{where} has {len(value)} entries, and must have {least} at least"
        return _first(rule(one, f"{where}[{at}]") for at, one in enumerate(value))

    return check


def by_name(rule: Rule) -> Rule:
    """An object of any names, each value of the rule."""

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, dict):
            return f"{where} is {short(value)}, not an object"
        return _first(rule(one, _inside(where, name)) for name, one in value.items())

    return check


def record(needed: Mapping[str, Rule] | None = None, /, **known: Rule) -> Rule:
    """An object with the `needed` names, and others: those that are `known` follow their rule, where they are there."""
    needed = needed or {}

    def check(value: Any, where: str) -> str | None:
        if not isinstance(value, dict):
            return f"{where or 'it'} is {short(value)}, not an object"
        missing = next((name for name in needed if name not in value), None)
        if missing is not None:
            return f"{_inside(where, missing)} is missing"
        return _first(rule(value[name], _inside(where, name)) for name, rule in {**needed, **known}.items() if name in value)

    return check


def parse_foreign(body: bytes) -> Any:
    """The JSON of a server that may not be ours. Raises ValueError, also for NaN and infinity, which JSON does not have, and for what
    is nested too deeply."""
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        deep = _deeper_than(value, DEEPEST)
    except RecursionError:
        deep = True
    if deep:
        raise ValueError(f"its values are more than {DEEPEST} deep inside one another")
    return value


def check_value(value: Any, rule: Rule, file: Path) -> None:
    """Raises BenchError, with the file and the place, where the value is not of the rule."""
    problem = rule(value, "")
    if problem is not None:
        raise BenchError(f"{file}: {problem}; {DAMAGED}")


def read_object(path: Path) -> dict[str, Any]:
    """The one JSON object that a file holds. Raises BenchError."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
        deep = _deeper_than(value, DEEPEST)
    except (OSError, ValueError, RecursionError) as error:
        raise BenchError(f"{path} cannot be read: {_reason(error)}") from None
    if deep:
        raise BenchError(f"{path} cannot be read: its values are more than {DEEPEST} deep inside one another")
    if not isinstance(value, dict):
        raise BenchError(f"{path} cannot be read: it is not one JSON object")
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"its values are more than {DEEPEST} deep inside one another"
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def _deeper_than(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if not inner:
            return False
        level = inner
    return True


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _power(value: int) -> str:
    """A large bound as people read it."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    return f"{sign}2^{size.bit_length() - 1}" if size >= 2**31 and size & (size - 1) == 0 else str(value)
