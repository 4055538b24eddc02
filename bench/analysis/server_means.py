"""What a server without Server-Timing says of its parts, all runs of an arm together: means of their windows.

They are not those of the slow requests, nor of a spike: a mean over everything that the server answered meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.records import SavedRun

SOURCE = "V2 statistics extension"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMeans:
    """Means over `requests`, in ns: waiting (queue, pool and load together), input, infer, output, and total (the
    server's own time for a request). `absent`: why there are none; the means are then None, and requests is 0."""

    source: str
    requests: int
    absent: str | None
    total_ns: float | None
    waiting_ns: float | None
    input_ns: float | None
    infer_ns: float | None
    output_ns: float | None


def server_means(runs: Sequence[SavedRun]) -> ServerMeans:
    """Weighted by the requests of each run; the runs of which the server told nothing are left out."""
    windows = [dict(run.run.get("server_statistics") or {"absent": "it was not asked"}) for run in runs]
    told = [window for window in windows if "absent" not in window]
    requests = sum(window["requests"] for window in told)

    def mean(part: str) -> float | None:
        return sum(window[f"{part}_ns"] for window in told) / requests if requests else None

    return ServerMeans(
        source=SOURCE,
        requests=requests,
        absent=None if told else str(windows[0]["absent"]),
        total_ns=mean("total"),
        waiting_ns=mean("waiting"),
        input_ns=mean("input"),
        infer_ns=mean("infer"),
        output_ns=mean("output"),
    )
