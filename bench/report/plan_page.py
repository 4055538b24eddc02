"""The page of a plan: the answer, each way to serve, the pictures, and what the model takes for granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.capacity.candidates import SCALE_OUT
from bench.capacity.choice import miss_text, straddled, why_chosen
from bench.capacity.sensitivity import BURSTINESS
from bench.report.facts import environment_facts
from bench.report.page import Page, Picture, Table
from bench.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from bench.capacity.plan import Family, Plan
    from bench.capacity.predict import Prediction

METHOD = (
    (
        "simulation",
        "Every arrival of the load goes through a simulated server: first come, first served; a slot takes a time drawn from those "
        "measured with as many slots busy; loads and starts take times drawn from the cold-start run. Its queues are the reference "
        "server's. All seeds are pooled; the range is where a single further run would lie (95 %).",
    ),
    (
        "the answer",
        "Of all sizes that hold: the fewest replicas in the mean, since they are paid for; then the least memory at its peak, which has to "
        "fit; then the lower response time, and the more room. With --memory-by mean or --beside: the least memory in the mean.",
    ),
    (
        "not in the model",
        "Loads and starts that slow the slots that serve; batching; a request that costs more than another; the network; a device that "
        "gets warm. `bench validate` says how far off it is on runs that it has not seen.",
    ),
)


def plan_page(plan: Plan, name: str, record: Mapping[str, Any], pictures: Sequence[Picture] = ()) -> Page:
    """Every number comes from `plan`; `record` is its `run.json`."""
    badges = [
        ("INVALID", "bad") if plan.invalid else ("holds", "good") if plan.holds else ("NOTHING HOLDS", "bad"),
        *([("A SINGLE RUN MAY MISS", "bad")] if plan.may_miss and not plan.invalid else []),
        *([("CPU result", "plain")] if plan.on_cpu else []),
    ]
    return Page(
        title=plan.subject,
        subtitle=f"plan {name}",
        badges=tuple(badges),
        invalid=plan.invalid,
        caveats=plan.notes,
        sentence=f"Not valid: {plan.invalid[0]}. {plan.sentence}" if plan.invalid else plan.sentence,
        main=families_table(plan),
        statements=tuple(statements(plan)),
        pictures=tuple(pictures),
        tables=tuple(table for table in (sizes_table(plan), sensitivity_table(plan), thumbs_table(plan), curve_table(plan)) if table.rows),
        checks=(),
        facts=tuple(plan_facts(plan, record)),
        method=METHOD,
    )


def families_table(plan: Plan) -> Table:
    """The main table: a row for each way to serve."""
    money = plan.price is not None
    header = (
        "way to serve", "smallest that holds", plan.goal.slo.statistic.upper(), "in a single run", "in time",
        "memory, mean", "peak", "room",
        *(("an hour", "per million") if money else ()),
    )  # fmt: skip
    rows = [_family(plan, family) for family in plan.families if family.prediction is not None]
    return Table(
        title="Ways to serve",
        header=header,
        rows=tuple(rows),
        note=(
            f"Goal: {plan.goal.text}. Memory: of all replicas, mean and most at once. Room: how much more load until the goal is missed. "
            "Where nothing holds, the closest is shown in brackets."
        ),
    )


def _family(plan: Plan, family: Family) -> tuple[str, ...]:
    prediction = family.prediction
    assert prediction is not None
    size = _size(prediction)
    cells = [family.name, size if family.holds else f"({size})", *_figures(prediction)]
    cells += ["-" if family.headroom is None else f"{family.headroom:.0%}"]
    if plan.price is not None:
        cells += [plan.price.text(family.cost.per_hour), plan.price.text(family.cost.per_million)] if family.cost else ["-", "-"]
    return tuple(cells)


def _figures(prediction: Prediction) -> list[str]:
    spread = prediction.interval
    return [
        format_duration(prediction.values_ns[0]),
        f"{format_duration(spread.low)} .. {format_duration(spread.high)}" if spread else "-",
        _share(prediction.attainment),
        format_size(prediction.held_bytes),
        format_size(prediction.peak_bytes),
    ]


def statements(plan: Plan) -> list[str]:
    """Why this way to serve, what limits, what the rules of thumb would say, and what a reserve must hold while a replica starts."""
    found = []
    why = why_chosen(plan)
    if why is not None:
        found.append(f"why {plan.answer.candidate.text if plan.answer else ''}: {why}")
    risk = miss_text(plan)
    if risk is not None:
        found.append(f"single runs: {risk}")
    if plan.limit is not None:
        found.append(f"what limits: {plan.limit.what}; {plan.limit.why}")
    said = [f"{rule.name}: {rule.slots if rule.slots is not None else '-'}" for rule in plan.rules_of_thumb]
    found.append(f"slots by rules of thumb: {'; '.join(said)}")
    reserve = next((one.prediction for one in plan.families if one.name == SCALE_OUT and one.prediction is not None), None)
    if reserve is not None:
        one = reserve.candidate
        holds = any(family.name == SCALE_OUT and family.holds for family in plan.families)
        found.append(
            f"warm reserve: {one.replicas} replica{'s' if one.replicas > 1 else ''} x {one.slots} slots hold the goal while others start; "
            f"at most {reserve.most_replicas} run at once"
            if holds
            else f"warm reserve: all replicas of the warm pool; {one.replicas} are too few ({format_duration(reserve.values_ns[0])}), "
            "since others start too late"
        )
    return found


def sizes_table(plan: Plan) -> Table:
    """Every size that was simulated."""
    rows = [
        (
            one.candidate.family,
            _size(one),
            format_duration(one.p50_ns),
            *_figures(one),
            f"{one.shed_share:.2%}",
            f"{one.busy:.0%}",
            str(one.seeds),
            "yes" if one.holds else "no",
        )
        for one in plan.tried
    ]
    return Table(
        title="All sizes",
        header=(
            "way to serve",
            "size",
            "P50",
            plan.goal.slo.statistic.upper(),
            "in a single run",
            "in time",
            "memory, mean",
            "peak",
            "refused",
            "busy",
            "seeds",
            "holds",
        ),
        rows=tuple(rows),
        note="A size that missed the SLO by more than twice with its first seed was not simulated again. Busy: share of the slot time.",
    )


def sensitivity_table(plan: Plan) -> Table:
    """The answer under other loads."""
    rows = [
        (
            one.what,
            (f"{one.value:g}" if one.what == BURSTINESS else f"x{one.value:g}") + (" (planned)" if one.planned else ""),
            format_duration(one.chosen.values_ns[0]),
            _share(one.chosen.attainment),
            ("yes" if one.chosen.holds else "no") + ("*" if straddled(one.chosen.interval, plan.goal.slo.bound_ns) else ""),
            "none" if one.answer is None else one.answer.text,
        )
        for one in plan.variations
    ]
    return Table(
        title="If the load is another one",
        header=(
            "what differs",
            "value",
            f"{plan.goal.slo.statistic.upper()} of the planned size",
            "in time",
            "holds",
            "smallest that holds",
        ),
        rows=tuple(rows),
        note="One thing is changed at a time. A trace's peak is all of its rate; its gaps are drawn anew within each second. "
        "Other loads are drawn with at most five seeds. *: the SLO lies within the range of a single run: the next may say otherwise.",
    )


def thumbs_table(plan: Plan) -> Table:
    """What pools are sized by otherwise."""
    rows = [(rule.name, "-" if rule.slots is None else f"{rule.slots:,}", rule.how) for rule in plan.rules_of_thumb]
    answer = plan.answer.candidate if plan.answer is not None else None
    if answer is not None:
        rows.insert(0, ("this plan", str(answer.slots * answer.replicas), answer.text))
    return Table(title="Slots by rules of thumb", header=("rule", "slots", "how"), rows=tuple(rows))


def curve_table(plan: Plan) -> Table:
    """What was measured of the slots."""
    slots = plan.curve_slots
    ns = [plan.service_ns[busy - 1] for busy in slots]
    rates = [plan.throughput_per_s[busy - 1] for busy in slots]
    rows = [
        (str(busy), format_duration(time), f"{time / ns[0]:.2f}x", f"{format_count(rate)}/s", f"{rate / rates[0]:.2f}x")
        for busy, time, rate in zip(slots, ns, rates, strict=True)
    ]
    between = "" if len(slots) == len(plan.service_ns) else " In between, the simulation takes the next larger number that was measured."
    against = "against one" if slots[0] == 1 else f"against {slots[0]}"
    return Table(
        title="Service curve",
        header=("busy slots", "service time, median", against, "throughput", against),
        rows=tuple(rows),
        note=(
            f"Useful slots: {plan.useful_slots}, the fewest after which more of them answer at most 5 % more. A service time has with it "
            f"for how long the slot stood empty before the next request.{between}"
        ),
    )


def plan_facts(plan: Plan, record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the plan was asked, and where its measurements come from."""
    load = plan.load
    facts = [
        ("engine and device", plan.subject),
        ("goal", plan.goal.text),
        (
            "load",
            f"{load.text}: {load.arrivals:,} arrivals in {load.duration_s:.4g} s, mean {load.mean_per_s:.4g}/s, "
            f"peak {load.peak_per_s:.4g}/s"
            f"{', the same in each seed' if load.fixed else ''}",
        ),
        ("seeds", ", ".join(map(str, plan.seeds))),
        ("allowed", f"at most {plan.most_replicas} replicas of at most {plan.most_slots} slots"),
    ]
    if plan.usable_bytes is not None:
        facts.append(("memory of a replica", f"{format_size(plan.usable_bytes)} behind the reserve ({plan.memory_kind})"))
    if plan.price is not None:
        facts.append(("price of a replica", f"{plan.price.text(plan.price.per_hour)} an hour"))
    ready = format_duration(plan.rules.ready_ns) if plan.rules.ready_ns is not None else "as measured"
    facts.append(
        (
            "another replica",
            f"when more than {plan.rules.above:g} requests a slot wait for {format_duration(plan.rules.detect_ns)}; ready after: {ready}",
        )
    )
    sources = (record.get("measured") or {}).get("sources") or {}
    facts += [(name, str(where)) for name, where in sources.items()]
    return [*facts, *environment_facts(record.get("environment") or {}), ("command", " ".join(record.get("command") or ()))]


def _size(prediction: Prediction) -> str:
    """The candidate without its family's name."""
    return prediction.candidate.text.partition(", ")[2]


def _share(share: float) -> str:
    return f"{share:.2%}"
