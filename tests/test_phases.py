"""The analysis of a cold-start run, on rows made by hand and added up by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from bench.analysis.phases import ColdStartSummary, describe_comparison, summarize
from bench.coldstart import cold_start_schema

MS = 1_000_000

PROCESS = {"spawn": 20, "imports": 100, "library": 30, "deserialise": 40, "first_inference": 5, "check": 1}
WARM = {"inference": 4}


class Rows:
    """Builds `cold_starts` trial by trial, durations in ms."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.order = 0

    def trial(
        self,
        level: str,
        phases: Mapping[str, float] | list[tuple[str, float]],
        *,
        rest: float = 0,
        outside: float | None = None,
        variant: str = "",
        after: Mapping[str, float] | None = None,
        page_cache: str | None = None,
        memory: int | None = None,
    ) -> Rows:
        pairs = list(phases.items()) if isinstance(phases, Mapping) else phases
        total = sum(ms for _, ms in pairs) + rest
        listed = [(name, ms, True) for name, ms in pairs]
        listed += [(name, ms, False) for name, ms in (after or {}).items()]
        listed += [("unattributed", rest, True), ("total", total, False), ("total_outside", total if outside is None else outside, False)]
        for phase, ms, in_total in listed:
            self.rows.append(
                {
                    "order": self.order, "trial": self.order, "variant": variant, "level": level, "phase": phase, "in_total": in_total,
                    "start_ns": 0, "duration_ns": round(ms * MS), "resident_bytes": memory, "device_bytes": None, "page_cache": page_cache,
                }
            )  # fmt: skip
        self.order += 1
        return self

    def summary(self, *variants: str, trials: int = 1, warnings: tuple[str, ...] = ()) -> ColdStartSummary:
        return summarize(pa.Table.from_pylist(self.rows, schema=cold_start_schema()), variants or ("",), trials, warnings)


def test_shares_of_all_phases_and_the_rest_are_the_whole() -> None:
    (level,) = Rows().trial("process", PROCESS, rest=4, after={"steady": 3}).summary().levels
    shares = {phase.name: phase.share for phase in level.phases}
    assert level.total.median == 200 * MS
    assert shares["imports"] == pytest.approx(0.5)
    assert shares["unattributed"] == pytest.approx(0.02)
    assert shares["steady"] is None
    assert sum(share for share in shares.values() if share is not None) == pytest.approx(1)
    assert "total" not in shares
    assert "total_outside" not in shares


def test_a_share_is_of_the_sum_over_trials_not_of_the_medians() -> None:
    rows = (
        Rows()
        .trial("engine", {"read": 1, "deserialise": 9})
        .trial("engine", {"read": 1, "deserialise": 9})
        .trial("engine", {"read": 70, "deserialise": 10})
    )
    (level,) = rows.summary().levels
    assert level.phases[0].share == pytest.approx(72 / 100)
    assert level.phases[0].spread.median == 1 * MS


def test_a_phase_that_recurs_in_a_trial_is_summed() -> None:
    (level,) = Rows().trial("process", [("imports", 50), ("library", 10), ("imports", 7)]).summary().levels
    assert [(phase.name, phase.spread.median) for phase in level.phases[:2]] == [("imports", 57 * MS), ("library", 10 * MS)]


def test_what_comes_before_inference_leaves_inference_and_check_out() -> None:
    (level,) = Rows().trial("process", PROCESS, rest=4).summary().levels
    assert level.before_inference.median == (20 + 100 + 30 + 40 + 4) * MS


def test_levels_come_from_cold_to_warm_and_variants_in_their_order() -> None:
    rows = Rows()
    for variant in ("b", "a"):
        for level in ("warm", "slot", "process", "engine", "process-disk"):
            rows.trial(level, PROCESS, variant=variant)
    found = [(s.variant, s.level) for s in rows.summary("b", "a").levels]
    assert found == [(v, level) for v in "ba" for level in ("process-disk", "process", "engine", "slot", "warm")]


def test_an_interval_and_p95_come_with_enough_trials() -> None:
    rows = Rows()
    for ms in range(1, 21):
        rows.trial("slot", {"slot": ms})
    total = rows.summary().levels[0].total
    assert total.median == 10 * MS  # nearest rank: a trial's own value
    assert total.p95 == 19 * MS
    assert total.interval is not None
    assert (total.interval.low, total.interval.high) == (6 * MS, 15 * MS)  # 20 trials: ranks 6 and 15
    few = Rows().trial("slot", {"slot": 1}).summary()
    assert few.levels[0].total.interval is None
    assert few.levels[0].total.p95 is None
    assert "slot: 1 trials are too few for a 95 % interval, 6 are needed" in few.caveats


def comparisons(summary: ColdStartSummary) -> dict[tuple[str, str, str], float]:
    return {(c.second, c.first, c.quantity): c.shift.difference / MS for c in summary.comparisons}


def test_the_differences_that_matter() -> None:
    rows = Rows()
    for _ in range(4):
        rows.trial("process-disk", {**PROCESS, "read": 50}).trial("process", PROCESS)
        rows.trial("engine", {"deserialise": 40, "first_inference": 5, "check": 1})
        rows.trial("slot", {"slot": 2, "first_inference": 5, "check": 1}).trial("warm", WARM, after={"check": 1})
    found = comparisons(rows.summary())
    assert found == {
        ("process-disk", "process", "total"): 50,
        ("process", "engine", "before_inference"): 150,
        ("engine", "slot", "before_inference"): 38,
        ("slot", "warm", "answer"): 3,  # its own check is left out: warm checks after the clock has stopped
    }


def test_variants_are_compared_with_the_first_at_every_level() -> None:
    rows = Rows()
    for n in range(8):
        rows.trial("slot", {"slot": 10 + n / 100}, variant="threads=1").trial("slot", {"slot": 20 + n / 100}, variant="threads=2")
    (comparison,) = rows.summary("threads=1", "threads=2").comparisons
    assert (comparison.first, comparison.second) == ("threads=1 slot", "threads=2 slot")
    assert comparison.shift.distinguishable
    assert comparison.shift.ratio == pytest.approx(2, rel=0.01)
    assert describe_comparison(comparison).startswith("threads=2 slot against threads=1 slot: +10.0 ms (+9.9")
    assert "x to " in describe_comparison(comparison)


def test_what_cannot_be_told_apart_is_said_to_be_so() -> None:
    rows = Rows()
    for n in range(8):
        rows.trial("slot", {"slot": 10 + n}, variant="a").trial("slot", {"slot": 10 + n}, variant="b")
    (comparison,) = rows.summary("a", "b").comparisons
    assert "not distinguishable (-" in describe_comparison(comparison)
    few = Rows().trial("slot", {"slot": 10}, variant="a").trial("slot", {"slot": 9}, variant="b").summary("a", "b")
    assert describe_comparison(few.comparisons[0]) == "b slot against a slot: -1.00 ms, too few trials for an interval"


def test_the_answer_in_one_sentence() -> None:
    rows = Rows().trial("process", PROCESS, rest=4).trial("warm", WARM)
    assert rows.summary().sentence == (
        "a cold process takes 200 ms until its first correct answer, 50 warm requests' worth of time, "
        "75% of it starting Python and imports and 20% deserialise; a warm slot answers in 4.00 ms"
    )
    server = Rows().trial("server", {"listen": 80, "library": 10, "deserialise": 6, "ready": 4}).summary().sentence
    assert "90% of it starting Python and imports and 6% deserialise" in server
    assert Rows().trial("warm", WARM).summary().sentence == "a warm slot answers in 4.00 ms (median)"
    assert Rows().trial("slot", {"slot": 3, "check": 1}).summary().sentence == (
        "a cold slot takes 4.00 ms until its first correct answer, 75% of it slot and 25% check"
    )
    assert "a cold process with the engine's pages dropped takes" in Rows().trial("process-disk", PROCESS).summary().sentence


@pytest.mark.parametrize(("rest", "valid"), [(0, True), (5.9, True), (6.2, False), (100, False)])
def test_a_process_with_more_than_3_percent_in_no_phase_is_not_valid(rest: float, valid: bool) -> None:
    summary = Rows().trial("process", {"imports": 194}, rest=rest).summary()
    assert summary.valid is valid
    if not valid:
        (reason,) = summary.invalid
        assert reason.startswith(f"process: {rest / (194 + rest):.1%} of the total (")
        assert "at most 3% may" in reason
    assert Rows().trial("engine", {"read": 1}, rest=rest).summary().valid


@pytest.mark.parametrize(("outside", "valid"), [(100, True), (102.9, True), (97.1, True), (103.1, False), (96.9, False)])
def test_a_process_whose_outside_clock_says_otherwise_is_not_valid(outside: float, valid: bool) -> None:
    summary = Rows().trial("process", {"imports": 100}, outside=outside).summary()
    assert summary.valid is valid
    if not valid:
        assert "the clock outside the process says" in summary.invalid[0]
        assert "100 ms" in summary.invalid[0]


def test_one_bad_trial_among_many_does_not_spoil_the_run() -> None:
    rows = Rows()
    for rest in (1, 1, 1, 50):
        rows.trial("process", PROCESS, rest=rest)
    assert rows.summary().valid


def test_no_trial_at_all_is_not_valid() -> None:
    summary = Rows().summary()
    assert not summary.valid
    assert summary.invalid == ("no trial was finished",)
    assert summary.levels == ()


def test_caveats_tell_of_missing_trials_unknown_pages_and_the_environment() -> None:
    rows = Rows().trial("process-disk", PROCESS, page_cache="unknown").trial("process-disk", PROCESS, page_cache="dropped")
    rows.trial("process", PROCESS, page_cache="warm")
    summary = rows.summary(trials=3, warnings=("the load is high",))
    assert "process-disk: 2 of 3 trials were done" in summary.caveats
    assert "process-disk: page_cache=unknown in 1 of 2 trials" in summary.caveats
    assert "process: 1 of 3 trials were done" in summary.caveats
    assert summary.caveats[-1] == "the load is high"
    assert summary.levels[0].page_cache == {"unknown": 1, "dropped": 1}


def test_a_state_of_the_page_cache_that_nobody_asked_for_is_left_out() -> None:
    summary = Rows().trial("process", PROCESS, page_cache="warm").trial("warm", WARM).summary()
    assert [level.page_cache for level in summary.levels] == [{"warm": 1}, {}]
    assert Rows().trial("warm", WARM).summary().levels[0].page_cache == {}


def test_memory_is_the_median_of_what_is_known() -> None:
    rows = Rows().trial("slot", {"slot": 1}, memory=100).trial("slot", {"slot": 1}, memory=300).trial("slot", {"slot": 1}, memory=None)
    level = rows.summary().levels[0]
    assert level.resident_bytes == 200
    assert level.phases[0].device_bytes is None


def test_floors_stand_beside_the_levels() -> None:
    rows = (
        Rows()
        .trial("process", PROCESS)
        .trial("floor", {"read_file": 3, "copy_memory": 2})
        .trial("floor-disk", {"read_file": 9, "copy_memory": 2})
    )
    summary = rows.summary()
    assert {name: spread.median for name, spread in summary.floors.items()} == {
        "read file, pages dropped": 9 * MS,
        "read file, pages warm": 3 * MS,
        "copy in memory": 2 * MS,
    }
    assert [level.level for level in summary.levels] == ["process"]


def test_the_summary_is_json_with_its_validity_first() -> None:
    summary = Rows().trial("process", PROCESS, rest=90).trial("warm", WARM).summary()
    written = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert next(iter(written)) == "valid"
    assert written["valid"] is False
    assert written["levels"][0]["total"]["median"] == 286 * MS
