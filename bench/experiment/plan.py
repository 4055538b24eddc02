"""What a burst experiment does, fixed before its first run: rates, blocks, the schedule of each block, the order of arms."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.errors import BenchError
from bench.experiment.arms import Arm
from bench.experiment.calibration import Capacity

_RATE = re.compile(r"([0-9]*\.?[0-9]+)(x(?::([\w=.-]+))?)?")
SLOWEST = "slowest"
MOST_SPIKES, MOST_BLOCKS = 100_000, 1_000
MAX_RATE_PER_S = 1e9  # and for a multiple of a capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """The load, in requests a second and ns: `count` spikes of `peak` above `base`, split over `blocks`."""

    base_per_s: float
    peak_per_s: float
    hold_ns: int
    rest_ns: int
    count: int
    blocks: int
    seed: int

    def per_block(self) -> list[int]:
        """How many spikes each block has: as even as possible."""
        return [self.count // self.blocks + (number < self.count % self.blocks) for number in range(self.blocks)]

    def arrivals_text(self, spikes: int, *, first_contact: bool = False) -> str:
        """The block's arrival process in the syntax of `bench schedule --arrivals`; at first contact it begins with a spike."""
        text = f"train:base={self.base_per_s:g},peak={self.peak_per_s:g},hold={self.hold_ns}ns,rest={self.rest_ns}ns,spikes={spikes}"
        return f"{text},lead=0ns" if first_contact else text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One block of one arm. All arms of a block get the schedule of the block's seed. first_contact: the first requests
    that the server ever gets are those of a spike."""

    block: int
    spikes: int
    schedule_seed: int
    arm: str
    first_contact: bool = False

    @property
    def folder(self) -> str:
        return f"{self.block:02d}-{self.arm}"


def plan_runs(spikes: Spikes, arms: Sequence[Arm], *, first_contact: bool = False) -> list[PlannedRun]:
    """All runs in order: block after block, the arms of each in an order drawn from the seed; one block of first contact
    at the end where it is asked for. Raises BenchError."""
    if spikes.count < 1 or not 1 <= spikes.blocks <= spikes.count:
        raise BenchError(f"{spikes.count} spikes cannot be split into {spikes.blocks} blocks: each block needs a spike")
    if not 0 < spikes.base_per_s < spikes.peak_per_s:
        raise BenchError(f"the peak ({spikes.peak_per_s:g}/s) must be above the base ({spikes.base_per_s:g}/s), and both above 0")
    if spikes.hold_ns <= 0 or spikes.rest_ns <= 0:
        raise BenchError("a spike needs a hold and a rest longer than 0")
    draw = random.Random(spikes.seed)
    runs = []
    for block, count in enumerate([*spikes.per_block(), *([1] if first_contact else [])]):
        order = [arm.name for arm in arms]
        draw.shuffle(order)
        seed = draw.randrange(2**31)
        last = block == spikes.blocks
        runs += [PlannedRun(block=block, spikes=count, schedule_seed=seed, arm=arm, first_contact=last) for arm in order]
    return runs


def needs_calibration(*texts: str) -> bool:
    """Whether one of the rates is a multiple of a capacity."""
    return any("x" in text for text in texts)


def check_rate(text: str, flag: str, arms: Sequence[str]) -> tuple[float, str | None]:
    """`50` (a second), `0.3x` (of the first arm's capacity), `0.3x:slowest`, `0.3x:ARM`.

    Returns the number, and the arm whose capacity it multiplies, SLOWEST, or None. Raises BenchError.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise BenchError(f"{flag} {text!r} is not a rate: write requests a second, or a multiple of a capacity such as 0.3x")
    number, multiple, of = float(match.group(1)), match.group(2), match.group(3)
    if not 0 < number <= MAX_RATE_PER_S:
        raise BenchError(f"{flag} {text!r} must be above 0 and at most {MAX_RATE_PER_S:g} a second")
    if of is not None and of not in (SLOWEST, *arms):
        raise BenchError(f"{flag} {text!r}: there is no arm {of!r}, only {', '.join(arms)} and {SLOWEST}")
    return number, None if multiple is None else of or arms[0]


def parse_rate(text: str, flag: str, capacities: Mapping[str, Capacity]) -> float:
    """The rate that `text` means, in requests a second, given the measured capacities. Raises BenchError."""
    number, of = check_rate(text, flag, list(capacities) or [""])
    if of is None:
        return number
    chosen = capacities.values() if of == SLOWEST else [capacities[of]]
    return number * min(capacity.rate_per_s for capacity in chosen)
