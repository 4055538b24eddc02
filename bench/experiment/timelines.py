"""The server's timeline (JSON lines, see reference_server.timeline) as `timeline.parquet` of a run, on the run's own clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1


def read_timeline(path: Path, start_ns: int) -> pa.Table:
    """The samples with `t_ns` counted from `start_ns` (CLOCK_MONOTONIC of the same host); a torn last line is left out.

    Raises BenchError where the file is no timeline.
    """
    import pyarrow as pa

    lines = path.read_text("utf-8", errors="replace").splitlines()
    try:
        head = json.loads(lines[0])
        columns, version = head["columns"], head["schema_version"]
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise BenchError(f"{path} is not a server timeline ({type(error).__name__})") from None
    if version != SCHEMA_VERSION:
        raise BenchError(f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}")
    rows: list[list[Any]] = []
    for line in lines[1:]:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if isinstance(row, list) and len(row) == len(columns):
            rows.append(row)
    values = dict(zip(columns, zip(*rows, strict=True) if rows else ([] for _ in columns), strict=True))
    values["t_ns"] = [t - start_ns for t in values["t_ns"]]
    types = {"model": pa.string()}
    return pa.table({name: pa.array(values[name], types.get(name, pa.int64())) for name in columns})


def write_timeline(source: Path, run_folder: Path, start_ns: int) -> None:
    """Write `timeline.parquet` into the run's folder."""
    import pyarrow.parquet as pq

    pq.write_table(read_timeline(source, start_ns), run_folder / "timeline.parquet", compression="zstd")
