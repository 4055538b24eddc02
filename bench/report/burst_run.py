"""A saved load run or experiment, read once: what it says, and its page of tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.analysis.experiment import ExperimentSummary, Subject, open_subject, summarize
from bench.analysis.series import ArmSeries, arm_series, common_block
from bench.errors import BenchError
from bench.report.burst_page import load_page
from bench.report.figures_burst import burst_pictures
from bench.report.page import Page, Picture, Table
from bench.units import parse_duration_ns


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
    subject = open_subject(path, None if slo is None else parse_duration_ns(slo, "slo"))
    block, series = common_block(subject.arms), list[ArmSeries]()
    summary = summarize(subject, lambda files, arm: series.append(arm_series(files, arm, block)))
    return BurstRun(subject=subject, summary=summary, page=load_page(subject, summary, burst_pictures(summary, series)))
