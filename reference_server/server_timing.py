"""Where the time of one request went: the parts that every reply carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Durations of one request in ns; 0 is known to be nothing. The parts do not overlap."""

    queue_ns: int = 0  # accepted, before it is handed to the pool
    pool_ns: int = 0  # waiting for a free slot, less what a load caused
    load_ns: int = 0  # the part of the wait that loading an engine or a slot caused, also when another request triggered it
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
