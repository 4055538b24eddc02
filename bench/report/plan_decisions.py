"""What a plan means for somebody who runs the service: what to start, what room there is, what would change the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.capacity.candidates import ELASTIC
from bench.capacity.choice import miss_text, why_chosen
from bench.capacity.refutation import Outcome, against_measurement
from bench.capacity.sensitivity import BURSTINESS, LENGTH, PEAK
from bench.capacity.sizes import PLAN, off_text, right_of
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.capacity.plan import Plan
    from bench.capacity.predict import Prediction
    from bench.capacity.validation import Validation

_LARGE_ERROR = 0.2
_LESS = 0.95  # a smaller difference in memory is not worth a sentence


def decisions(plan: Plan, validation: Validation | None) -> str:
    """Markdown: what follows from the plan, and how far it may be trusted; where a measurement refutes it, that comes first and its
    answer is taken back."""
    measured = None if validation is None else against_measurement(plan, validation)
    if measured is not None and measured.missed:
        lines = [*_refuted(plan, measured), *_trust(plan, validation)]
    elif validation is not None and _too_far_off(validation):
        lines = [*_invalid(plan), *_trust(plan, validation, measured), *_decisions(plan)]
    else:
        lines = [*_invalid(plan), *_decisions(plan), *_trust(plan, validation, measured)]
    return "\n".join(f"- {line}" for line in lines)


def _invalid(plan: Plan) -> Iterator[str]:
    for why in plan.invalid:
        yield f"**Nothing yet**: {why}. The rest shows how it would read."


def _refuted(plan: Plan, measured: Outcome) -> Iterator[str]:
    answer = plan.answer
    assert answer is not None
    for case in measured.missed:
        yield (
            f"**Do not start {answer.candidate.text}**: under {case.text} it was predicted to have a P99 of "
            f"{format_duration(case.p99.predicted_ns)}, and was measured with {format_duration(case.p99.measured_ns)}, over the SLO of "
            f"{format_duration(measured.bound_ns)}. The answer, its room and its costs are withdrawn."
        )
    if measured.instead:
        held = "; ".join(f"{case.name}: {format_duration(case.p99.measured_ns)}" for case in measured.instead)
        yield f"**What was measured to hold under the same load**: {held}."
    else:
        yield "**Measure a larger size, or another way to serve**: none of those that were measured holds it under that load."


def _too_far_off(validation: Validation) -> bool:
    return validation.median_error is not None and validation.median_error > _LARGE_ERROR


def _decisions(plan: Plan) -> Iterator[str]:
    answer = plan.answer
    if answer is None:
        yield f"**Nothing yet**: {plan.sentence}"
        return
    candidate = answer.candidate
    if not plan.holds:
        yield f"**No size holds the goal.** {plan.sentence} Allow more time, send less, or serve a faster engine."
    else:
        settings = "".join(f" --set {name}={value}" for name, value in plan.settings.items())
        each = "each replica with" if candidate.replicas > 1 or candidate.maximum > 1 else "with"
        held = "" if answer.replica_bytes is None else f"; it needs {format_size(answer.replica_bytes)} of {plan.memory_kind} memory"
        yield f"**Start {candidate.text}**: {each} `{candidate.command}{settings}`{held}."
    risk = miss_text(plan)
    if risk is not None:
        yield f"**A single run may miss the SLO**: {risk}."
    why = why_chosen(plan)
    if why is not None:
        yield f"**Why this one**: {why}."
    if plan.limit is not None:
        yield f"**{plan.limit.what.capitalize()} limits**: {plan.limit.why}."
    if plan.headroom is not None:
        yield (
            f"**There is room for {plan.headroom:.0%} more load**, all rates alike. Plan anew before it has grown by that, and sooner "
            "where the peaks grow faster than the rest."
        )
    if plan.holds:
        yield from _others(plan, answer)
    yield from _changes(plan)


def _others(plan: Plan, answer: Prediction) -> Iterator[str]:
    """What the other ways to serve would save or cost."""
    for family in plan.families:
        other = family.prediction
        if other is None or other.candidate == answer.candidate:
            continue
        held, least = other.held_bytes, answer.held_bytes
        if family.holds and held is not None and least is not None and held < _LESS * least:
            yield (
                f"**{other.candidate.text} would hold {format_size(held)} in the mean** instead of {format_size(least)}, which "
                "helps only where something else uses it meanwhile."
            )
        elif not family.holds:
            yield f"**{family.name} does not hold it**: at its closest, {other.candidate.text} has {format_duration(other.values_ns[0])}."


def _changes(plan: Plan) -> Iterator[str]:
    """The nearest other load for which the planned size is too small, of each kind."""
    words = {PEAK: "the peak is {:g} times as high", LENGTH: "bursts are {:g} times as long", BURSTINESS: "the gaps have a cv of {:g}"}
    for what, form in words.items():
        planned = next((one.value for one in plan.variations if one.what == what and one.planned), None)
        worse = [one for one in plan.variations if one.what == what and not one.chosen.holds and (planned is None or one.value > planned)]
        if plan.holds and worse:
            one = min(worse, key=lambda variation: variation.value)
            then = "nothing that is allowed holds it" if one.answer is None else f"it takes {one.answer.text}"
            spread, bound = one.chosen.interval, plan.goal.slo.bound_ns
            near = " (a single run may still hold it)" if spread is not None and spread.low <= bound else ""
            yield f"**If {form.format(one.value)}**, the planned size has {format_duration(one.chosen.values_ns[0])}{near}; {then}."


def _trust(plan: Plan, validation: Validation | None, measured: Outcome | None = None) -> Iterator[str]:
    if validation is None:
        yield (
            "**Check it before you rely on it**: run the load once against the planned size"
            f"{_as_an_arm(plan)}, and compare: `bench validate PLAN RUN...`."
        )
    elif validation.median_error is not None and validation.worst_error is not None:
        margin = (
            "Leave at least that much below the SLO."
            if not _too_far_off(validation)
            else "That is too much to size by: measure the load itself."
        )
        yield (
            f"**The predicted P99 was off by {off_text(validation.median_error)} in the median, {off_text(validation.worst_error, 0)} at "
            f"worst**, over {validation.runs} runs that were not fitted. {margin}"
        )
        for case in measured.either if measured is not None else ():
            yield (
                f"**Measured, {case.name} may hold or not**: {format_duration(case.p99.measured_ns)} under {case.text}, and its runs "
                "differ by more than that is above the SLO. Take the next size, or measure more runs."
            )
        own = right_of(validation.scores).get(PLAN)
        if own is not None and own.undecided < own.loads:
            yield f"**The predicted number of slots was right for {own.text}.**"
    if plan.on_cpu:
        yield "**It is a plan for this CPU**: measure the curve on the device that will serve."


def _as_an_arm(plan: Plan) -> str:
    """How `bench burst` names the planned size; nothing where it is more than one server."""
    answer = plan.answer
    if answer is None or answer.candidate.maximum > 1:
        return ""
    one = answer.candidate
    size = f"min={one.minimum},max={one.slots}" if one.family == ELASTIC else f"pool={one.slots}"
    settings = "".join(f",{name}={value}" for name, value in plan.settings.items())
    return f", with the settings of the curve (`bench burst ENGINE --arms {one.mode}:{size}{settings}`)"
