"""The run folder: written as `<id>.partial/` while a run goes, renamed when it is whole, never overwritten.

Tables are streamed as Arrow IPC (`NAME.arrows`), so that a crash loses what was not yet flushed and nothing else; when
the run ends they become `NAME.parquet`. Every reader here takes a `.partial` folder too and says so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench
from bench.clock import utc_now
from bench.engine.manifest_reading import short
from bench.errors import BenchError
from bench.json_rules import DAMAGED, check_value, read_object
from bench.run_rules import HEAD, LOAD_SUMMARY, run_rule
from bench.tables import parquet_writer, read_parquet, read_stream, stream_batches

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
PARTIAL_SUFFIX = ".partial"
_ROW_GROUP_ROWS = 1 << 17
_LEFT_BY = {
    "load": "a scenario or `bench burst`",
    "experiment": "`bench burst`",
    "coldstart": "`bench coldstart`",
    "curve": "`bench curve`",
    "plan": "`bench plan`",
    "validation": "`bench validate`",
}


def new_run_id(kind: str, subject: str) -> str:
    """`20260131-120000-coldstart-resnet50-3f2a`: sorts by time (UTC), says what it is, and two at once differ."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in subject)
    return f"{stamp}-{kind}-{plain}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError of writing to an open file say which file it was: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None


def replace_text(target: Path, text: str) -> None:
    """Write or replace a text file as a whole: a reader sees the old or the new one. Raises OSError."""
    new = target.with_name(target.name + ".new")
    try:
        with naming(target):
            new.write_text(text, "utf-8", errors="replace")  # a folder's name that stands in it may not be UTF-8
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def _gone(path: Path) -> BenchError:
    return BenchError(
        f"{path} was removed or moved while the run went on, so that what it measures cannot be kept: start it again, and leave its "
        "folder alone until the end"
    )


class TableStream:
    """Rows of one table on their way to the disk. Each `write` is flushed to the operating system.

    A write raises BenchError where the file is no longer there: the system would take rows that nobody finds again.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.path = path
        self._schema = schema
        self._file = path.open("xb")
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._file.flush()

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        import pyarrow as pa

        self.write_batch(pa.RecordBatch.from_pylist(list(rows), schema=self._schema))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if not self.path.exists():
            raise _gone(self.path)
        with naming(self.path):
            self._writer.write_batch(batch)
            self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            with naming(self.path):
                try:
                    self._writer.close()
                finally:
                    self._file.close()


class RunFolder:
    """A run being written."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id
        self._streams: list[TableStream] = []

    @staticmethod
    def check_writable(results: Path) -> None:
        """Before long work: can a run be made here at all? Raises BenchError."""
        try:
            results.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=results):
                pass
        except OSError as error:
            raise BenchError(f"results folder {results} cannot be written ({error.strerror}); name another with --results") from None

    @classmethod
    def create(cls, results: Path, run_id: str) -> RunFolder:
        """Make `results/<run_id>.partial/`. Raises BenchError where the results folder cannot be written."""
        path = results / (run_id + PARTIAL_SUFFIX)
        try:
            results.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except OSError as error:
            raise BenchError(f"results folder {results} cannot be written ({error.strerror}); name another with --results") from None
        return cls(path, run_id)

    def check_there(self) -> None:
        """Raises BenchError where somebody took the folder away while the run went on."""
        if not self.path.is_dir():
            raise _gone(self.path)

    def table(self, name: str, schema: pa.Schema) -> TableStream:
        stream = TableStream(self.path / f"{name}.arrows", schema)
        self._streams.append(stream)
        return stream

    def write_run(self, kind: str, facts: Mapping[str, Any], command: Sequence[str] | None = None) -> None:
        """Write or replace `run.json`: what that of every run begins with, then `facts`.

        `command`: of a folder that is described once, as it is made: then this is the moment and the version of it. A load
        run, whose file is written again as it goes on, says those in its own way.
        """
        made = {} if command is None else {"created": utc_now(), "coldburst_version": bench.__version__, "command": list(command)}
        self.write_json("run.json", {"schema_version": SCHEMA_VERSION, "kind": kind, "run_id": self.run_id, **made, **facts})

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write or replace a JSON file as a whole: a reader sees the old or the new one. Raises BenchError as `check_there` does."""
        self.check_there()
        replace_text(self.path / name, json.dumps(value, indent=2) + "\n")

    def close(self) -> None:
        """Close the streams and leave the folder as `.partial`."""
        with contextlib.ExitStack() as stack:  # a stream that cannot be closed leaves no other one open
            for stream in self._streams:
                stack.callback(stream.close)

    def finish(self) -> Path:
        """Turn the streams into Parquet and give the folder its name. Returns the final path. Raises BenchError as `check_there` does,
        and where the name is taken."""
        self.close()
        self.check_there()
        for stream in self._streams:
            target = stream.path.with_suffix(".parquet")
            with naming(target), parquet_writer(target, stream._schema) as writer:
                for rows in _row_groups(stream_batches(stream.path)):
                    writer.write_table(rows)
            stream.path.unlink()
        final = self.path.parent / self.run_id
        if final.exists():
            raise BenchError(f"{final} exists already and is not overwritten; the run is kept as {self.path}")
        self.path.rename(final)
        return final


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches joined until they are worth a row group: a stream is flushed each second, a reader wants large groups."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _ROW_GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A run on the disk. `partial` says that it did not end by itself."""

    path: Path
    partial: bool
    run: dict[str, Any]

    @property
    def kind(self) -> str:
        """`load`, `experiment`, `coldstart`, `curve`, `plan` or `validation`."""
        return str(self.run.get("kind"))

    def check_kind(self, kind: str) -> None:
        """Raises BenchError where the run is of another kind."""
        if self.kind != kind:
            article = "an" if self.kind[:1] in "aeiou" else "a"
            raise BenchError(f"{self.path} is {article} {self.kind} run and no {kind} run: name one that {_LEFT_BY[kind]} left")

    def table(self, name: str, columns: Sequence[str] | None = None, also: Sequence[str] = ()) -> pa.Table | None:
        """The table `name`, from Parquet or from the stream of a partial run; None where the run has none.

        `columns`: only these, so that a table of many rows need not be held whole; `also` those, where they are there. Raises
        BenchError where the file cannot be read, lacks one of them, or is not what a table of this name must be
        (bench.run_tables), in whichever column.
        """
        from bench.run_tables import columns_of, fitted

        file = self._table_file(name)
        if file is None:
            return None
        self.check_table(name)
        table = _read(file, None if columns is None else [*columns, *also])
        if table is None:
            return None
        missing = sorted(set(columns or ()) - set(table.column_names))
        if missing:
            raise BenchError(f"{file} has no column {missing[0]}; {DAMAGED}")
        for column_name, column in columns_of(self.kind, name).items():
            if column_name in table.column_names:
                at = table.column_names.index(column_name)
                table = table.set_column(at, column_name, fitted(table.column(at), column))
        return table

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, None where there is none. Raises BenchError."""
        path = self.path / name
        if not path.exists():
            return None
        value = read_object(path)
        if (self.kind, name) == ("load", "summary.json"):
            check_value(value, LOAD_SUMMARY, path)
        return value

    def _table_file(self, name: str) -> Path | None:
        parquet, stream = self.path / f"{name}.parquet", self.path / f"{name}.arrows"
        return stream if stream.exists() else parquet if parquet.exists() else None

    def check_table(self, name: str) -> None:
        """Raises BenchError where the table is there, and is not what one of this name must be, in whichever column. It is looked
        at once, for as long as its file stays as it is."""
        from bench.run_tables import SCHEDULE_KEY, check_table

        file = self._table_file(name)
        if file is None:
            return
        state = _state(file)
        if _checked.get(file) == state:
            return
        whole = _read(file) if file.suffix != ".parquet" else None
        empty = file.suffix != ".parquet" and whole is None

        def read(column: str) -> pa.ChunkedArray | None:
            table = _read(file, [column]) if whole is None else whole
            return table.column(column) if table is not None and column in table.column_names else None

        if not empty:
            about = (_schema(file).metadata or {}).get(SCHEDULE_KEY) if file.suffix == ".parquet" else None
            check_table(self.kind, name, file, read, self.table, about)
        _checked[file] = state


_checked: dict[Path, tuple[int, ...]] = {}
"""Tables that were found to be in order, and the state of their files then."""


def open_run(path: Path, kind: str | None = None) -> SavedRun:
    """Open a run folder or a `.partial` one. Raises BenchError where its `run.json` is not what that of its kind must be
    (bench.run_rules), where a file has another hash than it says, or where it is not of the `kind` that is asked for."""
    if not path.exists() and path.with_name(path.name + PARTIAL_SUFFIX).exists():
        path = path.with_name(path.name + PARTIAL_SUFFIX)
    run_file = path / "run.json"
    if not run_file.exists():
        raise BenchError(f"{path} is not a run folder: it has no run.json")
    run = read_object(run_file)
    version = run.get("schema_version")
    if type(version) is int and version != SCHEMA_VERSION:
        raise BenchError(f"{run_file} has schema version {short(version)}, this program reads {SCHEMA_VERSION}")
    check_value(run, HEAD, run_file)
    saved = SavedRun(path=path, partial=path.name.endswith(PARTIAL_SUFFIX), run=run)
    if kind is not None:
        saved.check_kind(kind)
    check_value(run, run_rule, run_file)
    if path.parent.name == "runs" and path.name != f"{run.get('block', 0):02d}-{run.get('arm', '')}" and "arm" in run and "block" in run:
        raise BenchError(f"{run_file} is of block {run['block']} of {run['arm']}, and not of the place where it is; {DAMAGED}")
    _check_hash(path / "schedule.parquet", (run.get("hashes") or {}).get("schedule_sha256"))
    return saved


def _check_hash(file: Path, told: str | None) -> None:
    """Raises BenchError where the file is there and has another sha256 than the run says."""
    if told is None or not file.is_file():
        return
    try:
        found = _sha256(file, _state(file))
    except OSError as error:
        raise BenchError(f"{file} cannot be read: {error.strerror}") from None
    if found != told:
        raise BenchError(f"{file} is not the file that the run was made with: its sha256 is not that in run.json; {DAMAGED}")


@functools.lru_cache(maxsize=4096)
def _sha256(file: Path, state: tuple[int, ...]) -> str:
    """`state`: of the file, so that one that changed is read again."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _state(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read(file: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Raises BenchError, also where a column is there twice."""
    table = read_parquet(file, columns) if file.suffix == ".parquet" else read_stream(file, columns)
    names = [] if table is None else table.column_names
    if len(set(names)) < len(names):
        raise BenchError(f"{file}: the column {next(name for name in names if names.count(name) > 1)} is there twice; {DAMAGED}")
    return table


def _schema(file: Path) -> pa.Schema:
    return read_parquet(file, []).schema
