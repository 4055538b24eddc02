"""What loads beside traffic cost, from an experiment whose every response time is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from bench.analysis.experiment import ExperimentSummary, summarize
from bench.analysis.subject import open_subject
from bench.experiment.arms import parse_arms, with_loads
from bench.report.burst_comparison import describe_loads
from tests.experiments import HOLD, LEAD, MS, REST, SPIKE_GAP, write_experiment

BLOCKS, SPIKES = 3, 4
TOOK = 500 * MS  # from 20 ms after the spike began, so positions 4 to 103 of 200 were due meanwhile
LATE = 20 * MS
MEANWHILE = range(4, 104)
ARMS = [
    {"name": arm.name, "mode": arm.mode, "options": {}, "settings": {}, "alone": arm.alone} for arm in with_loads(parse_arms("warm-pool"))
]


def slower(block: int, spike: int) -> int:
    return (5 + 3 * block + spike) * MS


def service(arm: str, block: int, spike: int | None, position: int) -> tuple[int, Mapping[str, int]]:
    """Alone 10 ms and up. With loads, what was due meanwhile takes `slower` longer."""
    took = 10 * MS + position * MS // 10
    if spike is not None and arm == "warm-pool+load" and position in MEANWHILE:
        took += slower(block, spike)
    return took, {}


def write(path: Path, *, failing: int | None = None) -> Path:
    write_experiment(path, service, arms=ARMS, blocks=BLOCKS, spikes=SPIKES)
    for block in range(BLOCKS):
        file = path / "runs" / f"{block:02d}-warm-pool+load" / "run.json"
        record: dict[str, Any] = json.loads(file.read_text())
        record["loads"] = []
        for spike in range(SPIKES):
            start = LEAD + spike * (HOLD + REST)
            times = {
                "planned_ns": start,
                "began_ns": start + LATE,
                "ended_ns": start + LATE + TOOK,
                "unloaded_ns": start + HOLD + REST // 2,
            }
            error = "no room" if spike == failing else None
            record["loads"].append({"spike": spike, **times, "error": error})
        file.write_text(json.dumps(record))
    return path


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSummary:
    return summarize(open_subject(write(tmp_path_factory.mktemp("loads") / "e")))


def test_the_same_arrivals_alone_and_meanwhile(summary: ExperimentSummary) -> None:
    (found,) = summary.loads_beside
    assert (found.arm, found.alone, found.loads, found.planned, found.errors) == ("warm-pool+load", "warm-pool", 12, 12, ())
    assert (found.took_ns, found.took_longest_ns) == (TOOK, TOOK)
    assert found.arrivals == 12 * len(MEANWHILE) == 12 * TOOK // SPIKE_GAP
    cases = [(block, spike) for block in range(BLOCKS) for spike in range(SPIKES)]
    both = {
        arm: sorted(service(arm, block, spike, position)[0] for block, spike in cases for position in MEANWHILE)
        for arm in ("warm-pool", "warm-pool+load")
    }
    rank = math.ceil(0.99 * found.arrivals) - 1
    assert (found.alone_p99_ns, found.during_p99_ns) == (both["warm-pool"][rank], both["warm-pool+load"][rank])


def test_intervals_are_over_loads(summary: ExperimentSummary) -> None:
    (found,) = summary.loads_beside
    cases = [(block, spike) for block in range(BLOCKS) for spike in range(SPIKES)]
    more = [slower(block, spike) for block, spike in cases]
    mean = sum(more) / 12
    error = math.sqrt(sum((one - mean) ** 2 for one in more) / 11 / 12)
    reach = stats.t.ppf(0.975, 11) * error
    assert found.extra_ns == pytest.approx(mean)
    assert found.extra_interval is not None
    assert (found.extra_interval.low, found.extra_interval.high) == pytest.approx((mean - reach, mean + reach))
    assert found.p99 is not None and (found.p99.units, found.p99.spikes_per_unit) == (12, 1)
    logs = [math.log(service("warm-pool+load", b, s, 102)[0] / service("warm-pool", b, s, 102)[0]) for b, s in cases]  # the 99th of 100
    assert found.p99.ratio == pytest.approx(math.exp(sum(logs) / 12))


def test_an_arm_with_loads_stands_beside_itself_without(summary: ExperimentSummary) -> None:
    (comparison,) = summary.comparisons
    assert (comparison.first, comparison.second) == ("warm-pool", "warm-pool+load")
    assert "with one more engine loaded in each spike of warm-pool, the P99 of a typical one is" in summary.sentence
    assert "12 loads" in summary.sentence
    text = describe_loads(summary.loads_beside[0])
    assert text.startswith("warm-pool while one more engine is loaded (12 of 12 loads, 500 ms each in the median): P99 ")
    assert "1,200 arrivals due meanwhile" in text and "over loads" in text
    assert json.dumps(summary.to_json(), allow_nan=False)


def test_a_load_that_failed_is_none_and_is_said(tmp_path: Path) -> None:
    summary = summarize(open_subject(write(tmp_path / "e", failing=1)))
    (found,) = summary.loads_beside
    assert (found.loads, found.planned, found.errors) == (9, 12, ("no room",))
    assert found.arrivals == 9 * len(MEANWHILE)
    assert any("warm-pool+load: 3 of 12 loads did not succeed (no room)" in caveat for caveat in summary.caveats)


def test_arms_with_their_twins() -> None:
    arms = with_loads(parse_arms("cold-load,warm-pool:pool=2"))
    assert [arm.name for arm in arms] == ["cold-load", "cold-load+load", "warm-pool-pool2", "warm-pool-pool2+load"]
    assert [arm.alone for arm in arms] == [None, "cold-load", None, "warm-pool-pool2"]
