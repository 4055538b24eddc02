"""How long a spike hurts: recovery time, the SLO's return, the excess it caused, and the backlog behind it.

Recovery (DESIGN: words): from the end of a spike until the windowed P99 is back within (1 + eps) of the base for K
windows and the queue is empty. The windows are of arrivals, by intended time, end to end from the spike's end; the
recovery time is the start of the first of the K. The queue is empty when no earlier arrival is still waiting beyond
the bound. A spike that does not get there before the next one, or before the run's end, is censored: it counts as
longer than what was seen, and is never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from bench.analysis.backlog import outstanding
from bench.analysis.load_run import ArmRecords
from bench.analysis.statistics import median_rank, percentile

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASE_PHASES = ("steady", "base")
WINDOW_NS = 1_000_000_000
EPS = 0.2
WINDOWS = 3
_FEWEST_FOR_ONE_SLOW = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """When something came back after a spike: `after_ns` from its end, or None (censored) with how long it was watched."""

    after_ns: int | None
    watched_ns: int

    @property
    def censored(self) -> bool:
        return self.after_ns is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeRecovery:
    """One spike of one run. slo: None where no SLO is given. excess_ns: what all arrivals from the spike's start until
    the next one waited beyond the bound of the base, summed (request-nanoseconds); over answered ones, `failed` are the
    others. peak_backlog: the most arrivals that were due and not yet done at once."""

    run: int
    spike: int
    recovery: Return
    slo: Return | None
    excess_ns: float
    failed: int
    peak_backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """All spikes of an arm. median_ns by Kaplan and Meier, so that censored spikes count; None where fewer than half
    came back, `censored` says how many did not."""

    base_p99_ns: float
    bound_ns: float
    window_ns: int
    eps: float
    windows: int
    spikes: tuple[SpikeRecovery, ...]

    @property
    def censored(self) -> int:
        return sum(spike.recovery.censored for spike in self.spikes)

    @property
    def median_ns(self) -> float | None:
        return survival_median([spike.recovery for spike in self.spikes])

    @property
    def slo_median_ns(self) -> float | None:
        return survival_median([spike.slo for spike in self.spikes if spike.slo is not None])


def base_p99(requests: pd.DataFrame) -> float | None:
    """The P99 of the response time before the spikes (phases steady and base); None with fewer than 100 answers there."""
    codes = [code for code, name in enumerate(requests["phase"].cat.categories) if name in BASE_PHASES]
    chosen = np.isin(requests["phase"].cat.codes.to_numpy(), codes) & requests["ok"].to_numpy()
    return percentile(requests["response_ns"].to_numpy()[chosen], 99)


def recovery(
    arm: ArmRecords,
    *,
    slo_ns: int | None = None,
    base_p99_ns: float | None = None,
    window_ns: int = WINDOW_NS,
    eps: float = EPS,
    windows: int = WINDOWS,
) -> Recovery | None:
    """The recovery from every spike of the arm. None where the base's P99 is not known: neither given nor in the data.

    The P99 of a window is within the bound when at most 1 % of its arrivals, rounded up, were slower or had no correct
    answer. Rounded up, because in a window of 50 arrivals the base itself has one above its P99 two times in five; a
    window of fewer than 20 may have none, and one without arrivals says nothing against it.
    """
    base = base_p99(arm.requests) if base_p99_ns is None else base_p99_ns
    if base is None:
        return None
    bound = (1 + eps) * base
    spikes = []
    for run, duration_ns in zip(arm.runs, arm.durations_ns, strict=True):
        own = sorted((window for window in arm.spikes if window.run == run), key=lambda window: window.start_ns)
        if not own:
            continue
        arrivals = _Arrivals.of(arm.requests, run)
        ends = [*(window.start_ns for window in own[1:]), max(duration_ns, own[-1].end_ns)]
        for window, horizon_ns in zip(own, ends, strict=True):
            first, last = np.searchsorted(arrivals.intended, [window.start_ns, horizon_ns])
            response = arrivals.response[first:last]
            answered = np.isfinite(response)
            spikes.append(
                SpikeRecovery(
                    run=run,
                    spike=window.spike,
                    recovery=arrivals.back_within(bound, window.end_ns, horizon_ns, window_ns, windows),
                    slo=None if slo_ns is None else arrivals.back_within(slo_ns, window.end_ns, horizon_ns, window_ns, windows),
                    excess_ns=float(np.maximum(response[answered] - bound, 0).sum()),
                    failed=int((~answered).sum()),
                    peak_backlog=int(outstanding(arrivals.ended_intended, arrivals.done, arrivals.intended[first:last]).max(initial=0)),
                )
            )
    return Recovery(base_p99_ns=base, bound_ns=bound, window_ns=window_ns, eps=eps, windows=windows, spikes=tuple(spikes))


def sensitivity(
    arm: ArmRecords,
    *,
    windows_ns: Sequence[int] = (500_000_000, 1_000_000_000, 2_000_000_000),
    eps: Sequence[float] = (0.1, 0.2, 0.5),
    base_p99_ns: float | None = None,
) -> tuple[Recovery, ...]:
    """The recovery for each window with each eps: how much of the number is the definition. Empty without a base."""
    found = [recovery(arm, base_p99_ns=base_p99_ns, window_ns=window, eps=tolerance) for window in windows_ns for tolerance in eps]
    return tuple(result for result in found if result is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryComparison:
    """In how many spikes which arm took longer to recover. A censored one took longer than all that came back while it
    was watched; undecided: it was not watched for long enough, or both were censored. p_value: exact sign test of the
    decided ones that differ, None where there are none.

    difference: by how much the second took longer, the median of the spikes, and its 95 % interval. The difference of a
    spike that is censored in one arm is known to one side only; it counts as that, so an end can be open. interval is
    None below six spikes. censored_*: spikes that were not over in time.
    """

    spikes: int
    first_longer: int
    second_longer: int
    equal: int
    undecided: int
    p_value: float | None
    censored_first: int
    censored_second: int
    difference: Between
    interval: Between | None

    @property
    def distinguishable(self) -> bool:
        """The interval does not hold 0."""
        if self.interval is None:
            return False
        low, high = self.interval.low_ns, self.interval.high_ns
        return (low is not None and low > 0) or (high is not None and high < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Somewhere from low_ns to high_ns, ends included; None: no bound on that side is known."""

    low_ns: float | None
    high_ns: float | None


def _slow_allowed(arrivals: int) -> int:
    return math.ceil(arrivals / 100) if arrivals >= _FEWEST_FOR_ONE_SLOW else 0


def compare_recovery(first: Recovery, second: Recovery) -> RecoveryComparison:
    """Compare two arms spike by spike, paired by (run, spike); every pair is counted once."""
    others = {(spike.run, spike.spike): spike.recovery for spike in second.spikes}
    pairs = [(spike.recovery, others[spike.run, spike.spike]) for spike in first.spikes if (spike.run, spike.spike) in others]
    counts = {"first": 0, "second": 0, "equal": 0, "undecided": 0}
    for one, two in pairs:
        counts[_longer(one, two)] += 1
    difference, interval = _median_difference(pairs)
    differing = counts["first"] + counts["second"]
    return RecoveryComparison(
        spikes=len(pairs),
        censored_first=sum(one.censored for one, _ in pairs),
        censored_second=sum(two.censored for _, two in pairs),
        difference=difference,
        interval=interval,
        first_longer=counts["first"],
        second_longer=counts["second"],
        equal=counts["equal"],
        undecided=counts["undecided"],
        p_value=float(stats.binomtest(counts["first"], differing).pvalue) if differing else None,
    )


def _median_difference(pairs: Sequence[tuple[Return, Return]]) -> tuple[Between, Between | None]:
    """The median of second less first over the pairs, and its distribution-free interval of at least 95 %, from order
    statistics (`bench.analysis.statistics.median_rank`).

    A censored time lies anywhere above the watched one, so each difference lies between two numbers, of which one or
    both may be infinite. The order statistics of the lower ones bound those of the differences from below, the upper
    ones from above, whatever the unseen times are: the interval keeps its coverage, and only gets wider.
    """
    inf = math.inf
    lows, highs = [], []
    for one, two in pairs:
        first = (one.watched_ns, inf) if one.after_ns is None else (one.after_ns, one.after_ns)
        second = (two.watched_ns, inf) if two.after_ns is None else (two.after_ns, two.after_ns)
        lows.append(second[0] - first[1])
        highs.append(second[1] - first[0])
    lows.sort()
    highs.sort()
    n = len(pairs)
    if not n:
        return Between(low_ns=None, high_ns=None), None
    middle = Between(low_ns=_finite(_middle(lows)), high_ns=_finite(_middle(highs)))
    rank = median_rank(n)
    return middle, Between(low_ns=_finite(lows[rank - 1]), high_ns=_finite(highs[n - rank])) if rank else None


def _middle(ordered: Sequence[float]) -> float:
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else (low + high) / 2  # of two infinities of one sign as well


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _longer(one: Return, two: Return) -> str:
    if one.after_ns is not None and two.after_ns is not None:
        return "equal" if one.after_ns == two.after_ns else "first" if one.after_ns > two.after_ns else "second"
    if one.after_ns is None and two.after_ns is not None and one.watched_ns > two.after_ns:
        return "first"
    if two.after_ns is None and one.after_ns is not None and two.watched_ns > one.after_ns:
        return "second"
    return "undecided"


def survival_median(returns: Sequence[Return]) -> float | None:
    """The time by which half have come back, by Kaplan and Meier (1958): a censored one counts as not yet back for as
    long as it was watched. None where half never is reached."""
    events = sorted((entry.watched_ns if entry.after_ns is None else entry.after_ns, entry.censored) for entry in returns)
    surviving = 1.0
    for index, (time_ns, censored) in enumerate(events):  # at a tie, those that came back go first
        if not censored:
            surviving *= 1 - 1 / (len(events) - index)
            if surviving <= 0.5 + 1e-12:
                return float(time_ns)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrivals:
    """The arrivals of one run in the order of intended time. response: inf where there was no correct answer.
    ended_intended and taken: of all that ended, whichever way; done: when those ended, sorted."""

    intended: NDArray[np.int64]
    response: NDArray[np.float64]
    ended_intended: NDArray[np.int64]
    done: NDArray[np.float64]
    taken: NDArray[np.float64]

    @classmethod
    def of(cls, requests: pd.DataFrame, run: int) -> _Arrivals:
        rows = np.flatnonzero(requests["run"].to_numpy() == run)
        rows = rows[np.argsort(requests["intended_ns"].to_numpy()[rows], kind="stable")]
        intended, taken = requests["intended_ns"].to_numpy()[rows], requests["response_ns"].to_numpy()[rows]
        ended = ~np.isnan(taken)
        return cls(
            intended=intended,
            response=np.where(requests["ok"].to_numpy()[rows], taken, np.inf),
            ended_intended=intended[ended],
            done=np.sort(intended[ended] + taken[ended]),
            taken=taken[ended],
        )

    def back_within(self, bound_ns: float, from_ns: int, horizon_ns: int, window_ns: int, windows: int) -> Return:
        count = max(0, (horizon_ns - from_ns) // window_ns)
        late = self.taken > bound_ns
        overdue = np.sort(self.ended_intended[late] + bound_ns)
        over = np.sort(self.ended_intended[late] + self.taken[late])
        edges = from_ns + window_ns * np.arange(count + 1, dtype=np.int64)
        queue = outstanding(overdue, over, edges)
        places = np.searchsorted(self.intended, edges)
        chain = 0
        for index in range(count):
            response = self.response[places[index] : places[index + 1]]
            slow = int(np.count_nonzero(response > bound_ns))
            chain = chain + 1 if slow <= _slow_allowed(len(response)) and queue[index] == 0 else 0
            if chain == windows:
                return Return(after_ns=int(edges[index + 1 - windows]) - from_ns, watched_ns=horizon_ns - from_ns)
        return Return(after_ns=None, watched_ns=horizon_ns - from_ns)
