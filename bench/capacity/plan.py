"""The plan: of all sizes that hold the goal the one to take, why not a smaller one, and what is known of its neighbours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.capacity.candidates import COLD, ELASTIC, FAMILIES, LAZY, Candidate, Rules, left_out
from bench.capacity.choice import MEAN, PEAK, choose, miss_text, range_text
from bench.capacity.cost import Cost, Price, cost
from bench.capacity.goal import PERCENT, Goal
from bench.capacity.limits import Limit, headroom, limit_of, limit_of_failure
from bench.capacity.predict import LEAST_SEEDS, Prediction, replica_bytes
from bench.capacity.rules_of_thumb import RuleOfThumb, rules_of_thumb
from bench.capacity.search import Bounds, Found, Search, search_all
from bench.capacity.sensitivity import Variation, sensitivity
from bench.errors import BenchError
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.offered import Offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load in figures; arrivals: of one seed. cv: None where no process made it."""

    text: str
    arrivals: int
    duration_s: float
    mean_per_s: float
    peak_per_s: float
    cv: float | None
    fixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The answer of one family. prediction: the smallest that holds, or the closest where none does; None with the
    reason `why` where the family could not be tried. headroom: see bench.capacity.limits, of those that hold."""

    name: str
    holds: bool
    prediction: Prediction | None
    headroom: float | None
    cost: Cost | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `bench plan` answers. answer: the candidate to take, or the closest where nothing holds (`holds`). tried: every
    candidate that was simulated, for the frontier. usable_bytes: memory of a replica's device less the reserve. settings: the
    runtime settings that the curve's servers had, and that those of the plan must have. measured_slots: the numbers of busy slots
    of the curve; service_ns and throughput_per_s have all from 1 on, the others from the next one measured. memory_by: what was
    the less memory, `peak` or `mean`. invalid: why the runs that it was made of may not be used. The defaults are those of plans that
    did not know of it yet."""

    sentence: str
    subject: str
    on_cpu: bool
    load: Load
    goal: Goal
    rules: Rules
    price: Price | None
    usable_bytes: int | None
    most_slots: int
    most_replicas: int
    seeds: tuple[int, ...]
    holds: bool
    answer: Prediction | None
    limit: Limit | None
    headroom: float | None
    cost: Cost | None
    families: tuple[Family, ...]
    tried: tuple[Prediction, ...]
    variations: tuple[Variation, ...]
    rules_of_thumb: tuple[RuleOfThumb, ...]
    service_ns: tuple[float, ...]
    throughput_per_s: tuple[float, ...]
    useful_slots: int
    memory_kind: str
    settings: Mapping[str, str]
    notes: tuple[str, ...]
    measured_slots: tuple[int, ...] = ()
    memory_by: str = MEAN
    invalid: tuple[str, ...] = ()

    @property
    def curve_slots(self) -> tuple[int, ...]:
        """The numbers of busy slots that were measured; all, where the plan does not tell."""
        return self.measured_slots or tuple(range(1, len(self.service_ns) + 1))

    @property
    def may_miss(self) -> bool:
        """Whether the answer holds over all seeds, and a single run may miss its first SLO."""
        spread = self.answer.interval if self.answer is not None else None
        return self.holds and spread is not None and spread.high > self.goal.slo.bound_ns


def make_plan(
    measured: Measured,
    offered: Offered,
    goal: Goal,
    rules: Rules,
    bounds: Bounds,
    seeds: Sequence[int],
    *,
    families: Sequence[str] = FAMILIES,
    price: Price | None = None,
    vary: bool = True,
    memory_by: str = PEAK,
    notes: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _text: None,
) -> Plan:
    """Search, choose, explain. `notes`: what else has to be said beside the answer. Raises BenchError where the question makes
    no sense: an SLO below the service time, a memory too small for one slot, a phase that the load does not have, only ways to serve
    that have to be left out."""
    _refuse_nonsense(measured, offered, goal, bounds)
    search = Search(measured=measured, offered=offered, goal=goal, rules=rules, bounds=bounds, seeds=seeds)
    progress("sizes (the first plan on a machine compiles the simulation, which takes half a minute)")
    found = search_all(search, families)
    progress("headroom and limits")
    rooms = {one.family: headroom(search, one.smallest) for one in found if one.smallest is not None}
    chosen = choose(found, rooms, memory_by)
    closest = chosen or _closest(found)
    if closest is None:
        why = "; ".join(left_out((one.family, one.why or "it has no size within --max-slots and --memory") for one in found))
        raise BenchError(f"no way to serve that was asked for can be planned ({why}): ask for another one with --modes, or for all")
    limit = limit_of(search, chosen) if chosen is not None else limit_of_failure(search, closest)
    variations = sensitivity(search, closest.candidate, progress) if vary else ()
    plan = Plan(
        sentence="",
        subject=measured.subject,
        on_cpu=str(measured.engine.get("device", "")).startswith("cpu"),
        load=_load(offered),
        goal=goal,
        rules=rules,
        price=price,
        usable_bytes=bounds.usable_bytes,
        most_slots=bounds.most_slots,
        most_replicas=bounds.most_replicas,
        seeds=tuple(seeds),
        holds=chosen is not None,
        answer=closest,
        limit=limit,
        headroom=rooms.get(chosen.candidate.family) if chosen is not None else None,
        cost=_cost(price, closest, offered),
        families=tuple(
            Family(
                name=one.family,
                holds=one.smallest is not None,
                prediction=one.best,
                headroom=rooms.get(one.family),
                cost=_cost(price, one.best, offered),
                why=one.why,
            )
            for one in found
        ),
        tried=tuple(sorted(search.done.values(), key=lambda one: (FAMILIES.index(one.candidate.family), one.candidate.text))),
        variations=variations,
        rules_of_thumb=_thumbs(measured, offered, goal, bounds),
        service_ns=tuple(float(np.median(level)) for level in measured.levels),
        throughput_per_s=measured.throughput_per_s,
        useful_slots=measured.useful_slots,
        memory_kind=measured.memory.kind,
        settings=measured.own_settings,
        notes=(*_of_the_curve(measured), *notes, *_notes(measured, found, closest, len(seeds))),
        measured_slots=measured.busy,
        memory_by=memory_by,
        invalid=measured.invalid,
    )
    return dataclasses.replace(plan, sentence=sentence(plan))


def sentence(plan: Plan) -> str:
    """The answer in one sentence."""
    slo = plan.goal.slo
    name = f"{f'{slo.phase}.' if slo.phase else ''}{slo.statistic}"
    bound = format_duration(slo.bound_ns)
    answer = plan.answer
    assert answer is not None  # make_plan refuses what has none
    value = format_duration(answer.values_ns[0])
    if not plan.holds:
        missed = (
            f"{name} is {value}" if answer.value_ns > slo.bound_ns else f"only {answer.attainment:.2%} of the arrivals are answered in time"
        )
        why = f": {plan.limit.what} limits, {plan.limit.why}" if plan.limit is not None else ""
        return f"Nothing holds {name} <= {bound}; {answer.candidate.text} comes closest ({missed}){why}."
    parts = []
    if answer.peak_bytes is not None:
        parts.append(f"holds {format_size(answer.peak_bytes)}")
    if plan.headroom is not None:
        parts.append(f"has room for {plan.headroom:.0%} more load")
    if plan.cost is not None and plan.price is not None:
        parts.append(f"costs {plan.price.text(plan.cost.per_hour)} an hour, {plan.price.text(plan.cost.per_million)} per million requests")
    spread = f", {range_text(answer.interval)} in a single run" if answer.interval and not plan.may_miss else ""
    single = miss_text(plan)
    risk = "" if single is None else f"; {single}"
    limits = (
        f"; {plan.limit.what} limits: {_without(plan.limit, slo.bound_ns)}" if plan.limit is not None else "; it is the smallest there is"
    )
    it = answer.candidate.text if single is not None else "it"
    return f"Take {answer.candidate.text}: {name} is {value} of {bound}{spread}{risk}; {it} {_and(parts)}{limits}."


def _without(limit: Limit, bound_ns: int) -> str:
    smaller = limit.smaller
    if smaller is None or smaller.values_ns[0] is None:
        return limit.why
    if smaller.values_ns[0] <= bound_ns:
        return f"{smaller.candidate.text} would answer {smaller.attainment:.2%} in time"
    return f"{smaller.candidate.text} would have {format_duration(smaller.values_ns[0])}"


def _and(parts: Sequence[str]) -> str:
    if not parts:
        return "holds the goal"
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _closest(found: Sequence[Found]) -> Prediction | None:
    known = [one.closest for one in found if one.closest is not None]
    return min(known, key=lambda one: (one.value_ns, FAMILIES.index(one.candidate.family))) if known else None


def _refuse_nonsense(measured: Measured, offered: Offered, goal: Goal, bounds: Bounds) -> None:
    slo = goal.slo
    alone = float(np.median(measured.levels[0])) + float(np.median(measured.overheads_ns[0]))
    if slo.bound_ns < alone and PERCENT[slo.statistic] >= 50:
        raise BenchError(
            f"--slo {slo.text}: half of the requests take longer than that with nobody else there ({format_duration(alone)} in the curve), "
            "so no size holds it; allow more time, or serve a faster engine"
        )
    one = replica_bytes(Candidate(family="warm-pool", slots=1), measured)
    if bounds.usable_bytes is not None:
        if one is None:
            raise BenchError("--memory needs to know what a slot holds, and the curve does not tell: measure it with two numbers of slots")
        if one > bounds.usable_bytes:
            raise BenchError(
                f"--memory leaves {format_size(bounds.usable_bytes)} behind the reserve, and one slot of {measured.subject} needs "
                f"{format_size(one)} with its engine and process: give it more, or a smaller engine"
            )
    for gate in goal.slos:
        phases = set(offered.schedules[0].table.column("phase").cast("string").to_pylist())
        if gate.phase is not None and gate.phase not in phases:
            raise BenchError(f"--slo {gate.text!r}: the load has no phase {gate.phase!r}, only {', '.join(sorted(phases))}")


def _load(offered: Offered) -> Load:
    return Load(
        text=offered.text,
        arrivals=offered.arrivals,
        duration_s=offered.duration_s,
        mean_per_s=offered.mean_per_s,
        peak_per_s=offered.peak_per_s,
        cv=offered.cv,
        fixed=offered.process is None,
    )


def _cost(price: Price | None, prediction: Prediction | None, offered: Offered) -> Cost | None:
    return None if price is None or prediction is None else cost(price, prediction.replicas, offered.mean_per_s)


def _thumbs(measured: Measured, offered: Offered, goal: Goal, bounds: Bounds) -> tuple[RuleOfThumb, ...]:
    return rules_of_thumb(
        mean_per_s=offered.mean_per_s,
        peak_per_s=offered.peak_per_s,
        service_s=float(measured.levels[0].mean()) / 1e9,
        bound_s=goal.slo.bound_ns / 1e9,
        share=PERCENT[goal.slo.statistic] / 100,
        memory_bytes=bounds.usable_bytes,
        model_bytes=measured.model_bytes,
    )


def _of_the_curve(measured: Measured) -> tuple[str, ...]:
    """What the curve itself leaves open, before anything else."""
    notes = list(measured.curve_notes)
    levels = len(measured.levels)
    if len(measured.busy) < levels:
        there = ", ".join(map(str, measured.busy))
        notes.append(
            f"the curve was measured with {there} busy slots; in between, the simulation takes the service times of the next larger number"
        )
    return tuple(notes)


def _notes(measured: Measured, found: Sequence[Found], answer: Prediction, seeds: int) -> tuple[str, ...]:
    notes = [*measured.starts.notes]
    notes += left_out((one.family, one.why) for one in found if one.why)
    if answer.candidate.family in (ELASTIC, LAZY, COLD):
        notes.append(
            f"{answer.candidate.family} loads while it serves, and on a real device loads slow down what runs beside them, which is not in "
            "the simulation: under load it comes out too well here, so measure it before you rely on it (bench burst, then bench validate)"
        )
    if seeds < LEAST_SEEDS:
        notes.append(f"{seeds} seed{'s' if seeds > 1 else ''} cannot tell how single runs differ: give --seeds {LEAST_SEEDS} or more")
    if not measured.memory.known:
        notes.append("what a slot holds is not known, so the plan has no memory in it: measure the curve with two numbers of slots")
    threads = measured.own_settings.get("threads")
    if threads is not None:
        notes.append(
            f"holds for servers with threads={threads} a slot, as the curve was measured (bench serve --set threads={threads}; "
            f"in bench burst --arms, threads={threads})"
        )
    return tuple(notes)
