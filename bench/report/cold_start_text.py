"""What a cold-start run says, as tables and sentences for people: the same numbers as `bench coldstart` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from bench.analysis.phases import ColdStartSummary, LevelSummary, Spread, requests_worth
from bench.report.notebook_blocks import KeyFigure
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.analysis.cold_start_run import ColdStartRun

LEVEL_MEANING = {
    "server": "a fresh server, until its first correct answer over HTTP",
    "process-disk": "a fresh process, the engine not in the page cache",
    "process": "a fresh process, the engine in the page cache",
    "engine": "one more load of the engine in a process that is up",
    "slot": "one more slot on a loaded engine",
    "warm": "a slot that is in use: nothing is cold",
}
_RATES_PER_S = (10, 100, 1000)


def levels_table(summary: ColdStartSummary) -> pd.DataFrame:
    """One row a level of each variant: the time until the first correct answer, and what it means."""
    rows = {}
    for level in summary.levels:
        worth = requests_worth(level, summary.level("warm", level.variant))
        rows[name_of(level)] = {
            "what it is": LEVEL_MEANING.get(level.level, ""),
            "median": format_duration(level.total.median),
            "95 % interval": _between(level.total),
            "p95": format_duration(level.total.p95),
            "before the first inference": format_duration(level.before_inference.median) if level.level != "warm" else "-",
            "warm requests' worth": f"{worth:,.3g}" if worth is not None and worth < 1000 else "-" if worth is None else f"{worth:,.0f}",
            "resident memory": format_size(level.resident_bytes),
            "trials": level.total.samples,
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("level")
    frame.attrs["text"] = ("what it is",)
    return frame


def phases_table(level: LevelSummary) -> pd.DataFrame:
    """One row a phase of the level, in the order in which they happen."""
    rows = {
        phase.name.replace("_", " "): {
            "median": format_duration(phase.spread.median),
            "95 % interval": _between(phase.spread),
            "share of the total": "after the answer" if phase.share is None else f"{phase.share:.1%}",
            "resident memory after it": format_size(phase.resident_bytes),
            "device memory after it": format_size(phase.device_bytes),
        }
        for phase in level.phases
    }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("phase")
    unknown = [name for name in frame.columns if (frame[name] == "-").all()]
    return frame.drop(columns=unknown)


def differences_table(summary: ColdStartSummary) -> pd.DataFrame:
    """One row a comparison: what the second costs beyond the first, with its interval, or that they cannot be told apart."""
    rows = []
    for comparison in summary.comparisons:
        shift = comparison.shift
        between, ratio = "too few trials", "-"
        if shift.interval is not None:
            between = f"{_signed(shift.interval.low)} .. {_signed(shift.interval.high)}"
            ratio = f"{shift.ratio:,.3g}x" if shift.ratio is not None and shift.distinguishable else "-"
        rows.append(
            {
                "against": f"{comparison.second} against {comparison.first}",
                "until": {"before_inference": "the first inference", "total": "the first correct answer", "answer": "the answer"}[
                    comparison.quantity
                ],
                "difference": _signed(shift.difference),
                "95 % interval": between,
                "ratio": ratio,
                "verdict": "differs" if shift.distinguishable else "not distinguishable",
            }
        )
    frame = pd.DataFrame(rows).set_index("against") if rows else pd.DataFrame()
    frame.attrs["text"] = ("until", "verdict")
    return frame


def key_figures_of(summary: ColdStartSummary) -> list[KeyFigure]:
    """The levels of the first variant that a reader asks for first."""
    wanted = {"process": "a new process", "engine": "the engine once more", "slot": "one more slot", "warm": "a warm slot"}
    variant = summary.levels[0].variant if summary.levels else ""
    found = []
    for name, label in wanted.items():
        level = summary.level(name, variant)
        if level is not None:
            note = f"{_between(level.total)} (95 %), {level.total.samples} trials" if level.total.interval else f"{level.total.samples} trials"
            colour = "#009E73" if name == "warm" else "#D55E00"
            found.append(KeyFigure(value=format_duration(level.total.median), label=label, note=note, colour=colour))
    return found


def facts_table(run: ColdStartRun) -> pd.DataFrame:
    """Engine, device, host and software that the numbers belong to."""
    host = run.run.get("environment") or {}
    cpu, memory, system = (host.get(part) or {} for part in ("cpu", "memory", "system"))
    engine = run.run["variants"][0]["engine"]
    packages = (host.get("software") or {}).get("packages") or {}
    gpus = ", ".join(gpu.get("name", "GPU") for gpu in host.get("gpus") or ()) or "none"
    facts = {
        "engine": run.subject,
        "engine's size": format_size(sum(file["bytes"] for file in engine["files"])),
        "load": "one request at a time, on a machine without other load",
        "host": f"{cpu.get('model')}, {cpu.get('usable_cores')} usable cores, {format_size(memory.get('total_bytes'))} of memory, GPU: {gpus}",
        "system": f"{system.get('os')}, Linux {system.get('kernel')}, Python {(host.get('software') or {}).get('python')}, "
        f"numpy {packages.get('numpy')}",
        "trials": f"{run.run['settings']['trials']} of each level, interleaved in random order (seed {run.run['settings']['seed']})",
        "run": f"{run.path.name}, {run.run.get('created', '')}, coldburst {run.run.get('coldburst_version')}",
    }
    frame = pd.DataFrame({"": facts}).rename_axis("")
    frame.attrs["text"] = ("",)
    return frame


def decisions(summary: ColdStartSummary) -> str:
    """Markdown: what follows for somebody who runs a service, from the first variant's numbers."""
    return "\n".join(f"- {line}" for line in _decisions(summary, summary.levels[0].variant if summary.levels else ""))


def _decisions(summary: ColdStartSummary, variant: str) -> Iterator[str]:
    server, process, engine, slot, warm = (summary.level(name, variant) for name in ("server", "process", "engine", "slot", "warm"))
    start = server or process
    if start is not None:
        seconds = start.total.median / 1e9
        missed = ", ".join(f"{rate * seconds:,.0f} at {rate:,}/s" for rate in _RATES_PER_S)
        yield (
            f"**Scaling out when the burst is there comes {format_duration(start.total.median)} late**, and later by the time your "
            f"platform takes to notice and to schedule. That many requests arrive meanwhile: {missed}. "
            "If your SLO is shorter, only what is already warm helps them."
        )
    if engine is not None and warm is not None:
        yield (
            f"**Loading the engine for each request costs each of them {format_duration(engine.before_inference.median)}** before "
            f"its inference begins, where a warm slot answers in {format_duration(warm.total.median)}. "
            f"{_load_advice(engine, warm)}"
        )
    told = next((c for c in summary.comparisons if c.first == f"{variant} warm".strip() and c.second == f"{variant} slot".strip()), None)
    if slot is not None and told is not None and told.shift.interval is not None:
        if told.shift.distinguishable:
            yield (
                f"**A slot made on demand costs {_signed(told.shift.difference)}** against one that is warm: hold as many slots as the "
                "burst needs where that matters to the SLO, and let the pool grow where it does not."
            )
        else:
            yield (
                f"**Slots on demand cannot be told from warm ones here** ({_signed(told.shift.interval.low)} to "
                f"{_signed(told.shift.interval.high)}): a pool that grows while traffic comes loses nothing that these trials could see."
            )
    if process is not None:
        largest = sorted((p for p in process.phases if p.share is not None), key=lambda p: -(p.share or 0))[:2]
        parts = " and ".join(f"{p.name.replace('_', ' ')} ({p.share:.0%}, {format_duration(p.spread.median)})" for p in largest)
        yield f"**To make the start itself shorter, begin with {parts}**: together they are most of what can be saved."


def _load_advice(engine: LevelSummary, warm: LevelSummary) -> str:
    memory = f"It holds {format_size(warm.resident_bytes)} of resident memory for that." if warm.resident_bytes is not None else ""
    if engine.before_inference.median < warm.total.median:
        return f"The load is the smaller part here, so cold-load may do. {memory}".strip()
    return f"Keep the engine loaded unless it is asked for too rarely to be worth its memory. {memory}".strip()


def name_of(level: LevelSummary) -> str:
    return f"{level.variant} {level.level}".strip()


def _between(spread: Spread) -> str:
    return f"{format_duration(spread.interval.low)} .. {format_duration(spread.interval.high)}" if spread.interval else "-"


def _signed(ns: float) -> str:
    return ("+" if ns >= 0 else "−") + format_duration(abs(ns))
