"""The page of a load run or a burst experiment, from its summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bench.analysis.experiment import HAND_OVER_NS
from bench.analysis.verdict import unstable_words
from bench.report.burst_comparison import describe_comparison, describe_loads, loads_table, means_table
from bench.report.facts import environment_facts
from bench.report.page import Page, Picture, Table
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.experiment import ArmSummary, ExperimentSummary
    from bench.analysis.subject import Subject

_ALL = "all arrivals"
_UNKNOWN = "not distinguishable"
_TWO_P99S = (
    "P99 in spikes: of all their requests together, which the worst spikes make. The verdict's is that of a typical spike: of each spike, "
    "then the geometric mean."
)


def load_page(subject: Subject, summary: ExperimentSummary, pictures: Sequence[Picture] = ()) -> Page:
    """Every number comes from `summary`."""
    record = subject.record
    badges = [("NOT VALID", "bad")] if summary.invalid else [("valid", "good")] if summary.valid else []
    badges += [("CPU result", "plain")] if summary.on_cpu else [("device not known", "plain")] if summary.device is None else []
    badges = ([("not finished", "bad")] if summary.partial or summary.missing_runs else []) + badges
    return Page(
        title=summary.title,
        subtitle=f"{'burst experiment' if summary.kind == 'experiment' else 'load run'} {summary.subject}",
        badges=tuple(badges),
        invalid=summary.invalid,
        caveats=summary.caveats,
        sentence=summary.sentence,
        main=arms_table(summary),
        statements=(
            *map(describe_comparison, summary.comparisons),
            *map(describe_loads, summary.loads_beside),
            *_first_contact_lines(summary),
        ),
        pictures=tuple(pictures),
        tables=(
            _phases_table(summary),
            _ends_table(summary),
            loads_table(summary),
            _first_contact_table(summary),
            _tail_table(summary),
            means_table(summary),
            _recovery_table(summary),
            _backlog_table(summary),
        ),
        checks=tuple(_checks_table(one.run, one.validity.checks) for one in summary.validity),
        facts=(
            *_load_facts(summary),
            *environment_facts(record.get("environment") or {}),
            ("command", " ".join(record.get("command") or ())),
        ),
        method=_method(summary),
    )


def arms_table(summary: ExperimentSummary) -> Table:
    """The main table: a column an arm, a row a question."""
    slo = f"answered within {format_duration(summary.slo_ns)}"
    spiky = any(arm.phase("spike") is not None for arm in summary.arms)
    main, where = ("spike", "in spikes") if spiky else (None, "of all arrivals")
    questions: list[tuple[str, Callable[[ArmSummary], str]]] = [
        (f"P99 {where}", lambda arm: _p99(arm, main)),
        (f"median {where}", lambda arm: _percentile(arm, main, "p50")),
        *([("P99 outside spikes", _base_p99)] if spiky else []),
        (f"P99 {where}, uncorrected", lambda arm: _unstable(arm) or _percentile(arm, main, "p99", "round_trip")),
        *([(slo, lambda arm: _share(arm, "attainment"))] if summary.slo_ns is not None else []),
        *([("goodput", lambda arm: _rate(arm, "goodput_per_s"))] if summary.slo_ns is not None else []),
        ("no correct answer" if summary.values_known else "no answer, or a wrong one", _failed),
        ("recovery after a spike", _recovery),
        (f"found a free slot within {format_duration(HAND_OVER_NS)}", lambda arm: _percent(arm.pool.hit_share)),
        ("wait for a slot, P99", lambda arm: format_duration(arm.pool.pool_wait_p99_ns)),
        ("waited for a load", lambda arm: _percent(arm.pool.loaded_share)),
        ("device memory (median)", lambda arm: format_size(arm.device_memory.median) if arm.device_memory else "-"),
        ("device memory (peak)", lambda arm: format_size(arm.device_memory.peak) if arm.device_memory else "-"),
        ("SM clock of the GPU", lambda arm: arm.sm_clock.text if arm.sm_clock else "-"),
        ("memory (resident, median)", lambda arm: format_size(arm.resident.median) if arm.resident else "-"),
        ("memory (resident, peak)", lambda arm: format_size(arm.resident.peak) if arm.resident else "-"),
        ("engine and slots, per slot", _memory_per_slot),
        ("one more slot", lambda arm: _one_more(summary, arm, copies=False)),
        ("one more copy of the engine", lambda arm: _one_more(summary, arm, copies=True)),
        ("server ready after", lambda arm: format_duration(arm.ready_ns)),
        ("arrivals", lambda arm: f"{arm.latency[0].arrivals:,}"),
        ("runs", lambda arm: f"{arm.runs} of {arm.planned}"),
    ]
    rows = [(name, *(answer(arm) for arm in summary.arms)) for name, answer in questions]
    notes = [_TWO_P99S] if summary.comparisons else []
    notes += [f"{arm.name} is {unstable_words(arm)}." for arm in summary.arms if _unstable(arm)]
    notes += _memory_notes(summary)
    if spiky and not any(arm.recovery for arm in summary.arms):
        notes.append("Recovery is not told: before the first spikes there are too few answers for a P99 of the base.")
    return Table(
        title="arms",
        header=("", *(arm.name for arm in summary.arms)),
        rows=tuple(row for row in rows if any(cell != "-" for cell in row[1:])),
        note=" ".join(notes),
    )


def _phases_table(summary: ExperimentSummary) -> Table:
    rows = []
    for arm in summary.arms:
        for one in arm.latency:
            for kind, found in (("response", one.response), ("round trip", one.round_trip)):
                values = (found.p50, found.p90, found.p95, found.p99, found.p999, found.maximum)
                rows.append((arm.name, one.phase or _ALL, kind, f"{one.answered:,}", *(format_duration(value) for value in values)))
    return Table(
        title="Percentiles by phase",
        header=("arm", "phase", "", "answered", "P50", "P90", "P95", "P99", "P99.9", "largest"),
        rows=tuple(rows),
        note=(
            f"Exact, nearest rank, over {'correct ' if summary.values_known else ''}answers. Response counts from when a request was due, "
            "round trip from when it was sent: what lies between is what a closed loop would not see. A dash: too few answers for it."
        ),
    )


def _ends_table(summary: ExperimentSummary) -> Table:
    rows = []
    for arm in summary.arms:
        for one in arm.goodput:
            shares = (one.ok_share, one.failed_share, one.shed_share, one.unsent_share)
            rates = (one.offered_per_s, one.completed_per_s, one.goodput_per_s)
            rows.append(
                (
                    arm.name,
                    one.phase or _ALL,
                    f"{one.arrivals:,}",
                    *(f"{share:.2%}" for share in shares),
                    _percent(one.attainment, 2),
                    *("-" if rate is None else f"{rate:.4g}/s" for rate in rates),
                )
            )
    return Table(
        title="How arrivals ended",
        header=(
            "arm",
            "phase",
            "arrivals",
            "correct" if summary.values_known else "answered",
            "failed",
            "shed",
            "not sent",
            "within SLO",
            "offered",
            "completed",
            "goodput",
        ),
        rows=tuple(rows),
        note=(
            "Shares of all arrivals. Failed: wrong, error or timeout; shed: refused by a full server; not sent: by the generator. "
            "Rates over the scheduled time."
        ),
    )


def _first_contact_lines(summary: ExperimentSummary) -> list[str]:
    return [
        f"first contact with {name}: P99 {p99} (largest {largest}; later spikes {later}), {loaded} of the arrivals waited for a load"
        for name, _, _, p99, largest, later, loaded, _, _ in _first_contact_table(summary).rows
    ]


def _first_contact_table(summary: ExperimentSummary) -> Table:
    rows = []
    for one in summary.first_contact:
        usual = next((arm.phase("spike") for arm in summary.arms if arm.name == one.arm), None)
        found = one.latency.response
        values = (found.p50, found.p99, found.maximum, usual.response.p99 if usual is not None else None)
        shares = (_percent(one.loaded_share), _percent(one.share.attainment, 2), f"{1 - one.share.ok_share:.2%}")
        rows.append((one.arm, f"{one.latency.arrivals:,}", *(format_duration(value) for value in values), *shares))
    return Table(
        title="First contact",
        header=("arm", "arrivals", "P50", "P99", "largest", "P99 of later spikes", "waited for a load", "within SLO", "failed"),
        rows=tuple(rows),
        note="A spike that was the first thing a ready server got, as a new replica would. One spike an arm, so there is no interval.",
    )


def _tail_table(summary: ExperimentSummary) -> Table:
    rows = []
    for arm in summary.arms:
        for part in arm.tail.parts if arm.tail else ():
            between = f"{format_duration(part.interval.low)} .. {format_duration(part.interval.high)}" if part.interval else "-"
            rows.append((arm.name, part.name.replace("_", " "), format_duration(part.mean_ns), between, _percent(part.share, 1)))
    return Table(
        title="What the slowest 1 % wait for",
        header=("arm", "part", "mean", "95 % interval", "share"),
        rows=tuple(rows),
        note="Means over the same slow requests, so they add up; intervals over spikes. A dash: not told, or too few spikes.",
    )


def _recovery_table(summary: ExperimentSummary) -> Table:
    rows = []
    for arm in summary.arms:
        found = arm.recovery
        if found is None or not found.spikes:
            continue
        spikes = len(found.spikes)
        excess = sum(spike.excess_ns for spike in found.spikes) / spikes
        rows.append(
            (
                arm.name,
                format_duration(found.base_p99_ns),
                f"{found.windows} of {format_duration(found.window_ns)}",
                format_duration(found.median_ns),
                f"{found.censored} of {spikes}",
                format_duration(found.slo_median_ns),
                f"{excess / 1e9:.3g} s",
                str(max(spike.peak_backlog for spike in found.spikes)),
            )
        )
    return Table(
        title="Recovery after a spike",
        header=(
            "arm",
            "P99 of the base",
            "windows",
            "recovered after",
            "not in time",
            "SLO again after",
            "waited too long",
            "most waiting",
        ),
        rows=tuple(rows),
        note=(
            "Recovered: so many windows in a row with a P99 within 20 % of the base's, and no queue. Medians by Kaplan and Meier: a "
            "spike that was not over before the next one counts as longer than what was seen. Waited too long: the time of all requests "
            "of a spike beyond that bound, added up, mean of the spikes. Most waiting: arrivals due and not done at once."
        ),
    )


def _backlog_table(summary: ExperimentSummary) -> Table:
    rows = []
    for arm in summary.arms:
        interval, slope = arm.backlog_slope_interval, arm.backlog_slope_per_s
        ends = "-" if interval is None else f"{interval.low:.3g} .. {interval.high:.3g}"
        stable = f"{len(arm.backlog) - arm.growing_runs} of {len(arm.backlog)} runs"
        rows.append((arm.name, str(max(one.peak for one in arm.backlog)), "-" if slope is None else f"{slope:.3g}/s", ends, stable))
    return Table(
        title="Does it hold the base load?",
        header=("arm", "largest backlog", "growth outside spikes", "95 % interval", "held"),
        rows=tuple(rows),
        note=(
            "Growth of the requests that are due and not done, outside spikes: the median of the runs, and from the lowest end of their "
            "intervals to the highest. An arm that grew in half of the runs or more has no P99, unless that interval holds 0."
        ),
    )


def _checks_table(run: str, checks: Sequence[Any]) -> Table:
    rows = tuple((check.name, check.value, "passed" if check.problem is None else f"INVALID: {check.problem}") for check in checks)
    return Table(title=run, header=("check", "measured", "result"), rows=rows)


def _load_facts(summary: ExperimentSummary) -> list[tuple[str, str]]:
    load, facts = summary.load, [("engine and device", summary.title)]
    if "base_per_s" in load:
        text = (
            f"{load['count']} spikes of {load['peak_per_s']:.4g}/s on a base of {load['base_per_s']:.4g}/s, "
            f"each {format_duration(load['hold_ns'])} "
            f"long, {format_duration(load['rest_ns'])} apart in the mean, in {load['blocks']} blocks; seed {load['seed']}"
        )
        facts.append(("load of each arm", text))
    elif load.get("arrivals"):
        facts.append(("load", str(load["arrivals"])))
    capacities = [
        f"{name} {entry['rate_per_s']:.3g}/s ({entry['requests']} requests, {entry['senders']} at a time)"
        for name, entry in summary.capacities.items()
    ]
    if capacities:
        facts.append(("capacity measured first", "; ".join(capacities)))
    return facts


def _method(summary: ExperimentSummary) -> tuple[tuple[str, str], ...]:
    found = [
        (
            "arrival clock",
            "Every arrival was scheduled before the first was sent (open loop). A response time counts from when the request was due, "
            "so a server that stalls is charged for all who wait.",
        ),
        ("percentiles", "Exact, from every row, also across runs; none from fewer samples than it needs."),
    ]
    if summary.comparisons:
        found += [
            (
                "arms",
                ("Each block starts a fresh server for each arm and gives" if summary.device is not None else "Each block gives")
                + " all arms the same schedule, in random order, so that a drift of the machine meets all alike.",
            ),
            (
                "intervals",
                "The unit is the spike, because requests of one spike share its fate. The P99 of each spike, paired between arms, on a "
                "logarithmic scale; a 95 % t interval of the mean. An interval over single requests would be far too narrow.",
            ),
        ]
    found.append(("same numbers", "This page and summary.json come from the same computation."))
    return tuple(found)


def _unstable(arm: ArmSummary) -> str | None:
    """What stands for a P99 of an arm that cannot hold its base; one that answered nothing has none anyway."""
    every = arm.phase(None)
    return "unstable" if arm.unstable and every is not None and every.answered else None


def _p99(arm: ArmSummary, phase: str | None) -> str:
    found = arm.phase(phase)
    if found is None:
        return "-"
    if _unstable(arm):
        return "unstable"
    if found.response.p99 is None and found.response.maximum is not None:
        return f"{format_duration(found.response.maximum)} (largest of {found.answered})"
    return format_duration(found.response.p99)


def _base_p99(arm: ArmSummary) -> str:
    return next((_p99(arm, name) for name in ("base", "steady", "rest") if arm.phase(name) is not None), "-")


def _percentile(arm: ArmSummary, phase: str | None, name: str, kind: str = "response") -> str:
    found = arm.phase(phase)
    return format_duration(getattr(getattr(found, kind), name)) if found is not None else "-"


def _share(arm: ArmSummary, name: str) -> str:
    return _percent(getattr(arm.share(None), name), 2)


def _rate(arm: ArmSummary, name: str) -> str:
    rate = getattr(arm.share(None), name)
    return "-" if rate is None else f"{rate:.4g}/s"


def _failed(arm: ArmSummary) -> str:
    every = arm.share(None)
    return "-" if every is None else f"{1 - every.ok_share:.2%}"


def _recovery(arm: ArmSummary) -> str:
    if arm.recovery is None or not arm.recovery.spikes:
        return "-"
    late = f" ({arm.recovery.censored} of {len(arm.recovery.spikes)} not in time)" if arm.recovery.censored else ""
    if arm.recovery.median_ns is None:
        return f"not before the next spike{late}"
    return format_duration(arm.recovery.median_ns) + late


def _memory_per_slot(arm: ArmSummary) -> str:
    if arm.held is None:
        return "-"
    return _UNKNOWN if arm.held.per_slot_reason is not None else format_size(arm.held.per_slot)


def _one_more(summary: ExperimentSummary, arm: ArmSummary, *, copies: bool) -> str:
    """What another slot (copy of the engine) takes: from this arm and one that differs in nothing else."""
    taken = summary.one_more.get(arm.name)
    if taken is None or taken.copies != copies:
        return "-"
    return _UNKNOWN if taken.bytes is None else format_size(taken.bytes)


def _memory_notes(summary: ExperimentSummary) -> list[str]:
    """Why a cell of memory says that nothing can be told."""
    reasons = [f"{arm.name}: {arm.held.per_slot_reason}" for arm in summary.arms if arm.held and arm.held.per_slot_reason]
    found = [f"Not distinguishable: {'; '.join(reasons)}."] if reasons else []
    if any(arm.held is not None and arm.held.per_slot is not None for arm in summary.arms):
        found.append("Engine and slots, per slot: from an empty process to a full pool, so the engine is in it.")
    return found


def _percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{share:.{digits}%}"
