"""How one model is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from bench.errors import BenchError
from reference_server.runtimes import usable_cores

Mode = Literal["cold-load", "lazy", "warm-pool", "elastic"]
Sharing = Literal["engine", "copy"]
MOST_SLOTS = 1024  # each has a thread, and many more than a device can run at once help nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How one model is served. `min`, `max` and `idle_timeout_ns` are elastic's; `size` is for the other modes.

    Raises BenchError for settings that contradict each other.
    """

    mode: Mode = "warm-pool"
    size: int = 1
    min: int = 1
    max: int = 4
    idle_timeout_ns: int = 30 * 10**9
    sharing: Sharing = "engine"
    queue_limit: int | None = None  # requests that may wait for a slot, beyond those a slot is being made for; None: any number
    acquire_timeout_ns: int | None = None  # the longest such wait; None: any time
    health_interval_ns: int = 10 * 10**9  # 0: no background check
    options: Mapping[str, str] = field(default_factory=dict)  # runtime settings, KEY=VALUE
    trust: Path | None = None  # a public key: only engines signed with it are loaded

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise BenchError(f"--mode {self.mode!r} is not one of {', '.join(get_args(Mode))}")
        if self.sharing not in get_args(Sharing):
            raise BenchError(f"--sharing {self.sharing!r} is not one of {', '.join(get_args(Sharing))}")
        if not 1 <= self.size <= MOST_SLOTS:
            raise BenchError(f"--pool-size is {self.size}, it must be at least 1 and at most {MOST_SLOTS:,}")
        if not 0 <= self.min <= self.max or self.max < 1:
            raise BenchError(f"an elastic pool has 0 <= --min <= --max and --max >= 1, not --min {self.min} and --max {self.max}")
        if self.max > MOST_SLOTS:
            raise BenchError(f"--max is {self.max}, it must be at most {MOST_SLOTS:,}")
        if self.queue_limit is not None and self.queue_limit < 0:
            raise BenchError(f"--queue-limit is {self.queue_limit}, it must be at least 0")
        if self.acquire_timeout_ns is not None and self.acquire_timeout_ns <= 0:
            raise BenchError("--acquire-timeout is not above 0: write how long a request may wait, or leave it out to wait for any time")
        if self.idle_timeout_ns < 0 or self.health_interval_ns < 0:
            raise BenchError("--idle-timeout and --health-interval must not be negative")

    def described(self) -> dict[str, object]:
        """What a client may know of how it is served, so that its records say what they measured; `settings`: the runtime's, with the
        threads of a slot; limits that are null are none."""
        sizes = {"min": self.min, "max": self.max} if self.mode == "elastic" else {"pool_size": self.size}
        limits = {name: getattr(self, name) for name in ("queue_limit", "acquire_timeout_ns", "idle_timeout_ns")}
        return {"mode": self.mode, **sizes, "sharing": self.sharing, **limits, "settings": self.runtime_options()}

    @property
    def ceiling(self) -> int:
        """The most slots that there may be."""
        return self.max if self.mode == "elastic" else self.size

    @property
    def floor(self) -> int:
        """The slots that are there before ready, and kept."""
        return {"elastic": self.min, "warm-pool": self.size, "lazy": 0, "cold-load": self.size}[self.mode]

    def runtime_options(self) -> dict[str, str]:
        """`options`; unless it says otherwise, the slots share the usable cores evenly (`threads`, at least 1 each)."""
        return {"threads": str(max(1, usable_cores() // self.ceiling)), **self.options}
