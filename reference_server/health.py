"""The background check of one pool: a slot that nobody uses answers the probe now and then, or is replaced.

Slots in use are left alone, so under full load nothing is checked; a check takes the slot for one run of the smallest case.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_server.fleet import Fleet


async def watch(fleet: Fleet, interval_ns: int) -> None:
    """Check for ever; cancel it to end."""
    while True:
        await asyncio.sleep(interval_ns / 1e9)
        await check_health(fleet)


async def check_health(fleet: Fleet) -> None:
    """Check the resting slots, one at a time; where a failed load has left none, load again."""
    if fleet.cold:
        if fleet.load_error is not None and fleet.resting:
            await fleet.check(fleet.resting[-1])
        return
    fleet.load_again()
    for slot in tuple(fleet.resting):
        if slot in fleet.resting:  # not given away while another one was checked
            await fleet.check(slot)
