"""Access logs of Apache and nginx: common and combined, with what nginx users append ($request_time as rt= or bare).

Source: Apache mod_log_config, nginx ngx_http_log_module. Apache writes the time at which it received a request, nginx
($time_local) that at which it wrote the line, after the reply; a line does not say who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.errors import BenchError
from bench.load.traces.rows import Batch, Options, Tally, arrivals_from_ends
from bench.load.traces.source import Source
from bench.load.traces.times import DateClock, numbers_to_ns, strings

_BATCH_LINES = 65_536
_LINE = re.compile(
    r"(?:(?P<host>[A-Za-z0-9.-]+:\d{1,5}) )?(?P<client>\S+) (?P<ident>\S+) (?P<user>.+?) "
    r"\[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>\d\d:\d\d:\d\d) (?P<zone>[+-]\d{4})\] "
    r'"(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) (?P<bytes>\d+|-)'
    r'(?: "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)")?(?P<rest>(?: .*)?)\s*'
)
_MONTHS = {m: f"{i:02d}" for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)}
# The labels people give to $request_time, in s; a bare number at the end of the line is told by its three decimals.
_REQUEST_TIME = re.compile(r'(?:^|[\s"])(?:rt|request_time|req_time)="?(\d+\.\d+|\d+)"?(?=\s|$)|^\s"?(\d+\.\d{3})"?(?=\s|$)')
_REQUEST = re.compile(r"([A-Z]+) (\S+)(?: HTTP/\d(?:\.\d)?)?")


def matches_combined(lines: Sequence[str]) -> bool:
    """Lines of the combined format with nothing after the user agent."""
    found = [_LINE.fullmatch(line) for line in lines]
    return any(found) and not any(match and match["rest"].strip() for match in found)


def matches_nginx(lines: Sequence[str]) -> bool:
    """Combined lines with more behind them, as nginx writes a request time."""
    return any((match := _LINE.fullmatch(line)) and match["rest"].strip() for line in lines)


def read(source: Source, options: Options, tally: Tally) -> Iterator[Batch]:
    """Columns client, method, path, status, bytes (missing for "-") and request_time_ns where it was logged."""
    clock = DateClock(options.zone)
    logged = False
    numbered = enumerate(source.lines(), 1)
    while chunk := list(islice(numbered, _BATCH_LINES)):
        matches: list[re.Match[str]] = []
        lines: list[int] = []
        stamps: list[str] = []
        for line, text in chunk:
            match = _LINE.fullmatch(text.rstrip("\n"))
            if match is None or match["month"] not in _MONTHS:
                if text.strip():
                    tally.refuse(line, f"not a line of an access log: {text.strip()[:60]!r}")
                else:
                    tally.blank += 1
                continue
            matches.append(match)
            lines.append(line)
            stamps.append(f"{match['year']}-{_MONTHS[match['month']]}-{match['day']}T{match['time']}{match['zone']}")
        if not matches:
            continue
        times, ok = clock.read(strings(stamps), lines)
        for row in np.flatnonzero(~ok).tolist():
            tally.refuse(lines[row], f"time is {stamps[row]!r}")
        tally.rows += int(ok.sum())
        tally.notes["zone"] = clock.note
        if any(match["host"] for match in matches):
            tally.notes["virtual host"] = "lines begin with the virtual host and its port (vhost_combined), which are left out"
        batch = _batch([m for m, good in zip(matches, ok.tolist(), strict=True) if good], times[ok], options, tally)
        logged = logged or batch.columns["request_time_ns"].null_count < len(batch.times_ns)
        yield batch
    if options.subtract_duration and tally.rows > tally.bad and not logged:
        raise BenchError(
            f"{source.path} logs no request time (rt=0.123, or a bare 0.123 at the end of a line) that --subtract-duration could take off"
        )


def _batch(matches: list[re.Match[str]], times: np.ndarray[tuple[int], np.dtype[np.int64]], options: Options, tally: Tally) -> Batch:
    requests = [_REQUEST.fullmatch(match["request"]) for match in matches]
    columns = {
        "client": pa.array([match["client"] for match in matches]).dictionary_encode(),
        "method": pa.array([request and request[1] for request in requests], pa.string()).dictionary_encode(),
        "path": pa.array([request and request[2] for request in requests], pa.string()).dictionary_encode(),
        "status": pa.array([int(match["status"]) for match in matches], pa.int16()),
        "bytes": pa.array([None if match["bytes"] == "-" else int(match["bytes"][:18]) for match in matches], pa.int64()),
    }
    found = [_REQUEST_TIME.search(match["rest"]) if match["rest"] else None for match in matches]
    durations, logged = numbers_to_ns(strings([(f[1] or f[2]) if f else "" for f in found]), "s")
    columns["request_time_ns"] = pc.if_else(pa.array(logged), pa.array(durations), pa.scalar(None, pa.int64()))
    if logged.any():
        times = arrivals_from_ends(times, np.where(logged, durations, 0), options, tally)
        without = int((~logged).sum())
        if without and options.subtract_duration:
            tally.notes["without request time"] = "some lines log no request time: their arrivals are as logged"
    elif options.subtract_duration:
        tally.notes["without request time"] = "some lines log no request time: their arrivals are as logged"
    else:
        tally.notes.setdefault("meaning", "arrival = time as logged, to 1 s (Apache: the request came, nginx: the reply was sent)")
    return Batch(times_ns=times, columns=columns)
