"""The schedule file: what is written is what is read, and anything else is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.load.arrivals_text import parse_arrivals
from bench.load.schedule import METADATA_KEY, Schedule, make_schedule, partition, read_schedule, write_schedule


@pytest.fixture
def schedule() -> Schedule:
    return parse_arrivals("train:base=20,peak=200,hold=1s,rest=2s,spikes=3").schedule(5)


def test_what_is_written_is_read(schedule: Schedule, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_schedule(schedule, path)
    again = read_schedule(path)
    assert again.table.equals(schedule.table)
    assert (again.duration_ns, again.spikes) == (schedule.duration_ns, schedule.spikes)
    assert again.provenance == schedule.provenance
    assert again.provenance["arrivals"] == "train:base=20,peak=200,hold=1s,rest=2s,spikes=3" and again.provenance["seed"] == 5
    assert again.intended_ns.dtype == np.int64 and again.spike.dtype == np.int32
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


def test_the_file_is_plain_parquet_for_anyone(schedule: Schedule, tmp_path: Path) -> None:
    write_schedule(schedule, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert [table.schema.field(n).type for n in ("seq", "intended_ns", "spike")] == [pa.int64(), pa.int64(), pa.int32()]
    assert table.column("spike").null_count == int((schedule.spike == -1).sum()) > 0
    about = json.loads(table.schema.metadata[METADATA_KEY])
    assert about["schema_version"] == 1 and len(about["spikes"]) == 3 and about["spikes"][0]["peak_rate"] == 200


def test_nothing_is_overwritten_without_force(schedule: Schedule, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("mine")
    with pytest.raises(BenchError, match="exists already"):
        write_schedule(schedule, path)
    assert path.read_text() == "mine" and [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]
    write_schedule(schedule, path, force=True)
    assert len(read_schedule(path)) == len(schedule)
    with pytest.raises(BenchError, match="cannot be written"):
        write_schedule(schedule, tmp_path / "missing" / "a.parquet")


def _written(tmp_path: Path, table: pa.Table, **changes: object) -> Path:
    about = {"schema_version": 1, "duration_ns": 10, "spikes": [], "provenance": {}} | changes
    path = tmp_path / "x.parquet"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(about).encode()}), path)
    return path


def _table(times: list[int | None], **changes: pa.Array) -> pa.Table:
    n = len(times)
    columns = {
        "seq": pa.array(range(n), pa.int64()),
        "intended_ns": pa.array(times, pa.int64()),
        "spike": pa.nulls(n, pa.int32()),
        "phase": pa.array(["base"] * n),
    }
    return pa.table(columns | changes)


def test_a_file_from_another_writer_reads_when_it_keeps_the_format(tmp_path: Path) -> None:
    schedule = read_schedule(_written(tmp_path, _table([0, 5, 5])))
    assert schedule.intended_ns.tolist() == [0, 5, 5] and schedule.spike.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("times", "columns", "about", "says"),
    [
        ([0, 5, 3], {}, {}, "not sorted: row 2 is due before row 1"),
        ([-1, 5], {}, {}, "negative time, -1 ns, in row 0"),
        ([0, 11], {}, {}, "after its duration"),
        ([0, None], {}, {}, "rows without intended_ns"),
        ([], {}, {}, "no arrivals"),
        ([0, 1], {"seq": pa.array([0, 0])}, {}, "seq that does not grow"),
        ([0, 1], {"seq": pa.array([-1, 0])}, {}, "seq that does not grow"),
        ([0, 1], {"spike": pa.array([0, None], pa.int32())}, {}, "spike table does not know"),
        ([0, 1], {"seq": pa.array(["a", "b"])}, {}, "column seq, not int64"),
        ([0, 1], {}, {"schema_version": 2}, "version 2, this program reads version 1"),
        ([0, 1], {}, {"spikes": [{"index": 0}]}, "damaged"),
        ([0, 1], {}, {"schema_version": "1"}, "version '1', this program reads version 1"),
        ([0, 1], {}, {"duration_ns": None}, "damaged"),
        ([0, 1], {}, {"duration_ns": float("inf")}, "damaged"),
        ([0, 1], {}, {"duration_ns": float("nan")}, "damaged"),
        ([0, 1], {}, {"provenance": {"rate": float("nan")}}, "damaged"),
        ([0, 1], {}, {"spikes": [{"index": 0, "start_ns": 0, "end_ns": 1, "peak_rate": float("inf")}]}, "damaged"),
        ([0, 1], {}, {"spikes": [{"index": -1, "start_ns": 0, "end_ns": 1, "peak_rate": 1}]}, "spike table"),
        ([0, 1], {}, {"spikes": [{"index": 0, "start_ns": 0, "end_ns": 1, "peak_rate": 1}] * 2}, "spike table"),
        ([0, 1], {}, {"spikes": [{"index": 0, "start_ns": 1, "end_ns": 0, "peak_rate": 1}]}, "spike table"),
        ([0, 1], {}, {"spikes": [{"index": "a", "start_ns": 0, "end_ns": 1, "peak_rate": 1}]}, "damaged"),
    ],
)
def test_a_broken_schedule_is_one_sentence(tmp_path: Path, times: list[int], columns: dict, about: dict, says: str) -> None:
    path = _written(tmp_path, _table(times, **columns), **about)
    with pytest.raises(BenchError, match=says) as caught:
        read_schedule(path)
    assert str(path) in str(caught.value)


def test_a_column_that_would_be_there_twice_is_named() -> None:
    extra = pa.table({"seq": pa.array([7]), "trace_seq": pa.array([8])})
    with pytest.raises(BenchError, match="'seq' which would be a second 'trace_seq'"):
        make_schedule(intended_ns=np.array([0]), duration_ns=1, provenance={}, extra=extra)


@pytest.mark.parametrize("name", ["seq", "intended_ns", "spike", "phase"])
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BenchError, match=f"no column {name}"):
        read_schedule(_written(tmp_path, _table([0, 1]).drop_columns([name])))


def test_a_column_that_is_there_twice_is_named(tmp_path: Path, schedule: Schedule) -> None:
    write_schedule(schedule, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(table.append_column("seq", table.column("seq")), tmp_path / "b.parquet")
    with pytest.raises(BenchError, match="two columns seq"):
        read_schedule(tmp_path / "b.parquet")


def test_what_is_no_schedule_is_one_sentence(tmp_path: Path, schedule: Schedule) -> None:
    with pytest.raises(BenchError, match="is not a file"):
        read_schedule(tmp_path)
    with pytest.raises(BenchError, match="is not a file"):
        read_schedule(tmp_path / "none.parquet")
    for content in (b"", b"PAR1", b"seq,intended_ns\n0,1\n"):
        (tmp_path / "text.parquet").write_bytes(content)
        with pytest.raises(BenchError, match="not a readable Parquet file"):
            read_schedule(tmp_path / "text.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(BenchError, match="not a schedule"):
        read_schedule(tmp_path / "other.parquet")
    write_schedule(schedule, tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for length in (len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.parquet").write_bytes(whole[:length])
        with pytest.raises(BenchError, match="not a readable Parquet file"):
            read_schedule(tmp_path / "cut.parquet")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 20))
def test_the_shares_of_the_workers_are_the_schedule(count: int, workers: int) -> None:
    times = np.sort(np.random.default_rng(count).integers(0, 1000, count))
    extra = pa.table({"seq": pa.array([f"row {i}" for i in range(count)])})
    schedule = make_schedule(intended_ns=times, duration_ns=1000, provenance={}, extra=extra)
    assert schedule.extra_columns == ("trace_seq",)
    if workers > count:
        with pytest.raises(BenchError, match="more than the"):
            partition(schedule, 0, workers)
        return
    shares = [partition(schedule, worker, workers) for worker in range(workers)]
    assert all((share.seq % workers == worker).all() and len(share) >= 1 for worker, share in enumerate(shares))
    together = pa.concat_tables([share.table for share in shares]).sort_by("seq")
    assert together.equals(schedule.table) or together.to_pylist() == schedule.table.to_pylist()
    with pytest.raises(BenchError, match="does not exist"):
        partition(schedule, workers, workers)


def test_a_share_is_written_and_read_as_a_schedule(schedule: Schedule, tmp_path: Path) -> None:
    share = partition(schedule, 1, 3)
    write_schedule(share, tmp_path / "share.parquet")
    assert read_schedule(tmp_path / "share.parquet").seq.tolist() == share.seq.tolist()
