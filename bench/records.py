"""The run folder: written as `<id>.partial/` while a run goes, renamed when it is whole, never overwritten.

Tables are streamed as Arrow IPC (`NAME.arrows`), so that a crash loses what was not yet flushed and nothing else; when
the run ends they become `NAME.parquet`. Every reader here takes a `.partial` folder too and says so.
"""

from __future__ import annotations

import contextlib
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
from bench.errors import BenchError

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
        target = self.path / name
        temporary = target.with_suffix(".new")
        text = json.dumps(value, indent=2) + "\n"
        try:
            with naming(target):
                temporary.write_text(text, "utf-8")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the streams and leave the folder as `.partial`."""
        with contextlib.ExitStack() as stack:  # a stream that cannot be closed leaves no other one open
            for stream in self._streams:
                stack.callback(stream.close)

    def finish(self) -> Path:
        """Turn the streams into Parquet and give the folder its name. Returns the final path. Raises BenchError as `check_there` does,
        and where the name is taken."""
        import pyarrow.parquet as pq

        self.close()
        self.check_there()
        for stream in self._streams:
            target = stream.path.with_suffix(".parquet")
            with naming(target), pq.ParquetWriter(target, stream._schema, compression="zstd") as writer:
                for rows in _row_groups(_read_stream(stream.path)):
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

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table | None:
        """The table `name`, from Parquet or from the stream of a partial run; None where the run has none.

        `columns`: only these, so that a table of many rows need not be held whole. Raises BenchError where the file
        cannot be read, or lacks one of them.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        parquet, stream = self.path / f"{name}.parquet", self.path / f"{name}.arrows"
        table = None
        try:
            if parquet.exists() and not stream.exists():
                table = pq.read_table(parquet, columns=None if columns is None else _present(columns, pq.read_schema(parquet)))
            elif stream.exists():
                batches = [batch if columns is None else batch.select(_present(columns, batch.schema)) for batch in _read_stream(stream)]
                table = pa.Table.from_batches(batches) if batches else None
        except (pa.ArrowInvalid, OSError) as error:
            raise BenchError(f"{parquet if parquet.exists() else stream} cannot be read: {error}") from None
        missing = [] if table is None else sorted(set(columns or ()) - set(table.column_names))
        if missing:
            raise BenchError(
                f"the table {name} of {self.path} has no column {missing[0]}: it was written by another program, or is damaged"
            )
        return table

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, None where there is none. Raises BenchError."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            value = json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise BenchError(f"{path} cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise BenchError(f"{path} cannot be read: it is not one JSON object")
        return value


def open_run(path: Path, kind: str | None = None) -> SavedRun:
    """Open a run folder or a `.partial` one. Raises BenchError, also where it is not of the `kind` that is asked for."""
    if not path.exists() and path.with_name(path.name + PARTIAL_SUFFIX).exists():
        path = path.with_name(path.name + PARTIAL_SUFFIX)
    run_file = path / "run.json"
    if not run_file.exists():
        raise BenchError(f"{path} is not a run folder: it has no run.json")
    try:
        run = json.loads(run_file.read_text("utf-8"))
        version = run["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{run_file} cannot be read: {error}") from None
    if version != SCHEMA_VERSION:
        raise BenchError(f"{run_file} has schema version {version}, this program reads {SCHEMA_VERSION}")
    saved = SavedRun(path=path, partial=path.name.endswith(PARTIAL_SUFFIX), run=run)
    if kind is not None:
        saved.check_kind(kind)
    return saved


def _present(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    return [name for name in columns if name in schema.names]


def _read_stream(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of an Arrow IPC stream; a torn last one, from a crash, ends it."""
    import pyarrow as pa

    with path.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, EOFError):
            return
        while True:
            try:
                yield reader.read_next_batch()
            except (StopIteration, EOFError, pa.ArrowInvalid, OSError):
                return
