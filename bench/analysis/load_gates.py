"""Bounds that a user sets on a load run or an experiment, for CI: `p99=200ms`, `spike.p99=1s`, and a share of good answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.slo import Slo
from bench.units import format_duration

if TYPE_CHECKING:
    from bench.analysis.experiment import ArmSummary, ExperimentSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGateResult:
    """One gate for one arm; `measured` says what it was, or why it cannot be told (then it is missed)."""

    gate: str
    arm: str
    measured: str
    passed: bool

    def describe(self) -> str:
        return f"gate {'passed' if self.passed else 'MISSED'}: {self.gate} [{self.arm}], measured {self.measured}"


def check_goodput(goodput: float | None, slos: Sequence[Slo]) -> None:
    """Raises BenchError where the share is none."""
    if goodput is not None and not 0 < goodput <= 1:
        raise BenchError(f"--goodput {goodput:g} is not a share: write a number above 0 and at most 1, such as 0.99")


def evaluate(summary: ExperimentSummary, slos: Sequence[Slo], goodput: float | None) -> list[LoadGateResult]:
    """Every gate for every arm of `summary`. The share of good answers is judged at the summary's SLO. Raises BenchError."""
    if goodput is not None and summary.slo_ns is None:
        raise BenchError("--goodput needs to know what is good: give --slo TIME too, or run with --slo")
    results = []
    for arm in summary.arms:
        results += [_slo(arm, slo) for slo in slos]
        if goodput is not None:
            every = arm.share(None)
            share = None if every is None else every.attainment
            gate = f"{goodput:g} of the arrivals within {format_duration(summary.slo_ns)}"
            measured = "nothing" if share is None else f"{share:.5g}"
            results.append(LoadGateResult(gate=gate, arm=arm.name, measured=measured, passed=share is not None and share >= goodput))
    return results


def key_figures(arm: ArmSummary) -> dict[str, Any]:
    """What a pipeline reads of one arm: times in ns, sizes in bytes, shares of all arrivals; None: not known."""
    every, spike, share = arm.phase(None), arm.phase("spike"), arm.share(None)
    return {
        "arm": arm.name,
        "runs": arm.runs,
        "arrivals": None if every is None else every.arrivals,
        "unstable": arm.unstable,
        "p50_ns": None if every is None else every.response.p50,
        "p99_ns": None if every is None else every.response.p99,
        "spike_p99_ns": None if spike is None else spike.response.p99,
        "ok_share": None if share is None else share.ok_share,
        "attainment": None if share is None else share.attainment,
        "recovery_median_ns": None if arm.recovery is None else arm.recovery.median_ns,
        "recovery_censored": None if arm.recovery is None else arm.recovery.censored,
        "resident_median_bytes": None if arm.resident is None else arm.resident.median,
    }


def _slo(arm: ArmSummary, slo: Slo) -> LoadGateResult:
    found = arm.phase(slo.phase)
    if found is None:
        phases = ", ".join(one.phase for one in arm.latency if one.phase)
        raise BenchError(f"--slo {slo.text!r}: {arm.name} has no phase {slo.phase!r}, only {phases}")
    value = getattr(found.response, "maximum" if slo.statistic == "max" else slo.statistic)
    if arm.unstable:
        measured, passed = "an arm that cannot hold its base load, so that this grows with the length of the run", False
    elif value is None:
        measured, passed = f"too few answers for it ({found.answered})", False
    else:
        measured, passed = format_duration(value), value <= slo.bound_ns
    return LoadGateResult(gate=slo.text, arm=arm.name, measured=measured, passed=passed)
