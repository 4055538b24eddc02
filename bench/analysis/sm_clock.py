"""The clock of the GPU's multiprocessors while load was offered: a latency that jumps with it has another cause than the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analysis.statistics import median

if TYPE_CHECKING:
    from bench.records import SavedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRange:
    """Over all samples of all runs since load began, in MHz."""

    lowest_mhz: int
    median_mhz: float
    highest_mhz: int

    @property
    def text(self) -> str:
        """For the reports."""
        if self.lowest_mhz == self.highest_mhz:
            return f"{self.lowest_mhz:,} MHz throughout"
        return f"{self.lowest_mhz:,} to {self.highest_mhz:,} MHz (median {self.median_mhz:,.0f})"


def sm_clock_of_runs(runs: Sequence[SavedRun]) -> ClockRange | None:
    """None where no sample tells: without a GPU, and of servers that did not look."""
    import pyarrow.compute as pc

    seen: list[int] = []
    for run in runs:
        timeline = run.table("timeline", ("t_ns",), also=("sm_clock_mhz",))
        if timeline is not None and "sm_clock_mhz" in timeline.column_names:
            under_load = timeline.filter(pc.greater_equal(timeline.column("t_ns"), 0))
            seen += under_load.column("sm_clock_mhz").drop_null().to_pylist()
    return ClockRange(lowest_mhz=min(seen), median_mhz=median(seen), highest_mhz=max(seen)) if seen else None
