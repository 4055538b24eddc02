"""What the tables of a run must hold: for each kind of run its columns, their types and ranges, and what rows must agree in.

A table is checked as a whole when the first of its columns is read, whichever that is: so every command refuses the same folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.json_rules import DAMAGED, EXACT, MOST_WHOLE, Rule, each, number, record, whole

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

STATUSES = ("ok", "wrong", "error", "shed", "timeout", "not_sent", "lost_worker")
PARTS_NS = ("queue_ns", "pool_ns", "load_ns", "input_ns", "infer_ns", "output_ns")
SCHEDULE_KEY = b"coldburst.schedule"
_ANSWERED = ("ok", "wrong")
_MOST_SLOTS = 4096

ReadColumn = Callable[[str], "pa.ChunkedArray | None"]
"""A column of the table by its name; None where the table has none of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`type`: int64, int32, int16, bool, text, or labels (text with a dictionary). `least` and `most` are of a number, `values` of a
    text. `needed`: it is there; `null`: a row may have none."""

    type: str = "int64"
    least: int = -EXACT
    most: int = EXACT
    values: tuple[str, ...] = ()
    needed: bool = True
    null: bool = False


_TIME, _MAYBE_TIME = Column(), Column(null=True)
_PART = Column(least=0, null=True)
_BYTES = Column(least=0, null=True)
_TEXT = Column(type="text")
_WORKER = Column(type="int32", least=0, most=2**31 - 1, needed=False, null=True)
_SLOTS = Column(type="int32", least=0, most=_MOST_SLOTS)
_ROUND = Column(type="int32", least=0, most=10_000)

_SCHEDULE: Mapping[str, Column] = {
    "seq": Column(least=0, most=MOST_WHOLE),
    "intended_ns": Column(least=0, most=MOST_WHOLE),
    "spike": Column(type="int32", least=-1, most=2**31 - 1, null=True),
    "phase": Column(type="labels"),
}
_TIMELINE: Mapping[str, Column] = {
    "t_ns": _TIME,
    "model": _TEXT,
    **dict.fromkeys(("slots_busy", "slots_idle", "slots_loading"), _SLOTS),
    "waiting": Column(type="int32", least=0, most=2**31 - 1),
    **dict.fromkeys(("resident_bytes", "device_bytes"), _BYTES),
    "sm_clock_mhz": Column(type="int32", least=0, most=100_000, needed=False, null=True),
    "process_cpu_ns": Column(least=0),
}
_TABLES: Mapping[tuple[str, str], Mapping[str, Column]] = {
    ("load", "schedule"): _SCHEDULE,
    ("load", "requests"): {
        "seq": _SCHEDULE["seq"],
        "intended_ns": _SCHEDULE["intended_ns"],
        "sent_ns": _MAYBE_TIME,
        "done_ns": _MAYBE_TIME,
        "status": Column(type="text", values=STATUSES),
        "http_status": Column(type="int16", least=0, most=999, needed=False, null=True),
        "error": Column(type="text", null=True),
        "bytes": Column(least=0, needed=False, null=True),
        "worker": _WORKER,
        "connect_ns": Column(needed=False, null=True),
        **dict.fromkeys(PARTS_NS, _PART),
    },
    ("load", "timeline"): _TIMELINE,
    ("curve", "requests"): {
        "round": _ROUND,
        "busy": Column(type="int32", least=1, most=_MOST_SLOTS),
        "batch": Column(type="int32", least=1, most=2**31 - 1),
        "phase": Column(type="text", values=("ramp", "steady", "drain")),
        "sent_ns": _TIME,
        "done_ns": _TIME,
        "bytes": Column(least=0, needed=False, null=True),
        "worker": _WORKER,
        **dict.fromkeys(PARTS_NS, _PART),
    },
    ("curve", "timeline"): {"round": _ROUND, "slots": _SLOTS, **_TIMELINE},
    ("curve", "servers"): {
        "round": _ROUND,
        "slots": _SLOTS,
        **dict.fromkeys(("started_ns", "listening_ns", "ready_ns"), _TIME),
    },
    ("coldstart", "cold_starts"): {
        **dict.fromkeys(("order", "trial"), Column(type="int32", least=0, most=2**31 - 1)),
        **dict.fromkeys(("variant", "level", "phase"), _TEXT),
        "in_total": Column(type="bool"),
        "start_ns": _MAYBE_TIME,
        "duration_ns": _TIME,
        **dict.fromkeys(("resident_bytes", "device_bytes"), _BYTES),
        "page_cache": Column(type="text", null=True),
    },
    ("plan", "schedule"): _SCHEDULE,
    ("plan", "measured"): {
        "what": Column(type="text", values=("service", "overhead", "cold_load_ns", "load_ns", "slot_ns", "ready_ns")),
        "busy": Column(type="int32", least=1, most=_MOST_SLOTS, null=True),
        "ns": Column(least=0),
    },
}
_SPIKE = record({"index": whole(0, 2**31 - 1), "start_ns": whole(), "end_ns": whole()}, peak_rate=number())
_SCHEDULE_ABOUT: Rule = record(duration_ns=whole(), spikes=each(_SPIKE), provenance=record())


def columns_of(kind: str, name: str) -> Mapping[str, Column]:
    """The columns that are known of a table; none where the table is not."""
    return _TABLES.get((kind, name), {})


def fitted(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """The column in its own type: an int32 may be written as an int64, a text with a dictionary or without. Raises
    pyarrow.ArrowException where it is of another one."""
    import pyarrow as pa

    kind, wanted = values.type, _arrow_type(column.type)
    if kind == wanted:
        return values
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    numbers, texts = pa.types.is_integer(wanted), column.type in ("text", "labels")
    fits = (
        pa.types.is_integer(kind) if numbers else texts and (pa.types.is_string(inner) or pa.types.is_large_string(inner))
    ) or pa.types.is_null(kind)
    if not fits:
        raise pa.ArrowTypeError(f"it is {kind}")
    return values.cast(wanted)


def check_table(kind: str, name: str, file: Path, read: ReadColumn, others: Callable[[str], pa.Table | None], about: bytes | None) -> None:
    """Check all columns of a table, one at a time, and then its rows. `others` gives the other tables of the run, `about` is what the
    file's metadata say of a schedule. Raises BenchError with the file, the column and what is wrong."""
    for column_name, column in columns_of(kind, name).items():
        values = read(column_name)
        if values is None and column.needed:
            raise BenchError(f"{file} has no column {column_name}; {DAMAGED}")
        problem = _column(values, column)
        if problem is not None:
            raise BenchError(f"{file}: the column {column_name} {problem}; {DAMAGED}")
    rows = _ROWS.get((kind, name))
    for problem in () if rows is None else rows(read, others, about):
        raise BenchError(f"{file}: {problem}; {DAMAGED}")


def _column(values: pa.ChunkedArray | None, column: Column) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if values is None:
        return None
    try:
        values = fitted(values, column)
    except pa.ArrowException:
        return f"holds {values.type}, not {column.type}"
    if values.null_count and not column.null:
        return f"has no value in {values.null_count} of {len(values)} rows"
    if values.null_count == len(values):
        return None
    if column.values:
        strange = [value for value in pc.unique(values).to_pylist() if value is not None and value not in column.values]
        return f"has the value {strange[0][:40]!r}, which is none of {', '.join(column.values)}" if strange else None
    if not pa.types.is_integer(values.type):
        return None
    ends = pc.min_max(values)
    for value in (ends["min"].as_py(), ends["max"].as_py()):
        if not column.least <= value <= column.most:
            return f"has the value {value}, which is not within {column.least} and {column.most}"
    return None


def _schedule(read: ReadColumn, others: Callable[[str], pa.Table | None], about: bytes | None) -> Iterator[str]:
    """In the order of sending, and of the spikes that it tells."""
    import numpy as np

    seq, intended = _numbers(read("seq")), _numbers(read("intended_ns"))
    if not (seq[1:] > seq[:-1]).all():
        yield "the column seq does not grow from row to row"
    if not (intended[1:] >= intended[:-1]).all():
        yield "the column intended_ns is not sorted"
    if about is None:
        return
    try:
        told = json.loads(about)
    except (ValueError, RecursionError):
        told = None
    problem = _SCHEDULE_ABOUT(told, "")
    if problem is not None:
        yield f"of its metadata {problem}"
        return
    spikes = {spike["index"]: spike for spike in told.get("spikes", ())}
    if len(spikes) < len(told.get("spikes", ())) or any(spike["end_ns"] < spike["start_ns"] for spike in spikes.values()):
        yield "its metadata have a spike twice, or one that ends before it starts"
    inside = _numbers(read("spike"))
    if "spikes" in told and not set(np.unique(inside[inside >= 0]).tolist()) <= set(spikes):
        yield "it has arrivals of a spike that its metadata do not have"
    if len(intended) and intended[-1] > told.get("duration_ns", MOST_WHOLE):
        yield f"it has an arrival at {intended[-1]} ns, after its duration of {told['duration_ns']} ns"


def _requests(read: ReadColumn, others: Callable[[str], pa.Table | None], about: bytes | None) -> Iterator[str]:
    """What no run can have recorded."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    sent, done = read("sent_ns"), read("done_ns")
    assert sent is not None and done is not None
    answered = pc.is_in(read("status"), value_set=pa.array(_ANSWERED))
    timeless = pc.sum(pc.and_(answered, pc.or_(pc.is_null(sent), pc.is_null(done)))).as_py()
    if timeless:
        yield f"{timeless} rows with the status ok or wrong do not say when they were sent and done"
    del answered
    early = pc.sum(pc.less(done, sent)).as_py()
    if early:
        yield f"{early} rows were done before they were sent"
    unsent = pc.sum(pc.and_(pc.is_null(sent), pc.is_valid(done))).as_py()
    if unsent:
        yield f"{unsent} rows were done, but never sent"
    del sent, done
    scheduled = others("schedule")
    if scheduled is None:
        return
    asked, planned = _numbers(scheduled.column("seq")), _numbers(scheduled.column("intended_ns"))
    seq = _numbers(read("seq"))
    if not len(asked) or not len(seq):
        return
    in_one_piece = asked[-1] - asked[0] == len(asked) - 1  # as every schedule is that is not a worker's share
    at = np.clip(seq - asked[0] if in_one_piece else np.searchsorted(asked, seq), 0, len(asked) - 1)
    recorded = np.zeros(len(asked), bool)
    recorded[at] = True
    if int(recorded.sum()) < len(seq) or (asked[at] != seq).any():
        return  # the check of a run speaks of arrivals that are recorded twice, or were never scheduled
    moved = int((planned[at] != _numbers(read("intended_ns"))).sum())
    if moved:
        yield f"{moved} rows have another intended_ns than the schedule"


def _answers(read: ReadColumn, others: Callable[[str], pa.Table | None], about: bytes | None) -> Iterator[str]:
    """Of a service curve, where every row is an answer."""
    import numpy as np

    trip = _numbers(read("done_ns")) - _numbers(read("sent_ns"))
    if (trip < 0).any():
        yield f"{int((trip < 0).sum())} rows were done before they were sent"
    total = np.zeros(len(trip), np.int64)
    for name in PARTS_NS:
        total += np.maximum(_numbers(read(name)), 0)
    over = int((total > trip + 1_000_000).sum())
    if over > len(trip) // 100:
        yield f"{over} of {len(trip)} rows tell parts that add up to more than their round trip"
    infer = _numbers(read("infer_ns"))
    if len(infer) and (infer >= 0).any() and not (infer > 0).any():
        yield "the column infer_ns has no inference that took any time"


def _trials(read: ReadColumn, others: Callable[[str], pa.Table | None], about: bytes | None) -> Iterator[str]:
    """Of cold starts: each trial has one total, which its phases add up to."""
    import numpy as np
    import pyarrow.compute as pc

    order, duration = _numbers(read("order")), _numbers(read("duration_ns"))
    total, inside = (_numbers(pc.cast(values, "int8")) == 1 for values in (pc.equal(read("phase"), "total"), read("in_total")))
    numbers, trial = np.unique(order, return_inverse=True)
    totals = np.bincount(trial[total], minlength=len(numbers))
    if (totals != 1).any():
        yield f"the trial of order {numbers[totals != 1][0]} has {totals[totals != 1][0]} rows of the phase total, not 1"
    whole_ns, sum_ns = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    np.add.at(whole_ns, trial[total], duration[total])
    np.add.at(sum_ns, trial[inside], duration[inside])
    wrong = (whole_ns <= 0) | (whole_ns != sum_ns)
    if wrong.any():
        yield f"the phases of the trial of order {numbers[wrong][0]} take {sum_ns[wrong][0]} ns, and its total {whole_ns[wrong][0]} ns"


def _numbers(values: pa.ChunkedArray | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """-1 where there is none."""
    import numpy as np

    assert values is not None
    found: np.ndarray[Any, np.dtype[np.int64]] = values.fill_null(-1).to_numpy().astype(np.int64, copy=False)
    return found


def _arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    types: dict[str, Any] = {"text": pa.string(), "labels": pa.dictionary(pa.int8(), pa.string()), "bool": pa.bool_()}
    return types[name] if name in types else getattr(pa, name)()


_Rows = Callable[[ReadColumn, Callable[[str], "pa.Table | None"], "bytes | None"], Iterator[str]]
_ROWS: Mapping[tuple[str, str], _Rows] = {
    ("load", "schedule"): _schedule,
    ("plan", "schedule"): _schedule,
    ("load", "requests"): _requests,
    ("curve", "requests"): _answers,
    ("coldstart", "cold_starts"): _trials,
}
