"""Does an arm keep up with its base load? An arm that does not has no P99: it grows with the length of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from bench.analysis.load_run import ArmRecords
from bench.analysis.statistics import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SLICES = 20
_FEWEST_SLICES = 6
_LEAST_GROWTH = 3.0  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Of one run. slope_per_s: requests a second by which the backlog grew outside spikes, by Theil and Sen; the
    interval is None with fewer than six slices of time to judge by. unstable: it surely grew, and by more over the run
    than its ordinary size at the start."""

    run: int
    peak: int
    at_start: float
    at_end: float
    slope_per_s: float | None
    slope_interval: Interval | None
    unstable: bool


def backlog_over_time(requests: pd.DataFrame, run: int, at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many arrivals were due and not yet done at each time; those that never ended wait nowhere. int64 [n]."""
    chosen = requests["run"].to_numpy() == run
    intended, response = requests["intended_ns"].to_numpy()[chosen], requests["response_ns"].to_numpy()[chosen]
    ended = ~np.isnan(response)
    due, done = np.sort(intended[ended]), np.sort(intended[ended] + response[ended])
    return outstanding(due, done, at_ns)


def outstanding(begin: NDArray[Any], end: NDArray[Any], at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many have begun and not ended at each time; `begin` and `end` are sorted, each for itself."""
    return np.asarray(np.searchsorted(begin, at_ns, side="right") - np.searchsorted(end, at_ns, side="right"))


def backlog(arm: ArmRecords) -> tuple[Backlog, ...]:
    """The backlog of each run, judged on 20 slices of its scheduled time, those that touch a spike left out where
    enough others remain; each slice by its median over 50 moments."""
    found = []
    for run, duration_ns in zip(arm.runs, arm.durations_ns, strict=True):
        edges = np.linspace(0, duration_ns, _SLICES + 1)
        moments = np.rint((edges[:-1, None] + (np.arange(50) + 0.5) / 50 * np.diff(edges)[:, None]).ravel()).astype(np.int64)
        sizes = backlog_over_time(arm.requests, run, moments)
        level = np.median(sizes.reshape(_SLICES, -1), axis=1)
        middle = (edges[:-1] + edges[1:]) / 2
        calm = np.ones(_SLICES, np.bool_)
        for window in arm.spikes:
            if window.run == run:
                calm &= (edges[1:] <= window.start_ns) | (edges[:-1] >= window.end_ns)
        if calm.sum() < _FEWEST_SLICES:
            calm[:] = True
        level, middle = level[calm], middle[calm]
        slope, interval = None, None
        if len(level) >= _FEWEST_SLICES and duration_ns > 0:
            line = stats.theilslopes(level, middle / 1e9, 0.95)
            slope, interval = float(line[0]), Interval(low=float(line[2]), high=float(line[3]))
        grown = 0.0 if slope is None else slope * duration_ns / 1e9
        found.append(
            Backlog(
                run=run,
                peak=int(sizes.max()),
                at_start=float(level[0]),
                at_end=float(level[-1]),
                slope_per_s=slope,
                slope_interval=interval,
                unstable=interval is not None and interval.low > 0 and grown > max(_LEAST_GROWTH, float(level[0])),
            )
        )
    return tuple(found)
