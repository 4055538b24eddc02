"""The GPU's clock: which GPU is asked, what is not known, and what a report says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cuda_stand_ins import install, nvml_module

from bench.analysis.experiment import summarize
from bench.analysis.sm_clock import ClockRange
from bench.analysis.subject import open_subject
from bench.report.build import build_page
from bench.report.burst_page import arms_table
from reference_server.runtimes.sm_clock import SmClock
from tests.experiments import cold_and_warm, write_experiment
from tests.plan_runs import curve_run

HERE = "0000:3B:00.0"


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    clock = SmClock()
    assert [clock.read_mhz(None), clock.read_mhz(HERE)] == [None, None]


def test_a_library_without_a_driver_is_opened_once_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = nvml_module({HERE: 1980})
    install(monkeypatch, {"pynvml": nvml})
    tried = []

    def fail() -> None:
        tried.append(1)
        raise nvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    clock = SmClock()
    assert [clock.read_mhz(HERE), clock.read_mhz(HERE), len(tried)] == [None, None, 1]


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        ({"0000:1A:00.0": 345, HERE: 1980}, 1980),
        ({"0000:1A:00.0": 345}, 345),  # at another address than CUDA says, but the only one
        ({"0000:1A:00.0": 345, "0000:1B:00.0": 345}, None),
        ({HERE: 0}, None),  # it does not tell
        ({}, None),
    ],
)
def test_the_gpu_is_found_by_its_address(clocks: dict[str, int], expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"pynvml": nvml_module(clocks)})
    assert SmClock().read_mhz(HERE) == expected


def test_a_failed_answer_is_no_answer_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {HERE: 0}
    install(monkeypatch, {"pynvml": nvml_module(clocks)})
    clock = SmClock()
    assert clock.read_mhz(HERE) is None
    clocks[HERE] = 1410
    assert clock.read_mhz(HERE) == 1410


def with_clock(run: Path, clocks: list[int | None] | None) -> None:
    """Give each sample since load began one of the clocks in turn, 100 before it; None: a run of a server that did not look."""
    file = run / "timeline.parquet"
    table = pq.read_table(file).drop_columns("sm_clock_mhz")
    if clocks is not None:
        at = table.column("t_ns").to_pylist()
        given = [100 if t < 0 else clocks[i % len(clocks)] for i, t in enumerate(at)]
        table = table.append_column("sm_clock_mhz", pa.array(given, pa.int32()))
    pq.write_table(table, file)


def test_a_report_says_between_what_the_clock_was_under_load(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "e", cold_and_warm)
    given: dict[str, list[int | None] | None] = {
        "00-cold-load": [1980, 345, 1980, None], "01-cold-load": [1980], "00-warm-pool": None, "01-warm-pool": None,
    }  # fmt: skip
    for run, clocks in given.items():
        with_clock(path / "runs" / run, clocks)
    summary = summarize(open_subject(path))
    cold, warm = summary.arms
    assert summary.valid and warm.sm_clock is None
    assert cold.sm_clock == ClockRange(lowest_mhz=345, median_mhz=1980, highest_mhz=1980)
    assert ("SM clock of the GPU", "345 to 1,980 MHz (median 1,980)", "-") in arms_table(summary).rows
    said = summary.to_json()["arms"]
    assert (said[0]["sm_clock"]["lowest_mhz"], said[1]["sm_clock"]) == (345, None)


def test_without_any_gpu_a_report_says_nothing_of_clocks(tmp_path: Path) -> None:
    summary = summarize(open_subject(write_experiment(tmp_path / "e", cold_and_warm)))
    assert not [row for row in arms_table(summary).rows if "clock" in row[0]]


def test_the_page_of_a_curve_says_it_too(tmp_path: Path) -> None:
    path = curve_run(tmp_path / "curve", slots=2)
    assert not [line for line in build_page(path, pictures=False).statements if "clock" in line]
    table = pq.read_table(path / "timeline.parquet")
    pq.write_table(table.append_column("sm_clock_mhz", pa.array([1200, None, 1980], pa.int32())), path / "timeline.parquet")
    assert build_page(path, pictures=False).statements[-1] == "SM clock of the GPU: 1,200 to 1,980 MHz (median 1,590)."


def test_a_clock_that_never_changed_is_one_number() -> None:
    assert ClockRange(lowest_mhz=1980, median_mhz=1980, highest_mhz=1980).text == "1,980 MHz throughout"
