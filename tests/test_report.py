"""The report as a file: one document that holds all it shows, with the numbers of the summary and no others."""

from __future__ import annotations

import base64
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bench.cli.run  # noqa: F401  (it adds the commands)
from bench.analysis.experiment import summarize
from bench.analysis.subject import open_subject
from bench.cli.app import app as commands
from bench.coldstart import cold_start_schema
from bench.errors import BenchError
from bench.report.build import build_page, load_report, write_html
from bench.report.markdown import render as render_markdown
from bench.units import format_duration, format_size
from tests.experiments import ENGINE, ENVIRONMENT, MS, cold_and_warm, write_experiment
from tests.request_rows import write_run

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Document(HTMLParser):
    """Checks that what is opened is closed, and keeps what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.images: list[dict[str, str]] = []
        self.text: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = {name: value or "" for name, value in attributes}
        self.fetched += [found[name] for name in ("src", "href", "srcset", "data", "poster") if name in found]
        if tag == "img":
            self.images.append(found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("golden") / "e", cold_and_warm)


@pytest.fixture(scope="module")
def html(experiment: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("report") / "report.html"
    write_html(target, [build_page(experiment)])
    return target.read_text("utf-8")


def test_one_whole_document_that_fetches_nothing(html: str) -> None:
    document = Document(html)
    assert document.open == []
    assert "script" not in document.tags and "link" not in document.tags
    assert all(address.startswith(("data:image/", "#")) for address in document.fetched)
    assert "url(" not in html and "@import" not in html
    assert len(html) < 3_000_000


def test_every_picture_is_there_with_words_and_fetches_nothing(html: str) -> None:
    document = Document(html)
    assert len(document.images) == 6
    for image in document.images:
        assert len(image["alt"]) > 40
        svg = base64.b64decode(image["src"].partition("base64,")[2]).decode()
        assert svg.rstrip().endswith("</svg>")
        assert not [one for one in re.findall(r'href="([^"]+)"', svg) if not one.startswith(("#", "data:"))]
        assert "<metadata>" not in svg or "Date" not in svg


def test_the_numbers_are_those_of_the_summary(experiment: Path, html: str) -> None:
    shown = unescape(" ".join(Document(html).text))
    summary = summarize(open_subject(experiment))
    assert summary.sentence in shown
    for arm in summary.arms:
        every = arm.share(None)
        assert every is not None and every.attainment is not None and arm.resident is not None and arm.recovery is not None
        for one in arm.latency:
            for found in (one.response, one.round_trip):
                assert format_duration(found.p50) in shown and format_duration(found.p99) in shown
        assert f"{every.attainment:.2%}" in shown and f"{every.goodput_per_s:.4g}/s" in shown
        assert format_size(arm.resident.median) in shown
        assert format_duration(arm.recovery.median_ns) in shown
        assert arm.tail is not None
        assert all(format_duration(part.mean_ns) in shown for part in arm.tail.parts)
    p99 = summary.comparisons[0].p99
    assert p99 is not None and p99.ratio_interval is not None
    assert f"{p99.ratio:.3g}x" in shown and f"{p99.ratio_interval.low:.3g}x to {p99.ratio_interval.high:.3g}x" in shown
    for one in summary.validity:
        assert all(check.value in shown for check in one.validity.checks)


def test_the_first_thing_said_is_validity_and_the_device(html: str) -> None:
    shown = " ".join(" ".join(Document(html).text).split())
    places = [shown.index(text) for text in ("valid", "CPU result", "On cpu:x86_64", "P99 in spikes", "says nothing about a GPU", "Method")]
    assert places == sorted(places)


def test_the_same_data_gives_the_same_bytes(experiment: Path, html: str, tmp_path: Path) -> None:
    write_html(tmp_path / "again.html", [build_page(experiment)])
    assert (tmp_path / "again.html").read_text("utf-8") == html


def test_markdown_has_the_verdict_the_table_and_no_markup_from_names(experiment: Path) -> None:
    page = build_page(experiment, pictures=False)
    text = render_markdown([page])
    assert "`valid` `CPU result`" in text
    assert "| P99 in spikes |" in text and "cpu:x86\\_64" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {4}  # a name and two arms
    assert "<img" not in text


def test_what_a_run_says_of_itself_cannot_become_markup(tmp_path: Path) -> None:
    engine = {**ENGINE, "device": 'cpu:<script>alert("x")</script>'}
    path = write_experiment(tmp_path / "e", cold_and_warm, engine=engine, blocks=1)
    write_html(tmp_path / "r.html", [build_page(path)])
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "script" not in Document(text).tags
    assert 'cpu:<script>alert("x")</script>' in unescape(" ".join(Document(text).text))


def test_an_unfinished_experiment_says_what_is_missing(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "e.partial", cold_and_warm, leave_out=["01-cold-load", "01-warm-pool"])
    summary, page = load_report(path, pictures=False)
    assert summary.missing_runs == 2
    assert ("not finished", "bad") in page.badges and ("valid", "good") not in page.badges
    assert "2 runs are missing" in page.sentence


def test_a_single_run_and_several_in_one_file(experiment: Path, tmp_path: Path) -> None:
    one = experiment / "runs" / "00-cold-load"
    target = tmp_path / "out.html"
    assert commands(["report", str(one), str(experiment), "-o", str(target)], standalone_mode=False) in (0, None)
    document = Document(target.read_text("utf-8"))
    assert document.open == []
    assert {"#run-0", "#run-1"} <= set(document.fetched)
    shown = " ".join(document.text)
    assert "load run 00-cold-load" in shown and "device not known" in shown
    with pytest.raises(BenchError, match="exists; name another file"):
        commands(["report", str(one), "-o", str(target)], standalone_mode=False)


def test_first_contact_has_its_own_table(tmp_path: Path) -> None:
    page = build_page(write_experiment(tmp_path / "e", cold_and_warm, first_contact=True), pictures=False)
    (table,) = [table for table in page.tables if table.title == "First contact"]
    assert [row[0] for row in table.rows] == ["cold-load", "warm-pool"]
    assert table.rows[0][4] == "180 ms"  # the largest: 160 ms + 199 * 0.1 ms
    assert page.statements[1].startswith("first contact with cold-load: P99 180 ms (largest 180 ms; later spikes ")


def test_a_run_that_was_cut_off(tmp_path: Path) -> None:
    scheduled = {"seq": range(150), "intended_ns": [n * MS for n in range(150)], "spike": [None] * 150, "phase": ["base"] * 150}
    rows = [{"seq": n, "intended_ns": n * MS, "sent_ns": n * MS, "done_ns": (n + 3) * MS, "status": "ok", "worker": 0} for n in range(120)]
    path = write_run(tmp_path, "cut", rows, scheduled, finish=False)
    page = build_page(path)
    assert ("NOT VALID", "bad") in page.badges and ("not finished", "bad") in page.badges
    assert "30 arrivals have no row, because the run was cut off" in page.sentence
    assert [picture.name for picture in page.pictures] == ["over-time", "distribution", "tail"]  # no spike and no timeline
    write_html(tmp_path / "r.html", [page])
    assert Document((tmp_path / "r.html").read_text("utf-8")).open == []


def test_a_cold_start_run(tmp_path: Path) -> None:
    import json

    path = tmp_path / "c"
    path.mkdir()
    engine = {
        **ENGINE,
        "schema_version": 1,
        "version": "1",
        "files": [{"name": "model.onnx", "bytes": 1, "sha256": "00"}],
        "device_features": [],
        "inputs": [{"name": "x", "datatype": "FP32", "dims": ["batch", 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "dims": ["batch", 4]}],
        "profiles": [{"x": {"min": [1, 4], "opt": [1, 4], "max": [1, 4]}}],
        "options": {},
        "tolerance": 0.001,
        "parity_error": 0.0,
        "built_at": "",
        "build_duration_ns": 1,
        "host": "h",
        "baseline": None,
    }
    record = {"variants": [{"label": "", "engine": engine}], "settings": {"trials": 6}, "environment": ENVIRONMENT}
    (path / "run.json").write_text(json.dumps({"schema_version": 1, "kind": "coldstart", **record}))
    common = {"trial": 0, "variant": "", "start_ns": 0, "resident_bytes": None, "device_bytes": None, "page_cache": None}
    phases = [("spawn", 20 * MS, True), ("deserialise", 300 * MS, True), ("first_inference", 10 * MS, True), ("unattributed", 0, True)]
    phases += [("total", 330 * MS, False), ("total_outside", 330 * MS, False)]
    rows = [
        {**common, "order": t, "level": "process", "phase": phase, "duration_ns": ns, "in_total": inside}
        for t in range(6)
        for phase, ns, inside in phases
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=cold_start_schema()), path / "cold_starts.parquet")
    write_html(tmp_path / "r.html", [build_page(path)])
    document = Document((tmp_path / "r.html").read_text("utf-8"))
    shown = " ".join(document.text)
    assert "330 ms" in shown and "300 ms" in shown and "CPU result" in shown
    (image,) = document.images
    assert base64.b64decode(image["src"].partition("base64,")[2]).startswith(b"\x89PNG")
