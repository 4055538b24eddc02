"""What a schedule looks like in figures. Rates per second; None where the figure is not defined (one arrival, no span)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.load.profile import SECOND_NS

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalFigures:
    """Windows of one and ten seconds start at the first arrival and run to floor(span) + 1 of them, empty ones counted;
    "sliding" is the most arrivals in any [t, t + w) that starts at an arrival. Gap percentiles interpolate linearly.
    cv: standard deviation over mean of the gaps; dispersion: variance over mean of the one-second counts (both ddof 0)."""

    count: int
    span_ns: int
    mean_rate: float | None
    peak_count_1s: int
    peak_count_1s_sliding: int
    peak_count_10s: int
    peak_count_10s_sliding: int
    gap_p50_ns: float | None
    gap_p99_ns: float | None
    gap_max_ns: int | None
    gap_mean_ns: float | None
    gap_cv: float | None
    zero_gaps: int
    distinct_times: int
    windows_1s: int
    empty_windows_1s: int
    dispersion_1s: float | None


def arrival_figures(times_ns: Ints) -> ArrivalFigures:
    """times_ns: sorted, at least one. mean_rate is (count - 1) / span: gaps per second."""
    times = times_ns - times_ns[0]
    count, span = len(times), int(times[-1])
    gaps = np.diff(times)
    mean_gap = float(gaps.mean()) if count > 1 else None
    # Most windows of a long trace are empty: only the others are held.
    windows = span // SECOND_NS + 1
    _, in_window = np.unique(times // SECOND_NS, return_counts=True)
    mean = count / windows
    variance = float((in_window.astype(np.float64) ** 2).sum()) / windows - mean**2
    percentiles = np.percentile(gaps, [50, 99]) if count > 1 else None
    return ArrivalFigures(
        count=count,
        span_ns=span,
        mean_rate=(count - 1) / (span / SECOND_NS) if span else None,
        peak_count_1s=int(in_window.max()),
        peak_count_1s_sliding=_sliding(times, SECOND_NS),
        peak_count_10s=int(np.unique(times // (10 * SECOND_NS), return_counts=True)[1].max()),
        peak_count_10s_sliding=_sliding(times, 10 * SECOND_NS),
        gap_p50_ns=float(percentiles[0]) if percentiles is not None else None,
        gap_p99_ns=float(percentiles[1]) if percentiles is not None else None,
        gap_max_ns=int(gaps.max()) if count > 1 else None,
        gap_mean_ns=mean_gap,
        gap_cv=float(gaps.std()) / mean_gap if mean_gap else None,
        zero_gaps=int((gaps == 0).sum()),
        distinct_times=int((gaps > 0).sum()) + 1,
        windows_1s=windows,
        empty_windows_1s=windows - len(in_window),
        dispersion_1s=variance / mean if span else None,
    )


def rate_over_time(times_ns: Ints, duration_ns: int, windows: int) -> NDArray[np.float64]:
    """The rate in each of `windows` equal parts of the duration, per second."""
    width = max(1, -(-duration_ns // windows))
    counts = np.bincount(np.minimum(times_ns // width, windows - 1), minlength=windows)
    return counts / (width / SECOND_NS)


def _sliding(times: Ints, window_ns: int) -> int:
    return int((np.searchsorted(times, times + window_ns, side="left") - np.arange(len(times))).max())
