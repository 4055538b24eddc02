"""A rate over time: piecewise linear, each piece with the phase and the spike that its arrivals belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SECOND_NS = 1_000_000_000
NO_SPIKE = -1

# What a phase says about its arrivals. "trace" is for schedules read from a trace: nobody knows its phases.
PHASES = ("steady", "base", "spike", "decay", "rest", "ramp", "trace")

# Grid on which the average over all positions of a window is taken.
_WINDOW_POSITIONS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of time in which the rate goes in a straight line from `start_rate` to `end_rate` (per second)."""

    duration_ns: int
    start_rate: float
    end_rate: float
    phase: str
    spike: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Pieces end to end, as columns: piece i covers [edges_ns[i], edges_ns[i + 1]).

    edges_ns: int64 [n + 1], the first is 0. start_rate, end_rate: float64 [n], per second. phase: int8 [n], index into
    PHASES. spike: int32 [n], NO_SPIKE outside spikes.
    """

    edges_ns: Ints
    start_rate: Floats
    end_rate: Floats
    phase: NDArray[np.int8]
    spike: NDArray[np.int32]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Profile:
        """Lay the pieces end to end; those without a duration are left out."""
        pieces = [piece for piece in pieces if piece.duration_ns > 0]
        return cls(
            edges_ns=np.concatenate(([0], np.cumsum([p.duration_ns for p in pieces], dtype=np.int64))),
            start_rate=np.array([p.start_rate for p in pieces], np.float64),
            end_rate=np.array([p.end_rate for p in pieces], np.float64),
            phase=np.array([PHASES.index(p.phase) for p in pieces], np.int8),
            spike=np.array([NO_SPIKE if p.spike is None else p.spike for p in pieces], np.int32),
        )

    @property
    def duration_ns(self) -> int:
        return int(self.edges_ns[-1])

    @property
    def count(self) -> float:
        """Expected arrivals: the area under the rate."""
        return float(self._areas()[-1])

    @property
    def peak_rate(self) -> float:
        return float(max(self.start_rate.max(), self.end_rate.max()))

    def _areas(self) -> Floats:
        """The area from the start to each edge, float64 [n + 1]."""
        seconds = np.diff(self.edges_ns) / SECOND_NS
        return np.concatenate(([0.0], np.cumsum((self.start_rate + self.end_rate) / 2 * seconds)))

    def piece_at(self, times_ns: Ints) -> NDArray[np.int64]:
        """The index of the piece that holds each time, which must lie in [0, duration)."""
        after: Ints = np.searchsorted(self.edges_ns, times_ns, side="right").astype(np.int64, copy=False)
        return after - 1

    def rate_at(self, times_ns: Ints) -> Floats:
        """The rate at each time in [0, duration), per second."""
        piece = self.piece_at(times_ns)
        part = (times_ns - self.edges_ns[piece]) / np.diff(self.edges_ns)[piece]
        return self.start_rate[piece] + part * (self.end_rate - self.start_rate)[piece]

    def area_until(self, times_ns: Ints) -> Floats:
        """Expected arrivals in [0, t) for each t in [0, duration]."""
        piece = np.minimum(self.piece_at(times_ns), len(self.start_rate) - 1)
        seconds = (times_ns - self.edges_ns[piece]) / SECOND_NS
        length = np.diff(self.edges_ns)[piece] / SECOND_NS
        slope = (self.end_rate - self.start_rate)[piece] / length
        return self._areas()[piece] + seconds * (self.start_rate[piece] + slope * seconds / 2)

    def times_at(self, areas: Floats) -> Ints:
        """The inverse of `area_until`, int64 ns in [0, duration): the time-change theorem turns a stream of rate 1 into
        one of this rate (Daley and Vere-Jones, An Introduction to the Theory of Point Processes, section 7.4)."""
        edges = self._areas()
        piece = np.clip(np.searchsorted(edges, areas, side="right") - 1, 0, len(self.start_rate) - 1)
        rest = np.maximum(areas - edges[piece], 0.0)
        start = self.start_rate[piece]
        slope = (self.end_rate - self.start_rate)[piece] / (np.diff(self.edges_ns)[piece] / SECOND_NS)
        # start * x + slope * x^2 / 2 = rest, solved in the form that is stable for slope = 0 and start = 0.
        divisor = start + np.sqrt(np.maximum(start * start + 2 * slope * rest, 0.0))
        seconds = np.divide(2 * rest, divisor, out=np.zeros_like(rest), where=divisor > 0)
        times = self.edges_ns[piece] + np.rint(seconds * SECOND_NS).astype(np.int64)
        within: Ints = np.minimum(times, self.edges_ns[piece + 1] - 1)
        return within

    def dispersion(self, window_ns: int, cv: float) -> float | None:
        """Variance over mean of the counts in a window put anywhere in the run, for gaps of coefficient of variation `cv`.

        The mean of the conditional variance plus the variance of the conditional mean. A renewal stream of rate 1 has in
        a window of expectation m the variance cv^2 m + (1 - cv^4) / 6 (Cox, Renewal Theory, section 4.5, gamma gaps),
        where m is far above cv^2: None where the second term is more than a tenth of the first.
        """
        if self.duration_ns < window_ns:
            return None
        starts = np.linspace(0, self.duration_ns - window_ns, _WINDOW_POSITIONS).astype(np.int64)
        expected = self.area_until(starts + window_ns) - self.area_until(starts)
        mean = float(expected.mean())
        if mean <= 0:
            return None
        correction = (1 - cv**4) / 6
        if cv > 0 and abs(correction) > 0.1 * cv**2 * mean:
            return None
        return (cv**2 * mean + correction + float(expected.var())) / mean
