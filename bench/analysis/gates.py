"""Gates: bounds that a user sets on a cold-start run, for CI.

`process.p50 < 2s`, `slot.buffers.p95 <= 5ms`, `process.memory.p50 < 500MB`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.analysis.phases import PHASES, TOTALS
from bench.analysis.statistics import percentile, samples_needed
from bench.errors import BenchError
from bench.units import format_duration, format_size, parse_duration_ns, parse_size_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_FORM = re.compile(r"\s*([a-z-]+)(?:\.([a-z_]+))?\.(p50|p90|p95|p99|max)\s*(<=|<|>=|>)\s*(\S.*?)\s*")
MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """`phase` is a phase's name, `total`, or `memory` (resident, at the end of the trial); `bound` in ns or bytes."""

    text: str
    level: str
    phase: str
    statistic: str
    comparison: str
    bound: int

    @property
    def percent(self) -> float:
        return 100.0 if self.statistic == "max" else float(self.statistic[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """`variant` is empty where the run has only one; `measured` is in the gate's unit."""

    gate: Gate
    variant: str
    measured: float
    passed: bool

    def describe(self) -> str:
        form = format_size if self.gate.phase == MEMORY else format_duration
        where = f" [{self.variant}]" if self.variant else ""
        return f"gate {'passed' if self.passed else 'MISSED'}: {self.gate.text}{where}, measured {form(self.measured)}"


def parse_gate(text: str, levels: tuple[str, ...]) -> Gate:
    """Raises BenchError that shows the form."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise BenchError(f"--gate {text!r} is not LEVEL[.PHASE].p50|p90|p95|p99|max < BOUND, such as 'process.p50 < 2s'")
    level, phase, statistic, comparison, bound = match.groups()
    if level not in levels:
        raise BenchError(f"--gate {text!r}: level {level!r} is not measured by this run, only {', '.join(levels)}")
    value = parse_size_bytes(bound, "gate bound") if phase == MEMORY else parse_duration_ns(bound, "gate bound")
    return Gate(text=text.strip(), level=level, phase=phase or "total", statistic=statistic, comparison=comparison, bound=value)


def check_phase(gate: Gate) -> None:
    """Raises BenchError for a phase that no level has; which of them a run has is known when its trials are done."""
    known = (*PHASES, *TOTALS, MEMORY)
    if gate.phase not in known:
        near = difflib.get_close_matches(gate.phase, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"only {', '.join(known)}"
        raise BenchError(f"--gate {gate.text!r}: there is no phase {gate.phase!r}, {hint}")


def check_trials(gate: Gate, trials: int) -> None:
    """Raises BenchError where the gate's statistic needs more trials: known before the first one is run."""
    if trials < samples_needed(gate.percent):
        raise BenchError(
            f"--gate {gate.text!r}: {trials} trials are too few for {gate.statistic}, "
            f"{samples_needed(gate.percent)} are needed; ask for more with --trials"
        )


def evaluate(gate: Gate, table: pa.Table) -> list[GateResult]:
    """The gate for every variant of the run. Raises BenchError for a phase that is not there, or too few trials.

    A phase that recurs in a trial is summed, as in the summary.
    """
    names = ("order", "variant", "level", "phase", "duration_ns", "resident_bytes")
    columns = {name: np.asarray(table.column(name).to_numpy()) for name in names}
    phase, column = ("total", "resident_bytes") if gate.phase == MEMORY else (gate.phase, "duration_ns")
    chosen = (columns["level"] == gate.level) & (columns["phase"] == phase)
    if not chosen.any():
        phases = sorted(set(columns["phase"][columns["level"] == gate.level].tolist()) - {"total_outside"})
        raise BenchError(f"--gate {gate.text!r}: level {gate.level} has no phase {gate.phase!r}, only {', '.join(phases)} and {MEMORY}")
    results = []
    for variant in dict.fromkeys(columns["variant"][chosen].tolist()):
        here = chosen & (columns["variant"] == variant)
        trials, position = np.unique(columns["order"][here], return_inverse=True)
        check_trials(gate, len(trials))
        values = np.bincount(position, weights=columns[column][here].astype(np.float64))
        measured = percentile(values, gate.percent)
        if measured is None or np.isnan(measured):
            raise BenchError(f"--gate {gate.text!r}: this host does not tell the resident memory")
        holds = {"<": measured < gate.bound, "<=": measured <= gate.bound, ">": measured > gate.bound, ">=": measured >= gate.bound}
        results.append(GateResult(gate=gate, variant=variant, measured=measured, passed=holds[gate.comparison]))
    return results
