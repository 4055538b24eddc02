"""Cold-start trials: every level of every variant, each trial in a child process, interleaved in random order.

One round holds each (variant, level) once, in an order drawn from the seed, so that drift of the machine meets all of
them alike and an interrupted run is balanced. A trial of a process level is a fresh process; `engine`, `slot`, `warm`
and `floor` run in one process a variant that is up already. Rows go to `cold_starts.arrows` as each trial ends.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import pagecache
from bench.engine.manifest import Manifest, read_manifest
from bench.errors import BenchError
from bench.records import RunFolder, TableStream
from bench.server_process import ServerProcess
from bench.server_trial import run_server_trial
from bench.subprocesses import Child, child_environment, module_command

if TYPE_CHECKING:
    import pyarrow as pa

PROCESS_LEVELS = ("process", "process-disk")
SERVER_LEVEL = "server"
LEVELS = (SERVER_LEVEL, *PROCESS_LEVELS, "engine", "slot", "warm")
FLOOR = "floor"
FLOOR_DISK = "floor-disk"
MOST_TRIALS = 100_000
_WARM_FRACTION = 0.99  # of an engine's pages, for the page cache to count as warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One engine with its settings and environment; `label` is empty where there is only one."""

    label: str
    engine_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a cold-start run does."""

    variants: tuple[Variant, ...]
    levels: tuple[str, ...] = LEVELS
    trials: int = 20
    seed: int = 0
    python: str | None = None
    trust: Path | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """One trial of the plan, in its place."""

    trial: int
    variant: Variant
    level: str


def check_plan(plan: Plan) -> None:
    """Raises BenchError for what can be known to be wrong before the first trial."""
    if plan.trials < 1:
        raise BenchError(f"--trials {plan.trials}: at least one trial is needed")
    if plan.trials > MOST_TRIALS:
        raise BenchError(f"--trials {plan.trials}: at most {MOST_TRIALS:,} are taken")
    unknown = [level for level in plan.levels if level not in LEVELS]
    if unknown or not plan.levels:
        raise BenchError(f"--level {unknown[0] if unknown else ''}: levels are {', '.join(LEVELS)}")


def order_trials(plan: Plan) -> list[PlannedTrial]:
    """All trials in the order they run: rounds of one trial each, shuffled inside the round from the seed."""
    draw = random.Random(plan.seed)
    floors = [FLOOR, *([FLOOR_DISK] if "process-disk" in plan.levels else [])]
    ordered = []
    for trial in range(plan.trials):
        block = [PlannedTrial(trial=trial, variant=v, level=level) for v in plan.variants for level in (*plan.levels, *floors)]
        draw.shuffle(block)
        ordered += block
    return ordered


def run_trials(plan: Plan, table: TableStream, progress: Callable[[int, int], None] = lambda _done, _all: None) -> int:
    """Run the plan and write each trial's rows. Returns how many trials were run; on Ctrl-C what was done is in the table.

    Raises BenchError with the child's own sentence where a trial fails.
    """
    check_plan(plan)
    manifests = {variant.label: read_manifest(variant.engine_dir) for variant in plan.variants}
    ordered = order_trials(plan)
    with contextlib.ExitStack() as stack:
        residents: dict[str, Child] = {}
        for variant in plan.variants:
            residents[variant.label] = child = stack.enter_context(_start(plan, variant, "--resident"))
            expect(child, "up", plan.timeout_s)
        for number, planned in enumerate(ordered):
            progress(number, len(ordered))
            table.write(_run_trial(plan, planned, number, residents[planned.variant.label], manifests[planned.variant.label]))
        progress(len(ordered), len(ordered))
    return len(ordered)


def _start(plan: Plan, variant: Variant, *arguments: str) -> Child:
    command = module_command("reference_server.probe", str(variant.engine_dir.resolve()), *arguments, python=plan.python)
    for key, value in variant.settings.items():
        command += ["--set", f"{key}={value}"]
    if plan.trust is not None:
        command += ["--trust", str(plan.trust.resolve())]
    return Child(command, child_environment(variant.environment))


def _start_server(plan: Plan, variant: Variant) -> ServerProcess:
    flags = ["--mode=warm-pool", "--pool-size=1", "--tell-phases", *(f"--set={key}={value}" for key, value in variant.settings.items())]
    if plan.trust is not None:
        flags.append(f"--trust={plan.trust.resolve()}")
    return ServerProcess([variant.engine_dir], flags, environment=variant.environment, python=plan.python, timeout_s=plan.timeout_s)


def _run_trial(plan: Plan, planned: PlannedTrial, number: int, resident: Child, manifest: Manifest) -> list[dict[str, Any]]:
    files = [planned.variant.engine_dir / file.name for file in manifest.engine_files]
    page_cache = None
    if planned.level in (SERVER_LEVEL, *PROCESS_LEVELS, FLOOR, FLOOR_DISK, "engine"):
        page_cache = _drop_pages(files) if planned.level in ("process-disk", FLOOR_DISK) else _warm_pages(files)
    if planned.level == SERVER_LEVEL:
        trial = run_server_trial(planned.variant.engine_dir, manifest, lambda: _start_server(plan, planned.variant))
        seen_ns = trial["answered_ns"]
    elif planned.level in PROCESS_LEVELS:
        with _start(plan, planned.variant, "--level", "process") as child:
            seen_ns, trial = read_trial(child, plan.timeout_s)
            child.wait(plan.timeout_s)
            spawned_ns = child.started_ns
        first_line_ns = trial["started_ns"]
        trial["phases"].insert(
            0, {"name": "spawn", "start_ns": spawned_ns, "end_ns": first_line_ns, "resident_bytes": None, "device_bytes": None}
        )
        trial["started_ns"] = spawned_ns
    else:
        resident.send_line(FLOOR if planned.level == FLOOR_DISK else planned.level)
        seen_ns, trial = read_trial(resident, plan.timeout_s)
    return list(trial_rows(planned, number, trial, seen_ns, page_cache))


def expect(child: Child, event: str, timeout_s: float) -> tuple[dict[str, Any], int]:
    """The child's next line, which must be of this event. Raises BenchError."""
    line, seen_ns = child.read_line(timeout_s)
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("event") != event:
        raise BenchError(f"process {child.pid} printed {line[:80]!r} where a line of event {event!r} was due")
    return value, seen_ns


def read_trial(child: Child, timeout_s: float) -> tuple[int, dict[str, Any]]:
    """When this process saw the answer, and the trial that the child then reports."""
    _, seen_ns = expect(child, "answer", timeout_s)
    trial, _ = expect(child, "trial", timeout_s)
    return seen_ns, trial


def trial_rows(
    planned: PlannedTrial, number: int, trial: Mapping[str, Any], seen_ns: int, page_cache: str | None
) -> Iterator[dict[str, Any]]:
    """One row a phase, one for what no phase covers, and the total by the child's clock and by ours.

    Rows with `in_total` add up to the total: `unattributed` is what is left, and is never negative but by a clock's step.
    """
    started, total = trial["started_ns"], trial["answered_ns"] - trial["started_ns"]
    common = {"order": number, "trial": planned.trial, "variant": planned.variant.label, "level": planned.level, "page_cache": page_cache}
    attributed = 0
    for in_total, phases in ((True, trial["phases"]), (False, trial["after"])):
        for phase in phases:
            duration = phase["end_ns"] - phase["start_ns"]
            attributed += duration if in_total else 0
            yield {
                **common,
                "phase": phase["name"],
                "in_total": in_total,
                "start_ns": phase["start_ns"] - started,
                "duration_ns": duration,
                "resident_bytes": phase["resident_bytes"],
                "device_bytes": phase["device_bytes"],
            }
    measured = {"resident_bytes": trial["resident_bytes"], "device_bytes": None}
    yield {**common, **measured, "phase": "unattributed", "in_total": True, "start_ns": None, "duration_ns": total - attributed}
    yield {**common, **measured, "phase": "total", "in_total": False, "start_ns": 0, "duration_ns": total}
    yield {**common, **measured, "phase": "total_outside", "in_total": False, "start_ns": 0, "duration_ns": seen_ns - started}


def cold_start_schema(subject: str | None = None) -> pa.Schema:
    """The columns of `cold_starts` (times in ns, memory in bytes; null is not known). Its metadata keep what was measured."""
    import pyarrow as pa

    return pa.schema(
        [
            ("order", pa.int32()),
            ("trial", pa.int32()),
            ("variant", pa.string()),
            ("level", pa.string()),
            ("phase", pa.string()),
            ("in_total", pa.bool_()),
            ("start_ns", pa.int64()),
            ("duration_ns", pa.int64()),
            ("resident_bytes", pa.int64()),
            ("device_bytes", pa.int64()),
            ("page_cache", pa.string()),
        ],
        metadata=None if subject is None else {"coldburst.subject": subject},
    )


def _drop_pages(files: Sequence[Path]) -> str:
    """`dropped` where the engine's pages are verified to be out of the page cache, else `unknown`."""
    return "dropped" if all(list(map(pagecache.drop, files))) else "unknown"


def _warm_pages(files: Sequence[Path]) -> str:
    for path in files:
        pagecache.warm(path)
    fractions = [pagecache.resident_fraction(path) for path in files]
    return "warm" if all(f is not None and f >= _WARM_FRACTION for f in fractions) else "unknown"


def start_run(results: Path, run_id: str, plan: Plan, environment: Mapping[str, Any], command: Sequence[str]) -> RunFolder:
    """Make the run folder and write its `run.json`."""
    from bench.clock import wall_anchor

    folder = RunFolder.create(results, run_id)
    manifests = {variant.label: read_manifest(variant.engine_dir) for variant in plan.variants}
    folder.write_run(
        "coldstart",
        {
            "clock": wall_anchor(),
            "settings": {
                "levels": list(plan.levels),
                "trials": plan.trials,
                "seed": plan.seed,
                "python": plan.python,
                "timeout_s": plan.timeout_s,
            },
            "variants": [
                {
                    "label": v.label,
                    "settings": dict(v.settings),
                    "environment": dict(v.environment),
                    "engine": json.loads(manifests[v.label].to_json()),
                }
                for v in plan.variants
            ],
            "environment": dict(environment),
        },
        command,
    )
    return folder
