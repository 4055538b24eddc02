"""Run folders that were edited or damaged: refused in one sentence that names the file, by every command that reads them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from notebook_runs import cold_start_run
from plan_runs import curve_run, measured

from bench.analysis.compare_runs import compare_runs
from bench.analysis.validity import check_run, missing_runs, runs_of
from bench.capacity.measured import FILE, read_measured, write_measured
from bench.capacity.starts import read_starts
from bench.errors import BenchError
from bench.experiment.arms import parse_targets
from bench.experiment.conduct import Setup, reopen, start_experiment
from bench.experiment.plan import Spikes
from bench.json_rules import DAMAGED, parse_foreign
from bench.records import open_run
from bench.report.build import build_page, write_html
from tests.experiments import cold_and_warm, write_experiment

Change = Callable[[Any], None]
RUN = "runs/00-cold-load"
MANIFEST: dict[str, Any] = {
    "schema_version": 1, "version": "1", "source_sha256": "aa", "device_features": [], "options": {}, "tolerance": 0.001,
    "parity_error": 0.0, "built_at": "", "build_duration_ns": 1, "host": "h", "baseline": None,
    "files": [{"name": "model.onnx", "bytes": 1, "sha256": "00"}],
    "inputs": [{"name": "input", "datatype": "FP32", "dims": ["batch", 64]}],
    "outputs": [{"name": "y", "datatype": "FP32", "dims": ["batch", 4]}],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind, made once; a test spoils a copy."""
    folder = tmp_path_factory.mktemp("whole")
    experiment = write_experiment(folder / "experiment", cold_and_warm, blocks=1, spikes=1)
    for run in (experiment / "runs").iterdir():
        schedule = hashlib.sha256((run / "schedule.parquet").read_bytes()).hexdigest()
        edit_json(run / "run.json", lambda value, schedule=schedule: value.update(hashes={"schedule_sha256": schedule}))
    cold = cold_start_run(folder / "cold")
    edit_json(cold / "run.json", lambda value: value["variants"][0]["engine"].update(MANIFEST))
    return {"experiment": experiment, "coldstart": cold, "curve": curve_run(folder / "curve", slots=2)}


@pytest.fixture
def spoilt(whole: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(kind: str) -> Path:
        return Path(shutil.copytree(whole[kind], tmp_path / kind))

    return copy


def edit_json(file: Path, change: Change) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def put(*path: str | int, value: Any) -> Change:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def leave_out(name: str) -> Change:
    return lambda document: document.pop(name)


def edit_column(file: Path, column: str, values: Callable[[pa.Table], pa.Array | None]) -> None:
    """Put other values into a column; None takes it out."""
    table = pq.read_table(file)
    made, at = values(table), table.column_names.index(column)
    pq.write_table(table.drop_columns([column]) if made is None else table.set_column(at, column, made), file)


def filled(value: Any, kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Array]:
    return lambda table: pa.array([value] * table.num_rows, kind)


def by_check(path: Path) -> list[str]:
    """What `bench check` finds wrong."""
    try:
        found = list(missing_runs(path))
        for run in runs_of(path):
            try:
                found += [check.problem for check in check_run(run).checks if check.problem]
            except BenchError as error:
                found.append(str(error))
    except BenchError as error:
        return [str(error)]
    return found


def by_report(path: Path, slo_ns: int | None = None) -> str | None:
    """What `bench report` refuses the folder with."""
    try:
        build_page(path, pictures=False, slo_ns=slo_ns)
    except BenchError as error:
        return str(error)
    return None


def test_the_whole_ones_are_in_order(whole: dict[str, Path]) -> None:
    assert by_check(whole["experiment"]) == []
    assert {kind: by_report(path) for kind, path in whole.items()} == dict.fromkeys(whole)


NAN, HUGE = float("nan"), 10**400
EXPERIMENT_EDITS: list[tuple[Change, str]] = [
    (leave_out("arms"), "arms is missing"),
    (put("arms", value=None), "arms is null, not a list"),
    (put("arms", value=[]), "arms has 0 entries"),
    (put("arms", 0, "options", value=["pool"]), r"arms\[0\]\.options is a list, not an object"),
    (put("arms", 0, "name", value="../x"), r"arms\[0\]\.name is '\.\./x', not a name of one file"),
    (put("order", value=None), "order is null, not a list"),
    (put("order", 0, "arm", value="other"), r"order\[0\]\.arm is 'other', which is none of the arms"),
    (put("order", 1, "block", value=1.5), r"order\[1\]\.block is 1\.5, not a whole number"),
    (leave_out("engine"), "engine is missing"),
    (put("engine", value="x"), "engine is 'x', not an object"),
    (put("capacities", value=5), "capacities is 5, not an object"),
    (put("spikes", "base_per_s", value=None), "spikes.base_per_s is null, not a number"),
    (put("spikes", "base_per_s", value=HUGE), "spikes.base_per_s is a huge number, not a number"),
    (put("spikes", "seed", value="1"), "spikes.seed is '1', not a whole number"),
    (put("environment", value=[1]), "environment is a list, not an object"),
    (put("command", value={"a": 1}), "command is an object, not a list"),
    (put("slo_ns", value=NAN), "slo_ns is nan, not a whole number"),
    (put("slo_ns", value=0), "slo_ns is 0, not a whole number from 1"),
    (put("kind", value=None), "kind is null, not a string"),
    (put("schema_version", value="1"), "schema_version is '1', not a whole number"),
    (put("run_id", value="../../elsewhere"), "run_id is .* not a name of one file"),
]


@pytest.mark.parametrize(("change", "says"), EXPERIMENT_EDITS)
def test_an_edited_experiment_is_refused_alike(spoilt: Callable[[str], Path], change: Change, says: str) -> None:
    path = spoilt("experiment")
    edit_json(path / "run.json", change)
    with pytest.raises(BenchError, match=rf"run\.json: {says}.*; {DAMAGED}$") as refused:
        open_run(path)
    assert by_check(path) == [str(refused.value)] == [by_report(path)]


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 200 + b"1" + b"}" * 200, b'{"a": 1' + b"0" * 5000 + b"}"]
)
def test_what_is_no_json_is_refused_alike(spoilt: Callable[[str], Path], content: bytes) -> None:
    path = spoilt("experiment")
    (path / "run.json").write_bytes(content)
    with pytest.raises(BenchError, match=r"run\.json cannot be read: ") as refused:
        open_run(path)
    assert by_check(path) == [str(refused.value)] == [by_report(path)]


def reversed_times(table: pa.Table) -> pa.Array:
    return table.column("intended_ns").combine_chunks()[::-1]


TABLE_EDITS: list[tuple[str, str, Callable[[pa.Table], pa.Array | None], str]] = [
    ("requests", "done_ns", filled(None, pa.int64()), "rows with the status ok or wrong do not say when they were sent and done"),
    ("requests", "done_ns", filled(-5), "rows were done before they were sent"),
    ("requests", "done_ns", filled(2**62), "column done_ns has the value 4611686018427387904, which is not within"),
    ("requests", "sent_ns", filled("x"), "column sent_ns holds string, not int64"),
    ("requests", "status", filled("x"), "column status has the value 'x', which is none of ok, wrong"),
    ("requests", "status", filled(None, pa.string()), "column status has no value in"),
    ("requests", "infer_ns", filled(-1), "column infer_ns has the value -1"),
    ("requests", "pool_ns", lambda _: None, "has no column pool_ns"),
    ("requests", "bytes", filled("x"), "column bytes holds string, not int64"),
    ("requests", "intended_ns", reversed_times, "rows have another intended_ns than the schedule"),
    ("schedule", "intended_ns", reversed_times, "is not the file that the run was made with"),
    ("schedule", "phase", filled(None, pa.string()), "is not the file that the run was made with"),
    ("timeline", "t_ns", lambda _: None, "has no column t_ns"),
    ("timeline", "waiting", filled(-1), "column waiting has the value -1"),
    ("timeline", "sm_clock_mhz", filled(-1), "column sm_clock_mhz has the value -1"),
]


@pytest.mark.parametrize(("name", "column", "values", "says"), TABLE_EDITS)
def test_an_edited_table_is_refused_alike(
    spoilt: Callable[[str], Path], name: str, column: str, values: Callable[[pa.Table], pa.Array | None], says: str
) -> None:
    path = spoilt("experiment")
    edit_column(path / RUN / f"{name}.parquet", column, values)
    (said,) = by_check(path)
    assert said == by_report(path)
    assert f"{RUN}/{name}.parquet" in said and says in said and said.endswith(DAMAGED)


SCHEDULE_EDITS: list[tuple[str, Callable[[pa.Table], pa.Array | None], str]] = [
    ("intended_ns", reversed_times, "column intended_ns is not sorted"),
    ("intended_ns", filled(-1), "column intended_ns has the value -1"),
    ("seq", filled(0), "column seq does not grow"),
    ("seq", filled("x"), "column seq holds string"),
    ("spike", lambda _: None, "has no column spike"),
    ("spike", filled(7, pa.int32()), "arrivals of a spike that its metadata do not have"),
    ("phase", filled(None, pa.string()), "column phase has no value"),
]


@pytest.mark.parametrize(("column", "values", "says"), SCHEDULE_EDITS)
def test_an_edited_schedule_without_a_hash_is_refused_alike(
    spoilt: Callable[[str], Path], column: str, values: Callable[[pa.Table], pa.Array | None], says: str
) -> None:
    path = spoilt("experiment")
    edit_json(path / RUN / "run.json", leave_out("hashes"))
    edit_column(path / RUN / "schedule.parquet", column, values)
    (said,) = by_check(path)
    assert said == by_report(path)
    assert f"{RUN}/schedule.parquet" in said and says in said


@pytest.mark.parametrize("name", ["schedule", "requests", "timeline"])
def test_bytes_that_changed_are_noticed(spoilt: Callable[[str], Path], name: str) -> None:
    """Also where the values that they make are possible ones: tables are written with the checksums of their pages."""
    from bench.tables import read_parquet, write_parquet

    path = spoilt("experiment")
    file = path / RUN / f"{name}.parquet"
    edit_json(path / RUN / "run.json", leave_out("hashes"))
    write_parquet(read_parquet(file), file)
    assert by_check(path) == []
    content = bytearray(file.read_bytes())
    content[60] ^= 255
    file.write_bytes(content)
    (said,) = by_check(path)
    assert said == by_report(path)
    assert f"{name}.parquet cannot be read" in said


def test_a_run_in_the_place_of_another_is_refused_alike(spoilt: Callable[[str], Path]) -> None:
    path = spoilt("experiment")
    shutil.rmtree(path / "runs/00-warm-pool")
    (path / RUN).rename(path / "runs/00-warm-pool")
    shutil.copytree(path / "runs/00-warm-pool", path / RUN)
    (said,) = by_check(path)
    assert said == by_report(path)
    assert "is of block 0 of cold-load, and not of the place where it is" in said


CURVE_EDITS: list[tuple[str, int | str | None, str]] = [
    ("infer_ns", 2**62, "column infer_ns has the value"),
    ("output_ns", -1, "column output_ns has the value -1"),
    ("infer_ns", 0, "no inference that took any time"),
    ("infer_ns", 10**12, "parts that add up to more than their round trip"),
    ("busy", "x", "column busy holds string"),
    ("phase", "x", "column phase has the value 'x'"),
]


@pytest.mark.parametrize(("column", "value", "says"), CURVE_EDITS)
def test_an_edited_curve_is_refused(spoilt: Callable[[str], Path], column: str, value: int | str, says: str) -> None:
    path = spoilt("curve")
    edit_column(path / "requests.parquet", column, filled(value))
    said = by_report(path)
    assert said is not None and "requests.parquet" in said and says in said


COLD_EDITS: list[tuple[str, Any, str]] = [(name, None, f"has no column {name}") for name in ("level", "phase", "variant", "page_cache")]
COLD_EDITS += [("duration_ns", "x", "column duration_ns holds string"), ("duration_ns", 2**62, "column duration_ns has the value")]


@pytest.mark.parametrize(("column", "value", "says"), COLD_EDITS)
def test_edited_cold_starts_are_refused_by_all_that_read_them(
    whole: dict[str, Path], spoilt: Callable[[str], Path], column: str, value: Any, says: str
) -> None:
    path = spoilt("coldstart")
    edit_column(path / "cold_starts.parquet", column, (lambda _: None) if value is None else filled(value))
    said = by_report(path)
    assert said is not None and "cold_starts.parquet" in said and says in said
    with pytest.raises(BenchError, match=says):
        read_starts(path)


def test_edited_samples_of_a_plan_are_refused(tmp_path: Path) -> None:
    about = write_measured(measured(), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 1, "kind": "plan", "measured": about}))
    open_run(tmp_path).check_table("measured")
    edit_column(tmp_path / FILE, "ns", filled(-1))
    with pytest.raises(BenchError, match=r"measured\.parquet: the column ns has the value -1"):
        open_run(tmp_path).check_table("measured")
    (tmp_path / FILE).write_bytes(b"damaged")
    with pytest.raises(BenchError, match="make the plan again"):
        read_measured(tmp_path, about)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for step, one in inner for found in leaves(one, (*path, step)))]


@pytest.mark.parametrize("kind", ["experiment", "coldstart", "curve"])
def test_whatever_a_value_becomes_there_is_a_page_or_one_sentence(whole: dict[str, Path], spoilt: Callable[[str], Path], kind: str) -> None:
    path, draw = spoilt(kind), random.Random(7)
    files = [path / "run.json", *([path / RUN / "run.json", path / RUN / "summary.json"] if kind == "experiment" else [])]
    pages = 0
    for file in files:
        before = file.read_text()
        for place in leaves(json.loads(before))[1:]:
            for value in (None, True, -1, HUGE, NAN, "x", "../x", [], [1], {}, {"a": [None]}):
                edit_json(file, put(*place, value=value))
                try:
                    opened = open_run(file.parent)
                    opened.read_json("summary.json")
                except BenchError as error:
                    assert str(file.parent) in str(error) and "\n" not in str(error)
                    continue
                finally:
                    changed = file.read_text()
                    file.write_text(before)
                if draw.random() < 5 / (5 + pages):  # the more pages there were, the fewer are still made
                    file.write_text(changed)
                    by_report(path)
                    file.write_text(before)
                    pages += 1
    assert pages >= 10


def test_a_folder_whose_name_is_not_utf8_is_read_and_written_like_any(whole: dict[str, Path], tmp_path: Path) -> None:
    name = tmp_path / os.fsdecode(b"bad\xff\xfename")
    for kind in ("experiment", "coldstart", "curve"):
        path = Path(shutil.copytree(whole[kind], name / kind))
        page = build_page(path, pictures=False)
        write_html(name / f"{kind}.html", [page])
        assert (name / f"{kind}.html").read_text().startswith("<!")
    assert by_check(name / "experiment") == []
    assert compare_runs(name / "experiment", whole["experiment"]).arms
    assert write_measured(measured(), name) and read_measured(name, write_measured(measured(), name)).subject == "known"


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a": 1e400}', b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b"{"])
def test_what_a_foreign_server_sends_is_no_json(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_foreign(body)
    assert parse_foreign(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


RESUME_EDITS: list[tuple[Change, str]] = [
    (leave_out("model"), "model is missing"),
    (leave_out("spikes"), "spikes is missing"),
    (put("arms", 0, "extra", value=1), "'extra' is not known"),
    (put("arms", 0, "mode", value="wide"), "the mode 'wide'"),
    (put("arms", 0, "options", value={"url": "ftp://x"}), "is not NAME=URL"),
    (put("arms", 0, "mode", value="lazy"), "is not KEY=VALUE|is not one that|do not fit together"),
    (put("engine_dir", value="/nowhere"), "nowhere|do not fit together"),
    (put("spikes", "count", value=5), "the order is not the one"),
    (put("spikes", "extra", value=5), "'extra' is not known"),
    (put("spikes", "blocks", value=9), "cannot be split"),
    (put("spikes", "peak_per_s", value=300.5), "is not the schedule of block 0"),
    (put("order", 0, "schedule_seed", value=4), "the order is not the one"),
    (put("deadline", value="soon"), "deadline"),
    (put("timeout_s", value=0), "timeout_s is 0"),
    (put("run_id", value="../x"), "run_id is '../x'"),
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment that was stopped before its first run."""
    spikes = Spikes(base_per_s=10.0, peak_per_s=40.0, hold_ns=10**9, rest_ns=10**9, count=2, blocks=2, seed=3)
    arms = tuple(parse_targets(["ours=http://127.0.0.1:9", "theirs=http://127.0.0.1:10"], allow_remote=False))
    setup = Setup(engine_dir=None, model="m", arms=arms, spikes=spikes, slo_ns=None, deadline="5s", trust=None, timeout_s=60.0)
    return start_experiment(tmp_path_factory.mktemp("begun"), "run", setup, {}, {}, ["bench"])[0].path


def test_an_experiment_is_gone_on_with_as_it_was_begun(begun: Path) -> None:
    folder, setup, planned = reopen(begun)
    assert (folder.run_id, [arm.name for arm in setup.arms], setup.spikes.seed, len(planned)) == ("run", ["ours", "theirs"], 3, 4)


@pytest.mark.parametrize(("change", "says"), RESUME_EDITS)
def test_an_edited_experiment_is_not_gone_on_with(begun: Path, tmp_path: Path, change: Change, says: str) -> None:
    path = Path(shutil.copytree(begun, tmp_path / "run.partial"))
    edit_json(path / "run.json", change)
    with pytest.raises(BenchError, match=says):
        reopen(path)


def test_another_schedule_is_not_gone_on_with(begun: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(begun, tmp_path / "run.partial"))
    shutil.copy(path / "schedules/01.parquet", path / "schedules/00.parquet")
    with pytest.raises(BenchError, match=r"00\.parquet is not the schedule of block 0"):
        reopen(path)
    (path / "schedules/00.parquet").unlink()
    with pytest.raises(BenchError, match=r"00\.parquet"):
        reopen(path)
