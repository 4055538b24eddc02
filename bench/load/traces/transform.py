"""What may be done to a trace before it is a schedule. Each step takes sorted offsets and says what it did.

The steps have one order, whatever the order of the options: window, spread, cap-gap, scale-rate, scale-time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.errors import BenchError
from bench.load.arrivals import MAX_ARRIVALS, duration_text
from bench.units import format_duration

Ints = NDArray[np.int64]
SPREAD_AUTO = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """window: (start, end) in ns from the first arrival, an end of None is the trace's. spread_ns: the tick of a coarse
    clock, or SPREAD_AUTO for the smallest gap between two times. rate_factor, time_factor: above 0. seed: of the steps that draw."""

    window: tuple[int, int | None] | None = None
    spread_ns: int | None = None
    cap_gap_ns: int | None = None
    rate_factor: float | None = None
    time_factor: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """Sorted offsets in ns within [0, duration_ns], and the further columns of each arrival."""

    times_ns: Ints
    duration_ns: int
    extra: pa.Table

    def rows(self, index: NDArray[np.intp] | NDArray[np.bool_], times_ns: Ints, duration_ns: int) -> Arrivals:
        """These rows, at other times, sorted stably by them."""
        order = np.arange(len(times_ns))
        if len(times_ns) and (times_ns[1:] < times_ns[:-1]).any():
            order = np.argsort(times_ns, kind="stable")
            times_ns = times_ns[order]
        kept = np.flatnonzero(index) if index.dtype == np.bool_ else index
        # A table without columns has no rows to take.
        extra = self.extra.take(pa.array(kept[order])) if self.extra.num_columns else self.extra
        return Arrivals(times_ns=times_ns, duration_ns=duration_ns, extra=extra)

    def moved(self, times_ns: Ints, duration_ns: int) -> Arrivals:
        """All rows, at other times in the same order."""
        return Arrivals(times_ns=times_ns, duration_ns=duration_ns, extra=self.extra)


def apply(arrivals: Arrivals, steps: Steps) -> tuple[Arrivals, list[dict[str, Any]]]:
    """Do the steps that are asked for; also returns what was done, for the provenance. Raises BenchError."""
    done: list[dict[str, Any]] = []
    rng = np.random.Generator(np.random.PCG64(steps.seed))
    if steps.window is not None:
        arrivals = window(arrivals, *steps.window)
        done.append({"step": "window", "start_ns": steps.window[0], "end_ns": steps.window[1]})
    if steps.spread_ns is not None:
        tick = smallest_gap(arrivals.times_ns) if steps.spread_ns == SPREAD_AUTO else steps.spread_ns
        arrivals = spread(arrivals, tick, rng)
        done.append({"step": "spread", "tick_ns": tick, "seed": steps.seed})
    if steps.cap_gap_ns is not None:
        arrivals, capped = cap_gap(arrivals, steps.cap_gap_ns)
        done.append({"step": "cap-gap", "gap_ns": steps.cap_gap_ns, "gaps": capped})
    if steps.rate_factor is not None:
        before = len(arrivals.times_ns)
        arrivals = scale_rate(arrivals, steps.rate_factor, rng)
        done.append(
            {"step": "scale-rate", "factor": steps.rate_factor, "seed": steps.seed, "before": before, "after": len(arrivals.times_ns)}
        )
    if steps.time_factor is not None:
        arrivals = scale_time(arrivals, steps.time_factor)
        done.append({"step": "scale-time", "factor": steps.time_factor})
    return arrivals, done


def window(arrivals: Arrivals, start_ns: int, end_ns: int | None) -> Arrivals:
    """The arrivals in [start, end), with start as the new 0. A trace's last arrival belongs to it: an end of None keeps it."""
    end = arrivals.duration_ns if end_ns is None else min(end_ns, arrivals.duration_ns)
    first = int(np.searchsorted(arrivals.times_ns, start_ns, side="left"))
    last = len(arrivals.times_ns) if end_ns is None else int(np.searchsorted(arrivals.times_ns, end_ns, side="left"))
    if first >= last:
        shown = f"{duration_text(start_ns)}:{'' if end_ns is None else duration_text(end_ns)}"
        raise BenchError(f"--window {shown} holds no arrival: the trace lasts {format_duration(arrivals.duration_ns)}")
    return Arrivals(
        times_ns=arrivals.times_ns[first:last] - start_ns, duration_ns=end - start_ns, extra=arrivals.extra.slice(first, last - first)
    )


def smallest_gap(times_ns: Ints) -> int:
    """The smallest gap between two different times: the tick of a coarse clock. Raises BenchError where all are the same."""
    gaps = np.diff(times_ns)
    gaps = gaps[gaps > 0]
    if len(gaps) == 0:
        raise BenchError("all arrivals have the same time, so the clock's tick cannot be told: give it, such as --spread 1s")
    return int(gaps.min())


def spread(arrivals: Arrivals, tick_ns: int, rng: np.random.Generator) -> Arrivals:
    """A clock that ticks every `tick_ns` shows the start of each tick: put each arrival evenly into [t, t + tick).
    The trace gets as much longer as its last arrivals move."""
    times = arrivals.times_ns + rng.integers(0, tick_ns, len(arrivals.times_ns))
    everything = np.arange(len(times))
    return arrivals.rows(everything, times, max(arrivals.duration_ns, int(times.max())))


def cap_gap(arrivals: Arrivals, gap_ns: int) -> tuple[Arrivals, int]:
    """Shorten each longer silence to `gap_ns`, also that before the first and that after the last arrival; how many."""
    gaps = np.diff(arrivals.times_ns, prepend=0, append=arrivals.duration_ns)
    capped = np.minimum(gaps, gap_ns)
    times = np.cumsum(capped)
    return arrivals.moved(times[:-1], int(times[-1])), int((gaps > gap_ns).sum())


def scale_rate(arrivals: Arrivals, factor: float, rng: np.random.Generator) -> Arrivals:
    """More or fewer users on the same clock. Below 1 each arrival is kept with that probability. Above 1 whole copies, and
    a thinned one for the rest, are laid over the trace; a copied arrival lies evenly between its own time and the next
    arrival's, but at most the mean gap later, so that a copy neither doubles each arrival nor fills a silence."""
    times, count = arrivals.times_ns, len(arrivals.times_ns)
    if count * factor > MAX_ARRIVALS:
        raise BenchError(f"--scale-rate {factor:g} makes {count * factor:.3g} arrivals, the limit is {MAX_ARRIVALS:,}")
    copies = int(factor)
    chosen = rng.random(count) < factor - copies
    if copies == 0:
        if not chosen.any():
            raise BenchError(f"--scale-rate {factor:g} leaves no arrival of {count}: take a larger factor or another --seed")
        return arrivals.rows(chosen, times[chosen], arrivals.duration_ns)
    gaps = np.diff(times, append=times[-1])
    room = np.minimum(gaps, int(gaps.mean()))
    indices = [np.arange(count)] * copies + [np.flatnonzero(chosen)]
    offsets = [np.zeros(count, np.int64)] + [(rng.random(len(index)) * room[index]).astype(np.int64) for index in indices[1:]]
    index = np.concatenate(indices)
    return arrivals.rows(index, times[index] + np.concatenate(offsets), arrivals.duration_ns)


def scale_time(arrivals: Arrivals, factor: float) -> Arrivals:
    """Stretch the clock: 2 makes the trace twice as long and half as fast."""
    if arrivals.duration_ns * factor >= 2**62:
        raise BenchError(f"--scale-time {factor:g} makes the trace longer than time stamps can count")
    times = np.rint(arrivals.times_ns * factor).astype(np.int64)
    return arrivals.moved(times, max(round(arrivals.duration_ns * factor), int(times[-1])))
