"""The run folder survives what happens to runs: crashes in the middle of a write, full disks, a name that is taken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import ROOT

from bench.errors import BenchError
from bench.records import PARTIAL_SUFFIX, SCHEMA_VERSION, RunFolder, SavedRun, TableStream, new_run_id, open_run

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def rows(start: int, count: int) -> list[dict[str, object]]:
    return [{"n": n, "text": None if n % 3 == 0 else f"row {n}"} for n in range(start, start + count)]


def start(results: Path, run_id: str = "run") -> tuple[RunFolder, TableStream]:
    folder = RunFolder.create(results, run_id)
    folder.write_json("run.json", {"schema_version": SCHEMA_VERSION, "kind": "load"})
    return folder, folder.table("numbers", SCHEMA)


def numbers(run: SavedRun) -> list[int]:
    table = run.table("numbers")
    return [] if table is None else table.column("n").to_pylist()


def test_a_run_that_ends_gets_its_name_and_parquet(tmp_path: Path) -> None:
    folder, stream = start(tmp_path)
    stream.write(rows(0, 3))
    stream.write(rows(3, 2))
    final = folder.finish()
    assert final == tmp_path / "run"
    assert sorted(path.name for path in final.iterdir()) == ["numbers.parquet", "run.json"]
    run = open_run(final)
    assert not run.partial
    table = run.table("numbers")
    assert table is not None
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == rows(0, 5)
    assert run.table("others") is None
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    folder, _ = start(tmp_path)
    table = open_run(folder.finish()).table("numbers")
    assert table is not None
    assert (table.num_rows, table.schema.names) == (0, ["n", "text"])


def test_a_run_under_way_is_read_by_either_name_and_says_so(tmp_path: Path) -> None:
    folder, stream = start(tmp_path)
    assert numbers(open_run(folder.path)) == []
    stream.write(rows(0, 2))
    for path in (tmp_path / "run", folder.path):
        run = open_run(path)
        assert run.partial
        assert numbers(run) == [0, 1]
    folder.close()
    assert numbers(open_run(folder.path)) == [0, 1]


WRITER = """
import sys
from pathlib import Path
import pyarrow as pa
from bench.records import RunFolder, SCHEMA_VERSION
folder = RunFolder.create(Path(sys.argv[1]), "run")
folder.write_json("run.json", {"schema_version": SCHEMA_VERSION, "kind": "load"})
stream = folder.table("numbers", pa.schema([("n", pa.int64()), ("text", pa.string())]))
n = 0
while True:
    stream.write([{"n": n + i, "text": "x" * 1000} for i in range(50)])
    n += 50
    print(n, flush=True)
"""


def test_a_writer_killed_in_the_middle_leaves_every_row_that_it_had_written(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert child.stdout is not None
    written = 0
    for line in child.stdout:
        written = int(line)
        if written >= 2_000:
            child.send_signal(signal.SIGKILL)
            break
    rest = child.stdout.read().split()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    written = int(rest[-1]) if rest else written
    run = open_run(tmp_path / "run")
    assert run.partial
    found = numbers(run)
    assert found == list(range(len(found)))
    assert len(found) in (written, written + 50)  # a batch may have been whole before its line was printed


def test_at_every_length_of_a_torn_file_the_whole_batches_are_read(tmp_path: Path) -> None:
    folder, stream = start(tmp_path)
    ends = [stream.path.stat().st_size]
    for batch in range(3):
        stream.write(rows(10 * batch, 10))
        ends.append(stream.path.stat().st_size)
    content = stream.path.read_bytes()
    folder.close()
    for length in range(len(content) + 1):
        stream.path.write_bytes(content[:length])
        whole = sum(length >= end for end in ends[1:])
        assert numbers(open_run(folder.path)) == list(range(10 * whole)), f"cut at {length} of {len(content)}, batches end at {ends}"


def test_a_crash_between_parquet_and_renaming_loses_nothing(tmp_path: Path) -> None:
    folder, stream = start(tmp_path)
    stream.write(rows(0, 4))
    folder.close()
    (folder.path / "numbers.parquet").write_bytes(b"PAR1 half of it")  # the stream is removed only when this is whole
    assert numbers(open_run(folder.path)) == [0, 1, 2, 3]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    first, stream = start(tmp_path)
    with pytest.raises(BenchError, match="File exists"):
        RunFolder.create(tmp_path, "run")
    with pytest.raises(FileExistsError):
        first.table("numbers", SCHEMA)
    stream.write(rows(0, 1))
    first.finish()
    second, stream = start(tmp_path)
    stream.write(rows(5, 1))
    with pytest.raises(BenchError, match=r"exists already and is not overwritten; the run is kept as .*run.partial"):
        second.finish()
    assert numbers(open_run(tmp_path / "run")) == [0]
    assert numbers(open_run(tmp_path / ("run" + PARTIAL_SUFFIX))) == [5]


def test_a_json_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder, _ = start(tmp_path)
    folder.write_json("summary.json", {"a": 1})
    with pytest.raises(TypeError):
        folder.write_json("summary.json", {"a": object()})
    assert open_run(folder.path).read_json("summary.json") == {"a": 1}
    assert open_run(folder.path).read_json("nothing.json") is None
    assert sorted(path.suffix for path in folder.path.iterdir()) == [".arrows", ".json", ".json"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is not a run folder: it has no run.json"),
        (b"", "cannot be read"),
        (b'{"schema_version": 1', "cannot be read"),
        (b"[]", "cannot be read"),
        (b"\xff\xff", "cannot be read"),
        (b"{}", "schema_version"),
        (b'{"schema_version": 99}', "has schema version 99, this program reads 1"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_in_one_sentence(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(BenchError, match=says) as refused:
        open_run(tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_a_run_begins_with_what_every_run_says_and_is_opened_as_its_kind(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.write_run("load", {"title": "tiny"}, ("bench", "plan"))
    made = open_run(folder.path, "load").run
    assert list(made) == ["schema_version", "kind", "run_id", "created", "coldburst_version", "command", "title"]
    assert (made["schema_version"], made["run_id"], made["command"]) == (SCHEMA_VERSION, "run", ["bench", "plan"])
    with pytest.raises(BenchError, match=r"run\.partial is a load run and no curve run: name one that `bench curve` left"):
        open_run(folder.path, "curve")
    folder.write_run("load", {"title": "tiny"})
    assert list(open_run(folder.path).run) == ["schema_version", "kind", "run_id", "title"]


def test_a_spoiled_table_or_json_file_is_refused_with_its_name(tmp_path: Path) -> None:
    folder, stream = start(tmp_path)
    stream.write(rows(0, 1))
    final = folder.finish()
    (final / "numbers.parquet").write_bytes(b"PAR1 half of it")
    (final / "summary.json").write_text('{"half": ')
    with pytest.raises(BenchError, match=r"numbers\.parquet cannot be read"):
        open_run(final).table("numbers")
    with pytest.raises(BenchError, match=r"summary\.json cannot be read"):
        open_run(final).read_json("summary.json")


def test_a_results_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for results in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/results")):
        for act in (RunFolder.check_writable, lambda where: RunFolder.create(where, "run")):
            with pytest.raises(BenchError, match=r"cannot be written .*--results"):
                act(results)


@pytest.mark.parametrize("moved", [False, True])
def test_a_folder_that_is_taken_away_is_no_place_to_write_to(tmp_path: Path, moved: bool) -> None:
    folder, stream = start(tmp_path)
    stream.write(rows(0, 1))
    if moved:
        folder.path.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(folder.path)
    acts: list[Callable[[], object]] = [
        lambda: stream.write(rows(1, 1)),
        lambda: folder.write_json("summary.json", {}),
        folder.check_there,
        folder.finish,
    ]
    for act in acts:
        with pytest.raises(BenchError, match=r"run\.partial.* was removed or moved while the run went on"):
            act()


def test_run_ids_differ_sort_by_time_and_are_plain_names() -> None:
    ids = [new_run_id("coldstart", "my model/../é v2") for _ in range(50)]
    assert len(set(ids)) >= 45  # four random digits: a folder that is there already is refused, so that two may meet
    assert all(Path(one).name == one and " " not in one for one in ids)
    assert ids[0].split("-")[2] == "coldstart"
    assert sorted(one[:15] for one in ids) == [one[:15] for one in ids]


FILLER = WRITER.replace("import sys\n", "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE")
def test_a_disk_that_fills_up_ends_the_run_and_keeps_what_was_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(tmp_path)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "numbers.arrows" in last  # the error names its file
    found = numbers(open_run(tmp_path / "run"))
    assert found == list(range(int(done.stdout.split()[-1])))
    assert len(found) > 0


def test_run_json_is_plain(tmp_path: Path) -> None:
    folder, _ = start(tmp_path)
    assert json.loads((folder.path / "run.json").read_text()) == {"schema_version": SCHEMA_VERSION, "kind": "load"}
