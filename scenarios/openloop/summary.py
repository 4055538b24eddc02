"""The numbers of a finished run: exact percentiles from its rows, response time and round trip side by side."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999}

Times = np.ndarray[Any, np.dtype[np.int64]]


def nearest_rank(ordered: Times, fraction: float) -> int | None:
    """The smallest value that at least `fraction` of the values do not exceed; None with fewer than 1/(1−fraction) values.

    Nearest rank (Hyndman and Fan 1996, definition 1). `ordered` is sorted.
    """
    count = len(ordered)
    if count < round(1 / (1 - fraction)):
        return None
    return int(ordered[max(0, math.ceil(round(fraction * count, 6)) - 1)])


def summarize(rows: Path, *, slo_ns: int | None, duration_ns: int) -> dict[str, Any]:
    """How many arrivals ended in which way; percentiles over those with status ok, ns; goodput (ok within the SLO) per
    second of the scheduled duration."""
    response_parts: list[Times] = []
    trip_parts: list[Times] = []
    ends: Counter[tuple[str, str | None]] = Counter()
    with rows.open("rb") as file:
        for batch in pa.ipc.open_stream(file):
            kinds = pa.table({"status": batch.column("status"), "error": batch.column("error")})
            for kind in kinds.group_by(["status", "error"], use_threads=False).aggregate([([], "count_all")]).to_pylist():
                ends[kind["status"], kind["error"]] += kind["count_all"]
            ok = batch.filter(pc.equal(batch.column("status"), "ok"))
            done = ok.column("done_ns").to_numpy(zero_copy_only=False)
            response_parts.append(done - ok.column("intended_ns").to_numpy(zero_copy_only=False))
            trip_parts.append(done - ok.column("sent_ns").to_numpy(zero_copy_only=False))
    response = np.sort(np.concatenate(response_parts).astype(np.int64)) if response_parts else np.empty(0, np.int64)
    trip = np.sort(np.concatenate(trip_parts).astype(np.int64)) if trip_parts else np.empty(0, np.int64)
    within = int(np.searchsorted(response, slo_ns, side="right")) if slo_ns is not None else None
    counts: Counter[str] = Counter()
    for (status, _), count in ends.items():
        counts[status] += count
    return {
        "counts": dict(sorted(counts.items())),
        "reasons": [
            {"status": status, "error": error, "count": count} for (status, error), count in ends.most_common() if error is not None
        ],
        "response_ns_of_ok": _percentiles(response),
        "round_trip_ns_of_ok": _percentiles(trip),
        "slo_ns": slo_ns,
        "ok_within_slo": within,
        "goodput_per_s": within / (duration_ns / 1e9) if within is not None and duration_ns else None,
    }


def _percentiles(ordered: Times) -> dict[str, int | None]:
    return {
        **{name: nearest_rank(ordered, fraction) for name, fraction in _PERCENTILES.items()},
        "max": int(ordered[-1]) if len(ordered) else None,
        "count": len(ordered),
    }
