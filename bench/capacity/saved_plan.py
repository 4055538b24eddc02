"""A plan on the disk: `results/<id>/` of kind `plan`, with the samples and the arrivals that it was made of."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.capacity.measured import Measured, read_measured, write_measured
from bench.capacity.plan import Plan
from bench.engine.manifest_reading import decode
from bench.errors import BenchError
from bench.records import RunFolder, SavedRun, new_run_id, open_run

if TYPE_CHECKING:
    from bench.capacity.offered import Offered

KIND = "plan"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedPlan:
    """The plan, and what it was made of."""

    saved: SavedRun
    plan: Plan
    measured: Measured


def save_plan(
    results: Path, plan: Plan, measured: Measured, offered: Offered, *, environment: Mapping[str, Any], command: Sequence[str]
) -> RunFolder:
    """Write the folder, still `.partial`: a report may be put into it before `finish`. Raises BenchError, and OSError with the file's
    name where the disk is full; then no half of it is left."""
    from bench.load.schedule import write_schedule

    folder = RunFolder.create(results, new_run_id(KIND, str(measured.engine.get("name", "model"))))
    with whole_or_gone(folder.path):
        about = write_measured(measured, folder.path)
        folder.write_run(KIND, {"title": measured.subject, "measured": about, "environment": dict(environment)}, command)
        write_schedule(offered.schedules[0], folder.path / "schedule.parquet")
        folder.write_json("summary.json", dataclasses.asdict(plan))
    return folder


@contextlib.contextmanager
def whole_or_gone(path: Path) -> Iterator[None]:
    """Remove the folder where an error ends its writing: what was computed and not measured is soon made again."""
    try:
        yield
    except BaseException:  # also Ctrl-C, and a defect
        shutil.rmtree(path, ignore_errors=True)
        raise


def read_plan(path: Path) -> SavedPlan:
    """Raises BenchError where the folder is no plan, or is damaged."""
    saved = open_run(path, KIND)
    summary = saved.read_json("summary.json")
    if summary is None:
        raise BenchError(f"{path} has no summary.json, so its plan was not finished: make it again with `bench plan`")
    for table in ("measured", "schedule"):
        saved.check_table(table)
    return SavedPlan(saved=saved, plan=plan_of(summary, path), measured=read_measured(saved.path, saved.run.get("measured") or {}))


def plan_of(summary: Mapping[str, Any], where: Path) -> Plan:
    """The plan that `summary.json` holds. Raises BenchError."""
    try:
        plan: Plan = decode(Plan, json.loads(json.dumps(summary)))
    except ValueError as error:
        raise BenchError(f"{where / 'summary.json'} is not a plan of this version ({error}): make it again with `bench plan`") from None
    return plan
