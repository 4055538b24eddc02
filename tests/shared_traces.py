"""Where the reference traces lie: beside the repository, or where COLDBURST_SHARED says. They are read in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_traces() -> Path:
    """The folder, or the test is skipped."""
    named = os.environ.get("COLDBURST_SHARED")
    candidates = [Path(named)] if named else [parent / "shared" for parent in Path(__file__).resolve().parents]
    for candidate in candidates:
        if (candidate / "traces" / "facts.json").is_file():
            return candidate / "traces"
    pytest.skip("the reference traces (shared/traces) are not here")
