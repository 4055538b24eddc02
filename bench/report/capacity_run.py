"""Whatever tells of capacity, read once for a notebook: a plan, its validation, a service curve, or a burst experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.records import open_run
from bench.report.page import Page, Picture, Table

if TYPE_CHECKING:
    from bench.capacity.plan import Plan
    from bench.capacity.validation import Validation

_FIXED = ("plan", "validation", "curve")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRun:
    """`pages`: those of `bench report`, with the same digits; the first one is the run's own, a validation has its plan's
    beside it. decision: Markdown. refuted: what was measured and takes the plan's answer back, in sentences."""

    pages: tuple[Page, ...]
    decision: str
    refuted: tuple[str, ...] = ()

    @property
    def page(self) -> Page:
        return self.pages[0]

    @property
    def invalid(self) -> tuple[str, ...]:
        """Of all pages, each once."""
        return tuple(dict.fromkeys(why for page in self.pages for why in page.invalid))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Of all pages, each once."""
        return tuple(dict.fromkeys(caveat for page in self.pages for caveat in page.caveats))

    @property
    def sentences(self) -> str:
        """Markdown: the verdict of each page, that of a plan first; last and as the past where it is refuted."""
        if self.refuted:
            return f"**{self.page.sentence}**\n\n" + "\n\n".join(
                f"Withdrawn; before it was measured: {page.sentence}" for page in self.pages[1:]
            )
        return "\n\n".join(f"**{page.sentence}**" for page in reversed(self.pages))

    def table(self, title: str) -> Table:
        """A table of any page by its title; one without rows where none has it."""
        tables = (table for page in self.pages for table in (page.main, *page.tables))
        return next((table for table in tables if table.title == title), Table(title=title, header=("",), rows=()))

    def picture(self, name: str) -> Picture | None:
        """A picture of any page by its name; None where none has it."""
        return next((one for page in self.pages for one in page.pictures if one.name == name), None)


def read_capacity(path: Path, slo: str | None = None) -> CapacityRun:
    """Read and sum up the run. `slo` (`200ms`) takes the place of a burst's own. Raises BenchError, also where a plan is to
    get another SLO."""
    kind = open_run(path).kind
    if kind in _FIXED:
        if slo is not None:
            raise BenchError(
                f"the SLO of a {kind} cannot be given afterwards: leave --slo out, or make another plan with `bench plan --slo`"
            )
        return {"plan": _plan, "validation": _validation, "curve": _curve}[kind](path)
    return _burst(path, slo)


def _plan(path: Path) -> CapacityRun:
    from bench.capacity.saved_plan import read_plan
    from bench.report.build import build_page
    from bench.report.plan_decisions import decisions

    return CapacityRun(pages=(build_page(path),), decision=decisions(read_plan(path).plan, None))


def _validation(path: Path) -> CapacityRun:
    from bench.capacity.refutation import against_measurement
    from bench.capacity.saved_validation import read_validation
    from bench.report.build import build_page
    from bench.report.plan_decisions import decisions

    found = read_validation(path)
    measured = against_measurement(found.plan, found.validation)
    refuted = None if measured is None else measured.sentence
    return CapacityRun(
        pages=(build_page(path), _plan_page_of(found.plan, found.validation, found.saved.run.get("plan") or {})),
        decision=decisions(found.plan, found.validation),
        refuted=() if refuted is None else (refuted,),
    )


def _plan_page_of(plan: Plan, validation: Validation, record: dict[str, object]) -> Page:
    from bench.report.figures_plan import plan_pictures
    from bench.report.plan_page import plan_page

    return plan_page(plan, validation.plan, record, plan_pictures(plan))


def _curve(path: Path) -> CapacityRun:
    from bench.report.build import build_page

    return CapacityRun(
        pages=(build_page(path),),
        decision="- **Plan with it**: `bench plan --curve RUN --coldstart RUN --arrivals LOAD --slo p99=TIME` says how many slots "
        "a load takes.",
    )


def _burst(path: Path, slo: str | None) -> CapacityRun:
    import dataclasses

    from bench.report.burst_run import read_burst
    from bench.report.capacity_text import decisions, headroom_table, memory_table
    from bench.report.figures_capacity import frontier_picture, headroom_picture

    found = read_burst(path, slo)
    drawn = tuple(one for one in (headroom_picture(found.summary), frontier_picture(found.summary)) if one is not None)
    page = dataclasses.replace(
        found.page, pictures=drawn, tables=(headroom_table(found.summary), memory_table(found.summary), *found.page.tables)
    )
    return CapacityRun(pages=(page,), decision=decisions(found.summary))
