"""Arrivals as people write them, the same in all commands and locustfiles: `NAME:key=value,key=value`.

    poisson:rate=200,duration=30s
    train:base=50,peak=500,hold=2s,rest=8s,spikes=20
    rate:0s=10,5s=100,20s=100,21s=10

Rates are per second; a time carries its unit. `ARRIVALS_HELP` lists every process with its keys.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from itertools import pairwise

from bench.errors import BenchError
from bench.load.arrivals import MAX_DURATION_NS, ArrivalProcess, Constant, Gamma, Mmpp, Poisson
from bench.load.shapes import Flash, Ramp, Rate, Step, Train
from bench.units import parse_duration_ns

PROCESSES: dict[str, type[ArrivalProcess]] = {
    process.name: process for process in (Constant, Poisson, Gamma, Mmpp, Rate, Ramp, Step, Flash, Train)
}
EXAMPLES = {
    "constant": "constant:rate=200,duration=30s",
    "poisson": "poisson:rate=200,duration=30s",
    "gamma": "gamma:rate=100,cv=4,duration=60s",
    "mmpp": "mmpp:base=20,peak=200,on=2s,off=8s,duration=120s",
    "rate": "rate:0s=10,5s=100,20s=100,21s=10,30s=10",
    "ramp": "ramp:base=10,peak=200,duration=60s",
    "step": "step:base=50,peak=500,lead=5s,hold=10s,rest=15s",
    "flash": "flash:base=20,peak=400,lead=10s,rise=1s,decay=8s,rest=20s",
    "train": "train:base=50,peak=500,hold=2s,rest=8s,spikes=20",
}


def parse_arrivals(text: str, *, duration: str | None = None) -> ArrivalProcess:
    """Read one arrival process. duration: the `duration` key of a text that does not give one. Raises BenchError."""
    name, _, rest = text.strip().partition(":")
    name = name.strip()
    if name not in PROCESSES:
        raise BenchError(
            f"arrivals {text!r}: there is no process {name!r}; there are {', '.join(PROCESSES)}, such as {EXAMPLES['poisson']}"
        )
    given = _pairs(name, rest)
    if name == "rate":
        if duration is not None:
            raise BenchError("rate: its last point is its end; leave --duration out")
        cv = dict(given).get("cv", "1")
        return Rate(cv=_number("rate", "cv", cv), points=_points([(key, value) for key, value in given if key != "cv"]))
    pairs = dict(given)
    if len(pairs) < len(given):
        raise BenchError(f"{name}: a key is given twice in {rest!r}")
    process = PROCESSES[name]
    known = {f.name.removesuffix("_ns"): f for f in fields(process)}
    if duration is not None:
        if "duration" not in known:
            raise BenchError(f"{name}: its own times say how long it is; leave --duration out")
        if "duration" in pairs:
            raise BenchError(f"{name}: duration is given twice, in the arrivals and beside them")
        pairs["duration"] = duration
    for key in pairs:
        if key not in known:
            raise BenchError(f"{name}: there is no key {key!r}; there are {', '.join(known)}, such as {EXAMPLES[name]}")
    for key, field in known.items():
        if key not in pairs and field.default is MISSING:
            raise BenchError(f"{name}: {key} is missing, write it as in {EXAMPLES[name]}")
    values: dict[str, float | int] = {}
    for key, value in pairs.items():
        field = known[key]
        if field.name.endswith("_ns"):
            values[field.name] = _time_ns(name, key, value)
        elif key == "spikes":
            values[key] = _whole(name, key, value)
        else:
            values[key] = _number(name, key, value)
    return process(**values)


def _pairs(name: str, text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise BenchError(f"{name}: {part.strip()!r} is not key=value, write as in {EXAMPLES[name]}")
        pairs.append((key, value))
    return pairs


def _number(name: str, key: str, text: str) -> float:
    try:
        number = float(text.removesuffix("/s"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BenchError(f"{name}: {key} is {text!r}: write a number, rates are per second") from None
    return number


def _whole(name: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BenchError(f"{name}: {key} is {text!r}: write a whole number above 0")
    return int(text)


def _time_ns(name: str, key: str, text: str) -> int:
    if text.startswith("-"):
        raise BenchError(f"{name}: {key} is {text!r} and must not be negative")
    try:
        return parse_duration_ns(text, f"{name}: {key}")
    except OverflowError:
        raise BenchError(f"{name}: {key} is {text!r}, which is longer than a year") from None


def _points(pairs: list[tuple[str, str]]) -> tuple[tuple[int, float], ...]:
    """The control points of `rate`: times as keys, rates as values; a time given twice is a jump."""
    points = tuple((_time_ns("rate", "time", key), _number("rate", f"the rate at {key}", value)) for key, value in pairs)
    if len(points) < 2:
        raise BenchError(f"rate: two points are the least, write as in {EXAMPLES['rate']}")
    times = [time for time, _ in points]
    if times[0] != 0:
        raise BenchError(f"rate: the first point must be at 0s, write as in {EXAMPLES['rate']}")
    if any(later < earlier for earlier, later in pairwise(times)) or times[-1] == 0:
        raise BenchError("rate: the times of the points must grow from left to right")
    if times[-1] > MAX_DURATION_NS:
        raise BenchError("rate: the last point lies beyond a year")
    if any(rate < 0 for _, rate in points) or all(rate == 0 for _, rate in points):
        raise BenchError("rate: rates must not be negative, and at least one must be above 0 per second")
    return points


ARRIVALS_HELP = (
    "One of: " + " · ".join(EXAMPLES.values()) + ". Rates per second; shapes also take cv=, 0 for even gaps, above 1 for clusters."
)
