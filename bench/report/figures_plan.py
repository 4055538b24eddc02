"""Pictures of a plan as SVG: memory held against response time, the answer under other loads, and prediction against measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.capacity.candidates import FAMILIES
from bench.capacity.choice import MEAN
from bench.capacity.sensitivity import BURSTINESS, LENGTH, PEAK
from bench.report.colours import arm_colour
from bench.report.figure_style import STYLE, log_time_axis, svg_of
from bench.report.page import Picture
from bench.units import format_duration

if TYPE_CHECKING:
    from bench.capacity.plan import Plan
    from bench.capacity.predict import Prediction
    from bench.capacity.validation import Validation

_WIDTH = 7.2
_MARKERS = ("o", "s", "^", "D", "v")
_BOUND = "#b3261e"
_WIDEST = 2.5
_SLOWEST_SHOWN = 30  # times the SLO: what is beyond says no more than that it does not work


def plan_pictures(plan: Plan) -> list[Picture]:
    """All that the plan has data for, the most telling first."""
    with mpl.rc_context(STYLE):
        return [one for one in (frontier(plan), sensitivity(plan), service(plan)) if one is not None]


def frontier(plan: Plan) -> Picture | None:
    """Memory held, as the plan counts it, against the SLO's figure, one point a candidate. None where no memory is known."""
    whole = [one for one in plan.tried if one.held_bytes is not None and one.peak_bytes is not None and one.values_ns[0] is not None]
    if not whole:
        return None
    held = _held_in_the_mean if plan.memory_by == MEAN else _held_at_the_peak
    # A way to serve that is hopeless may hold ten times as much, and would leave no room for those that are compared.
    least = min(map(held, whole))
    widest = max(_WIDEST * (held(plan.answer) or least if plan.answer is not None and plan.holds else least), least * 4)
    known = [one for one in whole if held(one) <= widest]
    bound = plan.goal.slo.bound_ns
    ceiling = bound * _SLOWEST_SHOWN
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 4.2), layout="constrained")
        axes = figure.subplots()
        for index, family in enumerate(FAMILIES):
            points = [one for one in known if one.candidate.family == family]
            if not points:
                continue
            x = [held(one) / 1e6 for one in points]
            shown = [min(one.value_ns, ceiling) / 1e6 for one in points]
            style: dict[str, Any] = {"color": arm_colour(index), "marker": _MARKERS[index], "linestyle": "", "markersize": 6.5}
            axes.plot(x, shown, alpha=0.75, label=family, **style)
        best = pareto(known, held)
        steps = [min(one.value_ns, ceiling) / 1e6 for one in best]
        axes.plot(
            [held(one) / 1e6 for one in best],
            steps,
            color="#444444",
            linewidth=1.1,
            drawstyle="steps-post",
            zorder=1,
            label="frontier",
        )
        axes.axhline(bound / 1e6, color=_BOUND, linewidth=1.3, linestyle=(0, (5, 2)), label=f"SLO, {format_duration(bound)}")
        if plan.answer is not None and held(plan.answer):
            axes.plot(
                [held(plan.answer) / 1e6],
                [min(plan.answer.value_ns, ceiling) / 1e6],
                "o",
                markersize=15,
                markerfacecolor="none",
                markeredgecolor="black",
                markeredgewidth=1.6,
                label="the answer" if plan.holds else "the closest",
            )
        log_time_axis(axes)
        axes.set_xlim(0, max(map(held, known)) / 1e6 * 1.08)
        axes.set(
            xlabel=f"memory held, {'mean over the load' if plan.memory_by == MEAN else 'at its peak'}, MB",
            ylabel=f"{plan.goal.slo.statistic} of the response time",
        )
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)
        data = svg_of(figure, f"{plan.subject}; {plan.load.text}")
    cut = sum(one.value_ns > ceiling for one in known)
    note = f" Sizes that take longer than {format_duration(ceiling)} are drawn there ({cut})." if cut else ""
    note += f" Sizes that hold more are not drawn ({len(whole) - len(known)})." if len(known) < len(whole) else ""
    return Picture(
        name="plan-frontier",
        title="Memory held, and the response time that it buys",
        data=data,
        alt=f"Each simulated size as a point: memory held against {plan.goal.slo.statistic}, with the SLO as a line and the answer ringed.",
        caption=(
            "One point a size. Lower is faster, further left holds less; the line is the frontier: no other size is both. Below the dashed "
            f"line the SLO holds. All replicas together; a size that was hopeless with its first seed was not drawn again.{note}"
        ),
    )


def _held_in_the_mean(one: Prediction) -> float:
    return one.held_bytes or 0.0


def _held_at_the_peak(one: Prediction) -> float:
    return one.peak_bytes or 0.0


def pareto(predictions: Sequence[Prediction], held: Callable[[Prediction], float]) -> list[Prediction]:
    """Those that no other one beats in both memory and time, the least memory first."""
    best: list[Prediction] = []
    for one in sorted(predictions, key=lambda one: (held(one), one.value_ns)):
        if not best or one.value_ns < best[-1].value_ns:
            best.append(one)
    return best


def sensitivity(plan: Plan) -> Picture | None:
    """The answer and the chosen size's figure under other peaks, lengths and gaps. None where that was not asked for."""
    if not plan.variations or plan.answer is None:
        return None
    kinds = [what for what in (PEAK, LENGTH, BURSTINESS) if any(one.what == what for one in plan.variations)]
    labels = {
        PEAK: "peak, times the planned one",
        LENGTH: "length of a burst, times the planned one",
        BURSTINESS: "cv of the gaps (1: Poisson)",
    }
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(kinds) + 0.6, 4.6), layout="constrained")
        rows = figure.subplots(2, len(kinds), sharex="col", sharey="row", squeeze=False)
        for column, what in enumerate(kinds):
            found = [one for one in plan.variations if one.what == what]
            place = np.arange(len(found))
            above, below = rows[0][column], rows[1][column]
            values = [min(one.chosen.value_ns, plan.goal.slo.bound_ns * _SLOWEST_SHOWN) / 1e6 for one in found]
            above.plot(place, values, color=arm_colour(0), marker="o", linewidth=1.4)
            above.axhline(plan.goal.slo.bound_ns / 1e6, color=_BOUND, linewidth=1.2, linestyle=(0, (5, 2)))
            total = [None if one.answer is None else one.answer.slots * one.answer.replicas for one in found]
            below.bar(place, [count or 0 for count in total], color=[_bar(one.planned) for one in found], width=0.62)
            for at, (count, one) in enumerate(zip(total, found, strict=True)):
                text = (
                    "none"
                    if one.answer is None
                    else str(count)
                    if one.answer.replicas == 1
                    else f"{one.answer.replicas}x{one.answer.slots}"
                )
                below.text(at, (count or 0) + 0.05, text, ha="center", va="bottom", fontsize=8.5)
            below.set_xticks(place, [f"{one.value:g}" for one in found])
            below.set_xlabel(labels[what])
            below.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            below.grid(axis="x", visible=False)
        highest = max((one.answer.slots * one.answer.replicas for one in plan.variations if one.answer is not None), default=1)
        rows[1][0].set_ylim(0, highest * 1.2 + 0.3)
        log_time_axis(rows[0][0])
        rows[0][0].set_ylabel(f"{plan.goal.slo.statistic} of the planned size")
        rows[1][0].set_ylabel("slots that it takes")
        data = svg_of(figure, f"{plan.answer.candidate.text}; {plan.load.text}")
    return Picture(
        name="plan-sensitivity",
        title="If the load is another one",
        data=data,
        alt="Response time of the planned size, and the smallest size that holds, for other peaks, burst lengths and gaps.",
        caption=(
            "Above: what the planned size does if the load differs in one thing; dashed: the SLO. Below: the smallest size that holds then "
            "(2x4: two replicas of four slots; none: not with the replicas that are allowed). The darker bar is the planned load."
        ),
    )


def service(plan: Plan) -> Picture:
    """What was measured: the service time and the throughput by the number of busy slots."""
    busy = np.array(plan.curve_slots)
    times = np.array(plan.service_ns)[busy - 1] / 1e6
    rates = np.array(plan.throughput_per_s)[busy - 1]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(busy, times, marker="o", color=arm_colour(0))
        left.plot(busy, np.full(len(busy), times[0]), color="#999999", linestyle=(0, (4, 2)), label="independent slots")
        left.set(xlabel="busy slots", ylabel="service time, median, ms")
        right.plot(busy, rates, marker="o", color=arm_colour(0), label="measured")
        right.plot(busy, rates[0] / busy[0] * busy, color="#999999", linestyle=(0, (4, 2)), label="independent slots")
        right.axvline(plan.useful_slots, color="#444444", linewidth=1, linestyle=(0, (1, 2)), label=f"useful slots, {plan.useful_slots}")
        right.set(xlabel="busy slots", ylabel="requests a second")
        for axes in (left, right):
            axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*right.get_legend_handles_labels(), loc="outside upper left", ncols=3)
        data = svg_of(figure, plan.subject)
    kept_busy = "" if plan.invalid or any("slots were idle" in note for note in plan.notes) else ", every slot always busy"
    between = (
        "" if len(busy) == len(plan.service_ns) else " Only the dots were measured; in between, the simulation takes the next larger one."
    )
    return Picture(
        name="plan-service",
        title="What the slots of one device do to each other",
        data=data,
        alt="Median service time and throughput against the number of busy slots, beside what independent slots would do.",
        caption=(
            f"Measured in closed loop{kept_busy}. Slots that were independent would follow the dashed lines. Beyond the dotted "
            f"line more slots add less than 5 % throughput: they hold memory, and make each other slower.{between}"
        ),
    )


def predicted_against_measured(validation: Validation) -> Picture | None:
    """One point a case and size: the P99 that was predicted against the one that was measured. None without any."""
    known = [one for one in validation.cases if one.p99.predicted_ns and one.p99.measured_ns]
    if not known:
        return None
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 4.6), layout="constrained")
        axes = figure.subplots()
        ends = [value / 1e6 for one in known for value in (one.p99.predicted_ns, one.p99.measured_ns) if value]
        low, high = min(ends) / 1.3, max(ends) * 1.3
        axes.plot([low, high], [low, high], color="#444444", linewidth=1.1, label="predicted = measured")
        axes.fill_between(
            [low, high], [low * 0.8, high * 0.8], [low * 1.2, high * 1.2], color="#999999", alpha=0.2, linewidth=0, label="within 20 %"
        )
        for index, mode in enumerate(sorted({one.mode for one in known})):
            some = [one for one in known if one.mode == mode]
            x = np.array([one.p99.measured_ns for one in some], np.float64) / 1e6
            y = np.array([one.p99.predicted_ns for one in some], np.float64) / 1e6
            spread = np.array([_arms(one.p99.predicted_ns, one.p99.low_ns, one.p99.high_ns) for one in some]).T / 1e6
            across = np.array([_arms(one.p99.measured_ns, one.p99.lowest_run_ns, one.p99.highest_run_ns) for one in some]).T / 1e6
            axes.errorbar(
                x,
                y,
                yerr=spread,
                xerr=across,
                color=arm_colour(index),
                marker=_MARKERS[index % len(_MARKERS)],
                linestyle="",
                markersize=5.5,
                elinewidth=0.8,
                label=mode,
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        log_time_axis(axes)
        log_time_axis(axes, axes.xaxis)
        axes.set(xlabel="P99, measured", ylabel="P99, predicted")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)
        data = svg_of(figure, validation.subject)
    return Picture(
        name="validation",
        title="Predicted against measured",
        data=data,
        alt="P99 predicted against P99 measured, a point for each load and size, with the line where both are the same.",
        caption=(
            "One point a load and size, all of its runs pooled. Across: from the lowest to the highest single run; up and down: where the "
            "simulation expects the pooled value (95 %). On the line the prediction is exact; in the band it is within 20 %."
        ),
    )


def _arms(value: float | None, low: float | None, high: float | None) -> tuple[float, float]:
    if value is None:
        return 0.0, 0.0
    return max(0.0, value - (low if low is not None else value)), max(0.0, (high if high is not None else value) - value)


def _bar(planned: bool) -> str:
    return "#0b4f7d" if planned else "#8fbbd9"
