"""Who waits for what in the tail: the mean split of the slowest requests.

The P99 of a sum is not the sum of P99s, so percentiles of the parts say nothing about a slow request. Instead the
requests in the tail band (the slowest 1 % of the correct answers) are taken as they are, and their parts averaged: the
parts of the split add up to their mean response time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from bench.analysis.load_run import PARTS
from bench.analysis.statistics import Interval, samples_needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

BAND_PERCENT = 99.0
_FEWEST_CLUSTERS = 5
_SLICES = 20  # of a run without spikes
# Server-Timing carries six parts, each rounded to 1 us; beyond that a sum above the round trip is impossible.
_RESOLUTION_NS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Mean over the requests of the band, ns; None: not known, because the server does not tell. `share` of the mean
    response time. The interval is over spikes (each with what follows it), None with fewer than five of them."""

    name: str
    mean_ns: float | None
    interval: Interval | None
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSplit:
    """`parts` are send_lag, network, queue, pool, load, compute (input + inference + output) and rest, in this order.

    network: round trip less the server's parts, so it includes what HTTP costs on both sides; not known unless the
    server tells all its parts. rest: what is then left of the response time. requests: in the band, of which `split`
    carry the server's parts where any does; threshold_ns: the fastest of them. impossible: requests whose server parts
    are longer than their round trip by more than the clocks' resolution: not 0 means that a clock or a server is wrong.
    """

    requests: int
    split: int
    threshold_ns: float
    mean_response_ns: float
    parts: tuple[Part, ...]
    impossible: int


def tail_split(requests: pd.DataFrame, percent: float = BAND_PERCENT) -> TailSplit | None:
    """The split of the correct answers above the percentile. None with fewer answers than the percentile needs.

    Columns as made by `bench.analysis.load_run`: run, intended_ns, spike, ok, response_ns, lag_ns, round_trip_ns and
    the server's parts.
    """
    response = requests["response_ns"].to_numpy()
    ok = np.flatnonzero(requests["ok"].to_numpy())
    if len(ok) < samples_needed(percent):
        return None
    # As many as lie above the rank, and at least one; ties at the threshold are taken by their order.
    count = max(1, len(ok) - math.ceil(round(len(ok) * percent / 100, 9)))
    band = np.sort(ok[np.argpartition(response[ok], len(ok) - count)[len(ok) - count :]])
    clusters = cluster_of(requests)[band]
    tail = requests.iloc[band]
    server = {part: tail[f"{part}_ns"].to_numpy() for part in PARTS}
    told = {part: ~np.isnan(values) for part, values in server.items()}
    known_parts = [part for part in PARTS if told[part].any()]
    # Where the server tells a part of some requests only, the split is that of the requests that have them all.
    whole = np.logical_and.reduce([told[part] for part in known_parts]) if known_parts else np.ones(len(tail), np.bool_)
    if not whole.any():
        known_parts, whole = [], np.ones(len(tail), np.bool_)
    split = tail[whole]
    clusters = clusters[whole]
    response_ns, round_trip_ns = split["response_ns"].to_numpy(), split["round_trip_ns"].to_numpy()
    parts: dict[str, NDArray[np.float64] | None] = {"send_lag": split["lag_ns"].to_numpy(), "network": None}
    for part in ("queue", "pool", "load"):
        parts[part] = server[part][whole] if part in known_parts else None
    compute = [server[part][whole] for part in ("input", "infer", "output") if part in known_parts]
    parts["compute"] = np.sum(compute, axis=0) if len(compute) == 3 else None
    impossible = 0
    if len(known_parts) == len(PARTS):
        network = round_trip_ns - np.sum([server[part][whole] for part in PARTS], axis=0)
        parts["network"], impossible = network, int(np.count_nonzero(network < -_RESOLUTION_NS))
    parts["rest"] = response_ns - np.sum([values for values in parts.values() if values is not None], axis=0)
    mean_response = float(response_ns.mean())
    return TailSplit(
        requests=len(tail),
        split=len(split),
        threshold_ns=float(response[band].min()),
        mean_response_ns=mean_response,
        parts=tuple(_part(name, values, clusters, mean_response) for name, values in parts.items()),
        impossible=impossible,
    )


def cluster_of(requests: pd.DataFrame) -> NDArray[np.int64]:
    """A number for each row, the same for requests that share their fate: those of one spike and what follows it until
    the next; in a run without spikes those of one of 20 equal slices of its time. int64 [n]."""
    run, spike = requests["run"].to_numpy().astype(np.int64), requests["spike"].to_numpy()
    intended = requests["intended_ns"].to_numpy()
    clusters = np.empty(len(requests), np.int64)
    for index in np.unique(run):
        rows = np.flatnonzero(run == index)
        times, inside = intended[rows], spike[rows] >= 0
        if inside.any():
            first = np.unique(spike[rows][inside], return_index=True)[1]  # rows are in the order of intended time
            clusters[rows] = np.searchsorted(np.sort(times[inside][first]), times, side="right")
        else:
            clusters[rows] = times * _SLICES // (int(times.max()) + 1)
        clusters[rows] += int(index) << 32
    return clusters


def _part(name: str, values: NDArray[np.float64] | None, clusters: NDArray[np.int64], mean_response: float) -> Part:
    if values is None:
        return Part(name=name, mean_ns=None, interval=None, share=None)
    mean = float(values.mean())
    return Part(
        name=name, mean_ns=mean, interval=clustered_interval(values, clusters), share=mean / mean_response if mean_response else None
    )


def clustered_interval(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> Interval | None:
    """The 95 % interval of a mean of values that come in clusters; None with fewer than five of them.

    A mean over clusters of unequal size is a ratio, sum over count; this is its linearised t interval over clusters.

    Source: Cochran, Sampling Techniques, section 2.11 and chapter 9A.
    """
    _, numbers = np.unique(clusters, return_inverse=True)
    count = np.bincount(numbers)
    n = len(count)
    if n < _FEWEST_CLUSTERS:
        return None
    total, mean = np.bincount(numbers, weights=values), float(values.mean())
    error = math.sqrt(n / (n - 1) * float(((total - mean * count) ** 2).sum())) / len(values)
    reach = float(stats.t.ppf(0.975, n - 1)) * error
    return Interval(low=mean - reach, high=mean + reach)
