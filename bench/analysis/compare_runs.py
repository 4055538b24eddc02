"""Two runs on the disk, side by side: may they be compared at all, and what differs?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.compare import compare_p99
from bench.analysis.experiment import ArmComparison, summarize_arm
from bench.analysis.load_run import read_arm
from bench.analysis.memory import memory_difference
from bench.analysis.recovery import compare_recovery
from bench.analysis.subject import ArmFiles, Subject, open_subject, schedule_hash
from bench.analysis.validity import check_run
from bench.errors import BenchError

# What makes two engines another thing to measure; the rest of a manifest (when and where it was built) does not.
_ENGINE = {
    "source_sha256": "model",
    "runtime": "runtime",
    "runtime_version": "runtime version",
    "precision": "precision",
    "device": "device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """obstacles: why the two should not be compared, empty where they may. arms: `B` against `A`, for each pair of arms
    (the only ones, or those of the same name)."""

    first: str
    second: str
    obstacles: tuple[str, ...]
    arms: tuple[ArmComparison, ...]


def compare_runs(first: Path, second: Path, *, anyway: bool = False) -> RunComparison:
    """Compare two load runs or experiments. Without `anyway` nothing is computed where there is an obstacle. Raises BenchError."""
    one, two = open_subject(first), open_subject(second)
    if one.path.resolve() == two.path.resolve():
        raise BenchError(f"{first} and {second} are the same run")
    obstacles = tuple(_obstacles(one, two))
    pairs = _pairs(one, two)
    arms = tuple(_compare(a, b, one, two) for a, b in pairs) if anyway or not obstacles else ()
    return RunComparison(first=one.path.name, second=two.path.name, obstacles=obstacles, arms=arms)


def _pairs(one: Subject, two: Subject) -> list[tuple[ArmFiles, ArmFiles]]:
    ours, theirs = ([arm for arm in subject.arms if arm.runs] for subject in (one, two))
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    named = {arm.name: arm for arm in theirs}
    pairs = [(arm, named[arm.name]) for arm in ours if arm.name in named]
    if not pairs:
        names = [", ".join(arm.name for arm in arms) for arms in (ours, theirs)]
        raise BenchError(f"{one.path.name} has the arms {names[0]} and {two.path.name} {names[1]}: they have none in common")
    return pairs


def _compare(first: ArmFiles, second: ArmFiles, one: Subject, two: Subject) -> ArmComparison:
    a, b = read_arm(first.runs, first.numbers), read_arm(second.runs, second.numbers)
    ours, theirs = summarize_arm(first, a, one.slo_ns), summarize_arm(second, b, two.slo_ns)
    p99, reason = None, None
    unstable = [place for place, arm in (("the first", ours), ("the second", theirs)) if arm.unstable]
    if unstable:
        reason = f"{' and '.join(unstable)} cannot hold the base rate: a P99 grows with the length of the run"
    else:
        try:
            p99 = compare_p99(a.requests, b.requests)
        except BenchError as error:
            reason = str(error)
    kind, memory_bytes = memory_difference(ours.held, theirs.held)
    return ArmComparison(
        first=f"{first.name} of {one.path.name}",
        second=f"{second.name} of {two.path.name}",
        p99=p99,
        reason=reason,
        recovery=compare_recovery(ours.recovery, theirs.recovery) if ours.recovery and theirs.recovery else None,
        memory_kind=kind,
        memory_bytes=memory_bytes,
        per_slot=None,
    )


def _obstacles(one: Subject, two: Subject) -> list[str]:
    found = []
    for subject in (one, two):
        for arm in subject.arms:
            for run in arm.runs:
                problem = next((check.problem for check in check_run(run.path).checks if check.problem), None)
                if problem:
                    found.append(f"{run.path.name} of {subject.path.name} is not valid: {problem}")
        missing = sum(arm.planned - len(arm.runs) for arm in subject.arms)
        if missing:
            found.append(f"{subject.path.name} is not whole: {missing} runs are missing")
    found += [f"another {what}: {a} and {b}" for what, a, b in _differing(one, two)]
    if schedule_hash(one) != schedule_hash(two):
        found.append(
            "another schedule: the arrivals are not the same, so neither are the spikes (replay one with the other's --schedule or seed)"
        )
    return found


def _differing(one: Subject, two: Subject) -> list[tuple[str, Any, Any]]:
    pairs = [(word, one.engine.get(key), two.engine.get(key)) for key, word in _ENGINE.items()]
    if not one.engine or not two.engine:  # a server that we did not start: what it said of itself
        ours, theirs = _target(one), _target(two)
        pairs = [
            (word, ours.get(key), theirs.get(key))
            for key, word in (("model", "model"), ("platform", "platform"), ("inputs", "input shape"))
        ]
    pairs.append(("processor", _processor(one), _processor(two)))
    return [(word, _short(a), _short(b)) for word, a, b in pairs if a != b]


def _target(subject: Subject) -> Mapping[str, Any]:
    runs = [run for arm in subject.arms for run in arm.runs]
    target: Mapping[str, Any] = runs[0].run.get("target") or {}
    return target


def _processor(subject: Subject) -> Any:
    cpu = (subject.record.get("environment") or {}).get("cpu") or {}
    return (cpu.get("model"), cpu.get("usable_cores")) if cpu else None


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 40 else text[:12] + "…"
