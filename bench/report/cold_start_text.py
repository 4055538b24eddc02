"""What a cold-start run says, as tables and sentences for people: the same numbers as `bench coldstart` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.analysis.phases import ColdStartSummary, LevelSummary, Spread, requests_worth
from bench.report.facts import environment_facts
from bench.report.notebook_blocks import KeyFigure
from bench.report.page import Table
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
_UNTIL = {"before_inference": "first inference", "total": "first correct answer", "answer": "answer"}
_RATES_PER_S = (10, 100, 1000)


def key_figures_of(summary: ColdStartSummary) -> list[KeyFigure]:
    """The levels of the first variant that a reader asks for first."""
    wanted = {
        "server": "a new server",
        "process": "a new process",
        "engine": "the engine once more",
        "slot": "one more slot",
        "warm": "a warm slot",
    }
    variant = summary.levels[0].variant if summary.levels else ""
    found = []
    for name, label in wanted.items():
        level = summary.level(name, variant)
        if level is not None:
            interval = f"{_between(level.total)} (95 %), " if level.total.interval else ""
            colour = "#009E73" if name == "warm" else "#D55E00"
            note = f"{interval}{level.total.samples} trials"
            found.append(KeyFigure(value=format_duration(level.total.median), label=label, note=note, colour=colour))
    return found


def facts_of(run: ColdStartRun) -> list[tuple[str, str]]:
    """What the numbers belong to: the engine, the load, the machine, the run."""
    engine, settings = run.run["variants"][0]["engine"], run.run["settings"]
    return [
        ("engine", run.subject),
        ("size on the disk", format_size(sum(file["bytes"] for file in engine["files"]))),
        ("load", "one request at a time"),
        ("trials", f"{settings['trials']} of each level, interleaved in random order (seed {settings['seed']})"),
        *environment_facts(run.run.get("environment") or {}),
        ("run", f"{run.path.name}, coldburst {run.run.get('coldburst_version')}"),
    ]


def levels_table(summary: ColdStartSummary) -> Table:
    """One row a level of each variant: the time until the first correct answer, and what the level is."""
    rows = []
    for level in summary.levels:
        worth = requests_worth(level, summary.level("warm", level.variant))
        rows.append(
            (
                name_of(level),
                LEVEL_MEANING.get(level.level, ""),
                format_duration(level.total.median),
                _between(level.total),
                format_duration(level.before_inference.median) if level.level != "warm" else "-",
                "-" if worth is None else f"{worth:,.0f}" if worth >= 100 else f"{worth:.3g}",
                format_size(level.resident_bytes),
                str(level.total.samples),
            )
        )
    return Table(
        title="Levels",
        header=("level", "what it is", "median", "95 % interval", "before inference", "warm requests", "resident", "trials"),
        rows=tuple(rows),
        note=(
            "Before inference: the total without the inference and the check of its answer, which is what loading alone costs. Warm "
            "requests: how many a warm slot answers in that time. Resident: memory of the process at the end."
        ),
    )


def phases_table(level: LevelSummary) -> Table:
    """One row a phase of the level, in the order in which they happen."""
    device = any(phase.device_bytes is not None for phase in level.phases)
    rows = [
        (
            phase.name.replace("_", " "),
            format_duration(phase.spread.median),
            _between(phase.spread),
            "after the answer" if phase.share is None else f"{phase.share:.1%}",
            format_size(phase.resident_bytes),
            *((format_size(phase.device_bytes),) if device else ()),
        )
        for phase in level.phases
    ]
    header = ("phase", "median", "95 % interval", "share", "resident after it", *(("device memory after it",) if device else ()))
    return Table(title=f"Phases of {name_of(level)}", header=header, rows=tuple(rows), note=f"{level.total.samples} trials.")


def differences_table(summary: ColdStartSummary) -> Table:
    """One row a comparison: what the second costs beyond the first, with its interval, or that they cannot be told apart."""
    rows = []
    for comparison in summary.comparisons:
        shift = comparison.shift
        ends = "too few trials" if shift.interval is None else f"{_signed(shift.interval.low)} .. {_signed(shift.interval.high)}"
        ratio = f"{shift.ratio:,.3g}x" if shift.ratio is not None and shift.distinguishable else "-"
        verdict = "not known" if shift.interval is None else "differs" if shift.distinguishable else "not distinguishable"
        pair = f"{comparison.second} against {comparison.first}"
        rows.append((pair, _UNTIL[comparison.quantity], _signed(shift.difference), ends, ratio, verdict))
    header = ("comparison", "time until the", "difference", "95 % interval", "ratio", "verdict")
    return Table(title="Differences", header=header, rows=tuple(rows))


def decisions(summary: ColdStartSummary) -> str:
    """Markdown: what follows for somebody who runs a service, from the first variant's numbers."""
    lines = list(_decisions(summary, summary.levels[0].variant if summary.levels else ""))
    if not lines:
        lines = ["**Nothing yet: too little was measured.** Measure process, engine, slot and warm, with six trials or more."]
    if not summary.valid:
        lines.insert(0, "**Nothing yet: the run is not valid.** Mend what is said at the top, and run it again.")
    return "\n".join(f"- {line}" for line in lines)


def _decisions(summary: ColdStartSummary, variant: str) -> Iterator[str]:
    server, process, engine, slot, warm = (summary.level(name, variant) for name in ("server", "process", "engine", "slot", "warm"))
    start = server or process
    if start is not None:
        missed = ", ".join(f"{rate * start.total.median / 1e9:,.0f} at {rate:,}/s" for rate in _RATES_PER_S)
        yield (
            f"**A replica started when the burst is there comes {format_duration(start.total.median)} late**, and later by the time "
            f"your platform takes to notice and to schedule it. Requests that arrive meanwhile: {missed}. If your SLO is shorter, "
            "only what is already warm helps them."
        )
    if engine is not None and warm is not None:
        memory = "" if warm.resident_bytes is None else f" A process that keeps it loaded holds {format_size(warm.resident_bytes)}."
        small = engine.before_inference.median < warm.total.median
        advice = "That is the smaller part, so cold-load may do." if small else "Keep it loaded where users wait."
        yield (
            f"**Loading the engine for each request adds {format_duration(engine.before_inference.median)}** before its inference "
            f"begins; a warm slot answers in {format_duration(warm.total.median)} altogether. {advice}{memory}"
        )
    ends = (f"{variant} warm".strip(), f"{variant} slot".strip())
    told = next((one.shift for one in summary.comparisons if (one.first, one.second) == ends), None)
    if slot is not None and told is not None and told.interval is not None:
        between = f"{_signed(told.interval.low)} to {_signed(told.interval.high)}"
        if told.distinguishable:
            cost = _signed(told.difference)
            yield f"**A slot made on demand costs {cost}** against a warm one ({between}): hold as many as a burst needs."
        else:
            yield (
                f"**A slot made on demand cannot be told from a warm one here** ({between}): a pool that grows while traffic comes "
                "loses nothing that these trials could see."
            )
    if process is not None:
        largest = sorted((phase for phase in process.phases if phase.share is not None), key=lambda phase: -(phase.share or 0))[:2]
        parts = " and ".join(f"{p.name.replace('_', ' ')} ({p.share:.0%}, {format_duration(p.spread.median)})" for p in largest)
        yield f"**To shorten the start itself, begin with {parts}**: the largest phases of a new process."


def name_of(level: LevelSummary) -> str:
    """The level, with its variant where the run has several."""
    return f"{level.variant} {level.level}".strip()


def _between(spread: Spread) -> str:
    return f"{format_duration(spread.interval.low)} .. {format_duration(spread.interval.high)}" if spread.interval else "-"


def _signed(ns: float) -> str:
    return ("+" if ns >= 0 else "−") + format_duration(abs(ns))
