"""The page of a cold-start run."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from bench.analysis.phases import ColdStartSummary, LevelSummary, Spread, describe_comparison, requests_worth
from bench.report.facts import environment_facts
from bench.report.page import Page, Picture, Table
from bench.units import format_duration, format_size

if TYPE_CHECKING:
    from bench.records import SavedRun


_EARLY = (
    "Level server: how long the server had said that it was ready and gave no right answer yet; 0 where its first answer was right, and "
    "anything else makes the run invalid."
)


def coldstart_page(saved: SavedRun, summary: ColdStartSummary, title: str) -> Page:
    """Every number comes from `summary`."""
    from bench.report.figures import waterfall

    image = io.BytesIO()
    waterfall(summary, title, image)
    picture = Picture(
        name="waterfall",
        title="Where a cold start's time goes",
        data=image.getvalue(),
        alt="One bar for each level of cold start, made of its phases in the order in which they happen.",
        caption=(
            "The phases of one trial of each level, the one with the median total, from its start to the first correct answer. The "
            "tables have the median of each phase over all trials; these need not add up."
        ),
    )
    device = str(saved.run["variants"][0]["engine"].get("device", "")) if saved.run.get("variants") else ""
    on_cpu = device.startswith("cpu")
    badges = [("valid", "good") if summary.valid else ("NOT VALID", "bad"), *([("CPU result", "plain")] if on_cpu else [])]
    badges += [("not finished", "bad")] if saved.partial else []
    sentence = summary.sentence[:1].upper() + summary.sentence[1:] + "."
    return Page(
        title=title,
        subtitle=f"cold-start run {saved.path.name}",
        badges=tuple(badges),
        invalid=summary.invalid,
        caveats=(*((f"measured on a CPU ({device}): it says nothing about a GPU",) if on_cpu else ()), *summary.caveats),
        sentence=sentence if summary.valid else f"Not valid, so no number here may be used: {summary.invalid[0]}.",
        main=_levels(summary),
        statements=tuple(describe_comparison(comparison) for comparison in summary.comparisons),
        pictures=(picture,),
        tables=tuple(_phases(level) for level in summary.levels),
        checks=(),
        facts=(*environment_facts(saved.run.get("environment") or {}), ("command", " ".join(saved.run.get("command") or ()))),
        method=(
            ("trials", "The trials of all levels are interleaved in random order; every trial checks its answer."),
            ("intervals", "95 %, of the median, from order statistics: they assume nothing of the distribution."),
            ("phases", "Each lies between two clock reads around the act it names; more than 3 % in no phase makes the run invalid."),
            *([("ready before right", _EARLY)] if any(level.level == "server" for level in summary.levels) else []),
        ),
    )


def _levels(summary: ColdStartSummary) -> Table:
    rows = []
    for level in summary.levels:
        worth = requests_worth(level, summary.level("warm", level.variant))
        name = f"{level.variant} {level.level}".strip()
        count = str(level.total.samples)
        rows.append((name, *_cells(level.total), "-" if worth is None else f"{worth:.3g}", format_size(level.resident_bytes), count))
    return Table(
        title="levels",
        header=("until the first correct answer", "median", "95 % interval", "P95", "requests' worth", "resident", "trials"),
        rows=tuple(rows),
        note="Requests' worth: how many warm requests fit into this time.",
    )


def _phases(level: LevelSummary) -> Table:
    rows = [
        (phase.name.replace("_", " "), *_cells(phase.spread), "after" if phase.share is None else f"{phase.share:.1%}")
        for phase in level.phases
    ]
    name = f"{level.variant} {level.level}".strip()
    return Table(title=f"Phases of {name}", header=("phase", "median", "95 % interval", "P95", "share"), rows=tuple(rows))


def _cells(spread: Spread) -> tuple[str, str, str]:
    between = f"{format_duration(spread.interval.low)} .. {format_duration(spread.interval.high)}" if spread.interval else "-"
    return format_duration(spread.median), between, format_duration(spread.p95)
