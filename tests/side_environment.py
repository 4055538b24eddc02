"""Programs of others that a few long tests need: each in a virtual environment of its own, because their dependencies exclude ours.

They are installed once and kept under the user's cache folder. Where the package index is out of reach the test is
skipped, with pip's own reason.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest


def side_environment(*requirements: str) -> Path:
    """The folder of programs (`bin`) of an environment that holds `requirements`. Skips the test where they cannot be installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coldburst" / "tests"
    what = " ".join((sys.version.split()[0], *requirements))
    folder = cache / f"venv-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    installed = folder / "installed.txt"
    if not installed.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{what} was not installed within 15 minutes")
        if done.returncode != 0:
            pytest.skip(f"{what} cannot be installed here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        installed.write_text(what + "\n")
    return folder / "bin"
