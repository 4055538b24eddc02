"""The page of a validation: how far the predictions are off, case by case and spike by spike, and whether the sizes are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.capacity.refutation import against_measurement
from bench.capacity.sizes import PLAN, right_of
from bench.report.facts import environment_facts
from bench.report.page import Page, Picture, Table
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.capacity.plan import Plan
    from bench.capacity.validation import Validation

_MOST_SPIKES = 200
_FACTOR = 10.0  # an error beyond ten times is told as a factor
_MARKS = {True: "✓", False: "✗", None: "?"}
METHOD = (
    (
        "what is compared",
        "Every run is simulated with its own arrivals and its own server settings, from the samples that the plan kept; nothing is fitted "
        "to it. Runs of one load and one size are pooled.",
    ),
    (
        "noise floor",
        "How much the P99 differs from run to run of one case (standard deviation of its logarithm). No prediction can be nearer.",
    ),
    (
        "the right size",
        "It holds the SLO, and one slot less does not. A size whose measured interval straddles the SLO counts as both. What was not "
        "measured follows from what was: more than enough is enough.",
    ),
)


def validation_page(validation: Validation, plan: Plan, name: str, record: Mapping[str, Any], pictures: Sequence[Picture] = ()) -> Page:
    """Every number comes from `validation`; `plan` is the one that it is of, `record` its `run.json`. A miss of the SLO by the planned size
    comes first."""
    engine = ((record.get("plan") or {}).get("measured") or {}).get("engine") or {}
    badges = [("CPU result", "plain")] if str(engine.get("device", "")).startswith("cpu") else []
    measured = against_measurement(plan, validation)
    refuted = None if measured is None else measured.sentence
    if refuted is not None:
        badges.insert(0, ("PLAN REFUTED", "bad"))
    if plan.invalid:
        badges.insert(0, ("PLAN NOT VALID", "bad"))
    first = [*([refuted] if refuted is not None else []), *(f"The plan is not valid: {why}" for why in plan.invalid)]
    return Page(
        title=validation.subject,
        subtitle=f"validation {name} of the plan {validation.plan}",
        badges=tuple(badges),
        invalid=plan.invalid,
        caveats=(*validation.notes, *(f"left out: {why}" for why in validation.left_out)),
        sentence=". ".join([*first, validation.sentence]),
        main=cases_table(validation),
        statements=(),
        pictures=tuple(pictures),
        tables=tuple(
            table
            for table in (
                rules_table(validation),
                sizes_table(validation),
                loads_table(validation),
                percentiles_table(validation),
                rest_table(validation),
                spikes_table(validation),
            )
            if table.rows
        ),
        checks=(),
        facts=(
            ("engine and device", validation.subject),
            ("runs", f"{validation.runs} in {len(validation.cases)} cases; each simulated with {validation.seeds} seeds"),
            *environment_facts(record.get("environment") or {}),
            ("command", " ".join(record.get("command") or ())),
        ),
        method=METHOD,
    )


def cases_table(validation: Validation) -> Table:
    """The main table: a row a case."""
    numbers = load_numbers(validation)
    rows = [
        (
            numbers[case.load],
            case.name,
            str(len(case.runs)),
            format_duration(case.p99.predicted_ns),
            format_duration(case.p99.measured_ns),
            _signed(case.p99.error),
            "-" if case.noise is None else f"{case.noise:.1%}",
            _yes(case.p99.inside),
        )
        for case in validation.cases
    ]
    return Table(
        title="Predicted against measured",
        header=("load", "size", "runs", "P99 predicted", "measured", "error", "noise", "inside"),
        rows=tuple(rows),
        note=(
            "P99 of the response time, all runs of a case pooled; error: predicted over measured less 1. Noise: how much the P99 "
            "differs from run to run. Inside: what was measured lies in the simulation's own interval."
        ),
    )


def percentiles_table(validation: Validation) -> Table:
    """P50 and P99 with their intervals."""
    numbers = load_numbers(validation)
    rows = [
        (
            numbers[case.load],
            case.name,
            name,
            format_duration(one.predicted_ns),
            _between(one.low_ns, one.high_ns),
            format_duration(one.measured_ns),
            _between(one.lowest_run_ns, one.highest_run_ns),
            _signed(one.error),
            _yes(one.inside),
        )
        for case in validation.cases
        for name, one in (("P50", case.p50), ("P99", case.p99))
    ]
    return Table(
        title="Percentiles and intervals",
        header=("load", "size", "", "predicted", "where it is expected, 95 %", "measured", "single runs", "error", "inside"),
        rows=tuple(rows),
    )


def loads_table(validation: Validation) -> Table:
    """Which load has which number."""
    texts = {case.load: (case.text, format_duration(case.slo_ns)) for case in validation.cases}
    rows = [(number, *texts[load]) for load, number in load_numbers(validation).items()]
    return Table(title="Loads", header=("load", "arrivals in words, of one of its runs", "SLO, p99"), rows=tuple(rows))


def load_numbers(validation: Validation) -> dict[str, str]:
    """From 1, in the order in which they come."""
    return {load: str(number) for number, load in enumerate(dict.fromkeys(case.load for case in validation.cases), 1)}


def rules_table(validation: Validation) -> Table:
    """How often each way to size is right."""
    tallies = right_of(validation.scores)
    own = tallies.get(PLAN)
    rows = [
        (rule, f"{one.right} of {one.loads}", str(one.loads - one.right - one.undecided), str(one.undecided))
        for rule, one in tallies.items()
        if own is not None and own.undecided < own.loads
    ]
    return Table(
        title="The right number of slots",
        header=("by", "right", "wrong", "not decided"),
        rows=tuple(rows),
        note=(
            "Loads. A rule that names no number, or one that is too small or too large, is wrong; not decided: the sizes that were "
            "measured do not tell."
        ),
    )


def sizes_table(validation: Validation) -> Table:
    """What was measured of each load, and what each rule says of it."""
    loads = {case.text: number for case in reversed(validation.cases) for number in [load_numbers(validation)[case.load]]}
    rows = [
        (
            f"{loads.get(score.text, '-')} ({score.mode})",
            format_duration(score.slo_ns),
            ", ".join(f"{one.slots}: {format_duration(one.p99_ns)} ({one.verdict})" for one in score.sizes),
            *(f"{'-' if guess.slots is None else f'{guess.slots:,}'} {_MARKS[guess.right]}" for guess in score.guesses),
        )
        for score in validation.scores
    ]
    rules = tuple(guess.rule for guess in validation.scores[0].guesses) if validation.scores else ()
    return Table(
        title="Sizes by load",
        header=("load", "SLO, p99", "measured: slots, P99", *rules),
        rows=tuple(rows),
        note="Slots; ✓ right, ✗ wrong, ? not decided by the sizes that were measured. Either: its interval straddles the SLO.",
    )


def rest_table(validation: Validation) -> Table:
    """Refusals, recovery and memory."""
    numbers = load_numbers(validation)
    rows = [
        (
            numbers[case.load],
            case.name,
            *_pair(case.predicted_in_time, case.measured_in_time),
            f"{case.predicted_shed:.2%}",
            f"{case.measured_shed:.2%}",
            format_duration(case.predicted_recovery_ns),
            format_duration(case.measured_recovery_ns),
            format_size(case.predicted_bytes),
            format_size(case.measured_bytes),
        )
        for case in validation.cases
    ]
    return Table(
        title="In time, refused, recovery, memory",
        header=(
            "load",
            "size",
            "in time: predicted",
            "measured",
            "refused: predicted",
            "measured",
            "recovery: predicted",
            "measured",
            "memory: predicted",
            "measured",
        ),
        rows=tuple(rows),
        note="Recovery: the median over spikes (docs/report.md); a dash: not while it was watched. Memory: at its peak.",
    )


def spikes_table(validation: Validation) -> Table:
    """Every spike of every run, up to 200 of them."""
    numbers = load_numbers(validation)
    spikes = [(case, one) for case in validation.cases for one in case.spikes]
    rows = [
        (
            f"{numbers[case.load]}, {case.name}: {one.run}",
            str(one.spike),
            f"{one.arrivals:,}",
            format_duration(one.predicted_p99_ns),
            format_duration(one.measured_p99_ns),
            _signed(None if not one.measured_p99_ns or one.predicted_p99_ns is None else one.predicted_p99_ns / one.measured_p99_ns - 1),
            format_duration(one.predicted_recovered_ns),
            format_duration(one.measured_recovered_ns),
        )
        for case, one in spikes[:_MOST_SPIKES]
    ]
    left = f" The first {_MOST_SPIKES} of {len(spikes)}; summary.json has all." if len(spikes) > _MOST_SPIKES else ""
    return Table(
        title="Spike by spike",
        header=("run", "spike", "arrivals", "P99 predicted", "measured", "error", "over after: predicted", "measured"),
        rows=tuple(rows),
        note=f"P99 of the arrivals of the spike, or the largest where there are fewer than 100.{left}",
    )


def _pair(predicted: float | None, measured: float | None) -> tuple[str, str]:
    return tuple("-" if share is None else f"{share:.2%}" for share in (predicted, measured))  # type: ignore[return-value]


def _between(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{format_duration(low)} .. {format_duration(high)}"


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}" if error < _FACTOR else f"x{1 + error:,.0f}"


def _yes(inside: bool | None) -> str:
    return "-" if inside is None else "yes" if inside else "no"
