"""The colours of phases and levels, the same in tables and pictures: told apart with colour-vision deficiency too (Okabe and Ito)."""

from __future__ import annotations

PHASE_COLOURS = {
    "spawn": "#999999",
    "imports": "#E69F00",
    "manifest": "#666666",
    "signature": "#444444",
    "library": "#D55E00",
    "device": "#CC79A7",
    "read": "#56B4E9",
    "verify": "#9AD0EE",
    "deserialise": "#0072B2",
    "slot": "#009E73",
    "buffers": "#66C2A5",
    "probe": "#BBBBBB",
    "listen": "#C9B458",
    "warmup": "#8C6D1F",
    "collect": "#7F7F7F",
    "connect": "#B3B3B3",
    "pool": "#A6761D",
    "first_inference": "#F0E442",
    "inference": "#F0E442",
    "check": "#DDDDDD",
    "unattributed": "#000000",
}

# Arms, in their order; each also has its own line style, so that a black-and-white print can be read.
ARM_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D1F", "#56B4E9", "#444444", "#E69F00")
ARM_DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("solid", (0, (6, 2)), (0, (2, 1)), (0, (6, 2, 1, 2)))
# What a slow request waits for, and a hatch for those that cannot see the colour.
PART_COLOURS = {
    "send_lag": "#999999",
    "network": "#56B4E9",
    "queue": "#F0E442",
    "pool": "#E69F00",
    "load": "#D55E00",
    "compute": "#009E73",
    "rest": "#DDDDDD",
}
PART_HATCHES = {"send_lag": "||", "network": "", "queue": "//", "pool": "", "load": "\\\\", "compute": "", "rest": "xx"}
SPIKE_SHADE = "#E69F00"


def arm_colour(index: int) -> str:
    """The colour of the arm at this place, from 0."""
    return ARM_COLOURS[index % len(ARM_COLOURS)]


def arm_dashes(index: int) -> str | tuple[int, tuple[int, ...]]:
    """The line style of the arm at this place, from 0."""
    return ARM_DASHES[index % len(ARM_DASHES)]
