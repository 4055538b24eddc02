"""Load beside traffic: while an arm is under load, one more engine is loaded in its server, once in each spike.

It is the arm's own engine under a second name, so that what it costs is known from the arm itself. A load begins when
its spike does. It is unloaded in the middle of the rest that follows, and what traffic feels of that is not in a spike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.clock import now_ns
from bench.errors import BenchError
from bench.inference_client import InferenceClient

if TYPE_CHECKING:
    from bench.load.schedule import Spike

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load, on the run's clock (ns): when it was to begin, did, and was done; when it was undone, None for the last
    one of a server that ended first. error: why it is none; ended_ns is then when that was known."""

    spike: int
    planned_ns: int
    began_ns: int
    ended_ns: int
    unloaded_ns: int | None = None
    error: str | None = None


def second_name(model: str) -> str:
    """What the arm's engine is called where it is loaded once more."""
    return f"{model}-beside"


@contextlib.contextmanager
def loads_beside(url: str, model: str, workplace: Path, spikes: Sequence[Spike], duration_ns: int) -> Iterator[list[Load]]:
    """Load `model` in each of the spikes of the run that is about to be made in `workplace`, for as long as the context
    lasts. Gives the list that fills with what was done; it is whole after the context."""
    done: list[Load] = []
    ended = threading.Event()
    thread = threading.Thread(target=_drive, args=(url, model, workplace, spikes, duration_ns, done, ended), daemon=True)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def _drive(
    url: str, model: str, workplace: Path, spikes: Sequence[Spike], duration_ns: int, done: list[Load], ended: threading.Event
) -> None:
    zero_ns = _start_of_run(workplace, ended)
    if zero_ns is None:
        return
    with InferenceClient(url) as client:
        for spike, next_ns in zip(spikes, [*(later.start_ns for later in spikes[1:]), duration_ns], strict=True):
            if _wait_until(zero_ns + spike.start_ns, ended):
                return
            began_ns, error = now_ns() - zero_ns, None
            try:
                client.load(model)
            except BenchError as failure:
                error = str(failure)
            done.append(Load(spike=spike.index, planned_ns=spike.start_ns, began_ns=began_ns, ended_ns=now_ns() - zero_ns, error=error))
            if error is not None:
                continue
            _wait_until(zero_ns + (spike.end_ns + next_ns) // 2, ended)
            try:
                client.unload(model)
            except BenchError as failure:  # the next load then finds it there, which would be no load
                done[-1] = dataclasses.replace(done[-1], error=str(failure))
                return
            done[-1] = dataclasses.replace(done[-1], unloaded_ns=now_ns() - zero_ns)


def _wait_until(due_ns: int, ended: threading.Event) -> bool:
    """Whether the run was over before."""
    return ended.wait(max(0, due_ns - now_ns()) / 1e9)


def _start_of_run(workplace: Path, ended: threading.Event) -> int | None:
    """When the run's first nanosecond is, as soon as the generator has written it down; None where that never comes."""
    for _ in itertools.count():
        for path in workplace.glob("*/run.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                start_ns = json.loads(path.read_text("utf-8"))["start_monotonic_ns"]
                if isinstance(start_ns, int):
                    return start_ns
        if ended.wait(_POLL_S):
            break
    return None
