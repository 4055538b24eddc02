"""A validation on the disk: `results/<id>/` of kind `validation`, with the plan that it is of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.capacity.plan import Plan
from bench.capacity.saved_plan import SavedPlan, plan_of
from bench.capacity.validation import Validation
from bench.engine.manifest_reading import decode
from bench.errors import BenchError
from bench.records import RunFolder, SavedRun, new_run_id, open_run

KIND = "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValidation:
    """The validation, and the plan."""

    saved: SavedRun
    validation: Validation
    plan: Plan


def save_validation(results: Path, validation: Validation, plan: SavedPlan, runs: Sequence[Path], command: Sequence[str]) -> RunFolder:
    """Write the folder, still `.partial`. Raises BenchError."""
    folder = RunFolder.create(results, new_run_id(KIND, str(plan.measured.engine.get("name", "model"))))
    folder.write_run(
        KIND,
        {
            "title": plan.measured.subject,
            "plan": plan.saved.run,
            "runs": [str(path) for path in runs],
            "environment": plan.saved.run.get("environment") or {},
        },
        command,
    )
    folder.write_json("plan.json", dataclasses.asdict(plan.plan))
    folder.write_json("summary.json", dataclasses.asdict(validation))
    return folder


def read_validation(path: Path) -> SavedValidation:
    """Raises BenchError where the folder is no validation, or is damaged."""
    saved = open_run(path, KIND)
    summary, plan = saved.read_json("summary.json"), saved.read_json("plan.json")
    if summary is None or plan is None:
        raise BenchError(f"{path} lacks its summary.json or plan.json: make it again with `bench validate`")
    try:
        validation: Validation = decode(Validation, summary)
    except ValueError as error:
        raise BenchError(f"{path / 'summary.json'} is not a validation of this version ({error}): make it again") from None
    return SavedValidation(saved=saved, validation=validation, plan=plan_of(plan, path))
