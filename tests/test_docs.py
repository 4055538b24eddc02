"""The documents against the program: what it has is in them, and what they show works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import typer.main
from conftest import BenchCommand
from small_server import SmallServer

import bench.cli.run  # noqa: F401  (it adds the commands)
from bench.analysis.validity import check_run
from bench.capacity.measured import SCHEMA as MEASURED
from bench.cli.app import app
from bench.coldstart import cold_start_schema
from bench.load.arrivals_text import EXAMPLES, PROCESSES, parse_arrivals
from bench.load.profile import PHASES
from bench.load.schedule import OWN_COLUMNS
from bench.load.traces.formats import FORMATS
from bench.records import open_run
from bench.scenario_files import scenario_file
from bench.server_timeline import timeline_schema
from scenarios.openloop.sink import SCHEMA as REQUESTS
from scenarios.openloop.sink import STATUSES

ROOT = Path(__file__).resolve().parents[1]
LOAD = ROOT / "docs" / "load.md"
RESULTS = ROOT / "results" / "README.md"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

COMMANDS = (
    "bench coldstart",
    "locust -f scenarios/...",
    "bench burst",
    "bench curve",
    "bench plan",
    "bench validate",
)  # what writes a folder into results/

Row = tuple[str, ...]


def tables(text: str) -> dict[Row, list[Row]]:
    """The rows of all tables, by the words of their heads; tables of the same head are put together."""
    found: dict[Row, list[Row]] = {}
    head: Row | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        if head is None:
            head = cells
            found.setdefault(head, [])
        elif set(line) - set("|-: "):
            found[head].append(cells)
    return found


def section(text: str, start: str) -> str:
    """From the line that begins with `start` to the next heading or the next "Columns of"."""
    _, found, rest = text.partition(f"\n{start}")
    assert found, f"there is no {start!r}"
    return re.split(r"\n## |\nColumns of ", rest, maxsplit=1)[0]


def plain(cell: str) -> str:
    return cell.strip("`")


# What runs write


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("cold_starts", cold_start_schema().names),
        ("schedule", list(OWN_COLUMNS)),
        ("requests", REQUESTS.names),
        ("timeline", timeline_schema().names),
        ("measured", MEASURED.names),
    ],
)
def test_every_column_is_documented(name: str, columns: list[str]) -> None:
    (rows,) = (rows for head, rows in tables(section(RESULTS.read_text(), f"Columns of `{name}`")).items() if head[0] == "column")
    assert [row[0] for row in rows] == columns
    assert all(row[2] or row[1] for row in rows)
    for column, unit, _ in rows:
        assert unit == {"ns": "ns", "bytes": "bytes", "mhz": "MHz"}.get(column.rpartition("_")[2], ""), column


def test_the_words_of_the_columns_are_documented() -> None:
    text = RESULTS.read_text()
    phase = next(row for row in tables(section(text, "Columns of `schedule`"))["column", "unit", "meaning"] if row[0] == "phase")
    assert re.findall(r"\w+", phase[2].replace(" or ", " ")) == list(PHASES)
    assert [plain(row[0]) for row in tables(LOAD.read_text())["status", "means"]] == list(STATUSES)


def test_every_file_of_a_run_is_documented(bench_command: BenchCommand, tmp_path: Path, tiny_engine: Path) -> None:
    """A cold-start run, and an experiment of one spike, whose run is a load run."""
    text = RESULTS.read_text()
    documented = {command: {plain(row[0]) for row in tables(section(text, f"## `{command}`"))["file", "what"]} for command in COMMANDS}
    cold = bench_command("coldstart", tiny_engine, "--level", "warm", "--trials", "2", "--results", tmp_path / "cold")
    assert cold.returncode in (0, 3), cold.stderr
    load = ["--base", "20", "--peak", "60", "--hold", "300ms", "--rest", "300ms", "--spikes", "1", "--blocks", "1"]
    burst = bench_command("burst", tiny_engine, "--arms", "warm-pool", *load, "--results", tmp_path / "burst", "--force")
    assert burst.returncode in (0, 3), burst.stderr  # 3: valid or not is the machine's affair
    (coldstart,) = (tmp_path / "cold").iterdir()
    (experiment,) = (tmp_path / "burst").iterdir()
    (run,) = (experiment / "runs").iterdir()
    assert {path.name for path in coldstart.iterdir()} <= documented["bench coldstart"]
    assert run.name == "00-warm-pool"
    assert {path.name for path in run.iterdir()} == documented["locust -f scenarios/..."]
    beside = {path.name for path in experiment.iterdir()} - {"runs", "schedules"}
    assert beside <= documented["bench burst"]
    assert {path.name for path in (experiment / "schedules").iterdir()} == {"00.parquet"}


# The command line


def markdown_files(repository_files: list[Path]) -> list[Path]:
    found = [path for path in repository_files if path.suffix == ".md"]
    assert {ROOT / "README.md", LOAD, RESULTS} <= set(found)
    return found


def test_every_command_is_documented(repository_files: list[Path]) -> None:
    text = "\n".join(path.read_text() for path in markdown_files(repository_files) if path.name != "CHANGELOG.md")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert "scenario" in commands
    missing = [name for name in commands if not re.search(rf"\bbench {re.escape(name)}\b", text)]
    assert not missing


def test_every_link_and_path_leads_somewhere(repository_files: list[Path]) -> None:
    broken, seen = [], 0
    for file in markdown_files(repository_files):
        text = file.read_text()
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        targets = [target for target in targets if not re.match(r"[a-z]+:", target)]
        named = re.findall(
            r"(?<![\w/.-])((?:docs|tests|bench|scenarios|notebooks|reference_server)/[\w/.-]*\w\.(?:md|py|ipynb|html))\b", text
        )
        seen += len(targets) + len(named)
        broken += [f"{file.name}: {target}" for target in targets if not (file.parent / target).exists()]
        broken += [f"{file.name}: {target}" for target in named if not (ROOT / target).exists()]
    assert seen > 5
    assert not broken


# The load


def arrival_row(name: str) -> Row:
    """What the table says of one process, but for the words."""
    if name == "rate":
        return f"`{name}`", "TIME=RATE twice or more", "cv (1)", f"`{EXAMPLES[name]}`"
    needs, may = [], []
    for field in fields(PROCESSES[name]):
        key = field.name.removesuffix("_ns")
        unit = " TIME" if field.name.endswith("_ns") else " /s" if key in ("rate", "base", "peak") else ""
        if field.default is MISSING:
            needs.append(f"{key}{unit}")
        else:
            may.append(f"{key}{unit} ({'-' if field.default is None else f'{field.default:g}'})")
    return f"`{name}`", ", ".join(needs), ", ".join(may), f"`{EXAMPLES[name]}`"


def test_every_arrival_process_is_documented() -> None:
    rows = tables(LOAD.read_text())["process", "needs", "may have (default)", "is", "such as"]
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [arrival_row(name) for name in PROCESSES]
    for row in rows:
        assert parse_arrivals(plain(row[4])).name == plain(row[0]) and row[3]


def test_every_trace_format_is_documented() -> None:
    rows = tables(LOAD.read_text())["format", "unit", "options"]
    expected = [
        (f"`{name}`", form.unit, ", ".join(f"`--{option.replace('_', '-')}`" for option in form.takes)) for name, form in FORMATS.items()
    ]
    assert rows == expected


OPTIONS_IN_LOCUST = """
import json, locust, sys
from scenarios.openloop.options import COMMON
from locust.argument_parser import get_parser
from locust.util.load_locustfile import load_locustfile
load_locustfile(sys.argv[1])
options = [action for action in get_parser()._actions if action.option_strings]
found = {action.option_strings[-1]: (getattr(action, "env_var", None), action.default, bool(action.help)) for action in options}
print(json.dumps({"common": [option.flag for option in COMMON], "parser": found}))
"""


@pytest.mark.parametrize("name", ["burst", "steady", "trace"])
def test_every_option_is_documented_and_known_to_locust(name: str) -> None:
    rows = tables(LOAD.read_text())["option", "environment", "default", "means"]
    command = [sys.executable, "-c", OPTIONS_IN_LOCUST, str(scenario_file(name))]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    about: dict[str, Any] = json.loads(done.stdout)
    own = {flag: known for flag, known in about["parser"].items() if (known[0] or "").startswith("COLDBURST_")}
    assert set(about["common"]) <= set(own) and len(own) > len(about["common"])
    documented = {plain(flag): (plain(variable), default, bool(words)) for flag, variable, default, words in rows}
    for flag, (variable, default, helped) in own.items():
        assert documented[flag] == (variable, "" if default is None else str(default), helped), flag
    # "burst, trace: words" says which scenarios have it; no such start: all have it.
    starts = {plain(flag): re.match(r"([a-z, ]+): ", words) for flag, _, _, words in rows}
    theirs = {flag for flag, start in starts.items() if start and name in start[1].split(", ")}
    assert theirs == set(own) - set(about["common"])
    assert {flag for flag, start in starts.items() if not start} == {"--host", *about["common"]}
    assert about["parser"]["--host"][0] == "LOCUST_HOST" and "--host" in documented


def test_the_example_of_a_scenario_runs_and_every_check_is_documented(tmp_path: Path) -> None:
    text = LOAD.read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "lunch.py").write_text(example)
    with SmallServer() as server:
        command = [sys.executable, "-m", "locust", "-f", "lunch.py", "--headless", "--only-summary", "--host", server.url]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env={**ENVIRONMENT, "COLDBURST_DINERS": "40"}, timeout=150
        )
    assert done.returncode in (0, 3), done.stderr
    run = open_run(tmp_path / done.stdout.strip().splitlines()[-1])
    assert run.run["scenario"] == "lunch" and run.run["settings"]["diners"] == 40.0
    schedule = parse_arrivals("rate:0s=4,1s=4,2s=40,3s=40,5s=4").schedule(1)
    validity = check_run(run.path)
    assert validity.counts == {"ok": len(schedule)}
    checks = [plain(row[0]) for row in tables(text)["check", "limit", "what to do"]]
    assert checks == [check.name for check in validity.checks]
