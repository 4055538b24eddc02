"""The runtime seam: load an engine, make a slot, run it, release it. Every step times itself by phase.

A runtime is started once in a process (`library` and `device` phases), loads engines (`deserialise`), and an engine
makes slots (`slot`, `buffers`). Reading and verifying an engine's bytes is the same for all: reference_server.loader.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bench.engine.manifest import Manifest
from bench.errors import BenchError
from reference_server.phases import Phases

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUNTIMES = ("onnxruntime", "synthetic", "tensorrt")


class DeviceSpoiled(Exception):
    """The device or its context can no longer be used in this process: the process must end."""


@dataclass(slots=True)
class Answer:
    """What a run gave: arrays that the caller owns, and the three parts of the service time in ns."""

    outputs: dict[str, NDArray[Any]]
    input_ns: int
    infer_ns: int
    output_ns: int


class Slot(Protocol):
    """One execution context with its buffers: used by one request at a time."""

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> Answer:
        """Run once. `inputs` are C-contiguous, checked against the manifest; `outputs` None means all of them."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """A loaded engine, from which slots are made. Slots are closed before it is."""

    manifest: Manifest

    def make_slot(self, phases: Phases) -> Slot:
        """Phases: `slot` (the execution context) and `buffers` (input and output memory)."""
        ...

    def close(self) -> None: ...


class Runtime(Protocol):
    """One inference library."""

    version: str

    def check_options(self, manifest: Manifest, options: Mapping[str, str]) -> None:
        """Raises BenchError where the settings cannot be right. Needs no library."""
        ...

    def start(self, manifest: Manifest, options: Mapping[str, str], phases: Phases) -> None:
        """Get ready for this engine: import the library (`library`), initialise the device (`device`, where there is one). Repeatable.

        Refuses an engine of another device or version where it can tell before the engine is read.
        """
        ...

    def load(
        self,
        manifest: Manifest,
        engine_dir: Path,
        engine_bytes: bytes,
        options: Mapping[str, str],
        phases: Phases,
        *,
        trusted: bool = False,
    ) -> Engine:
        """Make a loaded engine of verified bytes (`deserialise`). Raises EngineRefused or BenchError.

        `trusted`: the engine's signature was checked, so that it may bring code of its own.
        """
        ...

    def device_bytes(self) -> int | None:
        """Device memory in use, None where there is no device or it does not tell. Any thread may ask."""
        ...

    def sm_clock_mhz(self) -> int | None:
        """The clock of the GPU's multiprocessors now, None where there is no GPU or it does not tell. Any thread may ask, but not on
        the way of a request: the first time imports and opens a library."""
        ...

    def measure_floors(self, size: int, phases: Phases) -> None:
        """Phases that no load of `size` bytes can beat: `copy_to_device_pageable`, `copy_to_device_pinned`; none without a device."""
        ...


def open_runtime(name: str) -> Runtime:
    """The runtime called `name`, its library not imported yet. Raises BenchError for an unknown name."""
    if name not in RUNTIMES:
        raise BenchError(f"unknown runtime {name!r}: this build knows {', '.join(RUNTIMES)}")
    runtime: Runtime = importlib.import_module(f"{__name__}.{name}").RUNTIME
    return runtime


def usable_cores() -> int:
    """The cores this process may use: its affinity, less what a cgroup v2 CPU quota allows (Linux cgroup-v2.rst, `cpu.max`)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return cores


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises BenchError."""
    settings: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise BenchError(f"--set {text!r} is not KEY=VALUE")
        if key in settings:
            raise BenchError(f"--set names {key!r} twice; give it once")
        settings[key] = value
    return settings


Options = TypeVar("Options")
_LARGEST_SETTING = 4096  # of threads, the only number there is to set: more would exhaust the host before they are of use


def parse_options(kind: type[Options], given: Mapping[str, str]) -> Options:
    """Fill a dataclass of int, str and bool fields from KEY=VALUE settings. Raises BenchError naming the key."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in fields:
            raise BenchError(f"unknown runtime setting {key!r}: known are {', '.join(fields)}")
        wanted = fields[key].type
        try:
            values[key] = _BOOLEANS[text.lower()] if wanted == "bool" else int(text) if wanted == "int" else text
        except (ValueError, KeyError):
            raise BenchError(f"runtime setting {key}={text[:80]!r} is not {_KINDS[str(wanted)]}") from None
        if wanted == "int" and not 0 <= values[key] <= _LARGEST_SETTING:
            raise BenchError(f"runtime setting {key}={text[:80]} is not 0 to {_LARGEST_SETTING}")
    return kind(**values)


_KINDS = {"int": "a whole number", "bool": "true or false"}
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
