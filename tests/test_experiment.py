"""The summary of an experiment whose every response time is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.analysis.experiment import ExperimentSummary, summarize
from bench.analysis.memory import PerSlot
from bench.analysis.subject import open_subject
from bench.errors import BenchError
from bench.report.burst_page import arms_table
from tests.experiments import MS, S, arrivals, cold_and_warm, write_experiment


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"cold-load": 80 * MS, "warm-pool": 180 * MS}
    return write_experiment(tmp_path_factory.mktemp("golden") / "e", cold_and_warm, resident=sizes)


@pytest.fixture(scope="module")
def summary(golden: Path) -> ExperimentSummary:
    return summarize(open_subject(golden))


def responses(arm: str, phase: str) -> list[int]:
    """Worked out from the definition, without the analysis."""
    return sorted(
        cold_and_warm(arm, block, spike, position)[0]
        for block in range(2)
        for _, spike, name, position in arrivals(3)
        if phase in (name, "")
    )


def rank(values: list[int], share: float) -> int:
    return values[math.ceil(share * len(values)) - 1]


@pytest.mark.parametrize("arm", ["cold-load", "warm-pool"])
@pytest.mark.parametrize("phase", ["", "base", "spike", "rest"])
def test_percentiles_are_those_of_the_definition(summary: ExperimentSummary, arm: str, phase: str) -> None:
    found = next(one for one in summary.arms if one.name == arm).phase(phase or None)
    values = responses(arm, phase)
    assert found is not None
    assert (found.arrivals, found.answered) == (len(values), len(values))
    assert (found.response.p50, found.response.p99, found.response.maximum) == (rank(values, 0.5), rank(values, 0.99), values[-1])
    assert found.round_trip.p99 == rank(values, 0.99) - MS // 10


def test_the_comparison_is_the_geometric_mean_over_spikes(summary: ExperimentSummary) -> None:
    (comparison,) = summary.comparisons
    assert (comparison.first, comparison.second) == ("cold-load", "warm-pool")
    p99 = comparison.p99
    assert p99 is not None
    spikes = [(block, spike) for block in range(2) for spike in range(3)]
    ratios = []
    for block, spike in spikes:  # 200 requests a spike: the P99 is the 198th
        one, two = (cold_and_warm(arm, block, spike, 197)[0] for arm in ("cold-load", "warm-pool"))
        ratios.append(math.log(two / one))
    assert (p99.units, p99.spikes_per_unit) == (6, 1)
    assert p99.ratio == pytest.approx(math.exp(sum(ratios) / 6))
    assert p99.distinguishable
    assert (comparison.memory_kind, comparison.memory_bytes) == ("resident", 100 * MS)


def test_a_copy_of_the_engine_is_told_from_the_arm_that_shares_one(tmp_path: Path) -> None:
    options = {"cold-load": {"pool": "2"}, "warm": {"pool": "2"}, "copies": {"pool": "2", "sharing": "copy"}}
    arms = [
        {"name": name, "mode": "cold-load" if name == "cold-load" else "warm-pool", "options": given, "settings": {}}
        for name, given in options.items()
    ]
    sizes = {"cold-load": 90 * MS, "warm": 180 * MS, "copies": 280 * MS}
    path = write_experiment(tmp_path / "e", cold_and_warm, arms=arms, resident=sizes, slots=2)
    assert summarize(open_subject(path)).one_more == {"copies": PerSlot(bytes=100 * MS, reason=None, copies=True)}


def test_attainment_tail_memory_recovery_and_readiness(summary: ExperimentSummary) -> None:
    cold, warm = summary.arms
    for arm in (cold, warm):
        every = arm.share(None)
        within = sum(value <= 50 * MS for value in responses(arm.name, ""))
        assert every is not None and every.within_slo == within
        assert every.goodput_per_s == pytest.approx(within / (2 * 17))
        assert arm.ready_ns == 500 * MS
        assert not arm.unstable
    assert cold.tail is not None
    parts = {part.name: part.share for part in cold.tail.parts}
    assert parts["pool"] is not None and parts["pool"] > 0.9
    assert sum(share for share in parts.values() if share is not None) == pytest.approx(1)
    assert cold.resident is not None and (cold.resident.median, cold.resident.per_slot) == (80 * MS, 40 * MS)
    assert cold.pool.loaded_share == 1 and warm.pool.loaded_share == 0
    in_base = sum(phase != "spike" for _, _, phase, _ in arrivals(3)) / len(arrivals(3))
    assert warm.pool.hit_share == pytest.approx(in_base)
    # The last requests of a spike are still waiting when it ends, and all are done within the first window of 0.5 s.
    assert cold.recovery is not None and cold.recovery.median_ns == S // 2
    assert warm.recovery is not None and len(warm.recovery.spikes) == 6


def test_the_verdict_names_both_arms_their_interval_and_the_device(summary: ExperimentSummary) -> None:
    assert summary.valid and summary.sentence.startswith("On cpu:x86_64, ")
    for text in ("cold-load", "warm-pool", "95 % interval", "6 spikes"):
        assert text in summary.sentence
    assert any("says nothing about a GPU" in caveat for caveat in summary.caveats)


def test_json_is_strict_and_holds_what_the_result_holds(summary: ExperimentSummary) -> None:
    found = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert list(found)[:3] == ["schema_version", "valid", "sentence"]
    assert found["arms"][0]["latency"][0]["response"]["p99"] == summary.arms[0].latency[0].response.p99
    assert found["arms"][0]["recovery"]["median_ns"] == S // 2
    assert found["arms"][0]["goodput"][0]["ok_share"] == 1
    assert [one["run"] for one in found["validity"]] == [f"runs/{b}-{a}" for a in ("cold-load", "warm-pool") for b in ("00", "01")]


def test_missing_runs_are_said(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "half.partial", cold_and_warm, leave_out=["01-warm-pool"])
    found = summarize(open_subject(path))
    assert (found.partial, found.missing_runs) == (True, 1)
    assert any("warm-pool: 1 of 2 runs are missing" in caveat for caveat in found.caveats)
    assert found.sentence.startswith("Not finished, so not valid yet: 1 run is missing. ")
    assert not found.valid and not found.invalid and found.to_json()["valid"] is False  # as `bench check` has it
    assert found.comparisons[0].p99 is not None and found.comparisons[0].p99.units == 3


def test_an_arm_without_any_run_is_left_out(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "half.partial", cold_and_warm, leave_out=["00-warm-pool", "01-warm-pool"])
    found = summarize(open_subject(path))
    assert [arm.name for arm in found.arms] == ["cold-load"] and found.missing_runs == 2


def test_an_experiment_without_a_run_says_how_to_go_on(tmp_path: Path) -> None:
    every = [f"{block:02d}-{arm}" for block in range(2) for arm in ("cold-load", "warm-pool")]
    path = write_experiment(tmp_path / "none.partial", cold_and_warm, leave_out=every)
    with pytest.raises(BenchError, match=r"no finished run yet.*--resume"):
        open_subject(path)


def test_an_arm_that_cannot_hold_its_base_has_no_ratio(tmp_path: Path) -> None:
    served: dict[tuple[str, int], int] = {}

    def growing(arm: str, block: int, spike: int | None, position: int) -> tuple[int, dict[str, int]]:
        """cold-load serves 25 requests a second, one after the other, of the 50 that come."""
        if arm != "cold-load":
            return 2 * MS, {}
        number = served[arm, block] = served.get((arm, block), -1) + 1
        return (number + 1) * 40 * MS - arrivals(3)[number][0], {}

    found = summarize(open_subject(write_experiment(tmp_path / "e", growing)))
    cold, warm = found.arms
    assert cold.unstable and not warm.unstable
    assert found.comparisons[0].p99 is None
    assert "cold-load is unstable: P99 grows with the length of the run" in found.sentence
    assert cold.backlog_slope_per_s is not None and cold.backlog_slope_per_s > 20
    ends = cold.backlog_slope_interval
    assert ends is not None and 0 < ends.low <= cold.backlog_slope_per_s <= ends.high
    assert (
        f"its backlog grows in 2 of 2 runs, by {cold.backlog_slope_per_s:.3g} requests each second (95 %: {ends.low:.3g} to "
        in found.sentence
    )


def test_an_arm_that_may_not_hold_its_base_is_not_called_unstable(tmp_path: Path) -> None:
    """The backlog grows in one of two runs, and in the other it does not: the interval holds 0."""
    served: dict[int, int] = {}

    def growing(arm: str, block: int, spike: int | None, position: int) -> tuple[int, dict[str, int]]:
        if arm != "cold-load" or block == 0:
            return 2 * MS, {}
        number = served[block] = served.get(block, -1) + 1
        return (number + 1) * 40 * MS - arrivals(3)[number][0], {}

    found = summarize(open_subject(write_experiment(tmp_path / "e", growing)))
    cold = found.arms[0]
    assert cold.growing_runs == 1 and cold.doubtful and not cold.unstable
    assert "unstable" not in found.sentence and found.comparisons[0].p99 is not None
    assert any("cold-load may not hold the base rate: its backlog grows in 1 of 2 runs" in caveat for caveat in found.caveats)


def test_an_arm_that_answered_nothing_is_not_valid(tmp_path: Path) -> None:
    """However well it was loaded; and a P99 that grows is not what is said of it."""
    status = lambda arm, block, seq: "error" if arm == "cold-load" else "ok"  # noqa: E731
    found = summarize(open_subject(write_experiment(tmp_path / "e", cold_and_warm, status=status)))
    assert not found.valid and all(
        reason.startswith(("runs/00-cold-load: none of ", "runs/01-cold-load: none of ")) for reason in found.invalid
    )
    assert "was answered correctly" in found.sentence and "unstable" not in arms_table(found).rows[0]


def test_one_invalid_run_stands_before_every_number(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "e", cold_and_warm, status=lambda arm, block, seq: "not_sent" if seq % 20 == block else "ok")
    found = summarize(open_subject(path))
    assert not found.valid and found.sentence.startswith("Not valid, so no number here may be used: runs/00-cold-load: ")


def test_first_contact_stands_apart_from_the_spikes_that_are_compared(tmp_path: Path) -> None:
    found = summarize(open_subject(write_experiment(tmp_path / "e", cold_and_warm, first_contact=True)))
    assert [one.arm for one in found.first_contact] == ["cold-load", "warm-pool"]
    cold, warm = found.first_contact
    # Block 2 is the one of first contact: 100 (20) ms * 1.6, and 0.1 ms more for each of its 200 requests.
    assert (cold.latency.arrivals, cold.latency.response.maximum) == (200, 160 * MS + 199 * MS // 10)
    assert (warm.share.within_slo, warm.loaded_share) == (sum(32 * MS + n * MS // 10 <= 50 * MS for n in range(200)), 0)
    assert found.comparisons[0].p99 is not None and found.comparisons[0].p99.units == 6
    assert len(found.validity) == 6 and found.missing_runs == 0
    half = write_experiment(tmp_path / "half.partial", cold_and_warm, first_contact=True, leave_out=["02-warm-pool"])
    assert summarize(open_subject(half)).missing_runs == 1


def test_recovery_windows_fit_between_spikes(summary: ExperimentSummary) -> None:
    assert all(arm.recovery is not None and arm.recovery.window_ns == S // 2 for arm in summary.arms)  # rests of 4 s
