"""`bench curve` with the real server: the synthetic runtime takes a known time, so every number of the curve is known."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, BenchCommand, SyntheticFactory

from bench.analysis.curve import summarize, useful_slots
from bench.capacity.measure import CurvePlan, check_plan, order_servers, parse_counts, request_schema, server_schema
from bench.capacity.service import LEAST_SAMPLES, ServiceCurve, ServiceLevel, read_service_curve
from bench.errors import BenchError
from bench.inference_client import server_parts_ns
from bench.records import open_run

MS = 10**6
MB = 10**6
SERVICE_NS = 20 * MS


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, bench_environment: dict[str, str]) -> Path:
    """One curve of 1 and 4 slots, batches of 1 and 3, of an engine that takes 20 ms, 40 MB, and 12 MB a slot."""
    from bench.engine.synthetic_builder import build_synthetic

    folder = tmp_path_factory.mktemp("curve")
    build_synthetic(folder / "known", name="known", service_ns=SERVICE_NS, engine_bytes=40 * MB, slot_bytes=12 * MB)
    command = [sys.executable, "-P", "-m", "bench", "curve", "known", "--slots", "1,4", "--batch", "1,3", "--duration", "300ms"]
    done = subprocess.run(
        [*command, "--rounds", "2", "--force", "--json"], cwd=folder, env=bench_environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / str(json.loads(done.stdout)["run"])


def test_a_known_service_time_is_found_at_every_level(measured: Path) -> None:
    curve = read_service_curve(measured)
    assert [(level.batch, level.busy) for level in curve.levels] == [(1, 1), (1, 4), (3, 1), (3, 4)]
    for level in curve.levels:
        assert len(level.service_ns) == len(level.overhead_ns) >= LEAST_SAMPLES
        # A sleep is never shorter than asked for; how much longer is the machine's business, so the fast half is looked at.
        assert level.service_ns.min() >= SERVICE_NS
        assert np.percentile(level.service_ns, 25) < 1.5 * SERVICE_NS
        assert (level.overhead_ns >= 0).all() and level.overhead_ns.any()
    assert not curve.partial
    assert curve.model == "known" and curve.device == "none" and curve.sharing == "engine" and "threads" in curve.settings


def test_throughput_is_the_number_of_slots_over_the_service_time(measured: Path) -> None:
    for level in read_service_curve(measured).levels:
        assert level.throughput_per_s * level.service_ns.mean() / 1e9 == pytest.approx(level.busy, rel=0.15)
        assert level.occupied == pytest.approx(level.busy, rel=0.15)
        assert len(level.round_throughputs_per_s) == 2
        assert min(level.round_throughputs_per_s) <= level.throughput_per_s <= max(level.round_throughputs_per_s)


def test_memory_is_taken_apart_into_process_engine_and_slot(measured: Path) -> None:
    curve = read_service_curve(measured)
    assert curve.memory_kind == "resident" and curve.base_bytes is not None and curve.engine_bytes is not None
    assert curve.slot_bytes == pytest.approx(12 * MB, rel=0.25)
    assert 40 * MB <= curve.engine_bytes < 60 * MB
    assert set(curve.measured_bytes) == {1, 4}
    assert curve.memory_bytes(4) == curve.measured_bytes[4]
    assert curve.memory_bytes(10) == curve.base_bytes + curve.engine_bytes + 10 * curve.slot_bytes


def test_the_run_is_kept_whole(measured: Path) -> None:
    run = open_run(measured)
    assert run.run["kind"] == "curve" and run.run["slots"] == [1, 4] and run.run["batches"] == [1, 3] and run.run["rounds"] == 2
    servers, requests, timeline = run.table("servers"), run.table("requests"), run.table("timeline")
    assert servers is not None and requests is not None and timeline is not None
    assert sorted(zip(servers["round"].to_pylist(), servers["slots"].to_pylist(), strict=True)) == [
        (number, slots) for number in (0, 1) for slots in (1, 4)
    ]
    started, listening, ready = (servers[f"{name}_ns"].to_numpy() for name in ("started", "listening", "ready"))
    assert (started < listening).all() and (listening < ready).all()
    assert set(requests["phase"].to_pylist()) == {"ramp", "steady", "drain"}
    for number in (0, 1):  # two senders a slot
        of_four = requests.filter((requests["busy"].to_numpy() == 4) & (requests["round"].to_numpy() == number))
        assert set(of_four["worker"].to_pylist()) == set(range(8))
    parts = sum(requests[f"{part}_ns"].to_numpy() for part in ("queue", "pool", "load", "input", "infer", "output"))
    assert (parts <= requests["done_ns"].to_numpy() - requests["sent_ns"].to_numpy() + 10_000).all()
    assert set(timeline["slots"].to_pylist()) == {1, 4}
    assert not list(measured.glob("*.jsonl"))
    summary = run.read_json("summary.json")
    assert summary is not None and summary["useful_slots"] == 4 and summary["independent"] is True


def test_every_file_and_column_is_documented(measured: Path) -> None:
    text = (ROOT / "results" / "README.md").read_text().partition("\n## `bench curve`")[2]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in row[0].split(", ")}
    assert {path.name for path in measured.iterdir()} <= named
    assert set(request_schema().names) <= named
    assert all(f"`{name}`" in text for name in server_schema().names)


def test_it_is_reported(measured: Path, bench_command: BenchCommand) -> None:
    written = (measured / "report.html").read_text("utf-8")
    assert "Service time and throughput by busy slots" in written and "data:image/svg+xml" in written
    told = bench_command("report", measured, "--markdown")
    assert told.returncode == 0, told.stderr
    assert "4 slots answer" in told.stdout and "independent servers" in told.stdout


def test_a_real_engine_is_measured(tiny_engine: Path, bench_command: BenchCommand, tmp_path: Path) -> None:
    done = bench_command("curve", tiny_engine, "--slots", "1..2", "--duration", "200ms", "--rounds", "1", "--sharing", "copy", "--force")
    # Whether HTTP leaves so quick an engine idle for most of the time is the machine's business; that it is said then is not.
    assert done.returncode == (3 if "INVALID  slots stood idle" in done.stdout else 0), done.stderr
    assert "each slot with its own engine" in done.stdout
    run = next((tmp_path / "results").iterdir())
    curve = read_service_curve(run)
    assert [level.busy for level in curve.levels] == [1, 2] and curve.sharing == "copy"
    assert all(level.service_ns.min() > 0 for level in curve.levels)


def test_ctrl_c_keeps_what_was_measured(synthetic: SyntheticFactory, tmp_path: Path, bench_environment: dict[str, str]) -> None:
    engine = synthetic(service_ns=2 * MS)
    command = [sys.executable, "-P", "-m", "bench", "curve", str(engine), "--slots", "1..40", "--duration", "300ms", "--force"]
    process = subprocess.Popen(command, cwd=tmp_path, env=bench_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not _levels_of_only_run(tmp_path / "results") and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    (run,) = (tmp_path / "results").iterdir()
    assert run.name.endswith(".partial") and "stopped before its end" in out and "levels are missing" in out
    curve = read_service_curve(run)
    assert curve.partial and 1 <= len(curve.levels) < 40
    assert (run / "report.html").exists()


def _levels_of_only_run(results: Path) -> int:
    runs = list(results.glob("*")) if results.exists() else []
    if not runs or not (runs[0] / "run.json").exists():
        return 0
    try:
        return len(read_service_curve(runs[0]).levels)
    except BenchError:
        return 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "--slots '0': 0 is not within 1 and 128"),
        ("200", "200 is not within 1 and 128"),
        ("4..2", "4..2 is not within 1 and 128, from low to high"),
        ("many", "is not a list of whole numbers or ranges, such as 1..8"),
        ("1,", "is not a list of whole numbers or ranges"),
        ("1..2..3", "is not a list of whole numbers or ranges"),
    ],
)
def test_wrong_numbers_of_slots_are_refused(text: str, said: str) -> None:
    with pytest.raises(BenchError, match=re.escape(said)):
        parse_counts(text, "--slots", 128)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batches": (9,)}, "the maximum batch is 8"),
        ({"rounds": 0}, "--rounds 0 is not within 1 and 100"),
        ({"duration_ns": 0}, "--duration must be above 0"),
        ({"sharing": "none"}, "--sharing none is neither engine nor copy"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(wrong: dict[str, Any], said: str, synthetic: SyntheticFactory) -> None:
    with pytest.raises(BenchError, match=said):
        check_plan(CurvePlan(engine_dir=synthetic(), **wrong))


def test_what_is_left_open_is_filled_in(synthetic: SyntheticFactory, tiny_engine: Path) -> None:
    plan = check_plan(CurvePlan(engine_dir=synthetic(), slots=(1, 10_000)))
    assert plan.batches == (1,) and plan.settings == {"threads": "1"}
    assert check_plan(CurvePlan(engine_dir=tiny_engine, settings={"threads": "3"})).settings == {"threads": "3"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--duration", "3"], "--duration '3' is not a time"), (["--set", "threads=x"], "threads")],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], said: str, synthetic: SyntheticFactory, bench_command: BenchCommand, tmp_path: Path
) -> None:
    done = bench_command("curve", synthetic(), "--force", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not list((tmp_path / "results").glob("*"))


def test_an_engine_that_fails_says_so(synthetic: SyntheticFactory, bench_command: BenchCommand) -> None:
    done = bench_command("curve", synthetic(fail_every_runs=20), "--slots", "1", "--duration", "200ms", "--force")
    assert done.returncode == 2
    assert "the server answered 500" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_what_is_no_curve_is_refused(measured: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is not a run folder"):
        read_service_curve(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    record = json.loads((measured / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**record, "kind": "coldstart"}))
    with pytest.raises(BenchError, match="is a coldstart run and no curve run: name one that `bench curve` left"):
        read_service_curve(other)
    (other / "run.json").write_text(json.dumps(record))
    with pytest.raises(BenchError, match="no level with 100 answers"):
        read_service_curve(other)
    shutil.copytree(measured, tmp_path / "third")
    del record["sharing"]
    (tmp_path / "third" / "run.json").write_text(json.dumps(record))
    with pytest.raises(BenchError, match="sharing is missing"):
        read_service_curve(tmp_path / "third")


def level(busy: int, rate: float, service_ms: float, batch: int = 1) -> ServiceLevel:
    service = np.full(200, service_ms * MS).astype(np.int64)
    return ServiceLevel(
        busy=busy, batch=batch, service_ns=service, overhead_ns=service // 10, throughput_per_s=rate, round_throughputs_per_s=(rate,)
    )


def curve_of(*levels: ServiceLevel) -> ServiceCurve:
    return ServiceCurve(
        path=Path("x"),
        run_id="x",
        partial=False,
        title="m, r 1, fp32, cpu:x",
        engine={"name": "m", "device": "cpu:x"},
        sharing="engine",
        settings={},
        levels=levels,
        slot_bytes=None,
        engine_bytes=None,
        base_bytes=None,
        memory_kind="resident",
        measured_bytes={},
    )


def test_the_level_of_a_number_of_slots_is_the_next_one_measured() -> None:
    curve = curve_of(level(1, 100, 10), level(4, 200, 20), level(8, 210, 38), level(2, 90, 22, batch=4))
    assert [curve.at(busy).busy for busy in (1, 2, 4, 5, 8, 9, 100)] == [1, 4, 4, 8, 8, 8, 8]
    assert curve.at(1, 4).busy == 2 and curve.at(7, batch=4).busy == 2
    assert curve.batches == (1, 4) and len(curve.of_batch()) == 3 and curve.memory_bytes(2) is None
    with pytest.raises(KeyError):
        curve.at(1, batch=3)


def test_useful_slots_end_where_throughput_stops_growing() -> None:
    assert useful_slots([(1, 100), (2, 190), (3, 230), (4, 236), (8, 240)]) == 3
    assert useful_slots([(1, 100), (2, 104), (4, 109)]) == 2  # each step is small, both together are not
    assert useful_slots([(1, 100), (2, 80), (4, 70)]) == 1
    assert useful_slots([(2, 100)]) == 2


def test_the_sentence_says_whether_slots_are_independent_servers() -> None:
    shared = summarize(curve_of(level(1, 100, 10), level(2, 150, 13.3), level(4, 152, 26.3)))
    assert shared.useful_slots == 2 and not shared.independent
    assert shared.sentence == (
        "2 slots answer 150 requests/s, and no more slots up to 4 answer over 5% more; with 2 busy a request occupies its slot for "
        "13.3 ms (median), 1.33 times as long as with 1: slots of one device are not independent servers"
    )
    alone = summarize(curve_of(level(1, 100, 10), level(2, 200, 10)))
    assert alone.independent and alone.sentence.endswith("so far the slots are independent servers")
    assert [one.speedup for one in alone.levels] == [1.0, 2.0]


def test_slots_that_were_not_kept_busy_are_told_of() -> None:
    idle = summarize(curve_of(level(1, 100, 10), level(4, 200, 10)))
    assert any("slots were idle between requests at 1 of 2 levels (at 4, 2 were busy" in caveat for caveat in idle.caveats)
    assert idle.valid and idle.independent is None and "whether they slow each other down when all are busy is not known" in idle.sentence
    slower = summarize(curve_of(level(1, 100, 10), level(4, 160, 15)))  # idle, and slower all the same
    assert slower.independent is False and "not independent servers" in slower.sentence
    mostly = summarize(curve_of(level(1, 100, 10), level(4, 150, 10)))
    assert not mostly.valid and "slots stood idle for most of the time at 1 of 2 levels (at 4, 1.5 were busy" in mostly.invalid[0]
    missing = summarize(curve_of(level(1, 100, 10)), planned=3)
    assert any("2 of 3 levels are missing" in caveat for caveat in missing.caveats)


def test_all_levels_come_in_each_round_in_another_order() -> None:
    plan = CurvePlan(engine_dir=Path("x"), slots=tuple(range(1, 9)), rounds=3, seed=5)
    ordered = order_servers(plan)
    rounds = [[server.slots for server in ordered if server.round == number] for number in range(3)]
    assert [sorted(slots) for slots in rounds] == [list(range(1, 9))] * 3
    assert rounds[0] != rounds[1] and order_servers(plan) == ordered


def test_numbers_of_slots_are_read() -> None:
    assert parse_counts("1..3, 8,2", "--slots", 8) == (1, 2, 3, 8)
    assert parse_counts("4", "--slots", 8) == (4,)


def test_the_parts_of_a_server_timing_header_are_read() -> None:
    assert server_parts_ns("queue;dur=0.012, pool;dur=1.5,infer;desc=x;dur=3") == {"queue": 12_000, "pool": 1_500_000, "infer": 3_000_000}
    assert server_parts_ns("") == {}
