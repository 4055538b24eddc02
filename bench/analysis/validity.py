"""May the numbers of a load run be used? What was delivered against what was asked for, and the generator's own health.

Each check has a limit, and where it is passed a reason and a remedy. Limits on send lag are wide: a response time counts
from the intended time, so a late send never flatters the server; what it may not do is to change the load's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.analysis.generator_checks import MORE_WORKERS, Check, faster_generator, generator_checks
from bench.analysis.run_figures import RunFigures, figures
from bench.analysis.statistics import percentile
from bench.analysis.subject import EXPERIMENT, is_there, run_place
from bench.errors import BenchError
from bench.records import SavedRun, open_run
from bench.units import format_duration

_MAX_LAG_P99_NS = 10_000_000
_MAX_EDGE_NS = 50_000_000
_MAX_NOT_SENT = 0.01
_KS_EXCESS_NS = 1_000_000
_MAX_KS = 0.1
_EDGE_ARRIVAL = 10
_SLOW_CONNECT_NS = 10_000_000
_PARTS = ("queue_ns", "pool_ns", "load_ns", "input_ns", "infer_ns", "output_ns")
_PARTS_EXCESS_NS = 1_000_000
_MAX_EXCESS = 0.01

Times = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """All checks of one run. `partial`: the run did not end by itself, and its last second may be missing."""

    partial: bool
    arrivals: int
    counts: Mapping[str, int]
    not_sent: Mapping[str, int]
    lag_p50_ns: int | None
    lag_p99_ns: int | None
    lag_max_ns: int | None
    ks_distance: float | None
    spike_edge_ns: tuple[int | None, ...]
    figures: RunFigures
    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        return not any(check.problem for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "valid": self.valid,
            "partial": self.partial,
            "arrivals": self.arrivals,
            "counts": dict(self.counts),
            "not_sent": dict(self.not_sent),
            "send_lag_ns": {"p50": self.lag_p50_ns, "p99": self.lag_p99_ns, "max": self.lag_max_ns},
            "ks_distance": self.ks_distance,
            "spike_edge_ns": list(self.spike_edge_ns),
            "figures": self.figures.to_json(),
            "checks": [{"name": check.name, "value": check.value, "problem": check.problem} for check in self.checks],
        }


def runs_of(path: Path) -> list[Path]:
    """The run itself, or the finished runs of an experiment. Raises BenchError."""
    saved = open_run(path)
    if saved.kind != EXPERIMENT:
        return [saved.path]
    found = sorted(place for place in _planned(saved) if is_there(place))
    if not found:
        raise BenchError(f"{path} is an experiment without a finished run")
    return found


def missing_runs(path: Path) -> list[str]:
    """The runs that an experiment planned and does not have; none for a single run. Raises BenchError."""
    saved = open_run(path)
    return [place.name for place in _planned(saved) if not is_there(place)] if saved.kind == EXPERIMENT else []


def _planned(saved: SavedRun) -> list[Path]:
    return [run_place(saved, entry) for entry in saved.run["order"]]


def check_run(path: Path) -> Validity:
    """Check one load run. Raises BenchError where the folder is not one."""
    saved = open_run(path, "load")
    schedule = saved.table("schedule")
    summary = saved.read_json("summary.json")
    rows = saved.table("requests", ["seq", "intended_ns", "sent_ns", "status", "error"])
    saved.check_table("timeline")
    if schedule is None:
        raise BenchError(f"{saved.path} has no schedule, so what it was to deliver is not known")
    asked = schedule.column("intended_ns").to_numpy()
    order = np.argsort(rows.column("seq").to_numpy(), kind="stable") if rows is not None else np.empty(0, np.int64)
    seq = _numbers(rows, "seq", order)
    intended, sent = _numbers(rows, "intended_ns", order), _numbers(rows, "sent_ns", order)
    was_sent = sent >= 0
    counts, not_sent, failures = _ends(rows)
    ok = np.zeros(len(seq), bool) if rows is None else _equal(rows.column("status"), "ok")[order]
    del rows
    done = _optional(saved, "done_ns", order)
    connect = _optional(saved, "connect_ns", order)
    # What an arrival waited for its own connection is the server's doing: the generator is judged by when it asked for it.
    tried = sent - np.maximum(connect, 0)
    lag = np.sort((tried - intended)[was_sent])
    edges = _spike_edges(schedule, seq, intended, np.where(was_sent, tried, -1))
    distance = _gap_distance(intended[was_sent], tried[was_sent])
    lag_p50, lag_p99 = _whole(percentile(lag, 50)), _whole(percentile(lag, 99))
    lag_max = int(lag[-1]) if len(lag) else None
    faster = faster_generator(saved)
    checks = [
        _accounted(schedule.column("seq").to_numpy(), seq, saved.partial),
        _sent(len(asked), counts, not_sent, faster),
        _answers(counts, failures),
        _lag(lag_p50, lag_p99, lag_max, faster),
        _gaps(distance, faster),
        _edges(edges, faster),
        _connects(connect[was_sent]),
        _parts(saved, order, sent, done),
        *generator_checks(summary, saved),
    ]
    timed = ok & was_sent & (done >= 0)
    values_known = (saved.run.get("settings") or {}).get("probe") is not None
    in_spike = None
    if schedule.column("spike").null_count < len(asked):
        in_spike = np.isin(seq[timed], schedule.column("seq").to_numpy()[schedule.column("spike").fill_null(-1).to_numpy() >= 0])
    return Validity(
        partial=saved.partial,
        arrivals=len(asked),
        counts=counts,
        not_sent=not_sent,
        lag_p50_ns=lag_p50,
        lag_p99_ns=lag_p99,
        lag_max_ns=lag_max,
        ks_distance=distance,
        spike_edge_ns=tuple(edges),
        figures=figures((done - intended)[timed], in_spike, lag_p99, (summary or {}).get("slo_ns"), values_known),
        checks=tuple(checks),
    )


def describe(path: Path, validity: Validity) -> str:
    """The verdict first, then one line a check."""
    lines = [f"{path}: {'valid' if validity.valid else 'INVALID'}"]
    if validity.partial:
        lines.append("  this run did not end by itself; what it had recorded until then is checked")
    lines += [f"  INVALID: {check.problem}" for check in validity.checks if check.problem]
    width = max(len(check.name) for check in validity.checks)
    lines += [f"  {check.name:{width}}  {check.value}" for check in validity.checks]
    lines += ["", *(f"  {line}" for line in validity.figures.lines(validity.counts))]
    return "\n".join(lines)


def _accounted(asked: Times, seq: Times, partial: bool) -> Check:
    """Exactly one row for each arrival."""
    once = bool((np.diff(seq) > 0).all()) and bool(np.isin(seq, asked).all())  # seq is in order
    value = f"{len(asked)} scheduled, {len(seq)} recorded"
    if not once:
        problem = "arrivals are recorded twice, or were never scheduled: the records are damaged; run it again"
    elif len(seq) < len(asked):
        problem = (
            f"{len(asked) - len(seq)} arrivals have no row, because the run was cut off; run it again"
            if partial
            else f"{len(asked) - len(seq)} arrivals have no row: the records are damaged; run it again"
        )
    else:
        problem = None
    return Check(name="arrivals", value=value, problem=problem)


def _sent(arrivals: int, counts: Mapping[str, int], not_sent: Mapping[str, int], faster: str) -> Check:
    """scheduled = sent + not sent (by reason). What was left out because somebody stopped the run is not a fault."""
    lost = counts.get("lost_worker", 0)
    ends = ", ".join(f"{counts[name]} {name}" for name in counts)
    why = "; ".join(f"{count} {reason}" for reason, count in not_sent.items())
    value = ends + (f" (not sent: {why})" if why else "")
    faults = {reason: count for reason, count in not_sent.items() if reason != "stopped"}
    if lost:
        return Check(
            name="ends", value=value, problem=f"a worker died and {lost} of its arrivals are unknown; see its log, and run it again"
        )
    if sum(faults.values()) > _MAX_NOT_SENT * arrivals:
        worst = max(faults, key=lambda reason: faults[reason])
        problem = f"{sum(faults.values())} of {arrivals} arrivals were not sent, most of them: {worst}; {_remedy(worst, faster)}"
        return Check(name="ends", value=value, problem=problem)
    if arrivals and not any(count for name, count in counts.items() if name != "not_sent"):
        return Check(name="ends", value=value, problem="nothing was sent at all; run it again")
    return Check(name="ends", value=value)


def _answers(counts: Mapping[str, int], failures: Mapping[str, int]) -> Check:
    """There is something to measure: a server that answered nothing has no response time, however well it was loaded."""
    good, ended = counts.get("ok", 0), sum(count for name, count in counts.items() if name != "not_sent")
    problem = None
    if ended and not good:
        worst = max(failures, key=lambda reason: failures[reason], default="")
        reason = f", most of them: {worst[:200]}" if worst else ""
        problem = f"none of {ended} arrivals was answered correctly{reason}; mend the server or what it is asked, and run it again"
    return Check(name="answers", value=f"{good} of {ended} that were sent", problem=problem)


def _remedy(reason: str, faster: str) -> str:
    if reason.startswith("connect failed"):
        return "see whether the server still runs and takes connections"
    if "connections" in reason:
        more = "raise --max-connections, or lower the rate" if faster == MORE_WORKERS else faster
        return f"{more}; the limit of open files (ulimit -n) counts too"
    if reason.startswith("deadline"):
        return f"the generator was held up for longer than the deadline: {faster}, or use a quieter machine"
    return "run it again"


def _lag(p50: int | None, p99: int | None, largest: int | None, faster: str) -> Check:
    value = f"p50 {format_duration(p50)}, p99 {format_duration(p99)}, max {format_duration(largest)}"
    # With too few sends for a p99 only the worst one can be judged, and one alone may be the machine's.
    judged, name, limit = (p99, "p99", _MAX_LAG_P99_NS) if p99 is not None else (largest, "max", 10 * _MAX_LAG_P99_NS)
    problem = None
    if judged is not None and judged > limit:
        problem = (
            f"the {name} of the send lag is {format_duration(judged)}, above {format_duration(limit)}: the generator could not "
            f"keep to the schedule; {faster}, or use a machine that does nothing else"
        )
    return Check(name="send lag", value=value, problem=problem)


def _gap_distance(intended: Times, sent: Times) -> float | None:
    """Largest distance between the distributions of intended and delivered gaps (two-sample Kolmogorov-Smirnov statistic).

    A timer cannot place gaps more finely than it wakes, and constant arrivals have one gap only, so gaps are compared in
    steps of the larger of 1 ms and a tenth of the median gap. None with fewer than 100 gaps.
    """
    if len(sent) < 101:
        return None
    wanted, delivered = np.diff(intended), np.diff(np.sort(sent))
    step = max(_KS_EXCESS_NS, int(np.median(wanted)) // 10)
    wanted, delivered = np.sort(np.rint(wanted / step)), np.sort(np.rint(delivered / step))
    points = np.union1d(wanted, delivered)
    below = np.searchsorted(wanted, points, side="right") / len(wanted)
    return float(np.abs(below - np.searchsorted(delivered, points, side="right") / len(delivered)).max())


def _gaps(distance: float | None, faster: str) -> Check:
    value = "too few gaps to compare" if distance is None else f"KS distance {distance:.3f} of delivered against intended gaps"
    problem = None
    if distance is not None and distance > _MAX_KS:
        problem = (
            f"the gaps between sends differ from the schedule's (KS distance {distance:.3f}, limit {_MAX_KS}): the load had another "
            f"shape than was asked for; {faster}, or use a machine that does nothing else"
        )
    return Check(name="gaps", value=value, problem=problem)


def _spike_edges(schedule: Any, seq: Times, intended: Times, sent: Times) -> list[int | None]:
    """For each spike: how late its tenth arrival (its last, in a smaller one) was sent, ns; None where it was not sent."""
    spike = schedule.column("spike").fill_null(-1).to_numpy()
    numbers = schedule.column("seq").to_numpy()
    edges: list[int | None] = []
    for index in np.unique(spike[spike >= 0]):
        inside = numbers[spike == index]
        at = int(np.searchsorted(seq, inside[min(_EDGE_ARRIVAL, len(inside)) - 1]))
        known = at < len(seq) and seq[at] == inside[min(_EDGE_ARRIVAL, len(inside)) - 1] and sent[at] >= 0
        edges.append(int(sent[at] - intended[at]) if known else None)
    return edges


def _edges(edges: list[int | None], faster: str) -> Check:
    known = [edge for edge in edges if edge is not None]
    if not edges:
        return Check(name="spikes", value="none in this schedule")
    value = f"{len(edges)} spikes, their tenth send at most {format_duration(max(known) if known else None)} late"
    late = sum(edge > _MAX_EDGE_NS for edge in known)
    problem = None
    if late:
        problem = (
            f"{late} of {len(edges)} spikes arrived more than {format_duration(_MAX_EDGE_NS)} late; "
            f"{faster}, or use a machine that does nothing else"
        )
    return Check(name="spikes", value=value, problem=problem)


def _connects(waited: Times) -> Check:
    """How many arrivals waited for a connection of their own, and how long: told, and never the generator's fault."""
    some = waited[waited >= 0]
    if not len(some):
        return Check(name="connects", value="no arrival waited for a new connection")
    slow = int((some > _SLOW_CONNECT_NS).sum())
    value = f"{len(some)} arrivals waited for a new connection, at most {format_duration(int(some.max()))}"
    if slow:
        value += (
            f"; {slow} of them more than {format_duration(_SLOW_CONNECT_NS)}, because the server took connections slowly "
            "(its listen backlog may be short): that is in their response times, and is not the generator's lag"
        )
    return Check(name="connects", value=value)


def _parts(saved: SavedRun, order: Times, sent: Times, done: Times) -> Check:
    """The server's own parts of the time must fit into the round trip that the client saw."""
    total = np.zeros(len(sent), np.int64)
    told = np.zeros(len(sent), bool)
    for name in _PARTS:
        part = _optional(saved, name, order)
        told |= part >= 0
        total += np.clip(part, 0, 2**59)
    judged = told & (sent >= 0) & (done >= 0)
    if not judged.any():
        return Check(name="server timing", value="the answers told no parts")
    excess = int((total[judged] > (done - sent)[judged] + _PARTS_EXCESS_NS).sum())
    value = f"told by {int(judged.sum())} answers, {excess} of them more than the round trip by over {format_duration(_PARTS_EXCESS_NS)}"
    problem = None
    if excess > _MAX_EXCESS * judged.sum():
        problem = (
            f"{excess} of {int(judged.sum())} answers tell parts (Server-Timing) that add up to more than their round trip: "
            "the server's clock or its parts are wrong, so no part may be used; mend the server, or leave the parts out"
        )
    return Check(name="server timing", value=value, problem=problem)


def _ends(rows: Any) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """How many arrivals ended in which way; for which reasons some were not sent, and others had no correct answer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows is None:
        return {}, {}, {}
    text = rows.select(["status", "error"]).cast(pa.schema([("status", pa.string()), ("error", pa.string())]))
    unsent, fine = (pc.equal(text.column("status"), name) for name in ("not_sent", "ok"))
    unsent_reasons, reasons = (text.filter(chosen).column("error") for chosen in (unsent, pc.invert(pc.or_(unsent, fine))))
    return _count(text.column("status")), _count(unsent_reasons), _count(reasons)


def _count(column: Any) -> dict[str, int]:
    return dict(sorted((str(entry["values"]), int(entry["counts"])) for entry in column.value_counts().to_pylist()))


def _numbers(rows: Any, name: str, order: Times) -> Times:
    """A column in the order of seq, -1 where it is null."""
    if rows is None:
        return np.empty(0, np.int64)
    values: Times = rows.column(name).fill_null(-1).to_numpy()
    return values[order]


def _optional(saved: SavedRun, name: str, order: Times) -> Times:
    """A column that not every run has, in the order of seq; -1 where it is null or was not recorded."""
    rows = saved.table("requests", [], [name])
    return np.full(len(order), -1, np.int64) if rows is None or name not in rows.column_names else _numbers(rows, name, order)


def _equal(column: Any, text: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    import pyarrow.compute as pc

    equal: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(pc.equal(column, text), False).to_numpy()
    return equal


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
