"""Is the predicted size the right one? The simulation's answer and the rules of thumb, scored on sizes that were measured.

A size is right when it holds the SLO and the next smaller one does not. A size whose measured P99 has an interval that
straddles the SLO may go either way, so it counts as both. What was not measured follows from what was: more slots than
enough are enough, fewer than too few are too few.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.analysis.statistics import Interval
from bench.capacity.predict import percentile_of, simulate_one
from bench.capacity.refutation import measured_interval, straddles
from bench.capacity.rules_of_thumb import RuleOfThumb, rules_of_thumb

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.capacity.validation import Case, Member, Validation

PLAN = "this plan"
_DRAWS = 10
_FACTOR = 10.0
_ENOUGH, _TOO_FEW, _EITHER = "enough", "too few", "either"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What a rule says for one load; slots None where it cannot tell. right: None where the measured sizes do not decide."""

    rule: str
    slots: int | None
    right: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One measured size: its pooled P99 with the interval that its runs give (None with one run), and whether it is enough."""

    slots: int
    runs: int
    p99_ns: float
    interval: Interval | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One load in one mode with one SLO: what was measured, and each guess."""

    text: str
    mode: str
    slo_ns: int
    sizes: tuple[Size, ...]
    guesses: tuple[Guess, ...]


def score_sizes(
    groups: Sequence[Sequence[Member]], cases: Sequence[Case], measured: Measured, memory_bytes: int | None, seeds: Sequence[int]
) -> tuple[Score, ...]:
    """A score for each load of which some size was measured and an SLO is known."""
    loads: dict[tuple[str, str, str, int], list[tuple[Sequence[Member], Case]]] = defaultdict(list)
    for members, case in zip(groups, cases, strict=True):
        if case.slo_ns is not None and case.p99.measured_ns is not None:
            loads[case.load, case.mode, case.sharing, case.slo_ns].append((members, case))
    return tuple(_score(entries, measured, memory_bytes, slo_ns, seeds) for (*_, slo_ns), entries in loads.items())


def _score(
    entries: Sequence[tuple[Sequence[Member], Case]], measured: Measured, memory_bytes: int | None, slo_ns: int, seeds: Sequence[int]
) -> Score:
    sizes = tuple(sorted((_size(case, slo_ns) for _, case in entries), key=lambda one: one.slots))
    verdicts = {one.slots: one.verdict for one in sizes}
    _, first = entries[0]
    schedules = [member for members, _ in entries for member in members]
    said = [(PLAN, predicted_size(schedules, measured, slo_ns, seeds))]
    said += [(rule.name, rule.slots) for rule in _thumbs(schedules, measured, memory_bytes, slo_ns)]
    return Score(
        text=first.text,
        mode=first.mode,
        slo_ns=slo_ns,
        sizes=sizes,
        guesses=tuple(Guess(rule=rule, slots=slots, right=None if slots is None else is_right(slots, verdicts)) for rule, slots in said),
    )


def is_right(slots: int, verdicts: Mapping[int, str]) -> bool | None:
    """Enough, and one less is too few; None where what was measured does not decide."""
    own, below = _follows(slots, verdicts), _TOO_FEW if slots == 1 else _follows(slots - 1, verdicts)
    if own == _TOO_FEW or below == _ENOUGH:
        return False
    return None if own is None or below is None else True


def _follows(slots: int, verdicts: Mapping[int, str]) -> str | None:
    if slots in verdicts:
        return verdicts[slots]
    if any(size < slots and verdict == _ENOUGH for size, verdict in verdicts.items()):
        return _ENOUGH
    if any(size > slots and verdict == _TOO_FEW for size, verdict in verdicts.items()):
        return _TOO_FEW
    return None


def predicted_size(members: Sequence[Member], measured: Measured, slo_ns: int, seeds: Sequence[int]) -> int | None:
    """The fewest slots whose pooled P99 holds with the arrivals of these runs, at most as many as the curve has; None where
    none does."""
    arrivals = list({times.tobytes(): times for member in members for times in [_arrivals(member)]}.values())  # all sizes get the same
    seeds = seeds[: max(1, -(-_DRAWS // len(arrivals)))]
    how = members[0].served
    for slots in range(1, len(measured.levels) + 1):
        candidate = dataclasses.replace(how.candidate, slots=slots, minimum=min(how.candidate.minimum, slots))
        times = []
        for number, intended in enumerate(arrivals):
            for seed in seeds:
                run = simulate_one(candidate, measured, how.rules, intended, seed * 1009 + number)
                times.append(run.response_ns[run.status == 0].astype(np.float64))
        p99 = percentile_of(np.concatenate(times), 99)
        if p99 is not None and p99 <= slo_ns:
            return slots
    return None


def _arrivals(member: Member) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    table = member.saved.table("schedule", ["intended_ns"])
    assert table is not None
    return np.sort(table.column("intended_ns").to_numpy())


def _size(case: Case, slo_ns: int) -> Size:
    p99 = case.p99.measured_ns
    assert p99 is not None
    either = straddles(case, slo_ns)
    return Size(
        slots=case.slots,
        runs=len(case.runs),
        p99_ns=p99,
        interval=measured_interval(case),
        verdict=_EITHER if either else _ENOUGH if p99 <= slo_ns else _TOO_FEW,
    )


def _thumbs(members: Sequence[Member], measured: Measured, memory_bytes: int | None, slo_ns: int) -> tuple[RuleOfThumb, ...]:
    from bench.capacity.offered import of_schedule
    from bench.load.schedule import read_schedule

    first = of_schedule(read_schedule(members[0].saved.path / "schedule.parquet"), "", (1,))
    if memory_bytes is None:
        memory_bytes = ((members[0].saved.run.get("environment") or {}).get("memory") or {}).get("total_bytes")
    return rules_of_thumb(
        mean_per_s=first.mean_per_s,
        peak_per_s=first.peak_per_s,
        service_s=float(measured.levels[0].mean()) / 1e9,
        bound_s=slo_ns / 1e9,
        share=0.99,
        memory_bytes=memory_bytes,
        model_bytes=measured.model_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Of one rule: in how many of `loads` it is right, and in how many what was measured does not decide it."""

    right: int
    undecided: int
    loads: int

    @property
    def text(self) -> str:
        """Such as `2 of 4 loads, 1 not decided by the sizes that were measured`."""
        more = f", {self.undecided} not decided by the sizes that were measured" if self.undecided else ""
        return f"{self.right} of {_count(self.loads, 'load')}{more}"


def right_of(scores: Sequence[Score]) -> dict[str, Tally]:
    """Of each rule, over the same loads for all: a rule that names no number is wrong, one that is not decided is not right."""
    found: dict[str, Tally] = {}
    for score in scores:
        for guess in score.guesses:
            before = found.get(guess.rule, Tally(right=0, undecided=0, loads=len(scores)))
            undecided = guess.right is None and guess.slots is not None
            found[guess.rule] = dataclasses.replace(
                before, right=before.right + (guess.right is True), undecided=before.undecided + undecided
            )
    return found


def off_text(error: float, digits: int = 1) -> str:
    """An absolute relative error as a percentage; from ten times on as a factor, which only a prediction above can have."""
    return f"{error:.{digits}%}" if error < _FACTOR else f"a factor of {1 + error:,.0f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def sentence(made: Validation) -> str:
    """The verdict on the model in one sentence."""
    if made.median_error is None or made.worst_error is None:
        return f"{_count(made.runs, 'run')} had too few answers for a P99, so its error cannot be told: 100 are needed."
    noise = "" if made.noise is None else f", where it differs by {made.noise:.1%} from run to run"
    text = (
        f"In {_count(len(made.cases), 'case')} ({_count(made.runs, 'run')}) the predicted P99 is off by {off_text(made.median_error)} "
        f"in the median and by {off_text(made.worst_error, 0)} at worst{noise}; "
        f"{made.inside} of {len(made.cases)} lie where the simulation expects them"
    )
    counts = right_of(made.scores)
    own = counts.pop(PLAN, None)
    if own is not None and own.undecided < own.loads:
        others = ", ".join(f"{rule}: {one.right}" for rule, one in counts.items())
        text += f"; the predicted number of slots is right in {own.text} (rules of thumb, of the same loads: {others})"
    return f"{text}."
