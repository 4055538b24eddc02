"""Azure Functions traces: invocations of 2021, and counts per minute of 2019.

Source: Azure/AzurePublicDataset, AzureFunctionsInvocationTrace2021.md and AzureFunctionsDataset2019.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.errors import BenchError
from bench.load.arrivals import MAX_ARRIVALS
from bench.load.profile import SECOND_NS
from bench.load.traces.rows import (
    Batch,
    Options,
    Tally,
    Verdict,
    column_index,
    csv_columns,
    guess_free_column,
    keep,
    named_header,
    whole_numbers,
)
from bench.load.traces.source import Source
from bench.load.traces.times import Ints, numbers_to_ns, strings

_MINUTE_NS = 60 * SECOND_NS
_OWNERS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
_BATCH_ARRIVALS = 1_000_000
# 160,000 a second from one function: beyond that a cell is damaged, not busy.
_MOST_A_MINUTE = 10_000_000
_LAST_MINUTE = 100 * 366 * 24 * 60


def matches_2021(head: Sequence[Sequence[str]]) -> bool:
    """The header of the 2021 invocation trace."""
    return {"app", "func", "end_timestamp", "duration"} <= set(head[0])


def read_2021(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """arrival = end_timestamp - duration, both in s. One that began before the trace arrives before 0 and stays in it."""
    del options
    header = named_header(source)
    end_at, duration_at = (column_index(source, header, name, "azure-functions-2021") for name in ("end_timestamp", "duration"))
    before = 0
    tally.notes["meaning"] = "arrival = end_timestamp - duration"
    for columns in csv_columns(source, tally, width=len(header), header=True):
        verdict = Verdict()
        ends, ends_ok = numbers_to_ns(strings(columns.texts[end_at]), "s")
        durations, durations_ok = numbers_to_ns(strings(columns.texts[duration_at]), "s")
        verdict.require(ends_ok, columns.texts[end_at], "end_timestamp")
        verdict.require(durations_ok & (durations >= 0), columns.texts[duration_at], "duration")
        arrivals = np.where(verdict.ok, ends - durations, 0)
        before += int((arrivals < 0).sum())
        extras = {name: guess_free_column(columns.texts[i]) for i, name in enumerate(header) if i not in (end_at, duration_at)}
        extras["duration_ns"] = pa.array(durations)
        if before:
            tally.notes["kept"] = f"{before} of the arrivals lie before 0 of the trace's clock; the earliest is the origin"
        yield keep(tally, columns, verdict, arrivals, extras)


def matches_2019(head: Sequence[Sequence[str]]) -> bool:
    """The header of the 2019 counts a minute."""
    return tuple(head[0][:4]) == _OWNERS


def read_2019(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """Counts are exact; inside its minute each arrival has a place drawn evenly with the seed. Column "k" is the minute
    [60 (k - 1), 60 k) s of the schedule. A row with a cell that is no count is bad as a whole."""
    header = named_header(source)
    minutes = [(i, int(name)) for i, name in enumerate(header) if name.isascii() and name.isdigit() and len(name) < 19 and int(name) >= 1]
    beyond = next((name for name in header if name.isascii() and name.isdigit() and (len(name) >= 19 or int(name) > _LAST_MINUTE)), None)
    if beyond is not None:
        raise BenchError(f"{source.path} has the minute column {beyond[:40]}, which lies beyond a century: mend its header")
    if len({minute for _, minute in minutes}) < len(minutes):
        twice = next(minute for at, (_, minute) in enumerate(minutes) if minute in [other for _, other in minutes[:at]])
        raise BenchError(f"{source.path} has two columns for minute {twice}: leave one of them out")
    if not minutes:
        raise BenchError(f"{source.path} has no minute columns (1, 2, ...), which the format azure-functions-2019 needs")
    starts = np.array([(minute - 1) * _MINUTE_NS for _, minute in minutes], np.int64)
    named = {name: header.index(name) for name in _OWNERS if name in header}
    rng = np.random.Generator(np.random.PCG64(options.seed))
    tally.in_file_order = False
    tally.start_ns, tally.duration_ns = 0, max(minute for _, minute in minutes) * _MINUTE_NS
    tally.notes["meaning"] = f"each count is spread evenly inside its minute, seed {options.seed}"
    times: list[Ints] = []
    owners: list[int] = []
    pending = 0
    texts: dict[str, list[str]] = {name: [] for name in named}

    def batch() -> Batch:
        repeats = np.repeat(np.arange(len(owners), dtype=np.int32), owners)
        columns = {name: pa.DictionaryArray.from_arrays(pa.array(repeats), pa.array(cells)) for name, cells in texts.items()}
        # The dictionary of a batch may name a trigger many times; as a column it is the same text.
        return Batch(
            times_ns=np.concatenate(times), columns={name: pc.cast(c, pa.string()).dictionary_encode() for name, c in columns.items()}
        )

    for table in csv_columns(source, tally, width=len(header), header=True, batch_rows=512):
        for row, line in enumerate(table.lines.tolist()):
            cells = [table.texts[i][row] for i, _ in minutes]
            counts, good = whole_numbers(cells)
            numbers = pc.fill_null(counts, -1).to_numpy()
            good = good & (numbers >= 0) & (numbers <= _MOST_A_MINUTE)
            if not good.all():
                at = int((~good).argmax())
                tally.refuse(line, f"the count of minute {minutes[at][1]} is {cells[at][:40]!r}")
                continue
            if int(numbers.sum()) > MAX_ARRIVALS:  # before the memory for them is asked for
                raise BenchError(f"line {line}: its counts add up to {int(numbers.sum()):,} arrivals, the limit is {MAX_ARRIVALS:,}")
            tally.rows += 1
            owners.append(int(numbers.sum()))
            times.append(np.repeat(starts, numbers) + rng.integers(0, _MINUTE_NS, owners[-1]))
            for name, index in named.items():
                texts[name].append(table.texts[index][row])
            pending += owners[-1]
            if pending >= _BATCH_ARRIVALS:
                yield batch()
                times, owners, pending, texts = [], [], 0, {name: [] for name in named}
    if owners:
        yield batch()
