"""Gates on hand-made runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench.analysis.gates import Gate, evaluate, parse_gate
from bench.analysis.phases import PHASES
from bench.coldstart import LEVELS, cold_start_schema
from bench.errors import BenchError


def table(*rows: tuple[int, str, str, int], variant: str = "", memory: int | None = None) -> pa.Table:
    """Rows of (trial, level, phase, duration in ns)."""
    common: dict[str, Any] = {"in_total": True, "start_ns": 0, "device_bytes": None, "page_cache": None}
    made = [
        {**common, "order": t, "trial": t, "variant": variant, "level": level, "phase": phase, "duration_ns": ns, "resident_bytes": memory}
        for t, level, phase, ns in rows
    ]
    return pa.Table.from_pylist(made, schema=cold_start_schema())


def totals(level: str, *durations_ms: int, **more: Any) -> pa.Table:
    return table(*((t, level, "total", ms * 10**6) for t, ms in enumerate(durations_ms)), **more)


def gate(text: str) -> Gate:
    return parse_gate(text, LEVELS)


def passes(text: str, rows: pa.Table) -> bool:
    (result,) = evaluate(gate(text), rows)
    return result.passed


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("process.p50 < 2s", ("process", "total", "p50", "<", 2_000_000_000)),
        ("  process-disk.max>=1.5ms ", ("process-disk", "total", "max", ">=", 1_500_000)),
        ("slot.buffers.p95 <= 5ms", ("slot", "buffers", "p95", "<=", 5_000_000)),
        ("engine.memory.p99 > 1 GiB", ("engine", "memory", "p99", ">", 2**30)),
        ("warm.p90<300us", ("warm", "total", "p90", "<", 300_000)),
    ],
)
def test_the_form(text: str, parsed: tuple[object, ...]) -> None:
    found = gate(text)
    assert (found.level, found.phase, found.statistic, found.comparison, found.bound) == parsed
    assert found.text == text.strip()


@pytest.mark.parametrize(
    "text", ["", "process", "process.p50", "process.p50 < ", "process.p51 < 1s", "process.p50 == 1s", "p50 < 1s", "process.a.b.p50 < 1s"]
)
def test_what_is_not_a_gate_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BenchError, match=r"is not LEVEL\[.PHASE\].p50") as refused:
        gate(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(("text", "says"), [("process.p50 < 2", "'2' is not a time"), ("process.memory.p50 < 2s", "'2s' is not a size")])
def test_a_bound_has_the_unit_of_what_it_bounds(text: str, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        gate(text)


def test_a_level_that_is_not_measured_is_refused() -> None:
    with pytest.raises(BenchError, match="'process' is not measured by this run, only slot, warm"):
        parse_gate("process.p50 < 1s", ("slot", "warm"))


@pytest.mark.parametrize(
    ("comparison", "bound_ms", "passed"),
    [
        ("<", 20, False),
        ("<", 21, True),
        ("<=", 20, True),
        ("<=", 19, False),
        (">", 20, False),
        (">", 19, True),
        (">=", 20, True),
        (">=", 21, False),
    ],
)
def test_each_comparison_at_its_edge(comparison: str, bound_ms: int, passed: bool) -> None:
    assert passes(f"slot.p50 {comparison} {bound_ms}ms", totals("slot", 10, 20, 30)) is passed


def test_the_statistic_is_the_exact_percentile() -> None:
    rows = totals("slot", *range(1, 101))
    for statistic, ms in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100)):
        (result,) = evaluate(gate(f"slot.{statistic} < 1h"), rows)
        assert result.measured == ms * 10**6


@pytest.mark.parametrize(("statistic", "trials"), [("p90", 9), ("p95", 19), ("p99", 99)])
def test_too_few_trials_for_the_statistic_is_refused(statistic: str, trials: int) -> None:
    with pytest.raises(
        BenchError, match=f"{trials} trials are too few for {statistic}, {trials + 1} are needed; ask for more with --trials"
    ):
        evaluate(gate(f"slot.{statistic} < 1s"), totals("slot", *range(trials)))


def test_a_phase_that_recurs_in_a_trial_is_summed() -> None:
    rows = table((0, "process", "imports", 100), (0, "process", "imports", 7), (1, "process", "imports", 100), (1, "process", "imports", 9))
    (result,) = evaluate(gate("process.imports.max < 1s"), rows)
    assert result.measured == 109


def test_a_phase_that_is_not_there_names_those_that_are() -> None:
    rows = table((0, "slot", "buffers", 1), (0, "slot", "total", 2), (0, "slot", "total_outside", 3), (0, "warm", "inference", 1))
    with pytest.raises(BenchError, match="level slot has no phase 'spawn', only buffers, total and memory"):
        evaluate(gate("slot.spawn.p50 < 1s"), rows)


def test_memory_is_that_at_the_end_of_the_trial() -> None:
    rows = totals("slot", 1, 2, 3, memory=100_000_000)
    assert passes("slot.memory.p50 < 101MB", rows)
    assert not passes("slot.memory.max < 100MB", rows)
    with pytest.raises(BenchError, match="memory"):
        evaluate(gate("slot.memory.p50 < 1MB"), totals("slot", 1))


def test_a_gate_holds_for_each_variant_by_itself() -> None:
    rows = pa.concat_tables([totals("slot", 10, variant="threads=1"), totals("slot", 30, variant="threads=2")])
    slow, fast = sorted(evaluate(gate("slot.p50 < 20ms"), rows), key=lambda result: result.passed)
    assert (slow.variant, slow.passed) == ("threads=2", False)
    assert (fast.variant, fast.passed) == ("threads=1", True)
    assert slow.describe() == "gate MISSED: slot.p50 < 20ms [threads=2], measured 30.0 ms"
    assert fast.describe() == "gate passed: slot.p50 < 20ms [threads=1], measured 10.0 ms"


def test_the_known_phases_are_those_that_are_timed() -> None:
    """Read off the calls that time them, so that a gate on a new phase is not taken for a slip of the pen."""
    root = Path(__file__).resolve().parents[1]
    sources = [*(root / "reference_server").rglob("*.py"), root / "bench/server_trial.py", root / "bench/coldstart.py"]
    timed = {
        name
        for path in sources
        for name in re.findall(r'(?:\w\.phase\(|(?:phases|after)\.add\(|_phase\(|\{"name": )f?"([a-z_]+)', path.read_text("utf-8"))
    }
    pinned_or_not = {name for name in PHASES if name.startswith("copy_to_device_")}
    assert timed - {"copy_to_device_"} == set(PHASES) - pinned_or_not
