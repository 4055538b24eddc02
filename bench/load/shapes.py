"""Shapes: rates that change on a known plan. Each is an arrival process like those in `bench.load.arrivals`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.load.arrivals import ArrivalProcess, duration_text, rate_text
from bench.load.profile import Floats, Piece, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(ArrivalProcess):
    """Any rate over time, in straight lines between control points (time_ns, rate per second); the first is at 0."""

    name: ClassVar[str] = "rate"
    source: ClassVar[str] = "time change of a Poisson process (Daley and Vere-Jones, section 7.4); qps(t) control points as in AIPerf"
    points: tuple[tuple[int, float], ...]

    @property
    def text(self) -> str:
        points = ",".join(f"{duration_text(time)}={rate_text(rate)}" for time, rate in self.points)
        return f"rate:{points}" + ("" if self.cv == 1 else f",cv={rate_text(self.cv)}")

    def nominal(self) -> Profile:
        return Profile.of(
            [
                Piece(
                    duration_ns=end - start, start_rate=start_rate, end_rate=end_rate, phase="ramp" if start_rate != end_rate else "steady"
                )
                for (start, start_rate), (end, end_rate) in zip(self.points[:-1], self.points[1:], strict=True)
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp(ArrivalProcess):
    """A straight line from `base` to `peak`. It never comes back, so it is no spike."""

    name: ClassVar[str] = "ramp"
    source: ClassVar[str] = "k6 ramping-arrival-rate, as a Poisson process"
    base: float
    peak: float
    duration_ns: int

    def nominal(self) -> Profile:
        return Profile.of([Piece(duration_ns=self.duration_ns, start_rate=self.base, end_rate=self.peak, phase="ramp")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(ArrivalProcess):
    """`base` for `lead`, `peak` for `hold`, `base` for `rest`; lead and rest are as long as hold where not given."""

    name: ClassVar[str] = "step"
    source: ClassVar[str] = "step response: the plainest spike"
    base: float
    peak: float
    hold_ns: int
    lead_ns: int | None = None
    rest_ns: int | None = None

    def nominal(self) -> Profile:
        lead = self.hold_ns if self.lead_ns is None else self.lead_ns
        rest = self.hold_ns if self.rest_ns is None else self.rest_ns
        return Profile.of(
            [
                Piece(duration_ns=lead, start_rate=self.base, end_rate=self.base, phase="base"),
                Piece(duration_ns=self.hold_ns, start_rate=self.peak, end_rate=self.peak, phase="spike", spike=0),
                Piece(duration_ns=rest, start_rate=self.base, end_rate=self.base, phase="rest"),
            ]
        )


# The decay is drawn through this many points an e-fold, and ends after this many e-folds: 0.7 % of the jump is left.
_POINTS_PER_FOLD = 16
_FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash(ArrivalProcess):
    """A sale at midnight: `base` for `lead`, a straight rise to `peak` within `rise`, then an exponential decay with the
    time constant `decay`, back at base after five of them, and `base` for `rest`. Rise and decay are one spike.

    The decay is a polyline through points of the exponential; what is expected is computed from the polyline itself.
    """

    name: ClassVar[str] = "flash"
    source: ClassVar[str] = "Ari et al., Managing flash crowds on the Internet (MASCOTS 2003): ramp-up, then a slow ramp-down"
    base: float
    peak: float
    rise_ns: int
    decay_ns: int
    lead_ns: int
    rest_ns: int

    def nominal(self) -> Profile:
        folds = np.linspace(0, _FOLDS, _FOLDS * _POINTS_PER_FOLD + 1)
        times = np.rint(folds * self.decay_ns).astype(np.int64).tolist()
        rates = (self.base + (self.peak - self.base) * np.exp(-folds)).tolist()
        rates[-1] = self.base
        decay = [
            Piece(duration_ns=times[i + 1] - times[i], start_rate=rates[i], end_rate=rates[i + 1], phase="decay", spike=0)
            for i in range(len(times) - 1)
        ]
        return Profile.of(
            [
                Piece(duration_ns=self.lead_ns, start_rate=self.base, end_rate=self.base, phase="base"),
                Piece(duration_ns=self.rise_ns, start_rate=self.base, end_rate=self.peak, phase="spike", spike=0),
                *decay,
                Piece(duration_ns=self.rest_ns, start_rate=self.base, end_rate=self.base, phase="rest"),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(ArrivalProcess):
    """`spikes` steps to `peak`, each `hold` long: the unit of replication. Before the first lies `lead` (as long as rest
    where not given), after each a rest drawn evenly from rest * (1 - jitter) .. rest * (1 + jitter), so that no spike
    keeps in step with anything periodic in the server."""

    name: ClassVar[str] = "train"
    source: ClassVar[str] = "steps with randomised rests, against lock-step with timers (cf. Floyd and Jacobson, 1994)"
    base: float
    peak: float
    hold_ns: int
    rest_ns: int
    spikes: int
    jitter: float = 0.5
    lead_ns: int | None = None

    def nominal(self) -> Profile:
        return self._with_rests(np.full(self.spikes, float(self.rest_ns)))

    def profile(self, rng: np.random.Generator) -> Profile:
        return self._with_rests(self.rest_ns * (1 + self.jitter * rng.uniform(-1, 1, self.spikes)))

    def _with_rests(self, rests: Floats) -> Profile:
        lead = self.rest_ns if self.lead_ns is None else self.lead_ns
        pieces = [Piece(duration_ns=lead, start_rate=self.base, end_rate=self.base, phase="base")]
        for index, rest in enumerate(np.maximum(1, np.rint(rests)).astype(np.int64).tolist()):
            pieces.append(Piece(duration_ns=self.hold_ns, start_rate=self.peak, end_rate=self.peak, phase="spike", spike=index))
            pieces.append(Piece(duration_ns=rest, start_rate=self.base, end_rate=self.base, phase="rest"))
        return Profile.of(pieces)
