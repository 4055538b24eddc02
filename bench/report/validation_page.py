"""The page of a validation: how far the predictions are off, case by case and spike by spike, and whether the sizes are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.capacity.sizes import right_of
from bench.report.facts import environment_facts
from bench.report.page import Page, Picture, Table
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.statistics import Interval
    from bench.capacity.validation import Validation

_MOST_SPIKES = 200
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


def validation_page(validation: Validation, name: str, record: Mapping[str, Any], pictures: Sequence[Picture] = ()) -> Page:
    """Every number comes from `validation`; `record` is its `run.json`."""
    engine = ((record.get("plan") or {}).get("measured") or {}).get("engine") or {}
    badges = [("CPU result", "plain")] if str(engine.get("device", "")).startswith("cpu") else []
    return Page(
        title=validation.subject,
        subtitle=f"validation {name} of the plan {validation.plan}",
        badges=tuple(badges),
        invalid=(),
        caveats=(*validation.notes, *(f"left out: {why}" for why in validation.left_out)),
        sentence=validation.sentence,
        main=cases_table(validation),
        statements=(),
        pictures=tuple(pictures),
        tables=tuple(
            table
            for table in (rules_table(validation), sizes_table(validation), rest_table(validation), spikes_table(validation))
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
    rows = []
    for case in validation.cases:
        p99, p50 = case.p99, case.p50
        rows.append(
            (
                case.text,
                case.name,
                str(len(case.runs)),
                format_duration(p50.predicted_ns),
                format_duration(p50.measured_ns),
                format_duration(p99.predicted_ns),
                _between(p99.low_ns, p99.high_ns),
                format_duration(p99.measured_ns),
                _between(p99.lowest_run_ns, p99.highest_run_ns),
                _signed(p99.error),
                "-" if case.noise is None else f"{case.noise:.1%}",
                _yes(p99.inside),
            )
        )
    return Table(
        title="Predicted against measured",
        header=(
            "load",
            "size",
            "runs",
            "P50 predicted",
            "measured",
            "P99 predicted",
            "95 % interval",
            "measured",
            "single runs",
            "error",
            "noise",
            "inside",
        ),
        rows=tuple(rows),
        note=(
            "P50 and P99 of the response time, all runs of a case pooled; error: of the P99, predicted over measured less 1. Noise: how "
            "much the P99 differs from run to run. Inside: what was measured lies in the simulation's own interval."
        ),
    )


def rules_table(validation: Validation) -> Table:
    """How often each way to size is right."""
    rows = [
        (rule, f"{right} of {decided}", "-" if not decided else f"{right / decided:.0%}")
        for rule, (right, decided) in right_of(validation.scores).items()
    ]
    return Table(
        title="The right number of slots",
        header=("by", "right", "share"),
        rows=tuple(rows),
        note="Loads of which the measured sizes decide it. A rule that names no number, or one that is too small or too large, is wrong.",
    )


def sizes_table(validation: Validation) -> Table:
    """What was measured of each load, and what each rule says."""
    rows = []
    for score in validation.scores:
        measured = "; ".join(f"{one.slots}: {format_duration(one.p99_ns)}{_range(one.interval)} {one.verdict}" for one in score.sizes)
        said = "; ".join(f"{guess.rule} {'-' if guess.slots is None else guess.slots} ({_right(guess.right)})" for guess in score.guesses)
        rows.append((score.text, score.mode, format_duration(score.slo_ns), measured, said))
    return Table(title="Sizes by load", header=("load", "mode", "SLO, p99", "measured: slots, P99", "said: slots"), rows=tuple(rows))


def rest_table(validation: Validation) -> Table:
    """Refusals, recovery and memory."""
    rows = [
        (
            case.text,
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
    spikes = [(case, one) for case in validation.cases for one in case.spikes]
    rows = [
        (
            f"{case.name}: {one.run}",
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


def _range(interval: Interval | None) -> str:
    return "" if interval is None else f" ({format_duration(interval.low)} .. {format_duration(interval.high)})"


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"


def _yes(inside: bool | None) -> str:
    return "-" if inside is None else "yes" if inside else "no"


def _right(right: bool | None) -> str:
    return "not decided" if right is None else "right" if right else "wrong"
