"""What a slot thread is given to do, how a request can end, and which part of its wait was whose fault.

What a load caused of a wait: the time in which the pool had no slot and was loading one, and the time in which the
slot that served the request was being made. The rest of the wait is pool wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bench.errors import BenchError
from reference_server.runtimes import Answer
from reference_server.server_timing import Timing

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Overloaded(Exception):
    """Not served now: the queue is full, the wait was too long, or the pool is closing."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class LoadFailed(BenchError):
    """The load that a request, or the start, waited for failed. The message is the reason, one sentence."""


class InferenceFailed(Exception):
    """The runtime raised during this request's run, or cannot run here at all."""


class DirectReply(Protocol):
    """How a slot's thread answers the client itself."""

    def send(self, job: Job, ended: Callable[[], None]) -> bool:
        """Called by the slot's thread once the job has its answer. False: nothing was sent, the event loop is to answer.

        Else `ended` is called on the event loop, at the latest by `settle`.
        """
        ...

    def settle(self) -> None:
        """Called on the event loop."""
        ...

    def finish(self) -> None:
        """Called on the event loop, as the job ends."""
        ...


class Job:
    """One request on its way through the pool. The loop fills in the upper fields, the slot thread the lower ones."""

    __slots__ = (
        "answer", "barren_ns", "cold_load_ns", "ended_ns", "enqueued_ns", "future", "inputs", "load_error", "outputs",
        "reply", "run_error", "started_ns", "timer", "wait_load_ns",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Sequence[str] | None,
        future: asyncio.Future[None],
        enqueued_ns: int,
        barren_ns: int,
        reply: DirectReply | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.future = future
        self.enqueued_ns = enqueued_ns
        self.reply = reply
        self.barren_ns = barren_ns  # the pool's clock of slotless loading, when the job was enqueued
        self.wait_load_ns = 0  # the part of the wait that a load caused
        self.timer: asyncio.TimerHandle | None = None
        self.started_ns = 0  # 0: never reached a slot
        self.ended_ns = 0
        self.cold_load_ns = 0  # the load that this job did itself
        self.answer: Answer | None = None
        self.load_error: str | None = None
        self.run_error: str | None = None


class Check:
    """Ask a slot thread to run the probe: its smallest case, or all of them."""

    __slots__ = ("error", "every_case", "future", "load_ns")

    def __init__(self, future: asyncio.Future[None], *, every_case: bool) -> None:
        self.future = future
        self.every_case = every_case
        self.error: str | None = None
        self.load_ns = 0


class BarrenClock:
    """Runs while the pool has no slot, but one is being made. Set on the event loop's thread."""

    __slots__ = ("_elapsed_ns", "_since_ns")

    def __init__(self) -> None:
        self._elapsed_ns = 0
        self._since_ns: int | None = None  # None: it stands still

    def read(self, now_ns: int) -> int:
        return self._elapsed_ns if self._since_ns is None else self._elapsed_ns + now_ns - self._since_ns

    def set(self, now_ns: int, *, runs: bool) -> None:
        self._elapsed_ns = self.read(now_ns)
        self._since_ns = now_ns if runs else None


class Making:
    """When the making of a slot began and ended, on the clock and on the pool's BarrenClock."""

    __slots__ = ("began_barren_ns", "began_ns", "ended_barren_ns", "ended_ns")

    def __init__(self) -> None:
        self.began_ns = self.began_barren_ns = self.ended_ns = self.ended_barren_ns = 0

    def caused(self, job: Job, barren_ns: int) -> int:
        """The part of the job's wait, until the moment at which the barren clock reads `barren_ns`, that a load caused."""
        if self.ended_ns <= job.enqueued_ns:
            return barren_ns - job.barren_ns
        from_ns, from_barren_ns = max((job.enqueued_ns, job.barren_ns), (self.began_ns, self.began_barren_ns))
        return (from_barren_ns - job.barren_ns) + (self.ended_ns - from_ns) + (barren_ns - self.ended_barren_ns)


def fill_timing(timing: Timing, job: Job) -> None:
    """Read the parts off a job that is over, or was left by its requester (its run is then not waited for: 0)."""
    started_ns = job.started_ns
    if not started_ns:  # it never reached a slot
        if job.ended_ns:
            timing.load_ns = job.wait_load_ns
            timing.pool_ns = job.ended_ns - job.enqueued_ns - job.wait_load_ns
        return
    timing.load_ns = job.wait_load_ns + job.cold_load_ns
    timing.pool_ns = started_ns - job.enqueued_ns - job.wait_load_ns
    answer = job.answer
    if answer is not None:
        timing.input_ns = answer.input_ns
        timing.infer_ns = answer.infer_ns
        timing.output_ns = answer.output_ns
    elif job.ended_ns:
        timing.infer_ns = job.ended_ns - started_ns - job.cold_load_ns
