"""The check of a run: each fault makes it invalid, with the reason and the remedy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.analysis.validity import Validity, check_run, describe, missing_runs, runs_of
from bench.errors import BenchError
from bench.load.arrivals_text import parse_arrivals
from bench.load.schedule import write_schedule
from bench.records import SCHEMA_VERSION, RunFolder
from bench.run_tables import PARTS_NS

ROOT = Path(__file__).parent.parent
SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("seq", "intended_ns", "sent_ns", "done_ns")]
    + [("status", pa.string()), ("error", pa.string())]
    + [(name, pa.int64()) for name in PARTS_NS]
)
GENERATOR = {
    "worker": 0, "timer": "timerfd", "cpu_ns": 1, "wall_ns": 10, "longest_pause_ns": 0, "longest_flush_ns": 0, "failure": None,
}  # fmt: skip
EXPERIMENT: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION, "kind": "experiment", "engine": {}, "arms": [{"name": arm, "mode": "lazy"} for arm in "abc"],
}  # fmt: skip


class Trial:
    """A run as it would be recorded, to be spoilt: one column each in `rows`, and what summary.json says."""

    def __init__(self, arrivals: str = "train:base=50,peak=500,hold=1s,rest=1s,spikes=2") -> None:
        self.schedule = parse_arrivals(arrivals).schedule(1)
        intended = self.schedule.intended_ns
        self.seq = self.schedule.seq.copy()
        self.sent = intended + 60_000
        self.status = np.array(["ok"] * len(intended), object)
        self.error = np.array([None] * len(intended), object)
        self.summary: dict[str, Any] = {"generators": [GENERATOR], "server_restarted": False}
        self.clocks: list[dict[str, Any]] | None = None

    def not_sent(self, count: int, reason: str) -> None:
        self.sent[-count:] = -1
        self.status[-count:] = "not_sent"
        self.error[-count:] = reason

    def write(self, folder: Path, *, keep: int | None = None, finish: bool = True) -> Path:
        run = RunFolder.create(folder, "run")
        write_schedule(self.schedule, run.path / "schedule.parquet")
        run.write_json("run.json", {"schema_version": SCHEMA_VERSION, "kind": "load", "clocks": self.clocks})
        known = self.sent >= 0
        columns = [
            pa.array(self.seq),
            pa.array(self.schedule.intended_ns),
            pa.array(self.sent, mask=~known),
            pa.array(self.sent + 1_000_000, mask=~known),
            pa.array(self.status, pa.string()),
            pa.array(self.error, pa.string()),
            *[pa.nulls(len(self.seq), pa.int64())] * len(PARTS_NS),
        ]
        order = pa.array(np.random.default_rng(1).permutation(len(self.seq))[:keep])  # rows come as they end, not by seq
        run.table("requests", SCHEMA).write_batch(pa.RecordBatch.from_arrays([column.take(order) for column in columns], schema=SCHEMA))
        if finish:
            run.write_json("summary.json", self.summary)
            return run.finish()
        run.close()
        return run.path

    def check(self, folder: Path, **how: Any) -> Validity:
        return check_run(self.write(folder, **how))


def problems(validity: Validity) -> list[str]:
    return [check.problem for check in validity.checks if check.problem]


def test_a_good_run(tmp_path: Path) -> None:
    trial = Trial()
    trial.sent[:50] = trial.schedule.intended_ns[:50] + 1_000_000
    validity = trial.check(tmp_path)
    count = len(trial.seq)
    assert validity.valid and not validity.partial and validity.counts == {"ok": count} and validity.not_sent == {}
    assert (validity.lag_p50_ns, validity.lag_p99_ns, validity.lag_max_ns) == (60_000, 1_000_000, 1_000_000)
    assert validity.spike_edge_ns == (60_000, 60_000) and validity.ks_distance is not None and validity.ks_distance < 0.05
    assert describe(tmp_path / "run", validity).splitlines()[0].endswith(": valid")


def test_stopped_is_no_fault_and_few_failures_are_none(tmp_path: Path) -> None:
    stopped = Trial()
    stopped.not_sent(600, "stopped")
    assert stopped.check(tmp_path / "a").valid
    few = Trial()
    few.not_sent(len(few.seq) // 200, "limit of 3 connections reached")
    assert few.check(tmp_path / "b").valid


def spoil_lag(trial: Trial) -> None:
    trial.sent[::50] += 20_000_000


def spoil_gaps(trial: Trial) -> None:
    trial.sent = -(-trial.sent // 9_000_000) * 9_000_000  # as a timer of 9 ms would: late by little, but in bunches


def spoil_edge(trial: Trial) -> None:
    at = int(np.flatnonzero(trial.schedule.spike == 1)[9])
    trial.sent[at] += 60_000_000


def spoil_summary(**values: Any) -> Any:
    def spoil(trial: Trial) -> None:
        generator = {**GENERATOR, **{key: value for key, value in values.items() if key in GENERATOR}}
        trial.summary = {**trial.summary, "generators": [generator], **{k: v for k, v in values.items() if k not in GENERATOR}}

    return spoil


def spoil_worker(trial: Trial) -> None:
    trial.sent[-3:] = -1
    trial.status[-3:] = "lost_worker"


def spoil_answers(trial: Trial) -> None:
    trial.status[:], trial.error[:] = "error", "500 boom"
    trial.error[:5] = "timeout"


def spoil_twice(trial: Trial) -> None:
    trial.seq[5] = trial.seq[4]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_lag, "the p99 of the send lag is 20.1 ms, above 10.0 ms.*--processes"),
        (spoil_gaps, "another shape than was asked for"),
        (spoil_edge, "1 of 2 spikes arrived more than 50.0 ms late"),
        (lambda trial: trial.not_sent(100, "limit of 3 connections reached"), "100 of .* were not sent.*raise --max-connections"),
        (lambda trial: trial.not_sent(100, "connect failed: Connection refused"), "see whether the server still runs"),
        (lambda trial: trial.not_sent(100, "deadline passed before it could be sent"), "longer than the deadline"),
        (lambda trial: trial.not_sent(len(trial.seq), "stopped"), "nothing was sent at all"),
        (spoil_answers, "none of .* arrivals was answered correctly, most of them: 500 boom; mend the server"),
        (spoil_worker, "a worker died and 3 of its arrivals are unknown"),
        (spoil_twice, "recorded twice"),
        (spoil_summary(cpu_ns=99, wall_ns=100), "99% of a core"),
        (spoil_summary(longest_pause_ns=400_000_000), "held up for 400 ms"),
        (spoil_summary(failure="ValueError('x')"), "the generator itself failed"),
        (spoil_summary(server_restarted=True), "another process at the end"),
    ],
)
def test_each_fault_is_said(tmp_path: Path, spoil: Any, says: str) -> None:
    trial = Trial()
    spoil(trial)
    validity = trial.check(tmp_path)
    assert not validity.valid
    assert any(re.search(says, problem) for problem in problems(validity)), problems(validity)
    assert json.loads(json.dumps(validity.to_json()))["valid"] is False


def with_columns(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> Path:
    """The run with further columns in its rows, which it has in the order of seq afterwards."""
    table = pq.read_table(path / "requests.parquet").sort_by("seq")
    for name, values in columns.items():
        position = table.column_names.index(name) if name in table.column_names else None
        column = pa.array(values, pa.int64(), mask=values < 0)
        table = table.append_column(name, column) if position is None else table.set_column(position, name, column)
    pq.write_table(table, path / "requests.parquet")
    return path


def test_waiting_for_a_connection_is_not_the_generators_lag(tmp_path: Path) -> None:
    trial = Trial()
    count = len(trial.seq)
    waited = np.full(count, -1)
    waited[::20] = 1_000_000_000  # as after a dropped packet of a connection
    trial.sent = trial.sent + np.maximum(waited, 0)
    blamed = trial.write(tmp_path / "blamed")
    assert any("send lag" in problem for problem in problems(check_run(blamed)))
    validity = check_run(with_columns(trial.write(tmp_path / "told"), {"connect_ns": waited}))
    assert validity.valid and validity.lag_p99_ns == 60_000
    connects = next(check for check in validity.checks if check.name == "connects")
    assert f"{len(waited[::20])} arrivals waited" in connects.value and "listen backlog" in connects.value


def test_parts_that_exceed_the_round_trip(tmp_path: Path) -> None:
    trial = Trial()
    count = len(trial.seq)
    for excess, valid in ((count // 200, True), (count // 50, False)):
        parts = {name: np.full(count, 500_000) for name in ("queue_ns", "infer_ns")}  # the round trip is 1 ms
        parts["infer_ns"][:excess] = 1_600_000
        run = with_columns(trial.write(tmp_path / str(excess)), parts)
        validity = check_run(run)
        timing = next(check for check in validity.checks if check.name == "server timing")
        assert f"{excess} of them more than the round trip" in timing.value
        assert validity.valid is valid and (timing.problem is None) is valid


def test_the_verdict_carries_the_answer(tmp_path: Path) -> None:
    trial = Trial()
    trial.sent = trial.sent + 300_000
    run = trial.write(tmp_path)
    inside = trial.schedule.spike >= 0
    done = trial.sent + np.where(inside, 2_000_000, 1_000_000)
    validity = check_run(with_columns(run, {"done_ns": done}))
    found = validity.to_json()["figures"]["response_ns"]
    assert found["spike_p99"] == found["p99"] == 2_360_000 and found["base_p99"] == 1_360_000
    text = describe(run, validity)
    assert "in spikes      p99 2.36 ms, outside of them p99 1.36 ms" in text
    assert f"{len(trial.seq)} ok (100.0%)" in text and "includes up to 360 us of generator lag" in text


def test_what_was_sent_once_more_is_said(tmp_path: Path) -> None:
    trial = Trial()
    spoil_summary(generators=[{**GENERATOR, "resent": 3}])(trial)
    assert "3 requests once more" in describe(tmp_path, trial.check(tmp_path))


@pytest.mark.parametrize(
    ("summary", "says"), [("[]", "not one JSON object"), ('{"generators": [{"worker": 0}]}', "damaged"), ('{"generators": 5}', "damaged")]
)
def test_a_damaged_summary_is_one_sentence(tmp_path: Path, summary: str, says: str) -> None:
    run = Trial("constant:rate=20,duration=1s").write(tmp_path)
    (run / "summary.json").write_text(summary)
    with pytest.raises(BenchError, match=says):
        check_run(run)


def test_without_a_summary_a_whole_run_is_not_valid(tmp_path: Path) -> None:
    run = Trial("constant:rate=20,duration=1s").write(tmp_path)
    (run / "summary.json").unlink()
    assert "no summary.json" in problems(check_run(run))[0]


def test_a_schedule_without_its_times_is_one_sentence(tmp_path: Path) -> None:
    run = Trial("constant:rate=20,duration=1s").write(tmp_path)
    pq.write_table(pq.read_table(run / "schedule.parquet").drop_columns(["intended_ns"]), run / "schedule.parquet")
    with pytest.raises(BenchError, match="no column intended_ns"):
        check_run(run)


def test_an_interrupted_experiment_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    order = [{"block": 0, "arm": arm, "spikes": 1, "schedule_seed": 1} for arm in ("a", "b", "c")]
    (tmp_path / "run.json").write_text(json.dumps({**EXPERIMENT, "order": order}))
    for name in ("00-a", "00-b"):
        Trial("constant:rate=20,duration=1s").write(tmp_path / name).rename(tmp_path / f"{name}-whole")
    (tmp_path / "runs").mkdir()
    for name in ("00-a", "00-b"):
        (tmp_path / f"{name}-whole").rename(tmp_path / "runs" / name)
    (tmp_path / "runs" / "00-b" / "requests.parquet").write_bytes(b"torn")
    (tmp_path / "runs" / "00-c").mkdir()  # begun, and nothing in it yet
    (tmp_path / "runs" / "stray").mkdir()  # nobody planned it
    assert missing_runs(tmp_path) == ["00-c"]
    done = bench_check(str(tmp_path))
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "1 runs of the experiment are missing (00-c); it had ended" in done.stdout and "00-a: valid" in done.stdout
    assert re.search("INVALID: .*00-b.*cannot be read", done.stdout)


def test_a_partial_run_is_read_and_said(tmp_path: Path) -> None:
    path = Trial().write(tmp_path, keep=700, finish=False)
    validity = check_run(path)
    assert validity.partial and not validity.valid and sum(validity.counts.values()) == 700
    assert "cut off" in problems(validity)[0] and "did not end by itself" in describe(path, validity)


def test_too_few_samples_give_no_percentile(tmp_path: Path) -> None:
    validity = Trial("constant:rate=20,duration=2s").check(tmp_path)
    assert validity.valid and validity.lag_p99_ns is None and validity.ks_distance is None
    late = Trial("constant:rate=20,duration=2s")
    late.sent[7] += 200_000_000
    assert "the max of the send lag is 200 ms, above 100 ms" in problems(late.check(tmp_path / "late"))[0]


def test_runs_of_an_experiment(tmp_path: Path) -> None:
    for name in ("01-a", "01-b"):
        (tmp_path / "runs").mkdir(exist_ok=True)
        Trial("constant:rate=20,duration=1s").write(tmp_path / "made" / name).rename(tmp_path / "runs" / name)
    (tmp_path / "runs" / "01-c").mkdir()  # begun, and nothing in it yet
    order = [{"block": 1, "arm": arm, "spikes": 1} for arm in ("c", "b", "a")]
    (tmp_path / "run.json").write_text(json.dumps({**EXPERIMENT, "order": order}))
    assert [path.name for path in runs_of(tmp_path)] == ["01-a", "01-b"]
    with pytest.raises(BenchError, match="is not a run folder"):
        runs_of(tmp_path / "runs")


def bench_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", "check", *arguments], capture_output=True, text=True, cwd=ROOT)


def test_the_command(tmp_path: Path) -> None:
    good, bad = Trial(), Trial()
    spoil_lag(bad)
    fine = bench_check(str(good.write(tmp_path / "good")), "--json")
    assert fine.returncode == 0 and json.loads(fine.stdout)["runs"][0]["valid"] is True
    wrong = bench_check(str(bad.write(tmp_path / "bad")))
    assert wrong.returncode == 3 and wrong.stdout.index("INVALID") < wrong.stdout.index("send lag")
    # The remedy is one that whoever ran it has: a burst's generator is one process.
    (burst,) = (tmp_path / "bad").iterdir()
    run = json.loads((burst / "run.json").read_text())
    (burst / "run.json").write_text(json.dumps({**run, "arm": "warm-pool"}))
    assert "--processes" in wrong.stdout and "--processes" not in bench_check(str(burst)).stdout
    every = bench_check(str(tmp_path / "good" / "run"), str(burst), str(tmp_path / "nothing"), "--json")
    assert every.returncode == 3 and every.stderr.count("\n") == 1
    assert [one["valid"] for one in json.loads(every.stdout)] == [True, False, False]
    nothing = bench_check(str(tmp_path / "nothing"))
    assert nothing.returncode == 2 and nothing.stderr.count("\n") == 1 and "is not a run folder" in nothing.stderr


MS = 1_000_000
SHARED = {
    "worker": 0, "host": "a", "shared": True, "offset_ns": 0, "uncertainty_ns": 0, "round_trip_ns": 90_000, "pings": 64,
    "end_offset_ns": None, "end_uncertainty_ns": None,
}  # fmt: skip


def clock(offset_ns: int, uncertainty_ns: int, end_offset_ns: int | None = None, end_uncertainty_ns: int | None = None) -> dict[str, Any]:
    end = {"end_offset_ns": end_offset_ns, "end_uncertainty_ns": end_uncertainty_ns}
    return {**SHARED, "worker": 1, "host": "b", "shared": False, "offset_ns": offset_ns, "uncertainty_ns": uncertainty_ns, **end}


@pytest.mark.parametrize(
    ("clocks", "value", "problem"),
    [
        (None, "not known", None),
        ([SHARED], "one process, one clock", None),
        ([SHARED, {**SHARED, "worker": 1}], "one for all workers", None),
        ([SHARED, clock(-7 * 10**9, MS // 2)], "worker 1 on b -7.00 s ± 500 us, not measured again at the end", None),
        ([clock(MS, 5 * MS, 2 * MS, 4 * MS)], "worker 1 on b +1.00 ms ± 5.00 ms, +1.00 ms ± 4.00 ms at the end", None),
        (
            [SHARED, clock(0, 5 * MS + 1)],
            "±",
            "the clock of worker 1 on b is known to within 5.00 ms only, .*near the master",
        ),
        ([clock(0, MS, -2 * MS, 3 * MS + 1)], "±", "the clock of worker 1 on b may have moved by 5.00 ms during the run, .*keep time"),
    ],
)
def test_clocks(tmp_path: Path, clocks: list[dict[str, Any]] | None, value: str, problem: str | None) -> None:
    trial = Trial()
    trial.clocks = clocks
    validity = trial.check(tmp_path)
    (check,) = [check for check in validity.checks if check.name == "clocks"]
    assert value in check.value
    assert check.problem is None if problem is None else re.search(problem, check.problem or "")
    assert validity.valid == (problem is None)


def test_damaged_clocks(tmp_path: Path) -> None:
    trial = Trial()
    trial.clocks = [{"worker": 0}]
    with pytest.raises(BenchError, match=r"run\.json: clocks\[0\]\.shared is missing; it was edited, damaged"):
        trial.check(tmp_path)
