"""The environment of child processes, and their last words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from bench.subprocesses import Child, child_environment


def test_a_path_that_is_varied_does_not_hide_the_project() -> None:
    environment = child_environment({"PYTHONPATH": "/x", "OTHER": "1"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/x"]
    assert environment["OTHER"] == "1"
    subprocess.run([sys.executable, "-P", "-c", "import bench.errors"], env=environment, cwd="/", check=True)


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (["locust: this is wrong", "Aggregated 2 4 7"], 2, "this is wrong"),
        (["Traceback", "OSError: [Errno 28] No space left on device", "Aggregated 2 4 7"], 1, "code 1: OSError: [Errno 28] No space"),
        (["locust: the disk is full", "Aggregated 2 4 7"], 1, "code 1: the disk is full"),
        (["some last words"], 3, "code 3: some last words"),
        ([], 1, "ended with code 1"),
    ],
)
def test_why_a_child_ended_is_not_the_table_that_it_printed_last(said: list[str], code: int, told: str) -> None:
    program = f"import sys; print({chr(10).join(said)!r}, file=sys.stderr); sys.exit({code})"
    with Child([sys.executable, "-c", program], dict(os.environ)) as child:
        child.wait(60)
        assert told in child.complaint()
