"""The environment of child processes."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest import ROOT

from bench.subprocesses import child_environment


def test_a_path_that_is_varied_does_not_hide_the_project() -> None:
    environment = child_environment({"PYTHONPATH": "/x", "OTHER": "1"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/x"]
    assert environment["OTHER"] == "1"
    subprocess.run([sys.executable, "-P", "-c", "import bench.errors"], env=environment, cwd="/", check=True)
