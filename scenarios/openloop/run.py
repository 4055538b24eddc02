"""One run, seen from where it is led (the only process, or the master): plan, folder, shares, merge, verdict."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import bench
from bench.clock import utc_now, wall_anchor
from bench.errors import BenchError, one_sentence
from bench.load.schedule import Schedule, write_schedule
from bench.packages import installed_version
from bench.records import SCHEMA_VERSION, RunFolder, new_run_id
from scenarios.openloop.clocks import WorkerClock
from scenarios.openloop.connections import shared_out
from scenarios.openloop.server_start import server_process_start
from scenarios.openloop.sink import LOST_WORKER, NOT_SENT, SCHEMA, STOPPED, unanswered_batch
from scenarios.openloop.summary import summarize
from scenarios.openloop.target import Target
from scenarios.openloop.worker import Share

_RESERVED_FILES = 256
_LOST_REASON = "the worker was lost before it reported this arrival"
_ROOT = Path(bench.__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is known before the first send."""

    scenario: str
    schedule: Schedule
    target: Target
    results: Path
    seed: int
    deadline_ns: int
    max_connections: int
    slo_ns: int | None
    verify_every: int
    settings: dict[str, Any]
    environment: dict[str, Any] | None


class Run:
    """A run folder being filled. Rows come in any order and from several workers; each arrival gets exactly one."""

    def __init__(self, plan: Plan, *, workers: int) -> None:
        count = len(plan.schedule)
        if workers > count:
            raise BenchError(f"{workers} workers are more than the {count} arrivals of the schedule; start fewer workers")
        if workers > plan.max_connections:
            raise BenchError(
                f"--max-connections {plan.max_connections} leaves none for some of the {workers} workers; start fewer, or raise it"
            )
        self.plan = plan
        self.workers = workers
        self.final: Path | None = None
        self.start_ns: int | None = None
        self._seqs = np.ascontiguousarray(plan.schedule.seq)
        self._seen = np.zeros(count, dtype=bool)
        self.generators: dict[int, dict[str, Any]] = {}
        self.clocks: list[WorkerClock] = []
        self._started_at = utc_now()
        self._anchor = wall_anchor()
        self._server_before = server_process_start(plan.target.host)
        self.folder = RunFolder.create(plan.results, new_run_id(plan.scenario, plan.target.model))
        try:
            write_schedule(plan.schedule, self.folder.path / "schedule.parquet")
            self._rows = self.folder.table("requests", SCHEMA)
            self._write_run()
        except (BenchError, OSError) as error:
            raise BenchError(
                f"the run cannot be begun ({one_sentence(error)}); what there is of it is kept as {self.folder.path}"
            ) from None

    def shares(self) -> list[Share]:
        """The schedule, dealt out by seq modulo the number of workers."""
        plan = self.plan
        limits = shared_out(connection_limit(plan.max_connections), self.workers)
        expected = plan.target.expected
        intended = plan.schedule.intended_ns
        shares = []
        for worker in range(self.workers):
            mine = np.arange(len(self._seqs)) % self.workers == worker
            shares.append(
                Share(
                    run_id=self.folder.run_id,
                    worker=worker,
                    name=plan.target.model,
                    seq=array("q", self._seqs[mine].tobytes()).tobytes(),
                    intended_ns=np.ascontiguousarray(intended[mine]).tobytes(),
                    request=plan.target.request,
                    address=plan.target.address,
                    deadline_ns=plan.deadline_ns,
                    max_connections=limits[worker],
                    outputs=tuple((output.name, output.datatype, output.shape) for output in plan.target.outputs),
                    batch=plan.target.batch,
                    verify_every=plan.verify_every,
                    tolerance=plan.target.tolerance,
                    expected=None
                    if expected is None
                    else {name: (value.dtype.str, value.shape, value.tobytes()) for name, value in expected.items()},
                )
            )
        return shares

    def started(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self._started_at = utc_now()
        self._anchor = wall_anchor()
        self._write_run()

    def take_rows(self, batch: pa.RecordBatch) -> None:
        """Write rows that no earlier batch had."""
        if self.final is not None:
            return
        at = np.searchsorted(self._seqs, batch.column("seq").to_numpy())
        new = ~self._seen[at]
        if not new.all():
            batch = batch.filter(pa.array(new))
        self._seen[at] = True
        self._rows.write_batch(batch)

    def finish(self) -> Path:
        """Account for what no worker reported, write the summary, give the folder its name. Safe to call twice."""
        if self.final is not None:
            return self.final
        self.folder.check_there()
        missing = np.flatnonzero(~self._seen)
        intended = self.plan.schedule.intended_ns
        for start in range(0, len(missing), 65_536):
            part = missing[start : start + 65_536]
            status, reason = (LOST_WORKER, _LOST_REASON) if self.start_ns is not None else (NOT_SENT, STOPPED)
            self.take_rows(unanswered_batch(self._seqs[part], intended[part], status, reason))
        after = server_process_start(self.plan.target.host)
        known = self._server_before is not None and after is not None
        self._rows.close()
        summary = {
            "schema_version": SCHEMA_VERSION,
            "ended_at": utc_now(),
            "arrivals": len(self._seqs),
            "workers": self.workers,
            "lost_workers": self.workers - len(self.generators),
            "generators": [{"worker": worker, **generator} for worker, generator in sorted(self.generators.items())],
            "resent": sum(generator.get("resent", 0) for generator in self.generators.values()),
            "server_restarted": (self._server_before != after) if known else None,
            **summarize(self._rows.path, slo_ns=self.plan.slo_ns, duration_ns=self.plan.schedule.duration_ns),
        }
        self.folder.write_json("summary.json", summary)
        self._write_run()  # with what the clocks were at the end
        self.final = self.folder.finish()
        return self.final

    def _write_run(self) -> None:
        plan, target = self.plan, self.plan.target
        self.folder.write_run(
            "load",
            {
                "scenario": plan.scenario,
                "settings": plan.settings,
                "environment": plan.environment,
                "versions": {
                    "bench": bench.__version__,
                    "python": platform.python_version(),
                    **{name: installed_version(name) for name in ("locust", "gevent", "pyarrow", "numpy")},
                },
                "seeds": {"arrivals_and_inputs": plan.seed},
                "hashes": {
                    "schedule_sha256": hashlib.sha256((self.folder.path / "schedule.parquet").read_bytes()).hexdigest(),
                    "request_sha256": hashlib.sha256(target.request).hexdigest(),
                },
                "target": {
                    "host": target.host,
                    "server": target.server,
                    "server_parameters": target.server_parameters,
                    "model": target.model,
                    "platform": target.platform,
                    "encoding": target.encoding,
                    "inputs": [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in target.inputs],
                    "request_bytes": len(target.request),
                },
                "schedule": {
                    "arrivals": len(self._seqs),
                    "duration_ns": plan.schedule.duration_ns,
                    "provenance": dict(plan.schedule.provenance),
                },
                "workers": self.workers,
                "started_at": self._started_at,
                "anchor": self._anchor,
                "start_monotonic_ns": self.start_ns,
                "clocks": [clock.to_json() for clock in self.clocks],
            },
        )


def connection_limit(asked: int) -> int:
    """`--max-connections`, or as many as the process may have files, less some for everything else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = asked + _RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if soft == resource.RLIM_INFINITY else max(1, min(asked, soft - _RESERVED_FILES))


def collect_environment() -> dict[str, Any] | None:
    """The environment as `bench env --json` tells it, from a process of its own; None where that does not work."""
    done = run_bench("env", "--json")
    try:
        value = json.loads(done.stdout)
    except ValueError:
        return None
    return value if done.returncode == 0 and isinstance(value, dict) else None


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A `bench` command in a process of its own: analysis stays out of the process that sends."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path}
    )
