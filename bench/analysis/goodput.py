"""What was offered, completed, and good: rates over the scheduled duration, and the share of arrivals that met the SLO.

Every arrival counts in the denominator. One that was answered wrongly, refused, timed out, lost or not sent misses the
SLO, whatever time it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.run_tables import STATUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

SENT_BUT_FAILED = ("wrong", "error", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """`counts` has every status, so the counts add up to `arrivals`. Rates are per second of scheduled duration; None
    where a duration or an SLO is not given. completed: answered, rightly or wrongly; a refusal or an error is no answer.
    attainment: the share of arrivals answered correctly within the SLO."""

    phase: str | None
    arrivals: int
    counts: Mapping[str, int]
    offered_per_s: float | None
    completed_per_s: float | None
    slo_ns: int | None
    within_slo: int | None
    attainment: float | None
    goodput_per_s: float | None

    @property
    def ok_share(self) -> float:
        return self._share("ok")

    @property
    def failed_share(self) -> float:
        """Sent, and answered wrongly, with an error, or not in time."""
        return self._share(*SENT_BUT_FAILED)

    @property
    def shed_share(self) -> float:
        """Refused by the server because it was full."""
        return self._share("shed")

    @property
    def unsent_share(self) -> float:
        """Not sent by the generator, or lost with one of its workers: what the run cannot tell about the server."""
        return self._share("not_sent", "lost_worker")

    def _share(self, *statuses: str) -> float:
        return sum(self.counts[status] for status in statuses) / self.arrivals if self.arrivals else 0.0


def goodput(requests: pd.DataFrame, *, duration_ns: int, slo_ns: int | None = None) -> tuple[Goodput, ...]:
    """All arrivals first, with rates over `duration_ns` (of all runs together), then each phase without rates, since
    phases lie scattered in time. Columns: status, ok, phase, response_ns, as made by `bench.analysis.load_run`."""
    status, ok = requests["status"].cat.codes.to_numpy(), requests["ok"].to_numpy()
    good = None if slo_ns is None else ok & (requests["response_ns"].to_numpy() <= slo_ns)
    results = [_one(None, status, good, slo_ns, duration_ns)]
    codes, names = requests["phase"].cat.codes.to_numpy(), list(requests["phase"].cat.categories)
    for code in (code for code in pd.unique(codes).tolist() if code >= 0):
        chosen = codes == code
        results.append(_one(names[code], status[chosen], None if good is None else good[chosen], slo_ns, None))
    return tuple(results)


def _one(
    phase: str | None, status: NDArray[np.integer[Any]], good: NDArray[np.bool_] | None, slo_ns: int | None, duration_ns: int | None
) -> Goodput:
    counts = dict(zip(STATUSES, np.bincount(status, minlength=len(STATUSES)).tolist(), strict=True))
    arrivals = len(status)
    answered = sum(counts[name] for name in ("ok", "wrong"))
    within = None if good is None else int(good.sum())
    seconds = duration_ns / 1e9 if duration_ns else None
    return Goodput(
        phase=phase,
        arrivals=arrivals,
        counts=counts,
        offered_per_s=arrivals / seconds if seconds else None,
        completed_per_s=answered / seconds if seconds else None,
        slo_ns=slo_ns,
        within_slo=within,
        attainment=within / arrivals if within is not None and arrivals else None,
        goodput_per_s=within / seconds if within is not None and seconds else None,
    )
