"""What the pictures of one arm draw: small arrays, taken while the arm's rows are in memory.

Few requests are all drawn. Many are put into windows of time, each with its median, its P99 and its largest value, so
that no slow request vanishes; how it was done is told by `points` and `window_ns`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.analysis.latency import Ecdf, ecdf
from bench.analysis.load_run import ArmRecords, SpikeWindow
from bench.analysis.memory import memory_over_time
from bench.analysis.statistics import nearest_rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.analysis.subject import ArmFiles
    from bench.records import SavedRun

MOST_POINTS = 4000
MOST_WINDOWS = 300
_MOST_SAMPLES = 1500
_PROFILE_BINS = 48
_NICE_NS = [unit * step for unit in (10**6, 10**7, 10**8, 10**9) for step in (1, 2, 5)] + [s * 10**9 for s in (10, 30, 60, 300, 600, 3600)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeProfile:
    """Response times of all spikes of an arm laid over each other, by intended time since the spike's start: float64
    arrays of one length, NaN in a bin without an answer. p99 is the largest in a bin with under 100 answers."""

    since_start_ns: NDArray[np.float64]
    p50_ns: NDArray[np.float64]
    p99_ns: NDArray[np.float64]
    hold_ns: float
    spikes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSeries:
    """`block`: which run is drawn over time. points: its answered requests (intended, response) where they are few, else
    None. windows: start_ns, p50, p99 and largest of each window of window_ns. failed: when arrivals without a correct
    answer were due (thinned to one a window). timeline: as `memory_over_time`, None without one; sampled_ns: the window
    of its maxima, 0 where every sample is there."""

    name: str
    block: int
    duration_ns: int
    spikes: tuple[SpikeWindow, ...]
    arrivals: int
    points: tuple[NDArray[np.int64], NDArray[np.float64]] | None
    windows: pd.DataFrame
    window_ns: int
    failed: NDArray[np.int64]
    response: Ecdf
    round_trip: Ecdf
    profile: SpikeProfile | None
    timeline: pd.DataFrame | None
    sampled_ns: int


def common_block(arms: tuple[ArmFiles, ...]) -> int:
    """The first block that every arm has, so that one schedule lies under all pictures; else the first there is."""
    present = [set(files.numbers) for files in arms if files.numbers]
    shared = set.intersection(*present)
    return min(shared or set.union(*present))


def arm_series(files: ArmFiles, arm: ArmRecords, block: int) -> ArmSeries:
    """The series of one arm; of its first run where it has not got `block`."""
    number = block if block in arm.runs else arm.runs[0]
    place = arm.runs.index(number)
    table = arm.requests
    inside = table["run"].to_numpy() == number
    ok, intended = table["ok"].to_numpy()[inside], table["intended_ns"].to_numpy()[inside]
    response = table["response_ns"].to_numpy()[inside]
    duration = max(arm.durations_ns[place], 1)
    window = next((nice for nice in _NICE_NS if nice * MOST_WINDOWS >= duration), duration // MOST_WINDOWS)
    timeline, sampled_ns = _timeline(files.runs[place])
    every_ok = table["ok"].to_numpy()
    return ArmSeries(
        name=files.name,
        block=number,
        duration_ns=duration,
        spikes=tuple(spike for spike in arm.spikes if spike.run == number),
        arrivals=len(intended),
        points=(intended[ok], response[ok]) if len(intended) <= MOST_POINTS else None,
        windows=_windows(intended[ok], response[ok], window, duration),
        window_ns=window,
        failed=np.unique(intended[~ok] // window) * window,
        response=ecdf(table["response_ns"].to_numpy()[every_ok]),
        round_trip=ecdf(table["round_trip_ns"].to_numpy()[every_ok]),
        profile=_profile(arm),
        timeline=timeline,
        sampled_ns=sampled_ns,
    )


def _windows(intended: NDArray[np.int64], response: NDArray[np.float64], window_ns: int, duration_ns: int) -> pd.DataFrame:
    """start_ns, p50, p99 and largest of each window; NaN without an answer. `intended` is in order, so a window is a slice."""
    starts = np.arange(0, duration_ns, window_ns, dtype=np.int64)
    places = np.searchsorted(intended, [*starts, duration_ns + 1])
    rows = np.full((len(starts), 3), np.nan)
    for index, (first, last) in enumerate(itertools.pairwise(places)):
        if last > first:
            ranks = [nearest_rank(int(last - first), percent) - 1 for percent in (50, 99, 100)]
            rows[index] = np.partition(response[first:last], ranks)[ranks]
    return pd.DataFrame({"start_ns": starts, "p50": rows[:, 0], "p99": rows[:, 1], "largest": rows[:, 2]})


def _profile(arm: ArmRecords) -> SpikeProfile | None:
    if not arm.spikes:
        return None
    hold = float(np.median([spike.end_ns - spike.start_ns for spike in arm.spikes]))
    before, after = hold / 2, 2.5 * hold
    edges = np.linspace(-before, hold + after, _PROFILE_BINS + 1)
    run, ok = arm.requests["run"].to_numpy(), arm.requests["ok"].to_numpy()
    intended, response = arm.requests["intended_ns"].to_numpy(), arm.requests["response_ns"].to_numpy()
    bins: list[NDArray[np.int64]] = []
    values: list[NDArray[np.float64]] = []
    for number in arm.runs:
        rows = slice(*np.searchsorted(run, [number, number + 1])) if (np.diff(run) >= 0).all() else run == number
        times, good, taken = intended[rows], ok[rows], response[rows]
        own = sorted((spike for spike in arm.spikes if spike.run == number), key=lambda spike: spike.start_ns)
        for index, spike in enumerate(own):
            # What belongs to the next spike is not drawn as the end of this one.
            end = min(spike.start_ns + edges[-1], own[index + 1].start_ns if index + 1 < len(own) else np.inf)
            first, last = np.searchsorted(times, [spike.start_ns + edges[0], end])
            chosen = good[first:last]
            since = times[first:last][chosen] - spike.start_ns
            bins.append(np.clip(np.searchsorted(edges, since, side="right") - 1, 0, _PROFILE_BINS - 1))
            values.append(taken[first:last][chosen])
    place, taken = np.concatenate(bins), np.concatenate(values)
    p50, p99 = np.full(_PROFILE_BINS, np.nan), np.full(_PROFILE_BINS, np.nan)
    for index in range(_PROFILE_BINS):
        found = np.sort(taken[place == index])
        if len(found):
            p50[index], p99[index] = (found[nearest_rank(len(found), percent) - 1] for percent in (50, 99))
    return SpikeProfile(since_start_ns=(edges[:-1] + edges[1:]) / 2, p50_ns=p50, p99_ns=p99, hold_ns=hold, spikes=len(arm.spikes))


def _timeline(run: SavedRun) -> tuple[pd.DataFrame | None, int]:
    table = run.table("timeline")
    if table is None or table.num_rows == 0:
        return None, 0
    series = memory_over_time(table)
    if len(series) <= _MOST_SAMPLES:
        return series, 0
    span = int(series["t_ns"].iloc[-1] - series["t_ns"].iloc[0])
    window = next((nice for nice in _NICE_NS if nice * _MOST_SAMPLES >= span), span // _MOST_SAMPLES)
    return series.groupby(series["t_ns"] // window, sort=True).max().reset_index(drop=True), window
