"""`bench schedule` and `bench trace` as a user runs them; wrong input goes through the same entry point in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import main
from bench.load.schedule import read_schedule


def _bench(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *map(str, args)], capture_output=True, text=True, timeout=120, cwd=cwd)


def test_schedule_writes_shows_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    done = _bench("schedule", "--arrivals", "train:base=20,peak=200,hold=1s,rest=2s,spikes=3", "--seed", 7, "-o", out, "--plot")
    assert done.returncode == 0, done.stderr
    schedule = read_schedule(out)
    assert f"arrivals    {len(schedule):,} in" in done.stdout and "3 spikes" in done.stdout and "█" in done.stdout
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000
    again = _bench("schedule", "--arrivals", "poisson:rate=5,duration=1s", "-o", out)
    assert again.returncode == 2 and "exists already" in again.stderr and read_schedule(out).table.equals(schedule.table)


def test_schedule_as_json(tmp_path: Path) -> None:
    done = _bench("schedule", "--arrivals", "poisson:rate=50", "--duration", "2s", "-o", tmp_path / "a.parquet", "--json")
    about = json.loads(done.stdout)
    assert about["arrivals"] == len(read_schedule(tmp_path / "a.parquet")) and about["expected"]["count"] == 100
    assert about["provenance"]["arrivals"] == "poisson:rate=50,duration=2s" and about["provenance"]["seed"] == 1


def test_trace_says_what_it_did(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp\n" + "\n".join(map(str, [0, 0, 7, 3, 3, 5, 200])))
    done = _bench("trace", trace, "-o", tmp_path / "t.parquet", "--spread", "1s", "--cap-gap", "10s", "--scale-rate", 2, "--seed", 3)
    assert done.returncode == 0, done.stderr
    for part in (
        "plain, told by the content",
        "s, on the trace's own clock",
        "7 read, 0 of them",
        "3 rows out of order (backward steps: 1)",
    ):
        assert part in done.stdout
    for part in ("spread      tick 1.00 s, seed 3", "cap-gap     gap 10.0 s, gaps 1", "scale-rate  factor 2.0, seed 3, before 7, after 14"):
        assert part in done.stdout
    assert len(read_schedule(tmp_path / "t.parquet")) == 14


def test_trace_without_a_span_is_valid_json(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("5\n5\n5\n")
    done = _bench("trace", tmp_path / "t.csv", "-o", tmp_path / "t.parquet", "--json", "--plot")
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert about["figures"]["mean_rate"] is None and about["duration_ns"] == 0 and (tmp_path / "t.png").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["schedule", "--arrivals", "poisson:rate=0,duration=1s", "-o", "a.parquet"], "rate is 0"),
        (["schedule", "--arrivals", "poisson:rate=1,duration=9s", "-o", "none/a.parquet"], "folder none does not exist"),
        (["schedule", "--arrivals", "poisson:rate=1,duration=9s", "-o", "a.png", "--plot"], "name it with .parquet"),
        (["trace", "none.csv", "-o", "a.parquet"], "none.csv does not exist"),
        (["trace", ".", "-o", "a.parquet"], "is a folder"),
        (["trace", "t.csv", "-o", "a.parquet", "--window", "5s"], "not START:END"),
        (["trace", "t.csv", "-o", "a.parquet", "--window", "5s:2s"], "ends before it starts"),
        (["trace", "t.csv", "-o", "a.parquet", "--window", "50s:60s"], "holds no arrival"),
        (["trace", "t.csv", "-o", "a.parquet", "--spread", "1"], "--spread '1' is not a time"),
        (["trace", "t.csv", "-o", "a.parquet", "--cap-gap", "0s"], "--cap-gap is 0s"),
        (["trace", "t.csv", "-o", "a.parquet", "--spread", "3000000h"], "is longer than 100 years"),
        (["trace", "t.csv", "-o", "a.parquet", "--window", ":3000000h"], "is longer than 100 years"),
        (["trace", "t.csv", "-o", "a.parquet", "--format", "plain", "--column", "²"], "no column '²'"),
        (["trace", "t.csv", "-o", "a.parquet", "--scale-rate", "0"], "--scale-rate is 0"),
        (["trace", "t.csv", "-o", "a.parquet", "--scale-time", "nan"], "--scale-time is nan"),
        (["trace", "t.csv", "-o", "a.parquet", "--unit", "days"], "--unit 'days'"),
        (["trace", "t.csv", "-o", "a.parquet", "--columns", "tokens"], "no column 'tokens'"),
        (["trace", "t.csv", "-o", "a.parquet", "--format", "csv"], "no trace format 'csv'"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    (tmp_path / "t.csv").write_text("timestamp\n0\n1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and says in said and len(said.splitlines()) == 1, said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["t.csv"]


def test_times_in_whole_seconds_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("0\n0\n1\n2\n")
    monkeypatch.chdir(tmp_path)
    for more, said in (([], True), (["--spread", "1s"], False)):
        monkeypatch.setattr(sys, "argv", ["bench", "trace", "t.csv", "--force", "-o", "t.parquet", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code and ("--spread 1s draws each" in capsys.readouterr().err) is said
