"""Read a trace file into a schedule, in batches: what is held is one int64 a row and the columns that are kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.errors import BenchError
from bench.load.arrivals import MAX_ARRIVALS
from bench.load.schedule import Schedule, make_schedule
from bench.load.traces.formats import detect, format_named
from bench.load.traces.rows import Batch, Options, Tally
from bench.load.traces.source import Source, open_source
from bench.load.traces.times import Ints
from bench.load.traces.transform import Arrivals, Steps, apply

MAX_BAD_SHARE = 0.01
MAX_SPAN_NS = 100 * 366 * 86_400 * 10**9
# A number below this is no time since 1970: the origin is then shown as it stands on the trace's own clock.
_EPOCH_FROM_NS = 10**17


@dataclass(slots=True, kw_only=True)
class _Collected:
    """What the batches add up to. backward_steps: rows earlier than the row before; out_of_order: than any row before."""

    times: list[Ints]
    columns: dict[str, list[pa.Array]]
    names: list[str]
    kept: int = 0
    count: int = 0
    backward_steps: int = 0
    out_of_order: int = 0
    earliest: int | None = None
    last: int | None = None
    latest: int | None = None


def import_trace(
    path: Path,
    *,
    form: str | None = None,
    options: Options | None = None,
    steps: Steps | None = None,
    columns: Sequence[str] | None = None,
    max_bad_share: float = MAX_BAD_SHARE,
) -> Schedule:
    """Read a trace. form: a name in FORMATS, None tells it from the content. columns: the further columns to keep, None
    keeps all. The schedule's provenance says how every question was decided. Raises BenchError."""
    options, steps = options or Options(), steps or Steps()
    source = open_source(path)
    name = form or detect(source)
    chosen = format_named(name)
    for option in ("zone", "unit", "column", "subtract_duration"):
        if getattr(options, option) and option not in chosen.takes:
            raise BenchError(f"the format {name} has no use for --{option.replace('_', '-')}: leave it out, or name another with --format")
    tally = Tally()
    collected = _Collected(times=[], columns={}, names=[])
    try:
        for batch in chosen.read(source, options, tally):
            _collect(collected, batch, tally, steps, columns)
    except BenchError as error:
        raise error if str(path) in str(error) else BenchError(f"{path}, {error}") from None
    _refuse_bad(path, name, tally, max_bad_share)
    if collected.earliest is None:
        others = f" and {tally.other:,} rows of other kinds" if tally.other else ""
        raise BenchError(f"{path} has no arrivals: read as {name} it has {tally.rows:,} rows{others}, none of them an arrival")
    if collected.latest is not None and collected.latest - collected.earliest > MAX_SPAN_NS:
        raise BenchError(f"{path} spans more than a century, which looks like a wrong unit or a wrong time: see --unit and --format")
    arrivals = _sorted(collected, tally)
    if columns is not None and (absent := [c for c in columns if c not in collected.columns]):
        raise BenchError(f"{path} has no column {absent[0]!r} to keep; it has {', '.join(collected.names) or 'none'}")
    del collected.times, collected.columns
    arrivals, done = apply(arrivals, steps)
    return make_schedule(
        intended_ns=arrivals.times_ns,
        duration_ns=arrivals.duration_ns,
        extra=arrivals.extra,
        provenance=_provenance(source, name, form is not None, chosen.unit, tally, collected, done),
    )


def _collect(collected: _Collected, batch: Batch, tally: Tally, steps: Steps, columns: Sequence[str] | None) -> None:
    times = batch.times_ns
    if len(times) == 0:
        return
    collected.count += len(times)
    before = times[0] if collected.last is None else collected.last
    collected.backward_steps += int((times < np.concatenate(([before], times[:-1]))).sum())
    highest = np.maximum.accumulate(times if collected.latest is None else np.maximum(times, collected.latest))
    collected.out_of_order += int((times < highest).sum())
    collected.last, collected.latest = int(times[-1]), int(highest[-1])
    collected.earliest = int(times.min()) if collected.earliest is None else min(collected.earliest, int(times.min()))
    collected.names = list(batch.columns)
    extras = {name: column for name, column in batch.columns.items() if columns is None or name in columns}
    if steps.window is not None and steps.window[1] is not None:
        # The origin only ever moves earlier, so what lies beyond the window now is beyond it in the end.
        origin = collected.earliest if tally.start_ns is None else tally.start_ns
        near = times < origin + steps.window[1]
        times, extras = times[near], {name: column.filter(pa.array(near)) for name, column in extras.items()}
    collected.kept += len(times)
    if collected.kept > MAX_ARRIVALS:
        raise BenchError(f"it has more than {MAX_ARRIVALS:,} arrivals: take a part with --window")
    collected.times.append(times)
    for name, column in extras.items():
        collected.columns.setdefault(name, []).append(column)


def _refuse_bad(path: Path, name: str, tally: Tally, max_bad_share: float) -> None:
    if tally.bad == 0:
        return
    line, why = tally.first_bad[0]
    if tally.bad == tally.rows:
        raise BenchError(
            f"{path}: none of its {tally.rows:,} rows can be read as {name}; line {line}: {why}; --format names another format"
        )
    if tally.bad > Fraction(str(max_bad_share)) * tally.rows:  # 0.29 as it is written: 29 of 100 are not more
        raise BenchError(
            f"{path}: {tally.bad:,} of {tally.rows:,} rows cannot be read as {name}, more than {max_bad_share:.0%}; "
            f"the first is line {line}: {why}; mend the file, or allow more with --max-bad"
        )


def _sorted(collected: _Collected, tally: Tally) -> Arrivals:
    times = np.concatenate(collected.times)
    collected.times.clear()
    assert collected.earliest is not None and collected.latest is not None
    origin = collected.earliest if tally.start_ns is None else tally.start_ns
    times -= origin
    table = pa.table({name: _joined(parts) for name, parts in collected.columns.items()})
    if collected.backward_steps or (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times, table = times[order], table.take(pa.array(order)) if table.num_columns else table
    duration = collected.latest - origin if tally.duration_ns is None else tally.duration_ns
    return Arrivals(times_ns=times, duration_ns=duration, extra=table)


def _joined(parts: list[pa.Array]) -> pa.ChunkedArray:
    """One column of the batches' columns; where they found different types, the widest: whole, decimal, text."""
    kinds = {part.type for part in parts if part.null_count < len(part)}
    if len(kinds) <= 1:
        kind = kinds.pop() if kinds else parts[0].type
    elif kinds <= {pa.int64(), pa.float64()}:
        kind = pa.float64()
    else:
        kind = pa.dictionary(pa.int32(), pa.string())
    if not pa.types.is_dictionary(kind):
        return pa.chunked_array([pc.cast(part, kind) for part in parts], kind)
    texts = [part if pa.types.is_dictionary(part.type) else pc.cast(part, pa.string()).dictionary_encode() for part in parts]
    return pa.chunked_array(texts).unify_dictionaries()


def _provenance(
    source: Source, name: str, given: bool, unit: str, tally: Tally, collected: _Collected, done: list[dict[str, Any]]
) -> dict[str, Any]:
    origin = collected.earliest if tally.start_ns is None else tally.start_ns
    assert origin is not None
    return {
        "trace": source.path.name,
        "sha256": source.seen.hash.hexdigest(),
        "bytes": source.seen.size,
        "compression": source.compression,
        "encoding": source.encoding,
        "format": name,
        "format_told_by": "the option" if given else "the content",
        "unit": tally.notes.get("unit", unit),
        "notes": {key: note for key, note in tally.notes.items() if key != "unit"},
        "rows": tally.rows,
        "rows_bad": tally.bad,
        "first_bad": [{"line": line, "why": why} for line, why in tally.first_bad],
        "lines_blank": tally.blank,
        "rows_of_other_kinds": tally.other,
        "arrivals_read": collected.count,
        "rows_out_of_order": collected.out_of_order if tally.in_file_order else None,
        "backward_steps": collected.backward_steps if tally.in_file_order else None,
        "origin": _origin_text(origin),
        "transformations": done,
    }


def _origin_text(origin_ns: int) -> str:
    if abs(origin_ns) < _EPOCH_FROM_NS:
        return f"{origin_ns} ns on the trace's own clock"
    seconds, rest = divmod(origin_ns, 10**9)
    day = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
    return f"{day:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
