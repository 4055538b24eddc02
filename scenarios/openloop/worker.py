"""What happens in each process that sends: take a share of the schedule, wait for the common start, send, report.

The share comes from the master, or from the same process where there is only one. Messages: `coldburst_share`,
`coldburst_go`, `coldburst_stop` to a worker; `coldburst_ready`, `coldburst_rows`, `coldburst_done` back; and
`coldburst_ping`, which comes back with the time of the worker's clock.
"""

from __future__ import annotations

import logging
import socket
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import bench
from bench.errors import one_sentence
from scenarios.openloop.clocks import clock_mark, host_mark
from scenarios.openloop.dispatcher import Dispatcher, Work
from scenarios.openloop.sink import RecordSink, warm
from scenarios.openloop.statistics import LocustStatistics
from scenarios.openloop.verify import Output, ReplyCheck

SHARE, GO, STOP, PING = "coldburst_share", "coldburst_go", "coldburst_stop", "coldburst_ping"
READY, ROWS, DONE = "coldburst_ready", "coldburst_rows", "coldburst_done"
DRAIN_S = 2.0

Send = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker needs to know. All of it can travel as a message."""

    run_id: str
    worker: int
    name: str
    seq: bytes
    intended_ns: bytes
    request: bytes
    address: tuple[str, int]
    deadline_ns: int
    max_connections: int
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    batch: int | None
    verify_every: int
    expected: dict[str, tuple[str, tuple[int, ...], bytes]] | None
    tolerance: float | None

    def message(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def share_from(data: dict[str, Any]) -> Share:
    """A share as it came: messages turn tuples into lists."""
    outputs = tuple((name, datatype, tuple(shape)) for name, datatype, shape in data["outputs"])
    return Share(**{**data, "address": tuple(data["address"]), "outputs": outputs})


class Worker:
    """The sender of this process. One dispatcher a run, whatever number of users Locust starts here."""

    def __init__(self, environment: Any, send: Send) -> None:
        self._environment = environment
        self._send = send
        self._dispatcher: Dispatcher | None = None
        self._share: Share | None = None
        self._reported = True

    @property
    def busy(self) -> bool:
        """From a share until its report."""
        return not self._reported

    def take_share(self, share: Share) -> None:
        """Make everything ready to send, and say so."""
        self._share = share
        self._reported = False
        failure: str | None = None
        try:
            self._dispatcher = self._make(share)
            self._dispatcher.prepare()
        except Exception as error:
            logging.getLogger(__name__).debug("a share cannot be prepared", exc_info=True)
            failure = one_sentence(error)
        self._tell_ready({"worker": share.worker, "run_id": share.run_id}, failure)

    def refuse(self, data: dict[str, Any]) -> None:
        """A share came that this version cannot read."""
        self._tell_ready({name: data.get(name) for name in ("worker", "run_id")}, "not a share of this version")

    def _tell_ready(self, which: dict[str, Any], failure: str | None) -> None:
        about = {"name": socket.gethostname(), "version": bench.__version__, "host": host_mark(), "clock": clock_mark()}
        self._send(READY, {**which, **about, "failure": failure})

    def go(self, start_ns: int) -> None:
        """Run the share and report. Waits for its end."""
        if self._dispatcher is not None:
            self._dispatcher.go(start_ns)
            self._dispatcher.ended.wait()
            self._report()

    def stop(self, reason: str) -> None:
        """End early: what was not sent becomes rows, and the share is reported as at the end. Waits for that."""
        if self._dispatcher is not None and not self._reported:
            self._dispatcher.stop(reason, patience_s=DRAIN_S)
            self._report()

    def _make(self, share: Share) -> Dispatcher:
        statistics = LocustStatistics(self._environment, share.name)
        sink = RecordSink(worker=share.worker, deliver=self._deliver, observe=statistics.observe)
        check = ReplyCheck(
            tuple(Output(name=name, datatype=datatype, shape=shape) for name, datatype, shape in share.outputs),
            batch=share.batch,
            verify_every=share.verify_every,
            tolerance=share.tolerance,
            expected={name: np.frombuffer(raw, dtype).reshape(shape) for name, (dtype, shape, raw) in (share.expected or {}).items()},
        )
        seq, intended = array("q"), array("q")
        seq.frombytes(share.seq)
        intended.frombytes(share.intended_ns)
        work = Work(
            seq=seq,
            intended_ns=intended,
            request=share.request,
            address=share.address,
            deadline_ns=share.deadline_ns,
            max_connections=share.max_connections,
            open_beforehand=min(64, share.max_connections, len(seq)),
        )
        warm(lambda batch: batch.serialize())
        statistics.watch_listeners()
        return Dispatcher(work, sink=sink, check=check)

    def _deliver(self, batch: pa.RecordBatch) -> None:
        assert self._share is not None
        self._send(ROWS, {"worker": self._share.worker, "run_id": self._share.run_id, "batch": batch})

    def _report(self) -> None:
        if self._reported or self._dispatcher is None or self._share is None:
            return
        self._reported = True
        self._send(DONE, {"worker": self._share.worker, "run_id": self._share.run_id, "generator": self._dispatcher.generator()})
        self._dispatcher = None
