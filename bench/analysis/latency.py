"""How long answers took: exact percentiles by phase, response time beside round trip, and the curve for a plot.

Percentiles are over correct answers: an error, a shed, timed out or unsent arrival is never a fast answer, and it has
no time that could stand for one. What they cost shows in attainment and goodput (`bench.analysis.goodput`), which
count them against the arm, and in `answered`, which stands beside every percentile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.analysis.statistics import nearest_rank, percentiles

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """ns; None with fewer samples than the percentile needs (p99: 100, p99.9: 1000)."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One phase, or all (`phase` None). `response` counts from the intended time, `round_trip` (what most tools call
    latency) from the send: their difference is what a closed-loop view hides."""

    phase: str | None
    arrivals: int
    answered: int
    response: Percentiles
    round_trip: Percentiles

    @property
    def answered_share(self) -> float:
        return self.answered / self.arrivals if self.arrivals else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecdf:
    """Points of the empirical distribution: `share` of the values is at or below `value` (ns); exact at each point."""

    value: NDArray[np.float64]
    share: NDArray[np.float64]


def latency(requests: pd.DataFrame) -> tuple[Latency, ...]:
    """All arrivals first, then each phase that has any, in the schedule's order. Columns: ok, phase, response_ns,
    round_trip_ns, as made by `bench.analysis.load_run`."""
    codes, names = requests["phase"].cat.codes.to_numpy(), list(requests["phase"].cat.categories)
    ok = requests["ok"].to_numpy()
    response, round_trip = requests["response_ns"].to_numpy(), requests["round_trip_ns"].to_numpy()
    everything = _one(None, ok, response, round_trip)
    present = [code for code in pd.unique(codes).tolist() if code >= 0]
    by_phase = [_one(names[code], ok[chosen], response[chosen], round_trip[chosen]) for code in present for chosen in [codes == code]]
    return (everything, *by_phase)


def ecdf(values: ArrayLike, points: int = 2000) -> Ecdf:
    """The distribution in at most about `points` points: half evenly over the whole, half ever closer to the largest
    values, so that a logarithmic tail is drawn to its end. Unknown (NaN) values are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = np.sort(known[~np.isnan(known)])
    n = len(known)
    if n <= points:
        ranks = np.arange(1, n + 1)
    else:
        body = np.linspace(1, n, points // 2)
        tail = n + 1 - np.geomspace(1, n, points - points // 2)
        ranks = np.unique(np.rint(np.concatenate([body, tail])).astype(np.int64).clip(1, n))
    return Ecdf(value=known[ranks - 1], share=ranks / n if n else np.empty(0))


def windowed(requests: pd.DataFrame, run: int, window_ns: int, percent: float = 99.0) -> pd.DataFrame:
    """Response time over the time of one run: start_ns, arrivals, answered, and the percentile of each window of arrivals.

    For plots and for judging recovery: in a window with fewer answers than the percentile needs, nearest rank gives the
    largest, which is no less. NaN in a window without an answer.
    """
    chosen = requests["run"].to_numpy() == run
    intended, ok = requests["intended_ns"].to_numpy()[chosen], requests["ok"].to_numpy()[chosen]
    response = requests["response_ns"].to_numpy()[chosen]
    window = intended // window_ns
    count = int(window.max()) + 1 if len(window) else 0
    order = np.lexsort((response[ok], window[ok]))
    answered = np.bincount(window[ok], minlength=count)
    starts = np.concatenate([[0], np.cumsum(answered)])
    ordered = response[ok][order]
    values = np.array([ordered[starts[i] + nearest_rank(answered[i], percent) - 1] if answered[i] else np.nan for i in range(count)])
    return pd.DataFrame(
        {
            "start_ns": np.arange(count, dtype=np.int64) * window_ns,
            "arrivals": np.bincount(window, minlength=count),
            "answered": answered,
            "response_ns": values,
        }
    )


def _one(phase: str | None, ok: NDArray[np.bool_], response: NDArray[np.float64], round_trip: NDArray[np.float64]) -> Latency:
    return Latency(
        phase=phase,
        arrivals=len(ok),
        answered=int(ok.sum()),
        response=_percentiles(response[ok]),
        round_trip=_percentiles(round_trip[ok]),
    )


def _percentiles(values: NDArray[np.float64]) -> Percentiles:
    p50, p90, p95, p99, p999 = percentiles(values, PERCENTS)
    return Percentiles(p50=p50, p90=p90, p95=p95, p99=p99, p999=p999, maximum=float(values.max()) if len(values) else None)
