"""What the study consists of, read from `cases.json`: engines, cases, their schedules; and where everything is kept."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.units import parse_duration_ns

if TYPE_CHECKING:
    from bench.capacity.offered import Offered
    from bench.load.schedule import Schedule

HERE = Path(__file__).resolve().parent
GROUPS = ("synthetic", "real", "tuning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load on one engine with one P99 to hold. arrivals: in words; else `trace`: a file of shared/traces and how it is cut."""

    group: str
    name: str
    engine: str
    slo: str
    arrivals: str | None = None
    trace: Mapping[str, Any] | None = None

    @property
    def slo_ns(self) -> int:
        return parse_duration_ns(self.slo, f"slo of {self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """seeds: of the held-out runs, one run each. plan_seeds: of the predictions; the two share none."""

    engines: Mapping[str, Mapping[str, Any]]
    cases: tuple[Case, ...]
    seeds: tuple[int, ...]
    plan_seeds: tuple[int, ...]
    memory: str

    def of(self, group: str) -> list[Case]:
        return [case for case in self.cases if case.group == group]

    def most_slots(self, case: Case) -> int:
        """As many as the curve of its engine is measured with."""
        return int(self.engines[case.engine]["curve"]["slots"].rpartition("..")[2])


def read_study(path: Path = HERE / "cases.json") -> Study:
    given = json.loads(path.read_text("utf-8"))
    cases = tuple(Case(group=group, **case) for group in GROUPS for case in given[group])
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise BenchError(f"{path} has two cases of one name")
    return Study(
        engines=given["engines"],
        cases=cases,
        seeds=tuple(given["seeds"]),
        plan_seeds=tuple(range(given["plan_seeds"][0], given["plan_seeds"][1] + 1)),
        memory=given["memory"],
    )


@cache
def traces() -> Path:
    """`shared/traces`: under COLDBURST_SHARED, or beside one of the folders above this one. Raises BenchError."""
    named = os.environ.get("COLDBURST_SHARED")
    places = [Path(named)] if named else [folder / "shared" for folder in HERE.parents]
    found = next((place / "traces" for place in places if (place / "traces").is_dir()), None)
    if found is None:
        raise BenchError("there is no shared/traces above this folder: say where with COLDBURST_SHARED")
    return found


def schedule_of(case: Case, seed: int) -> Schedule:
    """The arrivals of one seed: an independent draw of the process, or of which users of the trace are there."""
    from bench.load.arrivals_text import parse_arrivals
    from bench.load.traces.importing import import_trace
    from bench.load.traces.transform import Steps

    if case.arrivals is not None:
        return parse_arrivals(case.arrivals).schedule(seed)
    assert case.trace is not None
    how = case.trace
    start, end = (parse_duration_ns(part, "window") for part in how["window"].split(":"))
    spread = how.get("spread")
    steps = Steps(
        window=(start, end),
        spread_ns=None if spread is None else parse_duration_ns(spread, "spread"),
        rate_factor=how["scale_rate"],
        time_factor=how["scale_time"],
        seed=seed,
    )
    return import_trace(traces() / how["file"], steps=steps, columns=[])


def offered_of(case: Case, seeds: Sequence[int]) -> Offered:
    """The load as a plan takes it, one draw a seed."""
    from bench.capacity.offered import Offered, of_process
    from bench.load.arrivals_text import parse_arrivals

    if case.arrivals is not None:
        return of_process(parse_arrivals(case.arrivals), seeds)
    assert case.trace is not None
    return Offered(text=str(case.trace["file"]), schedules=tuple(schedule_of(case, seed) for seed in seeds), process=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One held-out run."""

    case: Case
    size: int
    block: int


def order_runs(study: Study, group: str, sizes: Mapping[str, Sequence[int]]) -> list[Planned]:
    """Seed by seed, and of each seed all cases and sizes in a random order, so that drift of the machine meets all alike."""
    ordered = []
    for block in range(len(study.seeds)):
        runs = [Planned(case=case, size=size, block=block) for case in study.of(group) for size in sizes[case.name]]
        random.Random(block).shuffle(runs)
        ordered += runs
    return ordered
