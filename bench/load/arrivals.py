"""Arrival processes: who comes when, from a seed, as integer nanoseconds.

Each process is a rate over time (a Profile) and a stream of rate 1 laid along it, so that a spike can have Poisson gaps
(cv 1, the default), even ones (cv 0) or clustered ones (gamma, cv above 1). Only the Poisson stream has no memory; with
another cv the gaps keep their shape in expected arrivals, not in seconds, where the rate changes.

The seed's random stream belongs to the version of numpy that drew it: keep the file, not the seed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import numpy as np

from bench.errors import BenchError
from bench.load.profile import NO_SPIKE, PHASES, SECOND_NS, Floats, Piece, Profile
from bench.load.schedule import Schedule, Spike, make_schedule

MAX_ARRIVALS = 100_000_000
MAX_SPIKES = 100_000
MAX_CV = 100
MAX_DURATION_NS = 366 * 86_400 * SECOND_NS
_MAX_PIECES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What theory says of a process, over all seeds. Rates per second.

    dispersion: variance over mean of the counts in windows of one second; None where theory has no good answer (a run
    shorter than a window, or windows that hold too few arrivals for a large cv).
    """

    count: float
    duration_ns: float
    mean_rate: float
    peak_rate: float
    dispersion: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """What all processes share. Subclasses give `nominal` and, where the profile itself is random, `profile`."""

    name: ClassVar[str]
    source: ClassVar[str]
    cv: float = 1.0

    def __post_init__(self) -> None:
        _check(self)

    @property
    def text(self) -> str:
        """The process as `parse_arrivals` reads it; what has its default is left out."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"{self.name}:" + ",".join(f"{name.removesuffix('_ns')}={_written(name, value)}" for name, value in given.items())

    def nominal(self) -> Profile:
        """The profile with its random parts at their means."""
        raise NotImplementedError

    def profile(self, rng: np.random.Generator) -> Profile:
        """One draw of the profile."""
        del rng
        return self.nominal()

    @property
    def expected(self) -> Expected:
        return self.expected_in(SECOND_NS)

    def expected_in(self, window_ns: int) -> Expected:
        """As `expected`, with the dispersion of counts in another window."""
        nominal = self.nominal()
        return Expected(
            count=nominal.count,
            duration_ns=nominal.duration_ns,
            mean_rate=nominal.count / nominal.duration_ns * SECOND_NS,
            peak_rate=nominal.peak_rate,
            dispersion=nominal.dispersion(window_ns, self.cv),
        )

    def schedule(self, seed: int) -> Schedule:
        """All arrivals of one run. Raises BenchError where there are none, or more than MAX_ARRIVALS."""
        count = self.nominal().count
        if count > MAX_ARRIVALS:
            raise BenchError(f"{self.name} asks for {count:.3g} arrivals, the limit is {MAX_ARRIVALS:,}: shorten the run")
        shape_rng, gap_rng = (np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(seed).spawn(2))
        profile = self.profile(shape_rng)
        times_ns = profile.times_at(unit_stream(profile.count, self.cv, gap_rng))
        piece = profile.piece_at(times_ns)
        return make_schedule(
            intended_ns=times_ns,
            duration_ns=profile.duration_ns,
            spike=profile.spike[piece],
            phase=profile.phase[piece],
            spikes=spikes_of(profile),
            provenance={"arrivals": self.text, "parameters": asdict(self), "seed": seed, "numpy": np.__version__},
        )


def unit_stream(area: float, cv: float, rng: np.random.Generator) -> Floats:
    """The points in [0, area) of a stream of rate 1 whose gaps are gamma with shape 1 / cv^2; sorted float64.

    cv 0 gives 0, 1, 2, ...; otherwise the stream is stationary: its first point is a uniform part of a length-biased gap
    (Cox, Renewal Theory, section 5.3), so that its expected count is `area` exactly and no burst marks the start.
    """
    if cv == 0:
        return np.arange(np.ceil(area - 1e-9), dtype=np.float64)
    shape = 1 / cv**2
    first = rng.random() * rng.gamma(shape + 1, cv**2)
    parts, last = [np.array([first])], first
    while last < area:
        left = area - last
        gaps = rng.gamma(shape, cv**2, size=int(left + 5 * cv * np.sqrt(left)) + 64)
        points = last + np.cumsum(gaps)
        parts.append(points)
        last = float(points[-1])
    stream = np.concatenate(parts)
    return stream[: np.searchsorted(stream, area, side="left")]


def spikes_of(profile: Profile) -> tuple[Spike, ...]:
    """The spike table of a profile: the pieces of one spike lie side by side."""
    inside = np.flatnonzero(profile.spike != NO_SPIKE)
    if len(inside) == 0:
        return ()
    firsts = inside[np.flatnonzero(np.diff(profile.spike[inside], prepend=NO_SPIKE))]
    lasts = inside[np.flatnonzero(np.diff(profile.spike[inside], append=NO_SPIKE))]
    peak = np.maximum(profile.start_rate, profile.end_rate)
    return tuple(
        Spike(
            index=int(profile.spike[first]),
            start_ns=int(profile.edges_ns[first]),
            end_ns=int(profile.edges_ns[last + 1]),
            peak_rate=float(peak[first : last + 1].max()),
        )
        for first, last in zip(firsts, lasts, strict=True)
    )


def duration_text(ns: int) -> str:
    """A duration without loss, in the largest unit that divides it: `1500ms`."""
    for unit, size in (("s", SECOND_NS), ("ms", 10**6), ("us", 10**3)):
        if ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns}ns"


def rate_text(rate: float) -> str:
    """A number without loss and without a needless `.0`."""
    return repr(float(rate)).removesuffix(".0")


def _written(name: str, value: float) -> str:
    return duration_text(int(value)) if name.endswith("_ns") else rate_text(value)


def _check(process: ArrivalProcess) -> None:
    """Raises BenchError where a parameter makes no sense."""

    def refuse(name: str, why: str) -> BenchError:
        return BenchError(f"{process.name}: {name.removesuffix('_ns')} is {_written(name, getattr(process, name))}, {why}")

    for name in (f.name for f in fields(process)):
        value = getattr(process, name)
        if value is None or isinstance(value, tuple):
            continue
        if not math.isfinite(value):
            raise BenchError(f"{process.name}: {name.removesuffix('_ns')} is {value}: write a finite number")
        if name in ("rate", "peak") and value <= 0:
            raise refuse(name, "and must be above 0 per second")
        if name == "base" and value < 0:
            raise refuse(name, "and must not be negative")
        if name == "cv" and not 0 <= value <= MAX_CV:
            raise refuse(name, f"and must lie in 0 to {MAX_CV}: 0 is even gaps, 1 is Poisson, more is burstier")
        if name == "jitter" and not 0 <= value <= 1:
            raise refuse(name, "and must lie in 0 to 1")
        if name == "spikes" and not 1 <= value <= MAX_SPIKES:
            raise refuse(name, f"and must lie in 1 to {MAX_SPIKES:,}")
        if name.endswith("_ns") and (value < 0 or (value == 0 and name not in ("lead_ns", "rise_ns", "rest_ns"))):
            raise refuse(name, "and must be above 0")
        if name.endswith("_ns") and value > MAX_DURATION_NS:
            raise refuse(name, "which is longer than a year")
    base, peak = getattr(process, "base", None), getattr(process, "peak", None)
    if base is not None and peak is not None and peak <= base:
        raise refuse("peak", f"and must be above base, {rate_text(base)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(ArrivalProcess):
    """Even gaps, the first arrival at 0."""

    name: ClassVar[str] = "constant"
    source: ClassVar[str] = "D in Kendall's notation"
    rate: float
    duration_ns: int
    cv: float = 0.0

    def nominal(self) -> Profile:
        return Profile.of([Piece(duration_ns=self.duration_ns, start_rate=self.rate, end_rate=self.rate, phase="steady")])

    def expected_in(self, window_ns: int) -> Expected:
        """A window of m gaps holds floor(m) or ceil(m) arrivals: the variance is f (1 - f) for the fraction f of m."""
        in_window = self.rate * window_ns / SECOND_NS
        fraction = in_window % 1
        return Expected(
            count=float(np.ceil(self.nominal().count - 1e-9)),
            duration_ns=self.duration_ns,
            mean_rate=self.rate,
            peak_rate=self.rate,
            dispersion=fraction * (1 - fraction) / in_window if self.duration_ns >= window_ns else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(ArrivalProcess):
    """Independent users at a steady rate: exponential gaps, dispersion 1."""

    name: ClassVar[str] = "poisson"
    source: ClassVar[str] = "Kingman, Poisson Processes (1993)"
    rate: float
    duration_ns: int

    def nominal(self) -> Profile:
        return Profile.of([Piece(duration_ns=self.duration_ns, start_rate=self.rate, end_rate=self.rate, phase="steady")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma(ArrivalProcess):
    """A renewal process with gamma gaps of the given coefficient of variation; dispersion cv^2 in long windows."""

    name: ClassVar[str] = "gamma"
    source: ClassVar[str] = "Cox, Renewal Theory (1962); as a burstiness knob in AlpaServe (OSDI 2023)"
    rate: float
    duration_ns: int
    cv: float

    def nominal(self) -> Profile:
        return Profile.of([Piece(duration_ns=self.duration_ns, start_rate=self.rate, end_rate=self.rate, phase="steady")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmpp(ArrivalProcess):
    """A Poisson process whose rate is switched between `base` and `peak`; both sojourns are exponential, with the means
    `on` (at the peak) and `off`, and the first state is drawn from the stationary ones. Each stay at the peak is a spike."""

    name: ClassVar[str] = "mmpp"
    source: ClassVar[str] = "Fischer and Meier-Hellstern, The Markov-modulated Poisson process cookbook (1993)"
    base: float
    peak: float
    on_ns: int
    off_ns: int
    duration_ns: int

    def nominal(self) -> Profile:
        mean = self._mean()
        return Profile.of([Piece(duration_ns=self.duration_ns, start_rate=mean, end_rate=mean, phase="steady")])

    def profile(self, rng: np.random.Generator) -> Profile:
        starts_on = rng.random() < self.on_ns / (self.on_ns + self.off_ns)
        if self.duration_ns / (self.on_ns + self.off_ns) * 2 > _MAX_PIECES:
            raise BenchError(f"mmpp switches more than {_MAX_PIECES:,} times: lengthen on and off, or shorten the run")
        means, edges = (self.on_ns, self.off_ns) if starts_on else (self.off_ns, self.on_ns), [np.zeros(1, np.int64)]
        while edges[-1][-1] < self.duration_ns:
            stays = np.maximum(1, np.rint(rng.exponential(means, size=(1024, 2)))).astype(np.int64)
            edges.append(edges[-1][-1] + np.cumsum(stays.ravel()))
        edge = np.concatenate(edges)
        edge = np.append(edge[edge < self.duration_ns], self.duration_ns)
        on = (np.arange(len(edge) - 1) % 2 == 0) == starts_on
        rate = np.where(on, self.peak, self.base)
        return Profile(
            edges_ns=edge,
            start_rate=rate,
            end_rate=rate,
            phase=np.where(on, PHASES.index("spike"), PHASES.index("base")).astype(np.int8),
            spike=np.where(on, np.cumsum(on) - 1, NO_SPIKE).astype(np.int32),
        )

    def _mean(self) -> float:
        return (self.peak * self.on_ns + self.base * self.off_ns) / (self.on_ns + self.off_ns)

    def expected_in(self, window_ns: int) -> Expected:
        """The dispersion is the cookbook's formula for two states, plus what cv adds to the counts within a state."""
        window = window_ns / SECOND_NS
        leave_on, leave_off = SECOND_NS / self.on_ns, SECOND_NS / self.off_ns
        speed = leave_on + leave_off
        mean = self._mean()
        spread = 2 * (self.peak - self.base) ** 2 * leave_on * leave_off / (speed**3 * mean)
        return Expected(
            count=self.nominal().count,
            duration_ns=self.duration_ns,
            mean_rate=mean,
            peak_rate=self.peak,
            dispersion=self.cv**2 + spread * (1 + math.expm1(-speed * window) / (speed * window))
            if self.duration_ns >= window_ns
            else None,
        )
