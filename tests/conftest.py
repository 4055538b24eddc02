"""Fixtures that many tests share: engines are built once a session, into a temporary folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.engine.synthetic_builder import build_synthetic

ROOT = Path(__file__).resolve().parents[1]

SyntheticFactory = Callable[..., Path]


@pytest.fixture
def synthetic(tmp_path: Path) -> SyntheticFactory:
    """Build a synthetic engine with declared times: `synthetic(load_ns=..., service_ns=...)` gives its directory."""
    made = 0

    def build(*, name: str = "synthetic", max_batch: int = 8, **declared: int) -> Path:
        nonlocal made
        made += 1
        directory = tmp_path / f"engine-{made}" / name
        build_synthetic(directory, name=name, max_batch=max_batch, **declared)
        return directory

    return build


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """What git tracks or would track; without git, everything outside hidden folders and built ones."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        files = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        built = {"results", "build", "dist", "__pycache__"}
        folders = {path: path.relative_to(ROOT).parts[:-1] for path in ROOT.rglob("*")}
        files = [path for path, parts in folders.items() if not any(p.startswith(".") or p in built for p in parts)]
    return [path for path in files if path.is_file()]
