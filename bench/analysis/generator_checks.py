"""The generator's own health and the server's, as the summary of a load run tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import BenchError
from bench.records import SavedRun
from bench.units import format_duration

MORE_WORKERS = "use more workers (--processes), or a lower rate"
LOWER_PEAK = "lower the --peak"  # the generator of `bench burst` is one process
_MAX_CPU = 0.95
_MAX_PAUSE_NS = 250_000_000
_MAX_CLOCK_NS = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. `problem` is None where it passed, otherwise the reason and the remedy in one sentence."""

    name: str
    value: str
    problem: str | None = None


def generator_checks(summary: Mapping[str, Any] | None, saved: SavedRun) -> list[Check]:
    """The generator's own health, as its workers told it at the end. Raises BenchError where the summary is damaged."""
    try:
        clocks = _clocks(saved.run)
    except (KeyError, TypeError, ValueError):
        raise BenchError(f"{saved.path / 'run.json'} is damaged: it does not tell the workers' clocks; run it again") from None
    if summary is None:
        if saved.partial:
            return [Check(name="generator", value="not known: it was cut off before it could tell"), clocks]
        return [
            Check(
                name="generator",
                value="not known",
                problem="there is no summary.json, so how the generator fared is not known; run it again",
            ),
            clocks,
        ]
    try:
        return [*_health(summary, faster_generator(saved)), clocks]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise BenchError(f"{saved.path / 'summary.json'} is damaged: it does not tell how the generator fared; run it again") from None


def faster_generator(saved: SavedRun) -> str:
    """What helps a generator that cannot keep up, in the options that whoever made the run had."""
    return LOWER_PEAK if "arm" in saved.run else MORE_WORKERS


def _health(summary: Mapping[str, Any], faster: str) -> list[Check]:
    workers = summary.get("generators") or []
    checks = []
    if workers:
        cpu = max(worker["cpu_ns"] / max(worker["wall_ns"], 1) for worker in workers)
        pause = max(worker["longest_pause_ns"] for worker in workers)
        flush = max(worker["longest_flush_ns"] for worker in workers)
        resent = sum(worker.get("resent", 0) for worker in workers)
        failures = [worker["failure"] for worker in workers if worker.get("failure")]
        timers = "/".join(sorted({worker["timer"] for worker in workers}))
        problem = None
        if failures:
            problem = f"the generator itself failed ({failures[0]}); report this, and run it again"
        elif cpu > _MAX_CPU:
            problem = f"a generator process used {cpu:.0%} of a core, so it may have been the bottleneck; {faster}"
        elif pause > _MAX_PAUSE_NS:
            problem = (
                f"the generator was held up for {format_duration(pause)} by its machine; "
                "run it on a machine that does nothing else, or on cores of its own"
            )
        holds = f"longest pause {format_duration(pause)}, longest hold by a flush {format_duration(flush)}"
        value = f"CPU {cpu:.0%} of a core, timer {timers}, {holds}"
        checks.append(Check(name="generator", value=value, problem=problem))
        if resent:
            checks.append(
                Check(
                    name="resent", value=f"{resent} requests once more, because the server closed their connection without a byte of answer"
                )
            )
    restarted = summary.get("server_restarted")
    checks.append(
        Check(
            name="server",
            value={None: "restarts not known", False: "did not restart", True: "restarted during the run"}[restarted],
            problem="the server was another process at the end than at the start; see its log, and run it again" if restarted else None,
        )
    )
    return checks


def _clocks(run: Mapping[str, Any]) -> Check:
    """How well the workers' clocks are known. A worker's times may be wrong by what its offset was uncertain by at the start, or
    by how far it had moved at the end and what it was uncertain by then."""
    clocks = run.get("clocks") or []
    other = [clock for clock in clocks if not clock["shared"]]
    if not other:
        value = "not known" if not clocks else "one for all workers" if len(clocks) > 1 else "one process, one clock"
        return Check(name="clocks", value=value)
    told, problems = [], []
    for clock in other:
        who = f"worker {clock['worker']} on {clock['host']}"
        offset, uncertainty = int(clock["offset_ns"]), int(clock["uncertainty_ns"])
        text = f"{who} {_signed(offset)} ± {format_duration(uncertainty)}"
        drift = 0
        if clock["end_offset_ns"] is None:
            text += ", not measured again at the end"
        else:
            drift = int(clock["end_offset_ns"]) - offset
            text += f", {_signed(drift)} ± {format_duration(int(clock['end_uncertainty_ns']))} at the end"
        told.append(text)
        if uncertainty > _MAX_CLOCK_NS:
            problems.append(
                f"the clock of {who} is known to within {format_duration(uncertainty)} only, above {format_duration(_MAX_CLOCK_NS)}, so "
                "its times do not fit the others'; run the workers near the master (one network, a quiet machine), or all on one host"
            )
        elif abs(drift) + int(clock["end_uncertainty_ns"] or 0) > _MAX_CLOCK_NS:
            problems.append(
                f"the clock of {who} may have moved by {format_duration(abs(drift) + int(clock['end_uncertainty_ns']))} during the run, "
                f"above {format_duration(_MAX_CLOCK_NS)}; let both hosts keep time (chrony, NTP), or make shorter runs"
            )
    return Check(name="clocks", value="; ".join(told), problem=problems[0] if problems else None)


def _signed(duration_ns: int) -> str:
    return f"{'-' if duration_ns < 0 else '+'}{format_duration(abs(duration_ns))}"
