"""The pool of one model: who gets which slot, when, and how long that took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.errors import BenchError

Mode = Literal["cold-load", "lazy", "warm-pool", "elastic"]
Sharing = Literal["engine", "copy"]


class Overloaded(Exception):
    """Not served now: the queue is full, the wait was too long, or the pool is closing."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class LoadFailed(BenchError):
    """The load that a request, or the start, waited for failed. The message is the reason, one sentence."""


class InferenceFailed(Exception):
    """The runtime raised during this request's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How one model is served. `min`, `max` and `idle_timeout_ns` are elastic's; `size` is for the other modes."""

    mode: Mode = "warm-pool"
    size: int = 1
    min: int = 1
    max: int = 4
    idle_timeout_ns: int = 30 * 10**9
    sharing: Sharing = "engine"
    queue_limit: int | None = None  # requests that may wait for a slot; None: any number
    acquire_timeout_ns: int | None = None  # the longest such wait; None: any time
    health_interval_ns: int = 10 * 10**9  # 0: no background check
    options: Mapping[str, str] = field(default_factory=dict)  # runtime settings, KEY=VALUE
    trust: Path | None = None  # a public key: only engines signed with it are loaded
