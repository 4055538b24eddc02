"""Everything that is said of one run or one experiment, with its validity first.

The table, the report and `summary.json` all come from one `ExperimentSummary`, so none can say another number. Arms are
read one after the other and let go: what a comparison or a picture needs of one is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.analysis.backlog import Backlog, backlog
from bench.analysis.compare import P99Comparison, compare_p99
from bench.analysis.goodput import Goodput, goodput
from bench.analysis.latency import Latency, latency
from bench.analysis.load_run import ArmRecords, read_arm
from bench.analysis.loads import LoadsBeside, during, load_windows, loads_beside
from bench.analysis.memory import Memory, PerSlot, memory_difference, memory_of_runs, per_slot_against
from bench.analysis.pool import PoolUse, pool_use
from bench.analysis.recovery import WINDOW_NS, Recovery, RecoveryComparison, compare_recovery, recovery
from bench.analysis.server_means import ServerMeans, server_means
from bench.analysis.sm_clock import ClockRange, sm_clock_of_runs
from bench.analysis.statistics import Interval, median
from bench.analysis.subject import ArmFiles, Subject
from bench.analysis.tail import TailSplit, tail_split
from bench.analysis.validity import Validity, check_run, missing_runs
from bench.analysis.verdict import growth_words, verdict
from bench.errors import BenchError
from bench.records import SavedRun

HAND_OVER_NS = 1_000_000  # what giving a free slot to a request may take, between two threads of a busy process
_WINDOWS_BETWEEN = 6
_RECOVERY_WINDOWS_NS = (WINDOW_NS, 500_000_000, 250_000_000, 100_000_000, 50_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValidity:
    """`run` is the folder inside the experiment, or the run's own."""

    run: str
    arm: str
    validity: Validity


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One arm, all of its runs together. runs: those that are there, of `planned`. unrecorded: arrivals without a row,
    from a run that was cut off. recovery: None where its base has too few answers for a P99. memory: while load was
    offered (per_slot from the whole timeline), empty without one. unstable: in half of the runs or more the backlog grew,
    and surely so in all, so a P99 says how long the run was and nothing else. ready_ns: from the server's start until
    ready, median over runs.
    server_means: of a server that tells no parts of single requests; None of others. sm_clock: None without a GPU."""

    name: str
    mode: str | None
    runs: int
    planned: int
    partial: bool
    unrecorded: int
    duration_ns: int
    latency: tuple[Latency, ...]
    goodput: tuple[Goodput, ...]
    tail: TailSplit | None
    pool: PoolUse
    recovery: Recovery | None
    memory: tuple[Memory, ...]
    backlog: tuple[Backlog, ...]
    unstable: bool
    ready_ns: float | None
    server_means: ServerMeans | None = None
    sm_clock: ClockRange | None = None

    def phase(self, name: str | None) -> Latency | None:
        return next((one for one in self.latency if one.phase == name), None)

    def share(self, name: str | None) -> Goodput | None:
        return next((one for one in self.goodput if one.phase == name), None)

    @property
    def resident(self) -> Memory | None:
        return self._memory_of("resident")

    @property
    def device_memory(self) -> Memory | None:
        return self._memory_of("device")

    @property
    def held(self) -> Memory | None:
        """The memory that decides how many fit: the device's where there is one, else the process's."""
        return self.device_memory or self.resident

    def _memory_of(self, kind: str) -> Memory | None:
        return next((one for one in self.memory if one.kind == kind), None)

    @property
    def backlog_slope_per_s(self) -> float | None:
        """The median over the runs."""
        slopes = [one.slope_per_s for one in self.backlog if one.slope_per_s is not None]
        return median(slopes) if slopes else None

    @property
    def backlog_slope_interval(self) -> Interval | None:
        """From the lowest end of any run to the highest."""
        return _widest(self.backlog)

    @property
    def growing_runs(self) -> int:
        """In how many runs the backlog grew."""
        return sum(one.unstable for one in self.backlog)

    @property
    def doubtful(self) -> bool:
        """In half of the runs or more the backlog grew, but not surely in all: the arm may not hold its base."""
        return not self.unstable and 2 * self.growing_runs >= max(len(self.backlog), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstContact:
    """A spike that is the first a ready server gets, what a new replica lives through; one spike, so there is no interval.
    latency and share: of the spike's arrivals. loaded_share: as in PoolUse, of the same."""

    arm: str
    latency: Latency
    share: Goodput
    loaded_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """`second` against `first`. p99: of the response time over spikes; None with the `reason`. memory_bytes: the
    difference of the medians of the memory that both hold, of the kind memory_kind; per_slot: that by slot, where the
    arms differ in nothing but their number, or by copy of the engine, where one arm has one engine for all slots and
    the other one each."""

    first: str
    second: str
    p99: P99Comparison | None
    reason: str | None
    recovery: RecoveryComparison | None
    memory_kind: str | None
    memory_bytes: float | None
    per_slot: PerSlot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """All that is said. invalid and caveats come before any number; sentence is the verdict. values_known: the right values
    of the answers were known, so that "ok" means a correct answer; else it means a well-formed one. one_more: by arm, see
    PerSlot; of those that differ from one before them in nothing but the slots, or the sharing."""

    subject: str
    kind: str
    title: str
    device: str | None
    on_cpu: bool
    partial: bool
    slo_ns: int | None
    values_known: bool
    validity: tuple[RunValidity, ...]
    invalid: tuple[str, ...]
    caveats: tuple[str, ...]
    missing_runs: int
    load: Mapping[str, Any]
    capacities: Mapping[str, Any]
    arms: tuple[ArmSummary, ...]
    comparisons: tuple[ArmComparison, ...]
    one_more: Mapping[str, PerSlot]
    first_contact: tuple[FirstContact, ...]
    loads_beside: tuple[LoadsBeside, ...]
    sentence: str

    @property
    def valid(self) -> bool:
        """Every run is there, and passed its checks: what `bench check` says too."""
        return not self.invalid and not self.missing_runs

    def to_json(self) -> dict[str, Any]:
        """What `summary.json` holds: validity first, plain values only; derived numbers are written out."""
        found: dict[str, Any] = {"schema_version": 1, "valid": self.valid, "sentence": self.sentence}
        found |= {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self) if field.name != "sentence"}
        return found


def summarize(subject: Subject, look: Callable[[ArmFiles, ArmRecords], None] | None = None) -> ExperimentSummary:
    """Read every arm, judge every run, compare each arm with the first. `look` is shown each arm's rows while they are
    in memory (for pictures). Raises BenchError where a run's records are damaged."""
    validity: list[RunValidity] = []
    arms: list[ArmSummary] = []
    spikes: dict[str, pd.DataFrame] = {}
    # The arms that have loads beside their traffic, by the arm that is the same without.
    loaded = {str(files.setup["alone"]): files for files in subject.arms if files.setup.get("alone") and files.runs}
    felt: dict[str, pd.DataFrame] = {}
    for files in subject.arms:
        if not files.runs:
            continue
        for run in (*files.runs, *([files.first_contact] if files.first_contact else [])):
            inside = str(run.path.relative_to(subject.path)) if run.path != subject.path else run.path.name
            validity.append(RunValidity(run=inside, arm=files.name, validity=check_run(run.path)))
        arm = read_arm(files.runs, files.numbers)
        if look is not None:
            look(files, arm)
        arms.append(summarize_arm(files, arm, subject.slo_ns))
        inside_spike = arm.requests["spike"].to_numpy() >= 0
        source = files if files.setup.get("alone") else loaded.get(files.name)
        if source is not None:
            felt[files.name] = during(arm, load_windows(source))
        spikes[files.name] = arm.requests.loc[inside_spike, ["run", "spike", "ok", "response_ns"]]
        del arm
    known = {arm.name: arm for arm in arms}
    alone = {files.name: files.setup.get("alone") for files in subject.arms}
    # An arm with loads stands beside the one that is the same without; any other beside the first.
    partners = [(known.get(str(alone[arm.name])) if alone[arm.name] else arms[0], arm) for arm in arms[1:]]
    comparisons = tuple(_compare(first, second, spikes, subject) for first, second in partners if first is not None)
    beside = tuple(
        loads_beside(files, name, felt[name], felt[files.name], planned=_spikes_of(files, subject))
        for name, files in loaded.items()
        if name in felt
    )
    summary = ExperimentSummary(
        subject=subject.path.name,
        kind=subject.kind,
        title=subject.title,
        device=subject.device,
        on_cpu=subject.on_cpu,
        partial=subject.partial,
        slo_ns=subject.slo_ns,
        values_known=subject.values_known,
        validity=tuple(validity),
        invalid=tuple(_invalid(validity)),
        caveats=tuple(_caveats(subject, arms, beside)),
        missing_runs=len(missing_runs(subject.path)),
        load=dict(subject.record.get("spikes") or (subject.record.get("schedule") or {}).get("provenance") or {}),
        capacities=dict(subject.record.get("capacities") or {}),
        arms=tuple(arms),
        comparisons=comparisons,
        one_more=_one_more(arms, subject),
        first_contact=tuple(
            _first_contact(files.name, files.first_contact, subject.slo_ns) for files in subject.arms if files.first_contact
        ),
        loads_beside=beside,
        sentence="",
    )
    return dataclasses.replace(summary, sentence=verdict(summary))


def summarize_arm(files: ArmFiles, arm: ArmRecords, slo_ns: int | None) -> ArmSummary:
    """Every figure of one arm."""
    backlogs = backlog(arm)
    ends = _widest(backlogs)
    pool = pool_use(arm.requests, waited_ns=HAND_OVER_NS)
    starts = [run.run["server"] for run in files.runs if (run.run.get("server") or {}).get("ready_ns") is not None]
    return ArmSummary(
        name=files.name,
        mode=files.setup.get("mode"),
        runs=len(files.runs),
        planned=files.planned,
        partial=arm.partial,
        unrecorded=arm.unrecorded,
        duration_ns=arm.duration_ns,
        latency=latency(arm.requests),
        goodput=goodput(arm.requests, duration_ns=arm.duration_ns, slo_ns=slo_ns),
        tail=tail_split(arm.requests),
        pool=pool,
        recovery=recovery(arm, slo_ns=slo_ns, window_ns=recovery_window_ns(arm)),
        memory=memory_of_runs(files.runs),
        backlog=backlogs,
        server_means=server_means(files.runs) if files.setup.get("mode") == "target" and not pool.known else None,
        unstable=2 * sum(one.unstable for one in backlogs) >= max(len(backlogs), 1) and ends is not None and ends.low > 0,
        ready_ns=median([start["ready_ns"] - start["started_ns"] for start in starts]) if starts else None,
        sm_clock=sm_clock_of_runs(files.runs),
    )


def _one_more(arms: Sequence[ArmSummary], subject: Subject) -> dict[str, PerSlot]:
    """For each arm that has one before it from which only the slots or the sharing differ: what one more of them takes."""
    setups = {files.name: files.setup for files in subject.arms}
    found: dict[str, PerSlot] = {}
    for number, arm in enumerate(arms):
        for other in arms[:number]:
            if arm.held and other.held and (taken := per_slot_against(setups[other.name], other.held, setups[arm.name], arm.held)):
                found.setdefault(arm.name, taken)
    return found


def _widest(backlogs: Sequence[Backlog]) -> Interval | None:
    intervals = [one.slope_interval for one in backlogs if one.slope_interval is not None]
    return Interval(low=min(one.low for one in intervals), high=max(one.high for one in intervals)) if intervals else None


def _first_contact(name: str, run: SavedRun, slo_ns: int | None) -> FirstContact:
    arm = read_arm([run])
    inside = arm.requests[arm.requests["spike"].to_numpy() >= 0]
    share = goodput(inside, duration_ns=0, slo_ns=slo_ns)[0]
    return FirstContact(arm=name, latency=latency(inside)[0], share=share, loaded_share=pool_use(inside).loaded_share)


def recovery_window_ns(arm: ArmRecords) -> int:
    """1 s, or less where spikes come so close that six windows do not fit between most of them (but at least 50 ms)."""
    gaps = []
    for run, duration_ns in zip(arm.runs, arm.durations_ns, strict=True):
        own = sorted((spike for spike in arm.spikes if spike.run == run), key=lambda spike: spike.start_ns)
        starts = [*(spike.start_ns for spike in own[1:]), duration_ns]
        gaps += [start - spike.end_ns for spike, start in zip(own, starts, strict=False)]  # a run without spikes has no gap
    if not gaps:
        return WINDOW_NS
    fitting = median(gaps) / _WINDOWS_BETWEEN
    return next((window for window in _RECOVERY_WINDOWS_NS if window <= fitting), _RECOVERY_WINDOWS_NS[-1])


def _spikes_of(files: ArmFiles, subject: Subject) -> int:
    planned = {(entry["arm"], entry["block"]): entry["spikes"] for entry in subject.record.get("order") or ()}
    return sum(planned.get((files.name, block), 0) for block in files.numbers)


def _compare(first: ArmSummary, second: ArmSummary, spikes: Mapping[str, pd.DataFrame], subject: Subject) -> ArmComparison:
    p99, reason = None, None
    unstable = [arm.name for arm in (first, second) if arm.unstable]
    if unstable:
        reason = f"{' and '.join(unstable)} cannot hold the base rate: a P99 grows with the length of the run"
    else:
        try:
            p99 = compare_p99(spikes[first.name], spikes[second.name])
        except BenchError as error:
            reason = str(error)
    one, two = first.held, second.held
    kind, memory_bytes = memory_difference(one, two)
    setups = {files.name: files.setup for files in subject.arms}
    return ArmComparison(
        first=first.name,
        second=second.name,
        p99=p99,
        reason=reason,
        recovery=compare_recovery(first.recovery, second.recovery) if first.recovery and second.recovery else None,
        memory_kind=kind,
        memory_bytes=memory_bytes,
        per_slot=per_slot_against(setups[first.name], one, setups[second.name], two) if one and two else None,
    )


def _invalid(validity: Sequence[RunValidity]) -> list[str]:
    return [f"{one.run}: {check.problem}" for one in validity for check in one.validity.checks if check.problem]


def _caveats(subject: Subject, arms: Sequence[ArmSummary], beside: Sequence[LoadsBeside]) -> list[str]:
    found, right = [], "correct" if subject.values_known else "usable"
    for files in subject.arms:
        if len(files.runs) < files.planned:
            found.append(
                f"{files.name}: {files.planned - len(files.runs)} of {files.planned} runs are missing, because the experiment stopped"
            )
    found += [f"{arm.name}: {arm.unrecorded} arrivals have no record; the run was cut off" for arm in arms if arm.unrecorded]
    for one in beside:
        if one.loads < one.planned:
            why = "; ".join(one.errors) or "the run was over before"
            found.append(f"{one.arm}: {one.planned - one.loads} of {one.planned} loads did not succeed ({why})")
    if subject.on_cpu:
        found.append(f"measured on a CPU ({subject.device}): it says nothing about a GPU")
    if subject.device is None:
        found.append("the server was not started here: its device, its memory and its cold starts are not known, and it was not fresh")
    if not subject.values_known:
        found.append(
            "the right values of the answers are not known: what counts as answered has the right form, and its values agree with the "
            "server's own first answer where they were compared, which may be wrong"
        )
    for arm in arms:
        if arm.doubtful:
            found.append(f"{arm.name} may not hold the base rate: {growth_words(arm)}; if so, its P99 grows with the length of the run")
        every = arm.share(None)
        if every is not None and every.ok_share < 0.999:
            found.append(
                f"{arm.name}: {1 - every.ok_share:.2%} of the arrivals had no {right} answer; percentiles are over the others, "
                "attainment counts them as missed"
            )
    return [*found, *((subject.record.get("environment") or {}).get("warnings") or ())]


def plain(value: Any) -> Any:
    """A result as JSON's own types, with the derived values that a reader would have to work out again."""
    if isinstance(value, Validity):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        properties = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in [*names, *properties]}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.item() if hasattr(value, "item") else value
