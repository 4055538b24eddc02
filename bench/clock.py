"""The one clock: integer nanoseconds of CLOCK_MONOTONIC.

On Linux all processes of a host share CLOCK_MONOTONIC, so a time stamp taken in one process may be subtracted
from one taken in another (clock_gettime(2)). Wall-clock time appears only as an anchor beside it.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

now_ns = time.monotonic_ns


def wall_anchor() -> dict[str, int]:
    """One pair of readings that ties the monotonic clock to the wall clock (both in ns)."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return {"monotonic_ns": (before + after) // 2, "wall_ns": wall}


def utc_now() -> str:
    """Now, as ISO 8601 in UTC with whole seconds: `2026-01-31T12:00:00Z`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
