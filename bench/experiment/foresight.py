"""What a planned burst cannot show, said before it is run: how many answers its spikes and its base can have is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.analysis.compare import FEWEST_UNITS, PERCENT, group_spikes
from bench.analysis.recovery import BASE_PHASES
from bench.analysis.statistics import samples_needed
from bench.load.schedule import Schedule


def shortcomings(schedules: Sequence[Schedule], arms: int) -> list[str]:
    """One sentence for each thing that the blocks' schedules are too small for, if every arrival is answered."""
    spikes = [int(np.count_nonzero(one.spike == spike.index)) for one in schedules for spike in one.spikes]
    base = sum(one.table.column("phase").to_pylist().count(name) for one in schedules for name in BASE_PHASES)
    needed = samples_needed(PERCENT)
    found = []
    if arms > 1 and spikes:
        each = f"{len(spikes)} spike{'s' if len(spikes) > 1 else ''} of about {round(float(np.mean(spikes)))} arrivals"
        grouped = group_spikes(spikes)
        if grouped is None:
            found.append(f"{each} have under {needed} together, too few for a P99: use more or longer spikes, or a higher peak")
        elif len(grouped[1]) - 1 < FEWEST_UNITS:
            size, units = grouped[0], len(grouped[1]) - 1
            groups = f"make {units} group{'s' if units > 1 else ''} of {needed} or more" if size > 1 else "are too few"
            found.append(
                f"{each} {groups}, and an interval needs {FEWEST_UNITS}: use --spikes {FEWEST_UNITS * size}"
                + (", longer ones, or a higher peak" if size > 1 else "")
            )
    if base < needed:
        found.append(
            f"{base} arrivals before the first spikes of all blocks are too few for the base's P99 ({needed} are needed), so that recovery "
            "cannot be told: use more --blocks, or a higher --base"
        )
    return found
