"""Azure LLM inference traces of 2023 (no zone, 100 ns) and 2024 (with a zone, us), also those with images.

Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md, AzureLLMInferenceDataset2024.md, AzureLMMInferenceDataset2025.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.load.traces.rows import Batch, Options, Tally, Verdict, column_index, csv_columns, keep, named_header, token_columns
from bench.load.traces.source import Source
from bench.load.traces.times import DateClock, has_zone, strings


def matches_2023(head: Sequence[Sequence[str]]) -> bool:
    """The columns of the LLM trace, times without a zone."""
    return _has_columns(head[0]) and not _first_has_zone(head)


def matches_2024(head: Sequence[Sequence[str]]) -> bool:
    """The columns of the LLM trace, times with a zone."""
    return _has_columns(head[0]) and _first_has_zone(head)


def _has_columns(header: Sequence[str]) -> bool:
    return {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(header)


def _first_has_zone(head: Sequence[Sequence[str]]) -> bool:
    at = list(head[0]).index("TIMESTAMP")
    return len(head) > 1 and len(head[1]) > at and has_zone(head[1][at])


def read(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """A row whose token counts are neither whole numbers nor missing is bad."""
    header = named_header(source)
    at = column_index(source, header, "TIMESTAMP", "azure-llm")
    clock = DateClock(options.zone)
    for columns in csv_columns(source, tally, width=len(header), header=True):
        verdict = Verdict()
        times, ok = clock.read(strings(columns.texts[at]), columns.lines.tolist())
        verdict.require(ok, columns.texts[at], "TIMESTAMP")
        extras = token_columns(columns, header, [at], "Tokens", verdict)
        tally.notes["zone"] = clock.note
        yield keep(tally, columns, verdict, times, extras)
