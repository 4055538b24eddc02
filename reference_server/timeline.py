"""The state of the server every 50 ms, in a file, since a scrape cannot see a spike.

The file is JSON lines: one line of metadata, then one row a sample and model. Each sample is one write(2), so that
what was sampled survives a SIGKILL of this process, and no Arrow library is imported into the server whose cold start
is measured (pyarrow alone takes longer than everything else). `bench.server_timeline` reads it into the run folder.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.clock import now_ns, wall_anchor
from bench.errors import BenchError
from reference_server.phases import resident_bytes

if TYPE_CHECKING:
    from reference_server.registry import ServedModel

SCHEMA_VERSION = 1
INTERVAL_NS = 50_000_000
# t_ns on CLOCK_MONOTONIC; *_bytes and process_cpu_ns are the process's, sm_clock_mhz the GPU's, the same for all models of a sample.
COLUMNS = (
    "t_ns", "model", "slots_busy", "slots_idle", "slots_loading", "waiting",
    "resident_bytes", "device_bytes", "sm_clock_mhz", "process_cpu_ns",
)  # fmt: skip


class Timeline:
    """A thread that samples `models` into `path`, which must not exist. Raises BenchError where it cannot be written.

    The thread only reads numbers, so the event loop never waits for it; a sample that comes late says so by its t_ns.
    """

    def __init__(self, path: Path, models: Sequence[ServedModel]) -> None:
        metadata = {
            "schema_version": SCHEMA_VERSION,
            "columns": COLUMNS,
            "interval_ns": INTERVAL_NS,
            "anchor": wall_anchor(),
            "pid": os.getpid(),
        }
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from None
        self._path = path
        self._models = tuple(models)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="timeline", daemon=True)
        try:
            self._write(json.dumps(metadata).encode() + b"\n")
        except OSError as error:
            self.discard()
            raise _unwritable(path, error) from None

    def start(self) -> None:
        """Raises BenchError where the process may have no more threads; no file is left then."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self.discard()
            raise BenchError(f"timeline {self._path} has no thread that writes it ({error}); raise this process's limits") from None

    def close(self) -> None:
        """End. May be called more than once, and without a start."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._file.close()

    def discard(self) -> None:
        """End, and leave no file: the same command would stumble over it."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _write(self, rows: bytes) -> None:
        """All of it or nothing. Raises OSError."""
        written = self._file.write(rows)
        if written != len(rows):  # the disk is full
            self._file.truncate(self._file.tell() - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _sample(self) -> None:
        due_ns = now_ns()
        ended = False
        while not ended:
            try:
                self._write(self._rows())
            except OSError as error:  # a full disk must not end the serving
                logging.getLogger(__name__).error("timeline %s ends here: %s", self._file.name, error.strerror)
                return
            now = now_ns()
            due_ns = max(due_ns + INTERVAL_NS, now)
            ended = self._ended.wait((due_ns - now) / 1e9)

    def _rows(self) -> bytes:
        # Before the time is taken: the driver may need some to answer.
        clock_mhz = next((mhz for model in self._models if (mhz := model.sm_clock_mhz()) is not None), None)
        now, resident, cpu_ns = now_ns(), resident_bytes(), time.process_time_ns()
        lines = []
        for model in self._models:
            fleet, waiting = model.pool.fleet, model.pool.waiting
            slots = (fleet.busy, fleet.idle, fleet.loading)
            row = (now, model.manifest.name, *slots, waiting, resident, model.device_bytes(), clock_mhz, cpu_ns)
            lines.append(json.dumps(row) + "\n")
        return "".join(lines).encode()


def _unwritable(path: Path, error: OSError) -> BenchError:
    return BenchError(f"timeline {path} cannot be written ({error.strerror}); name a new file with --timeline")
