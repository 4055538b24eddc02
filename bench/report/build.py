"""From a folder on the disk to its page, whatever it is."""

from __future__ import annotations

from pathlib import Path

from bench.errors import BenchError
from bench.records import SavedRun, open_run
from bench.report.page import Page


def build_page(path: Path, *, pictures: bool = True, slo_ns: int | None = None) -> Page:
    """The page of a load run, an experiment or a cold-start run. Raises BenchError where it is none of them."""
    saved = open_run(path)
    if saved.run.get("kind") == "coldstart":
        return _coldstart(saved)
    from bench.analysis.experiment import open_subject, summarize
    from bench.analysis.series import ArmSeries, arm_series, common_block
    from bench.report.burst_page import load_page

    subject = open_subject(path, slo_ns)
    if not pictures:
        return load_page(subject, summarize(subject))
    from bench.report.figures_burst import burst_pictures

    block, series = common_block(subject.arms), list[ArmSeries]()
    summary = summarize(subject, lambda files, arm: series.append(arm_series(files, arm, block)))
    return load_page(subject, summary, burst_pictures(summary, series))


def write_html(target: Path, pages: list[Page]) -> None:
    """Replace `target` as a whole."""
    import bench
    from bench.records import naming
    from bench.report.html import render

    new = target.with_name(target.name + ".new")
    with naming(target):
        new.write_text(render(pages, bench.__version__), "utf-8")
    new.replace(target)


def _coldstart(saved: SavedRun) -> Page:
    from bench.analysis.phases import summarize
    from bench.report.coldstart_page import coldstart_page

    table = saved.table("cold_starts")
    if table is None or not table.num_rows:
        raise BenchError(f"{saved.path} has no finished trial")
    variants = saved.run.get("variants") or []
    warnings = (saved.run.get("environment") or {}).get("warnings") or ()
    summary = summarize(table, [variant["label"] for variant in variants], saved.run["settings"]["trials"], warnings)
    from bench.engine.manifest import parse_manifest

    manifest = parse_manifest(variants[0]["engine"])
    return coldstart_page(saved, summary, manifest.title)
