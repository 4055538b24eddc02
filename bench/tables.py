"""Parquet files and Arrow streams, also in folders whose names are not UTF-8, which pyarrow does not take: Python opens those.

Pages are written with their checksums, so that bytes that changed on the disk are told apart from what was measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError, one_sentence
from bench.json_rules import DAMAGED

if TYPE_CHECKING:
    import pyarrow as pa


@contextlib.contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetWriter. Raises OSError."""
    import pyarrow.parquet as pq

    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        yield writer


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write the table as one file. Raises OSError."""
    with parquet_writer(path, table.schema) as writer:
        writer.write_table(table)


def parquet_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The same as `read_parquet`, with the errors as they come: pyarrow.ArrowException, OSError, ValueError, OverflowError."""
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        plain = _is_utf8(path)
        # A thread of pyarrow's that holds a Python file may outlive the interpreter, and would abort the process at its end.
        with pq.ParquetFile(str(path) if plain else file, page_checksum_verification=True) as parquet:
            present = None if columns is None else [name for name in columns if name in parquet.schema_arrow.names]
            return parquet.read(present, use_threads=plain)


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The table, or those of the `columns` that it has. Raises BenchError where it cannot be read."""
    import pyarrow as pa

    try:
        return parquet_table(path, columns)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise unreadable(path, error) from None


def read_stream(path: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """The same of an Arrow IPC stream: its whole batches, None where there is none."""
    import pyarrow as pa

    try:
        batches = [batch if columns is None else batch.select(_present(columns, batch.schema)) for batch in stream_batches(path)]
        return pa.Table.from_batches(batches) if batches else None
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise unreadable(path, error) from None


def stream_batches(path: Path) -> Iterator[pa.RecordBatch]:
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


def unreadable(path: Path, error: Exception) -> BenchError:
    """What to say of a table whose bytes are not those of one."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else one_sentence(error)
    return BenchError(f"{path} cannot be read: {reason:.200}; {DAMAGED}")


def _present(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    return [name for name in columns if name in schema.names]
