"""What requests found when they came: a free slot, a wait for one, or an engine that had to be loaded first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.analysis.statistics import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """Shares of the correct answers for which the server told its parts (`known`); None where it told none.

    hit: served at once, no wait for a slot and none for a load. loaded: waited for a load, its own or another's.
    pool_wait_p99_ns and load_wait_p99_ns: over the same requests, None with fewer than 100.
    """

    known: int
    hit_share: float | None
    waited_share: float | None
    loaded_share: float | None
    mean_pool_wait_ns: float | None
    pool_wait_p99_ns: float | None
    mean_load_wait_ns: float | None
    load_wait_p99_ns: float | None


def pool_use(requests: pd.DataFrame, *, waited_ns: int = 1000) -> PoolUse:
    """Columns ok, pool_ns and load_ns, as made by `bench.analysis.load_run`. A load under 1 us, the resolution of
    Server-Timing, is none; nor is a wait for a slot under `waited_ns`, since handing over a free one takes time too."""
    ok = requests["ok"].to_numpy()
    pool, load = requests["pool_ns"].to_numpy()[ok], requests["load_ns"].to_numpy()[ok]
    known = ~(np.isnan(pool) | np.isnan(load))
    pool, load = pool[known], load[known]
    count = len(pool)
    waited, loaded = pool >= waited_ns, load >= 1000
    return PoolUse(
        known=count,
        hit_share=float((~waited & ~loaded).mean()) if count else None,
        waited_share=float(waited.mean()) if count else None,
        loaded_share=float(loaded.mean()) if count else None,
        mean_pool_wait_ns=float(pool.mean()) if count else None,
        pool_wait_p99_ns=percentile(pool, 99),
        mean_load_wait_ns=float(load.mean()) if count else None,
        load_wait_p99_ns=percentile(load, 99),
    )
