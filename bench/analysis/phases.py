"""What a cold-start run says: time by level and phase, the differences that matter, and whether it may be believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.analysis.statistics import Interval, Shift, median, median_interval, nearest_rank, percentiles, shift
from bench.units import format_count, format_duration

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

# Every phase that a trial can have, of any level and runtime (a test looks for them where they are timed), and the rows beside them.
PHASES = (
    "spawn", "imports", "manifest", "signature", "library", "device", "runtime", "read", "verify", "deserialise", "slot", "buffers",
    "probe", "first_inference", "check", "second_inference", "steady", "pool", "inference", "listen", "warmup", "collect", "connect",
    "ready_before_right", "read_file", "copy_memory", "copy_to_device_pageable", "copy_to_device_pinned",
)  # fmt: skip
TOTALS = ("total", "unattributed", "total_outside")
FRESH_LEVELS = ("server", "process", "process-disk")  # each trial is a fresh process
# Imports and everything before the library call: what a user can only save by not starting a process.
_START_PHASES = ("spawn", "imports", "library", "listen")  # a server listens once Python and its own modules are there
_INFERENCE_PHASES = ("first_inference", "inference", "check")  # what is left of a total without these is before_inference
_FLOORS = (
    ("read file, pages dropped", "floor-disk", "read_file"),
    ("read file, pages warm", "floor", "read_file"),
    ("copy in memory", "floor", "copy_memory"),
    ("copy to the GPU", "floor", "copy_to_device_pageable"),
    ("the same, pinned", "floor", "copy_to_device_pinned"),
)
UNATTRIBUTED_LIMIT = 0.03
OUTSIDE_LIMIT = 0.03
NOISY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Trials of one quantity in ns: the median (nearest rank: a trial's own value) with its interval, and the 95th percentile."""

    median: float
    interval: Interval | None
    p95: float | None
    worst: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """`share` is the phase's part of the level's total, both summed over trials; None for a phase after the answer.

    `typical_ns` is its duration in the trial whose total is the median (nearest rank), so that these add up to that total.
    """

    name: str
    in_total: bool
    spread: Spread
    share: float | None
    typical_ns: float
    resident_bytes: float | None  # after the phase, median
    device_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level of one variant. `before_inference` is the time until the first inference could begin."""

    variant: str
    level: str
    total: Spread
    before_inference: Spread
    outside: Spread
    phases: tuple[PhaseSummary, ...]
    resident_bytes: float | None
    page_cache: Mapping[str, int]  # state -> trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`second` against `first`: labels such as `slot` or `optimize=all process`."""

    first: str
    second: str
    quantity: str
    shift: Shift


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartSummary:
    """All that is said of a run. `invalid` and `caveats` come before any number."""

    sentence: str
    levels: tuple[LevelSummary, ...]
    comparisons: tuple[Comparison, ...]
    floors: Mapping[str, Spread]
    invalid: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def valid(self) -> bool:
        return not self.invalid

    def level(self, level: str, variant: str) -> LevelSummary | None:
        return next((s for s in self.levels if s.level == level and s.variant == variant), None)

    def to_json(self) -> dict[str, Any]:
        return {"valid": self.valid, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The table as arrays, and the trials of each (variant, level) as a matrix of phases."""

    columns: Mapping[str, NDArray[Any]]

    def totals(self, variant: str, level: str, phase: str) -> NDArray[np.float64]:
        """The phase's duration in each trial that had it; phases that recur in a trial are summed."""
        c = self.columns
        chosen = (c["variant"] == variant) & (c["level"] == level) & (c["phase"] == phase)
        trials, position = np.unique(c["order"][chosen], return_inverse=True)
        sums = np.zeros(len(trials))
        np.add.at(sums, position, c["duration_ns"][chosen])
        return sums

    def phase_names(self, variant: str, level: str) -> list[tuple[str, bool]]:
        """Phases in the order in which they happen, and whether they are part of the total."""
        c = self.columns
        chosen = (c["variant"] == variant) & (c["level"] == level)
        return list(dict.fromkeys(zip(c["phase"][chosen].tolist(), c["in_total"][chosen].tolist(), strict=True)))

    def memory(self, variant: str, level: str, phase: str, column: str) -> float | None:
        c = self.columns
        values = c[column][(c["variant"] == variant) & (c["level"] == level) & (c["phase"] == phase)]
        known = values[~np.isnan(values)]
        return median(known) if len(known) else None


def summarize(table: pa.Table, variants: Sequence[str], requested_trials: int, warnings: Sequence[str] = ()) -> ColdStartSummary:
    """Summarize the rows of `cold_starts` (bench.coldstart.cold_start_schema). `warnings` of the environment become caveats."""
    rows = _Rows({name: _column(table, name) for name in table.column_names})
    present = set(zip(rows.columns["variant"].tolist(), rows.columns["level"].tolist(), strict=True))
    order = ("server", "process-disk", "process", "engine", "slot", "warm")
    levels = tuple(_level(rows, v, level) for v in variants for level in order if (v, level) in present)
    measured = set(zip(*(rows.columns[name].tolist() for name in ("variant", "level", "phase")), strict=True))
    floors = {
        f"{variant} {name}".strip(): _spread(rows.totals(variant, level, phase))
        for variant in variants
        for name, level, phase in _FLOORS
        if (variant, level, phase) in measured
    }
    return ColdStartSummary(
        sentence=_sentence(levels, variants),
        levels=levels,
        comparisons=tuple(_comparisons(rows, levels, variants)),
        floors=floors,
        invalid=tuple(_invalid(levels)),
        caveats=(*_caveats(levels, requested_trials), *warnings),
    )


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    array = table.column(name)
    if name in ("resident_bytes", "device_bytes"):
        return np.asarray(array.to_numpy(), dtype=np.float64)
    return np.asarray(array.to_numpy())


def _spread(values: NDArray[np.float64]) -> Spread:
    p50, p95 = percentiles(values, (50, 95))
    assert p50 is not None  # there is at least one trial
    return Spread(median=p50, interval=median_interval(values), p95=p95, worst=float(values.max()), samples=len(values))


def _level(rows: _Rows, variant: str, level: str) -> LevelSummary:
    total = rows.totals(variant, level, "total")
    typical = np.argsort(total, kind="stable")[nearest_rank(len(total), 50) - 1]
    phases = []
    for name, in_total in rows.phase_names(variant, level):
        if name in ("total", "total_outside"):
            continue
        values = rows.totals(variant, level, name)
        phases.append(
            PhaseSummary(
                name=name,
                in_total=in_total,
                spread=_spread(values),
                share=float(values.sum() / total.sum()) if in_total and total.sum() > 0 else None,
                typical_ns=float(values[typical]) if len(values) == len(total) else 0.0,
                resident_bytes=rows.memory(variant, level, name, "resident_bytes"),
                device_bytes=rows.memory(variant, level, name, "device_bytes"),
            )
        )
    c = rows.columns
    states = c["page_cache"][(c["variant"] == variant) & (c["level"] == level) & (c["phase"] == "total")]
    known, counts = np.unique([s for s in states.tolist() if s is not None], return_counts=True)
    return LevelSummary(
        variant=variant,
        level=level,
        total=_spread(total),
        before_inference=_spread(_quantity(rows, variant, level, "before_inference")),
        outside=_spread(rows.totals(variant, level, "total_outside")),
        phases=tuple(phases),
        resident_bytes=rows.memory(variant, level, "total", "resident_bytes"),
        page_cache=dict(zip(known.tolist(), counts.tolist(), strict=True)),
    )


def _comparisons(rows: _Rows, levels: Sequence[LevelSummary], variants: Sequence[str]) -> list[Comparison]:
    found = []
    present = {(s.variant, s.level) for s in levels}

    def compare(first: tuple[str, str], second: tuple[str, str], quantity: str) -> None:
        if first in present and second in present:
            a, b = (_quantity(rows, *key, quantity) for key in (first, second))
            found.append(Comparison(first=" ".join(first).strip(), second=" ".join(second).strip(), quantity=quantity, shift=shift(a, b)))

    for variant in variants:
        compare((variant, "process"), (variant, "process-disk"), "total")
        compare((variant, "process"), (variant, "server"), "before_inference")
        compare((variant, "engine"), (variant, "process"), "before_inference")
        compare((variant, "slot"), (variant, "engine"), "before_inference")
        compare((variant, "warm"), (variant, "slot"), "answer")
    for other in variants[1:]:
        for level in dict.fromkeys(s.level for s in levels):
            compare((variants[0], level), (other, level), "total")
    return found


def _quantity(rows: _Rows, variant: str, level: str, quantity: str) -> NDArray[np.float64]:
    """`total`; `answer`, without the check of the answer; or `before_inference`, without inference and check."""
    values = rows.totals(variant, level, "total")
    left_out: dict[str, tuple[str, ...]] = {"total": (), "answer": ("check",), "before_inference": _INFERENCE_PHASES}
    for name, in_total in rows.phase_names(variant, level):
        if in_total and name in left_out[quantity]:
            values = values - rows.totals(variant, level, name)
    return values


def requests_worth(level: LevelSummary, warm: LevelSummary | None) -> float | None:
    """How many warm requests fit in the level's total."""
    return level.total.median / warm.total.median if warm is not None and warm.total.median > 0 else None


def _sentence(levels: Sequence[LevelSummary], variants: Sequence[str]) -> str:
    """The answer in one sentence, for the first variant."""
    by_level = {s.level: s for s in levels if s.variant == variants[0]}
    warm = by_level.get("warm")
    cold = next((by_level[name] for name in ("process", "process-disk", "server", "engine", "slot") if name in by_level), None)
    if cold is None:
        return f"a warm slot answers in {format_duration(warm.total.median)} (median)" if warm else "no trial was finished"
    subject = {"process": "process", "process-disk": "process with the engine's pages dropped"}.get(cold.level, cold.level)
    if variants[0]:
        subject += f" with {variants[0]}"
    worth = requests_worth(cold, warm)
    cost = f"a cold {subject} takes {format_duration(cold.total.median)} until its first correct answer"
    if worth is not None:
        cost += f", {format_count(worth)} warm requests' worth of time"
    groups: dict[str, float] = {}
    for phase in cold.phases:
        if phase.in_total and phase.share is not None:
            name = "starting Python and imports" if phase.name in _START_PHASES else phase.name.replace("_", " ")
            groups[name] = groups.get(name, 0.0) + phase.share
    largest = sorted(groups.items(), key=lambda item: -item[1])[:2]
    parts = " and ".join(f"{share:.0%} of it {name}" if n == 0 else f"{share:.0%} {name}" for n, (name, share) in enumerate(largest))
    saved = f"; a warm slot answers in {format_duration(warm.total.median)}" if warm else ""
    return f"{cost}, {parts}{saved}"


def _invalid(levels: Sequence[LevelSummary]) -> list[str]:
    reasons = []
    if not levels:
        reasons.append("no trial was finished")
    for level in levels:
        if level.level not in FRESH_LEVELS:
            continue
        name = f"{level.variant} {level.level}".strip()
        rest = next(p for p in level.phases if p.name == "unattributed")
        rest_share = rest.spread.median / level.total.median
        if rest_share > UNATTRIBUTED_LIMIT:
            reasons.append(
                f"{name}: {rest_share:.1%} of the total ({format_duration(rest.spread.median)}) lies in no phase, at most "
                f"{UNATTRIBUTED_LIMIT:.0%} may; something runs between the phases, look at what the engine or its environment adds"
            )
        apart = abs(level.outside.median - level.total.median) / level.total.median
        if apart > OUTSIDE_LIMIT:
            reasons.append(
                f"{name}: the clock outside the process says {format_duration(level.outside.median)}, the phases say "
                f"{format_duration(level.total.median)}; the machine was too busy, run it again on a quiet one"
            )
        early = next((p for p in level.phases if p.name == "ready_before_right"), None)
        if early is not None and early.spread.worst > 0:
            reasons.append(f"{name}: ready was said up to {format_duration(early.spread.worst)} before an answer was right")
    return reasons


def _caveats(levels: Sequence[LevelSummary], requested_trials: int) -> list[str]:
    caveats = []
    for level in levels:
        name = f"{level.variant} {level.level}".strip()
        if level.total.samples < requested_trials:
            caveats.append(f"{name}: {level.total.samples} of {requested_trials} trials were done")
        if level.page_cache.get("unknown"):
            caveats.append(f"{name}: page_cache=unknown in {level.page_cache['unknown']} of {level.total.samples} trials")
        spread = level.total.interval
        if spread is not None and spread.high - spread.low > NOISY_SHARE * level.total.median:
            caveats.append(
                f"{name}: noisy, the 95 % interval of its median spans {(spread.high - spread.low) / level.total.median:.0%} of it; "
                "run it on a quiet machine, or with more trials"
            )
        if level.total.samples < 6:
            caveats.append(f"{name}: {level.total.samples} trials are too few for a 95 % interval, 6 are needed")
    return caveats


def describe_comparison(comparison: Comparison) -> str:
    """One line: `slot against warm: +1.2 ms (0.9 to 1.5 ms, 95 %), 1.04x`, or that they cannot be told apart."""
    s = comparison.shift
    what = " before inference" if comparison.quantity == "before_inference" else ""
    head = f"{comparison.second} against {comparison.first}{what}"
    if s.interval is None:
        return f"{head}: {_signed(s.difference)}, too few trials for an interval"
    between = f"{_signed(s.interval.low)} to {_signed(s.interval.high)}, 95 %"
    if not s.distinguishable:
        return f"{head}: not distinguishable ({between})"
    ratio = f", {format_count(s.ratio)}x" if s.ratio is not None else ""
    if s.ratio is not None and s.ratio_interval is not None:
        ratio += f" ({format_count(s.ratio_interval.low)}x to {format_count(s.ratio_interval.high)}x)"
    return f"{head}: {_signed(s.difference)} ({between}){ratio}"


def _signed(ns: float) -> str:
    return ("+" if ns >= 0 else "-") + format_duration(abs(ns))
