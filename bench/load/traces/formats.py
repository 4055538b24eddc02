"""The formats, by name, and which one a file has. A format is told by the content alone, never by the file's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.errors import BenchError
from bench.load.traces import access_log, azure_functions, azure_llm, burstgpt, jsonl, load_tools, plain
from bench.load.traces.rows import Batch, Options, Tally, split_line
from bench.load.traces.source import Source

Cells = Sequence[Sequence[str]]
Lines = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """unit: what its times are in, for people. takes: the options that mean something to it. Of the two tests one is given:
    on the first lines, or on their cells."""

    unit: str
    takes: tuple[str, ...] = ()
    read: Callable[[Source, Options, Tally], Iterator[Batch]]
    matches_cells: Callable[[Cells], bool] | None = None
    matches_lines: Callable[[Lines], bool] | None = None

    def matches(self, lines: Lines, cells: Cells) -> bool:
        if self.matches_cells is not None:
            return self.matches_cells(cells)
        return self.matches_lines is not None and self.matches_lines(lines)


FORMATS: dict[str, Format] = {
    "azure-llm-2023": Format(unit="date time, 100 ns", takes=("zone",), read=azure_llm.read, matches_cells=azure_llm.matches_2023),
    "azure-llm-2024": Format(unit="date time, us", takes=("zone",), read=azure_llm.read, matches_cells=azure_llm.matches_2024),
    "azure-functions-2021": Format(unit="s", read=azure_functions.read_2021, matches_cells=azure_functions.matches_2021),
    "azure-functions-2019": Format(unit="counts per minute", read=azure_functions.read_2019, matches_cells=azure_functions.matches_2019),
    "burstgpt": Format(unit="s", read=burstgpt.read, matches_cells=burstgpt.matches),
    "k6": Format(
        unit="s, us or date time", takes=("zone", "unit", "subtract_duration"), read=load_tools.read_k6, matches_cells=load_tools.matches_k6
    ),
    "vegeta": Format(unit="ns since 1970", read=load_tools.read_vegeta, matches_cells=load_tools.matches_vegeta),
    "mooncake": Format(unit="ms", read=jsonl.read_mooncake, matches_lines=jsonl.matches_mooncake),
    "qwen-bailian": Format(unit="s", read=jsonl.read_qwen, matches_lines=jsonl.matches_qwen),
    "har": Format(unit="date time", takes=("zone",), read=load_tools.read_har, matches_lines=load_tools.matches_har),
    "combined": Format(
        unit="date time, 1 s", takes=("subtract_duration",), read=access_log.read, matches_lines=access_log.matches_combined
    ),
    "nginx": Format(unit="date time, 1 s", takes=("subtract_duration",), read=access_log.read, matches_lines=access_log.matches_nginx),
    "plain": Format(unit="date time", takes=("zone", "unit", "column"), read=plain.read, matches_cells=plain.matches),
}


def format_named(name: str) -> Format:
    """Raises BenchError where there is none of that name."""
    if name not in FORMATS:
        raise BenchError(f"there is no trace format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def detect(source: Source) -> str:
    """The name of the one format that the first lines fit. Raises BenchError where none or several do."""
    lines = source.head()
    if not lines:
        raise BenchError(f"{source.path} has no arrivals: it holds blank lines only")
    cells = [split_line(line) for line in lines]
    found = [name for name, form in FORMATS.items() if form.matches(lines, cells)]
    if len(found) == 1:
        return found[0]
    which = f"fits {' and '.join(found)}" if found else "fits no format that its content tells"
    raise BenchError(
        f"{source.path} {which}: say which it is with --format {'|'.join(found or FORMATS)}"
        + ("" if found else " (plain, with --column, reads any column of times)")
    )
