"""The reference server's timeline file (JSON lines, see `reference_server.timeline`), as the run folder's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1


def timeline_schema() -> pa.Schema:
    """t_ns on the server's CLOCK_MONOTONIC; memory in bytes, the GPU's clock in MHz, null where not known; slots and requests counted."""
    import pyarrow as pa

    counts = [(name, pa.int32()) for name in ("slots_busy", "slots_idle", "slots_loading", "waiting")]
    return pa.schema(
        [
            pa.field("t_ns", pa.int64(), nullable=False),
            pa.field("model", pa.string(), nullable=False),
            *(pa.field(name, kind, nullable=False) for name, kind in counts),
            pa.field("resident_bytes", pa.int64()),
            pa.field("device_bytes", pa.int64()),
            pa.field("sm_clock_mhz", pa.int32()),
            pa.field("process_cpu_ns", pa.int64(), nullable=False),
        ]
    )


def read_server_timeline(path: Path, *, zero_ns: int = 0) -> tuple[dict[str, Any], pa.Table]:
    """The metadata (anchor, interval, pid) and the rows, with `zero_ns` taken off each t_ns.

    A torn last line, from a server that was killed, is left out. Raises BenchError where the file is not a timeline.
    """
    import pyarrow as pa

    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BenchError(f"timeline {path} cannot be read ({error.strerror})") from None
    schema = timeline_schema()
    try:
        metadata: dict[str, Any] = json.loads(lines[0])
        if metadata["schema_version"] != SCHEMA_VERSION or metadata["columns"] != schema.names:
            raise BenchError(f"timeline {path} is of another version than this program reads ({SCHEMA_VERSION})")
        rows = [json.loads(line) for line in lines[1:-1]]  # what follows the last newline is empty or torn
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        columns[0] = tuple(t_ns - zero_ns for t_ns in columns[0])
        return metadata, pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
    except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
        raise BenchError(f"{path} is not a timeline of the reference server ({error})") from None
