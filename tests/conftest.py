"""Fixtures that many tests share: engines are built once a session, into a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.engine.synthetic_builder import build_synthetic

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
