"""Closed and broken standard streams, through the real commands."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records import open_run

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(bench_environment: dict[str, str], tmp_path: Path) -> Shell:
    """Run a line of bash in which $BENCH is the command; its last line on standard error is bench's own exit code."""

    def run(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        whole = f'exec 3>&2; command_() {{ "$PYTHON" -P -m bench "$@"; }}; {line}; echo "code ${{PIPESTATUS[0]}}" >&3'
        given = {**bench_environment, **environment, "BENCH": "command_", "PYTHON": sys.executable}
        return subprocess.run(["bash", "-c", whole], env=given, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return run


@pytest.mark.parametrize("redirection", ["| true", ">&-", "<&- >&- 2>&-"])
def test_nobody_listening_is_no_failure(shell: Shell, redirection: str) -> None:
    ended = shell(f"$BENCH --help {redirection}")
    assert ended.stderr == "code 0\n"


def test_a_full_disk_under_standard_output_is_one_sentence(shell: Shell) -> None:
    ended = shell("$BENCH --help > /dev/full")
    assert ended.stderr == "bench: No space left on device\ncode 2\n"


def test_the_version(shell: Shell) -> None:
    import bench

    ended = shell("$BENCH --version")
    assert (ended.stdout, ended.stderr) == (f"bench {bench.__version__}\n", "code 0\n")


def test_what_a_library_has_to_say_of_its_own_folder_is_not_printed(shell: Shell) -> None:
    ended = shell("$BENCH schedule --arrivals poisson:rate=5,duration=1s -o a.parquet --plot", MPLCONFIGDIR="/proc/nowhere")
    assert ended.stderr == "code 0\n"


def test_a_run_whose_reader_leaves_is_kept_whole_and_its_gates_count(shell: Shell, synthetic: Callable[..., Path], tmp_path: Path) -> None:
    engine = synthetic(slot_ns=1_000_000)
    ended = shell(
        f"$BENCH coldstart {shlex.quote(str(engine))} --level slot --trials 1 --gate 'slot.p50 < 1ns' | true", PYTHONIOENCODING="ascii"
    )
    assert ended.stderr == "bench: 1 of 1 gates missed\ncode 1\n"
    (folder,) = (tmp_path / "results").iterdir()
    assert not open_run(folder).partial
    assert json.loads((folder / "summary.json").read_text())["subject"].startswith("synthetic, synthetic 1, none, none, input 1x1024")


def test_an_error_that_nobody_foresaw_is_a_defect_and_not_a_missed_gate(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import bench.units\nbench.units.parse_duration_ns = lambda *_: {}['lost']\n")
    ended = shell("PYTHONPATH=.:$PYTHONPATH $BENCH coldstart tiny --timeout 1s")
    assert ended.stderr == "bench: a defect of bench: KeyError: 'lost' (set COLDBURST_TRACEBACK=1 to see where)\ncode 70\n"


def test_a_server_with_closed_streams_ends_cleanly(bench_environment: dict[str, str], synthetic: Callable[..., Path]) -> None:
    line = f"exec {shlex.join([sys.executable, '-P', '-m', 'reference_server', str(synthetic())])} --port 0 <&- 2>&-"
    with subprocess.Popen(["bash", "-c", line], env=bench_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = [server.stdout.readline() for _ in range(2)]
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=120)
    assert said[1] == "ready\n"
    assert server.returncode == 0, errors
    assert "Traceback" not in errors
