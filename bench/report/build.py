"""From a folder on the disk to its page, whatever it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.records import SavedRun, open_run, replace_text
from bench.report.page import Page, Picture

if TYPE_CHECKING:
    from bench.analysis.curve import CurveSummary
    from bench.analysis.experiment import ExperimentSummary


def build_page(path: Path, *, pictures: bool = True, slo_ns: int | None = None) -> Page:
    """The page of a load run, an experiment, a cold-start run, a service curve, a plan or its validation. Raises BenchError."""
    saved = open_run(path)
    kind = saved.kind
    if kind == "coldstart":
        return _coldstart(saved)
    if kind == "curve":
        return load_curve(saved, pictures=pictures)[1]
    if kind == "plan":
        return _plan(path, pictures)
    if kind == "validation":
        return _validation(path, pictures)
    return load_report(path, pictures=pictures, slo_ns=slo_ns)[1]


def load_report(path: Path, *, pictures: bool = True, slo_ns: int | None = None) -> tuple[ExperimentSummary, Page]:
    """The summary of a load run or an experiment, and the page that shows it. Raises BenchError."""
    from bench.analysis.experiment import summarize
    from bench.analysis.series import ArmSeries, arm_series, common_block
    from bench.analysis.subject import open_subject
    from bench.report.burst_page import load_page

    subject = open_subject(path, slo_ns)
    if not pictures:
        summary = summarize(subject)
        return summary, load_page(subject, summary)
    from bench.report.figures_burst import burst_pictures

    block, series = common_block(subject.arms), list[ArmSeries]()
    summary = summarize(subject, lambda files, arm: series.append(arm_series(files, arm, block)))
    return summary, load_page(subject, summary, burst_pictures(summary, series))


def load_curve(saved: SavedRun, *, pictures: bool = True) -> tuple[CurveSummary, Page]:
    """The summary of a service curve, and the page that shows it. Raises BenchError."""
    from bench.analysis.curve import summarize
    from bench.capacity.service import service_curve
    from bench.report.curve_page import curve_page

    planned = len(saved.run.get("slots") or ()) * len(saved.run.get("batches") or ())
    summary = summarize(service_curve(saved), (saved.run.get("environment") or {}).get("warnings") or (), planned)
    if not pictures:
        return summary, curve_page(saved, summary)
    from bench.report.figures_capacity import curve_picture

    return summary, curve_page(saved, summary, (curve_picture(summary),))


def write_html(target: Path, pages: Sequence[Page]) -> None:
    """Replace `target` as a whole. Raises BenchError where it is no file."""
    import bench
    from bench.drafts import file_to_replace
    from bench.report.html import render

    replace_text(file_to_replace(target), render(pages, bench.__version__))


def _coldstart(saved: SavedRun) -> Page:
    from bench.analysis.cold_start_run import finished_trials, summary_of
    from bench.engine.manifest import Manifest
    from bench.engine.manifest_reading import decode
    from bench.report.coldstart_page import coldstart_page

    summary = summary_of(saved, finished_trials(saved))
    try:
        manifest: Manifest = decode(Manifest, saved.run["variants"][0]["engine"])
    except ValueError as error:
        raise BenchError(f"{saved.path / 'run.json'} has no complete manifest of its engine ({error})") from None
    return coldstart_page(saved, summary, manifest.title)


def _plan(path: Path, pictures: bool) -> Page:
    from bench.capacity.saved_plan import read_plan
    from bench.report.plan_page import plan_page

    found = read_plan(path)
    drawn: Sequence[Picture] = ()
    if pictures:
        from bench.report.figures_plan import plan_pictures

        drawn = plan_pictures(found.plan)
    return plan_page(found.plan, str(found.saved.run.get("run_id", path.name)), found.saved.run, drawn)


def _validation(path: Path, pictures: bool) -> Page:
    from bench.capacity.saved_validation import read_validation
    from bench.report.validation_page import validation_page

    found = read_validation(path)
    drawn: list[Picture] = []
    if pictures:
        from bench.report.figures_plan import predicted_against_measured

        drawn = [one for one in [predicted_against_measured(found.validation)] if one is not None]
    return validation_page(found.validation, found.plan, str(found.saved.run.get("run_id", path.name)), found.saved.run, drawn)
