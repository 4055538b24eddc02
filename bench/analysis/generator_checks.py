"""The generator's own health and the server's, as the summary of a load run tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import BenchError
from bench.records import SavedRun
from bench.units import format_duration

_MAX_CPU = 0.95
_MAX_PAUSE_NS = 250_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. `problem` is None where it passed, otherwise the reason and the remedy in one sentence."""

    name: str
    value: str
    problem: str | None = None


def generator_checks(summary: Mapping[str, Any] | None, saved: SavedRun) -> list[Check]:
    """The generator's own health, as its workers told it at the end. Raises BenchError where the summary is damaged."""
    if summary is None:
        if saved.partial:
            return [Check(name="generator", value="not known: it was cut off before it could tell")]
        return [
            Check(
                name="generator",
                value="not known",
                problem="there is no summary.json, so how the generator fared is not known; run it again",
            )
        ]
    try:
        return _health(summary)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise BenchError(f"{saved.path / 'summary.json'} is damaged: it does not tell how the generator fared; run it again") from None


def _health(summary: Mapping[str, Any]) -> list[Check]:
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
            problem = f"a generator process used {cpu:.0%} of a core, so it may have been the bottleneck; use more workers (--processes)"
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
    offset = summary.get("clock_offset_ns")
    checks.append(Check(name="clocks", value="offset not known" if offset is None else f"offset {format_duration(offset)} between workers"))
    return checks
