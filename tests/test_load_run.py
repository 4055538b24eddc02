"""Records beside their schedule, as one table: every column by hand, from files of the shape that a run leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from request_rows import read, write_run

from bench.analysis.load_run import SpikeWindow, read_arm
from bench.errors import BenchError
from bench.records import open_run

SCHEDULE: dict[str, list[Any]] = {
    "seq": [0, 1, 2, 3],
    "intended_ns": [100, 200, 300, 400],
    "spike": [None, 0, 0, None],
    "phase": ["base", "spike", "spike", "rest"],
}
ABOUT = {
    "schema_version": 1,
    "duration_ns": 1000,
    "spikes": [{"index": 0, "start_ns": 150, "end_ns": 350, "peak_rate": 2.0}],
    "provenance": {},
}
PARTS = {"queue_ns": 1, "pool_ns": 2, "load_ns": 0, "input_ns": 3, "infer_ns": 4, "output_ns": 5}
# In the order in which they ended, as they are written.
ROWS: list[dict[str, Any]] = [
    {"seq": 1, "intended_ns": 200, "sent_ns": 210, "done_ns": 260, "status": "ok", "http_status": 200, "worker": 0, **PARTS},
    {"seq": 0, "intended_ns": 100, "sent_ns": 101, "done_ns": 301, "status": "wrong", "http_status": 200, "worker": 0},
    {"seq": 3, "intended_ns": 400, "status": "not_sent", "error": "stopped", "worker": 0},
    {"seq": 2, "intended_ns": 300, "sent_ns": 300, "done_ns": 900, "status": "timeout", "worker": 0},
]


def test_columns(tmp_path: Path) -> None:
    found = read(write_run(tmp_path, "run", ROWS, SCHEDULE, about=ABOUT))
    table = found.requests
    assert table["seq"].tolist() == [0, 1, 2, 3]
    assert table["intended_ns"].tolist() == [100, 200, 300, 400]
    assert table["status"].tolist() == ["wrong", "ok", "timeout", "not_sent"]
    assert table["ok"].tolist() == [False, True, False, False]
    assert table["spike"].tolist() == [-1, 0, 0, -1]
    assert table["phase"].tolist() == ["base", "spike", "spike", "rest"]
    np.testing.assert_array_equal(table["lag_ns"], [1, 10, 0, np.nan])
    np.testing.assert_array_equal(table["round_trip_ns"], [200, 50, 600, np.nan])
    np.testing.assert_array_equal(table["response_ns"], [201, 60, 600, np.nan])
    np.testing.assert_array_equal(table["infer_ns"], [np.nan, 4, np.nan, np.nan])
    np.testing.assert_array_equal(table["load_ns"], [np.nan, 0, np.nan, np.nan])
    assert found.spikes == (SpikeWindow(run=0, spike=0, start_ns=150, end_ns=350),)
    assert (found.duration_ns, found.unrecorded, found.partial) == (1000, 0, False)
    assert not any(kind == object for kind in table.dtypes)  # noqa: E721


def test_a_run_that_was_cut_off(tmp_path: Path) -> None:
    found = read(write_run(tmp_path, "run", ROWS[:3], SCHEDULE, about=ABOUT, finish=False))
    assert found.partial
    assert found.unrecorded == 1
    assert found.requests["seq"].tolist() == [0, 1, 3]
    assert found.requests["spike"].tolist() == [-1, 0, -1]


def test_a_schedule_without_metadata_tells_its_spikes_by_its_arrivals(tmp_path: Path) -> None:
    found = read(write_run(tmp_path, "run", ROWS, SCHEDULE))
    assert found.spikes == (SpikeWindow(run=0, spike=0, start_ns=200, end_ns=301),)
    assert found.duration_ns == 400


def test_the_runs_of_an_arm_in_one_table(tmp_path: Path) -> None:
    other = {**SCHEDULE, "phase": ["ramp", "spike", "spike", "base"]}
    paths = [write_run(tmp_path, "a", ROWS, SCHEDULE, about=ABOUT), write_run(tmp_path, "b", ROWS, other, about=ABOUT)]
    found = read_arm([open_run(path) for path in paths], [2, 7])
    assert found.requests["run"].tolist() == [2] * 4 + [7] * 4
    assert found.requests["phase"].tolist() == ["base", "spike", "spike", "rest", "ramp", "spike", "spike", "base"]
    assert found.requests["phase"].dtype == "category"
    assert found.requests["status"].dtype == "category"
    assert [window.run for window in found.spikes] == [2, 7]
    assert found.runs == (2, 7)
    assert found.durations_ns == (1000, 1000)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no recorded requests"),
        ([*ROWS, {**ROWS[0], "seq": 9}], "its schedule does not have"),
        ([*ROWS[:2], ROWS[0]], "recorded twice"),
        ([{**ROWS[0], "status": "perhaps"}], "column status has the value 'perhaps', which is none of"),
    ],
)
def test_records_that_cannot_be_read(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = write_run(tmp_path, "run", rows, SCHEDULE)
    with pytest.raises(BenchError, match=message):
        read(path)


def test_a_run_without_a_schedule_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path, "run", ROWS, SCHEDULE)
    (path / "schedule.parquet").unlink()
    with pytest.raises(BenchError, match="no schedule"):
        read(path)


@pytest.mark.parametrize("finish", [True, False])
def test_a_table_without_a_column_that_is_needed(tmp_path: Path, finish: bool) -> None:
    path = write_run(tmp_path, "run", ROWS, SCHEDULE, finish=finish)
    with pytest.raises(BenchError, match="has no column colour"):
        open_run(path).table("requests", ["seq", "colour"])
    table = open_run(path).table("requests", ["status", "seq"])
    assert table is not None
    assert table.column_names == ["status", "seq"]
