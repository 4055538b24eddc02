"""What other load generators and browsers recorded: k6 CSV, vegeta CSV, HAR."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from bench.errors import BenchError
from bench.load.traces.rows import (
    Batch,
    Columns,
    Options,
    Tally,
    Verdict,
    arrivals_from_ends,
    csv_columns,
    guess_free_column,
    header_of,
    keep,
    named_header,
    whole_numbers,
)
from bench.load.traces.source import Source
from bench.load.traces.times import DateClock, NumberClock, is_date_time, numbers_to_ns, strings


def matches_k6(head: Sequence[Sequence[str]]) -> bool:
    """The header of k6's CSV output."""
    return list(head[0][:3]) == ["metric_name", "timestamp", "metric_value"]


def read_k6(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """`k6 run --out csv`: one row a metric and sample; the http_req_duration rows are the requests (value in ms). The time is
    that of the request's end (grafana/k6, lib/netext/httpext/tracer.go), as K6_CSV_TIME_FORMAT asked: s, us or RFC 3339."""
    header = named_header(source)
    if not matches_k6([header]):
        raise BenchError(f"{source.path} does not begin with metric_name,timestamp,metric_value, as the format k6 does")
    clock: DateClock | NumberClock | None = None
    for every in csv_columns(source, tally, width=len(header), header=True):
        rows = np.flatnonzero(np.array(every.texts[0]) == "http_req_duration").tolist()
        tally.other += len(every.lines) - len(rows)
        if not rows:
            continue
        columns = Columns(texts=[tuple(texts[row] for row in rows) for texts in every.texts], lines=every.lines[rows])
        if clock is None:
            clock = DateClock(options.zone) if is_date_time(columns.texts[1][0]) else NumberClock(options.unit)
        verdict = Verdict()
        ends, ok = clock.read(strings(columns.texts[1]), columns.lines.tolist())
        durations, durations_ok = numbers_to_ns(strings(columns.texts[2]), "ms")
        verdict.require(ok, columns.texts[1], "timestamp")
        verdict.require(durations_ok, columns.texts[2], "metric_value")
        tally.notes["zone" if isinstance(clock, DateClock) else "unit"] = clock.note
        kept: list[str] = [name for name in ("method", "status", "url") if name in header]
        extras = {name: guess_free_column(columns.texts[header.index(name)]) for name in kept}
        extras["duration_ns"] = pa.array(durations)
        yield keep(tally, columns, verdict, arrivals_from_ends(ends, durations, options, tally), extras)


def matches_vegeta(head: Sequence[Sequence[str]]) -> bool:
    """Rows of vegeta's CSV: a time in ns, then a status code; there is no header."""
    first = head[0]
    return len(first) in (9, 12) and all(cell.isdigit() for cell in first[:5]) and len(first[0]) == 19 and len(first[1]) <= 3


def read_vegeta(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """`vegeta encode --to csv`: no header; send time in ns since 1970, code, latency in ns, bytes out, bytes in, error, body,
    attack, seq, and in later versions method, url and headers (tsenart/vegeta, lib/results.go)."""
    del options
    width = len(header_of(source))
    if width < 9:
        raise BenchError(f"{source.path} has {width} columns; the format vegeta has 9 or 12")
    for columns in csv_columns(source, tally, width=width, header=False):
        verdict = Verdict()
        times, ok = numbers_to_ns(strings(columns.texts[0]), "ns")
        verdict.require(ok, columns.texts[0], "time")
        extras: dict[str, pa.Array] = {}
        for index, name in ((1, "status"), (2, "duration_ns"), (3, "bytes_out"), (4, "bytes_in")):
            extras[name], good = whole_numbers(columns.texts[index])
            verdict.require(good, columns.texts[index], name)
        tally.notes["meaning"] = "arrival = the time at which vegeta sent it"
        yield keep(tally, columns, verdict, times, extras)


def matches_har(lines: Sequence[str]) -> bool:
    """The beginning of an HTTP archive."""
    start = " ".join(lines)
    return start.lstrip().startswith("{") and '"log"' in start and ('"entries"' in start or '"creator"' in start)


def read_har(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """HTTP Archive 1.2: log.entries[].startedDateTime, ISO 8601 with a zone. "Line" in messages is the number of the entry."""
    try:
        entries = json.loads("".join(source.lines()))["log"]["entries"]
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{source.path} is not whole JSON, as the format har is: {error}") from None
    except (KeyError, TypeError):
        raise BenchError(f"{source.path} has no log.entries, which the format har needs") from None
    if not isinstance(entries, list) or not entries:
        return
    entries = [entry if isinstance(entry, dict) else {} for entry in entries]
    requests = [entry.get("request") if isinstance(entry.get("request"), dict) else {} for entry in entries]
    stamps = tuple(str(entry.get("startedDateTime", "")) for entry in entries)
    columns = Columns(texts=[stamps], lines=np.arange(1, len(entries) + 1))
    clock, verdict = DateClock(options.zone), Verdict()
    times, ok = clock.read(strings(stamps), columns.lines.tolist())
    verdict.require(ok, stamps, "startedDateTime")
    tally.notes |= {"zone": clock.note, "meaning": "arrival = startedDateTime"}
    extras = {name: guess_free_column([str(request.get(name, "")) for request in requests]) for name in ("method", "url")}
    yield keep(tally, columns, verdict, times, extras)
