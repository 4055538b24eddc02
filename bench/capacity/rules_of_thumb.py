"""How pools are sized without measuring: for comparison, and so that the plan's answer can be scored against them.

Erlang C: P(wait) of M/M/c with offered load a = rate x service time, and P(W > t) = C exp(-(c - a) t / s). Source: Cooper,
Introduction to Queueing Theory (1981), chapter 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """slots: what the rule says, all replicas together; None where it cannot tell. how: what it takes."""

    name: str
    slots: int | None
    how: str


def erlang_c(servers: int, offered: float) -> float:
    """The probability that an arrival has to wait in M/M/c; 1 where the servers do not keep up. offered: in servers."""
    if offered >= servers:
        return 1.0
    blocking = 1.0  # Erlang B by its recursion, which neither overflows nor cancels
    for number in range(1, servers + 1):
        blocking = offered * blocking / (number + offered * blocking)
    return blocking / (1 - offered / servers * (1 - blocking))


def erlang_c_slots(rate_per_s: float, service_s: float, bound_s: float, share: float) -> int | None:
    """The fewest servers with which at least `share` of the waits are at most `bound_s` less the service time; None where the
    bound is below the service time, so that no number is enough."""
    left_s = bound_s - service_s
    if left_s < 0:
        return None
    offered = rate_per_s * service_s
    for servers in range(max(1, math.ceil(offered)), _MOST):
        if servers > offered and erlang_c(servers, offered) * math.exp(-(servers - offered) * left_s / service_s) <= 1 - share:
            return servers
    return None


def rules_of_thumb(
    *,
    mean_per_s: float,
    peak_per_s: float,
    service_s: float,
    bound_s: float,
    share: float,
    memory_bytes: int | None,
    model_bytes: int | None,
) -> tuple[RuleOfThumb, ...]:
    """All of them. memory_bytes: what is free for the pool."""
    fits = None if memory_bytes is None or not model_bytes else max(1, memory_bytes // model_bytes)
    return (
        RuleOfThumb(name="always 1", slots=1, how="one slot"),
        RuleOfThumb(
            name="Erlang C at the mean rate",
            slots=erlang_c_slots(mean_per_s, service_s, bound_s, share),
            how="Poisson arrivals at the mean rate, independent slots with the service time of one busy slot",
        ),
        RuleOfThumb(
            name="Erlang C at the peak rate",
            slots=erlang_c_slots(peak_per_s, service_s, bound_s, share),
            how="the same at the peak rate, as if the peak lasted for ever",
        ),
        RuleOfThumb(name="memory / model size", slots=fits, how="as many as fit, each as large as the engine's file"),
    )
