"""The shipped notebooks: what is committed, and that each runs from top to bottom on a run folder and says its numbers."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import BenchCommand
from notebook_runs import ARMS, BLOCKS, WARM_NS, cold_p99_ns, cold_start_run, experiment

from bench.analysis.experiment import summarize
from bench.analysis.subject import open_subject
from bench.errors import BenchError
from bench.records import open_run
from bench.report.burst_decisions import slo_decision
from bench.report.burst_run import read_burst
from bench.report.capacity_text import headroom, headroom_table
from bench.report.notebook_blocks import KeyFigure, key_figures, table, verdict
from bench.report.notebooks import FILES, choose, execute, notebook_file, to_html
from bench.report.page import Table

MADE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def committed(which: str) -> Any:
    return nbformat.read(notebook_file(which), as_version=4)


def code(notebook: Any) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("which", FILES)
def test_a_notebook_is_committed_without_outputs(which: str) -> None:
    cells = [cell for cell in committed(which).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize("which", FILES)
def test_a_notebook_defines_no_function(which: str) -> None:
    found = [type(node).__name__ for source in code(committed(which)) for node in ast.walk(ast.parse(source)) if isinstance(node, MADE)]
    assert found == []


@pytest.mark.parametrize("which", FILES)
def test_a_notebook_has_one_cell_of_parameters_and_says_what_each_is(which: str) -> None:
    (cell,) = [cell for cell in committed(which).cells if "parameters" in cell.metadata.get("tags", [])]
    names = [target.id for node in ast.parse(cell.source).body if isinstance(node, ast.Assign) for target in node.targets]  # type: ignore[attr-defined]
    assert names[0] == "run"
    assert re.findall(r"^# (\w+): .{20,}", cell.source, flags=re.MULTILINE) == names


@pytest.mark.parametrize("which", FILES)
def test_a_notebook_asks_for_validity_before_any_number_and_ends_with_the_decision(which: str) -> None:
    text = [cell.source for cell in committed(which).cells if cell.cell_type == "markdown"]
    heads = [line for source in text for line in source.splitlines() if line.startswith("#")]
    assert "**The question.**" in text[0]
    assert "**What may be read from it.**" in text[0]
    assert heads[1] == "## May these numbers be used?"
    assert heads[-1] == "## What to decide from it"


def test_every_notebook_is_offered() -> None:
    assert sorted(FILES.values()) == sorted(path.name for path in notebook_file("burst").parent.glob("*.ipynb"))


def test_cold_starts_become_a_page_from_the_command_line(
    bench_command: BenchCommand, bench_environment: dict[str, str], tmp_path: Path
) -> None:
    run = cold_start_run(tmp_path / "20260131-120000-coldstart-tiny-0000")
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "bench").mkdir()  # where the command is given: must not be taken for ours
    (tmp_path / "bench/__init__.py").write_text("raise ImportError('the wrong one')")
    own = {name: value for name, value in bench_environment.items() if not name.startswith(("JUPYTER", "IPYTHON", "XDG"))}
    done = bench_command("notebook", run, env={**own, "HOME": str(home)})
    assert (done.returncode, done.stderr) == (0, "")
    page = Path(done.stdout.strip())
    assert page == run / "notebook_cold_start.html"
    text = page.read_text("utf-8")
    assert "Valid: the run's own checks passed" in text
    assert "a cold process takes 200 ms".capitalize() in text
    assert text.count("<img ") == text.count('alt="') == 3
    assert "<script" not in text
    assert not re.search(r'(?:src|href)="https?:', text)
    assert list(home.iterdir()) == []


def test_a_burst_becomes_a_page_with_the_numbers_of_its_rows(tmp_path: Path) -> None:
    run = experiment(tmp_path / "20260131-120000-burst-tiny-0000")
    notebook = execute("burst", run)
    text = to_html(notebook, "a <title>")
    assert "a &lt;title&gt;" in text
    assert f"{WARM_NS / 1e6:.2f} ms" in text
    typical = 1.0
    for block in range(BLOCKS):
        typical *= (cold_p99_ns(block) / 1e6) ** (1 / BLOCKS)
    assert f"{WARM_NS / 1e6 / typical:.3g}x" in text
    assert "warm-pool is better in a spike" in text
    assert "99% of all arrivals are answered within 50.0 ms by warm-pool" in text
    assert text.count("<img ") == text.count('alt="') == 6
    assert 'id="show-code" >' in text
    assert 'id="show-code" checked>' in to_html(notebook, "", show_code=True)


def test_capacity_becomes_a_notebook_to_go_on_from(bench_command: BenchCommand, tmp_path: Path) -> None:
    run = experiment(tmp_path / "20260131-120000-burst-tiny-0000")
    done = bench_command("notebook", run, "--which", "capacity", "--slo", "300ms", "-o", tmp_path / "capacity.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    notebook = nbformat.read(tmp_path / "capacity.ipynb", as_version=4)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    text = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "cold-load is asked for 1.25 times what it can answer" in text
    assert "warm-pool has room above the peak" in text
    assert "within 300 ms by cold-load, warm-pool" in text
    assert "Of those, cold-load holds the least memory" in text
    assert not list(run.glob("*.html"))


def test_the_queue_that_a_peak_above_the_capacity_leaves(tmp_path: Path) -> None:
    summary = summarize(open_subject(experiment(tmp_path / "experiment")))
    cold, warm = headroom(summary)
    assert (cold.arm, warm.arm) == ARMS
    assert (cold.backlog, cold.drained_ns) == (40.0, 40 / (160 - 40) * 1e9)
    assert (warm.backlog, warm.drained_ns, warm.peak_share) == (0.0, 0.0, 0.5)
    assert [row[0] for row in headroom_table(summary).rows] == list(ARMS)


def test_an_slo_given_later_takes_the_place_of_the_run_s_own(tmp_path: Path) -> None:
    run = experiment(tmp_path / "experiment", slo_ns=None)
    assert "Say what is good enough" in slo_decision(summarize(open_subject(run)))
    burst = read_burst(run, "5ms")
    assert "99% of all arrivals are answered within 5.00 ms by warm-pool" in slo_decision(burst.summary)
    assert "No arm answers 99% of all arrivals" in slo_decision(summarize(open_subject(run, WARM_NS - 1)))
    assert {picture.name for picture in burst.page.pictures} == {"spike", "over-time", "distribution", "tail", "pool", "memory"}
    with pytest.raises(BenchError, match="no table 'arm'"):
        burst.table("arm")


def test_the_notebook_is_chosen_by_the_kind_of_run(tmp_path: Path) -> None:
    cold, burst = open_run(cold_start_run(tmp_path / "cold")), open_run(experiment(tmp_path / "experiment"))
    assert (choose(cold, None), choose(burst, None), choose(burst, "capacity")) == ("cold_start", "burst", "capacity")
    with pytest.raises(BenchError, match="the notebook burst does not read coldstart runs"):
        choose(cold, "burst")
    with pytest.raises(BenchError, match="not one of cold_start, burst, capacity"):
        choose(cold, "colour")


def test_what_cannot_be_done_is_one_sentence(bench_command: BenchCommand, tmp_path: Path) -> None:
    cold = cold_start_run(tmp_path / "cold")
    for arguments in ((tmp_path,), (cold, "-o", tmp_path / "nowhere/page.html"), (cold, "--slo", "1s")):
        done = bench_command("notebook", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("bench: ")
        assert done.stderr.count("\n") == 1


def test_a_cell_s_own_complaint_is_the_user_s_sentence(tmp_path: Path) -> None:
    run = experiment(tmp_path / "experiment")
    (run / "runs/00-cold-load/requests.parquet").write_bytes(b"damaged")
    with pytest.raises(BenchError, match="cannot be read"):
        execute("burst", run)


def test_blocks_escape_what_they_are_given() -> None:
    evil = "<script>alert(1)</script>"
    content = Table(title=evil, header=(evil, evil), rows=((evil, evil),), note=evil)
    blocks = [verdict([evil], [evil]), key_figures([KeyFigure(value=evil, label=evil, note=evil)]), table(content, folded=True)]
    assert not [block for block in blocks if "<script" in block.html]


def test_a_table_marks_its_groups_and_says_why_it_is_empty() -> None:
    content = Table(title="t", header=("arm", "n"), rows=(("a", "1"), ("a", "2"), ("b", "3")))
    assert [("font-weight:600" in cell) for cell in re.findall(r'<th scope="row" style="([^"]*)"', table(content).html)] == [
        True,
        False,
        True,
    ]
    assert "because" in table(Table(title="t", header=("arm",), rows=()), absent="because").html
