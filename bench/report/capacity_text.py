"""What one burst experiment tells a capacity planner: the load against what each arm can answer, and memory against what it buys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.report.burst_decisions import GOOD_SHARE, slo_decision
from bench.report.page import Table
from bench.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.experiment import ArmSummary, ExperimentSummary

_SAME_MEMORY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What an arm can answer (closed loop, measured before the experiment) against the rates of its spikes, in requests/s.

    backlog: the requests that a spike leaves waiting if nothing but these rates counts, (peak - capacity) x hold; drained_ns:
    how long after the spike that is gone at the base rate, None where it never is.
    """

    arm: str
    capacity_per_s: float
    base_per_s: float
    peak_per_s: float
    backlog: float
    drained_ns: float | None

    @property
    def base_share(self) -> float:
        return self.base_per_s / self.capacity_per_s

    @property
    def peak_share(self) -> float:
        return self.peak_per_s / self.capacity_per_s


def headroom(summary: ExperimentSummary) -> tuple[Headroom, ...]:
    """Of each arm whose capacity was measured; none where the rates were given as numbers and no calibration was needed."""
    load: Mapping[str, Any] = summary.load
    if not {"base_per_s", "peak_per_s", "hold_ns"} <= load.keys():
        return ()
    base, peak, hold_ns = float(load["base_per_s"]), float(load["peak_per_s"]), float(load["hold_ns"])
    found = []
    for arm in summary.arms:
        if arm.name in summary.capacities:
            capacity = float(summary.capacities[arm.name]["rate_per_s"])
            backlog = max(0.0, peak - capacity) * hold_ns / 1e9
            drained = 0.0 if not backlog else backlog / (capacity - base) * 1e9 if capacity > base else None
            found.append(
                Headroom(arm=arm.name, capacity_per_s=capacity, base_per_s=base, peak_per_s=peak, backlog=backlog, drained_ns=drained)
            )
    return tuple(found)


def headroom_table(summary: ExperimentSummary) -> Table:
    """One row an arm: its load against its capacity, and what that alone foretells beside what was measured."""
    arms = {arm.name: arm for arm in summary.arms}
    rows = []
    for one in headroom(summary):
        recovery = arms[one.arm].recovery
        # Both are the most that were due and not done; the first looks at every arrival of the spikes, the second at moments.
        seen = [spike.peak_backlog for spike in recovery.spikes] if recovery is not None else [run.peak for run in arms[one.arm].backlog]
        waiting = f"{max(seen):,}" if seen else "-"
        late = f", {recovery.censored} of {len(recovery.spikes)} not in time" if recovery is not None and recovery.censored else ""
        rows.append(
            (
                one.arm,
                f"{format_count(one.capacity_per_s)}/s",
                f"{one.base_share:.0%}",
                f"{one.peak_share:.0%}",
                f"{one.backlog:,.0f}",
                waiting,
                _when(one.drained_ns),
                "-" if recovery is None else _when(recovery.median_ns) + late,
            )
        )
    return Table(
        title="Load against capacity",
        header=("arm", "capacity", "base, of it", "peak, of it", "left waiting: expected", "measured", "gone after: expected", "measured"),
        rows=tuple(rows),
        note=(
            "Capacity: answers a second in closed loop, with as many senders as the arm works on at once, measured before the spikes. "
            "Expected: from these rates alone, as if requests came evenly and all took the same time; what is measured above it is what "
            "chance, queueing and the machine add. Measured waiting: the most arrivals that were due and not done at once."
        ),
    )


def memory_table(summary: ExperimentSummary) -> Table:
    """One row an arm, the least memory first: what it holds, and what that buys."""
    device = any(arm.device_memory is not None for arm in summary.arms)
    rows = []
    for arm in sorted(summary.arms, key=lambda arm: held_bytes(arm) or 0.0):
        spike, every, resident = arm.phase("spike") or arm.latency[0], arm.share(None), arm.resident
        assert every is not None
        rows.append(
            (
                arm.name,
                "-" if resident is None else str(resident.slots),
                format_size(resident.median if resident else None),
                format_size(resident.peak if resident else None),
                *((format_size(arm.device_memory.peak if arm.device_memory else None),) if device else ()),
                "unstable" if arm.unstable else format_duration(spike.response.p99),
                "-" if every.attainment is None else f"{every.attainment:.2%}",
                "-"
                if every.goodput_per_s is None or every.offered_per_s is None
                else f"{format_count(every.goodput_per_s)}/s of {format_count(every.offered_per_s)}/s",
                f"{1 - every.ok_share:.2%}",
                format_duration(arm.ready_ns),
            )
        )
    header = ("arm", "most slots", "memory, median", "peak", *(("device memory",) if device else ()))
    slo = "within the SLO" if summary.slo_ns is None else f"within {format_duration(summary.slo_ns)}"
    return Table(
        title="Memory and what it buys",
        header=(*header, "P99 in spikes", slo, "goodput", "no correct answer", "ready after"),
        rows=tuple(rows),
        note="Memory of the server's process while load was offered. Plan with the peak: that is what has to fit.",
    )


def held_bytes(arm: ArmSummary) -> float | None:
    """The memory that decides how many fit: the device's where there is one, else the process's; at its peak."""
    return arm.held.peak if arm.held is not None else None


def spike_p99_ns(arm: ArmSummary) -> float | None:
    """None where the arm cannot hold its base, so that it has no P99, or has too few answers for one."""
    spike = arm.phase("spike") or arm.latency[0]
    return None if arm.unstable else spike.response.p99


def decisions(summary: ExperimentSummary) -> str:
    """Markdown: what to size by. Where the run is not valid, that comes first."""
    return "\n".join(f"- {line}" for line in _decisions(summary))


def _decisions(summary: ExperimentSummary) -> Iterator[str]:
    if summary.invalid:
        yield "**Nothing yet: the run is not valid.** Mend what is said at the top, and run it again; the rest shows how it would read."
    yield slo_decision(summary)
    enough = [(held, arm) for arm in summary.arms for held in [held_bytes(arm)] if held is not None and _suffices(arm)]
    if len(enough) > 1:
        held, arm = min(enough, key=lambda pair: pair[0])
        yield f"**Of those, {arm.name} holds the least memory**: {format_size(held)} at its peak, for each replica."
    for one in headroom(summary):
        if one.base_share >= 1:
            yield f"**{one.arm} is too small for the base load**: {one.base_share:.3g} times what it can answer. No queue saves it."
        elif one.peak_share > 1:
            yield (
                f"**In a spike, {one.arm} is asked for {one.peak_share:.3g} times what it can answer**: about {one.backlog:,.0f} requests "
                f"wait at its end, and are gone {_when(one.drained_ns)} later. To have no queue grow it takes "
                f"{math.ceil(one.peak_share)} such replicas, each on a device of its own."
            )
        else:
            yield f"**{one.arm} has room above the peak**: a spike uses {one.peak_share:.0%} of what it can answer."
    for worse, better in _buys_nothing(summary):
        yield f"**{worse} buys nothing over {better} here**: it holds more memory, and its P99 in spikes is not lower."
    yield (
        "**Do not carry this over to other rates.** It holds for this peak, this length and this device; slots on one device slow "
        "each other down. For another peak, run it: `bench burst ENGINE --peak RATE --hold TIME`."
    )


def _rates(good: float | None, offered: float | None) -> str:
    return "-" if good is None or offered is None else f"{format_count(good)}/s of {format_count(offered)}/s"


def _when(after_ns: float | None) -> str:
    return "never" if after_ns is None else "at once" if after_ns == 0 else format_duration(after_ns)


def _suffices(arm: ArmSummary) -> bool:
    every = arm.share(None)
    return every is not None and every.attainment is not None and every.attainment >= GOOD_SHARE


def _buys_nothing(summary: ExperimentSummary) -> Iterator[tuple[str, str]]:
    known = [(arm.name, held, p99) for arm in summary.arms for held, p99 in [(held_bytes(arm), spike_p99_ns(arm))] if held and p99]
    for name, held, p99 in known:
        cheaper = [other for other in known if other[1] * (1 + _SAME_MEMORY) < held and other[2] <= p99]
        if cheaper:
            yield name, min(cheaper, key=lambda other: other[2])[0]
