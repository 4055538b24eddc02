"""A saved load run or experiment, read once: what it says, and its page of tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.analysis.experiment import ExperimentSummary
from bench.analysis.subject import Subject, open_subject
from bench.errors import BenchError
from bench.report.build import load_report
from bench.report.page import Page, Picture, Table
from bench.slo import parse_slo_time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstRun:
    """`page` holds the tables and pictures of `bench report`, with the same digits."""

    subject: Subject
    summary: ExperimentSummary
    page: Page

    def table(self, title: str) -> Table:
        """A table of the page by its title. Raises BenchError where the page has none of that name."""
        for one in (self.page.main, *self.page.tables):
            if one.title == title:
                return one
        raise BenchError(f"there is no table {title!r}, only {', '.join(one.title for one in self.page.tables)}")

    def picture(self, name: str) -> Picture | None:
        """A picture of the page by its name; None where the run lacks what it would show."""
        return next((one for one in self.page.pictures if one.name == name), None)


def read_burst(path: Path, slo: str | None = None) -> BurstRun:
    """Read and sum up the run. `slo` (`200ms`) takes the place of the run's own. Raises BenchError."""
    slo_ns = None if slo is None else parse_slo_time_ns(slo, "slo")
    summary, page = load_report(path, slo_ns=slo_ns)
    return BurstRun(subject=open_subject(path, slo_ns), summary=summary, page=page)
