"""BurstGPT: Timestamp in s from the start of the trace. Source: HPMLL/BurstGPT, README.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.load.traces.rows import Batch, Options, Tally, Verdict, column_index, csv_columns, keep, named_header, token_columns
from bench.load.traces.source import Source
from bench.load.traces.times import numbers_to_ns, strings


def matches(head: Sequence[Sequence[str]]) -> bool:
    """BurstGPT's header."""
    return {"Timestamp", "Model", "Request tokens", "Response tokens"} <= set(head[0])


def read(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """A row whose token counts are neither whole numbers nor missing is bad."""
    del options
    header = named_header(source)
    at = column_index(source, header, "Timestamp", "burstgpt")
    for columns in csv_columns(source, tally, width=len(header), header=True):
        verdict = Verdict()
        times, ok = numbers_to_ns(strings(columns.texts[at]), "s")
        verdict.require(ok, columns.texts[at], "Timestamp")
        extras = token_columns(columns, header, [at], "tokens", verdict)
        yield keep(tally, columns, verdict, times, extras)
