"""What the simulation's event loop reads and writes: records without methods, since compiled code works on arrays of them.

bench.capacity.events keeps all functions in one file: numba's cache looks only at the file of the function that is called, so a
change of a compiled function in another file would go unseen. A change of a record here is another type, and is seen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

RULES = np.dtype(
    [
        ("cold", "?"), ("one_load_first", "?"), ("elastic", "?"), ("floor", "i8"), ("ceiling", "i8"), ("queue_limit", "i8"),
        ("acquire_timeout_ns", "i8"), ("idle_timeout_ns", "i8"), ("initial", "i8"), ("maximum", "i8"), ("by_waiting", "?"),
        ("above", "f8"), ("detect_ns", "i8"), ("cooldown_ns", "i8"),
    ],
    align=True,
)  # fmt: skip
TOTALS = np.dtype([(name, "i8") for name in ("waiting", "in_use", "ready", "started", "held_slots", "held_engines", "makings", "events")])
REPLICA = np.dtype(
    [
        (name, "i8")
        for name in (
            "slots", "resting", "making", "in_use", "waiting", "spare", "head", "tail",
            "engine_ns",  # when the shared engine is, or will be, there; _NEVER: nobody has it
            "unloaded_ns",  # when the engine before it is gone
            "shrink_planned", "barren_ns", "barren_since_ns",
        )
    ]
)  # fmt: skip
SLOT = np.dtype([(name, "i8") for name in ("idle_since_ns", "began_ns", "began_barren_ns", "ended_ns", "ended_barren_ns")])


REQUEST = np.dtype(
    [
        ("following", "i8"),  # the request behind this one in its queue
        ("barren_ns", "i8"),  # the replica's clock of slotless loading when the request came
        ("response_ns", "i8"), ("pool_ns", "i8"), ("load_ns", "i8"), ("service_ns", "i8"), ("status", "i4"), ("replica", "i4"),
    ]
)  # fmt: skip


class State(NamedTuple):
    """All that a simulation reads and writes. Few arrays, since compiling takes longer with each."""

    arrivals_ns: Any
    samples: Any  # of all that is drawn, behind each other: what STREAMS names first, then the levels of the service
    starts: Any  # where each begins, and the end
    streams: Any  # what the random numbers of each of STREAMS begin with
    rules: Any  # [1]
    totals: Any  # [1]
    request: Any  # [arrivals]
    replica: Any  # [replicas]
    slot: Any  # [replicas, slots]
    resting: Any  # [replicas, slots]; the first has rested longest, the last is used next
    spare: Any  # [replicas, slots]; places in `slot` that no slot has


def rules(**values: Any) -> Any:
    """One record of RULES, in an array."""
    found = np.zeros(1, RULES)
    for name in RULES.names or ():
        found[name] = values[name]
    return found
