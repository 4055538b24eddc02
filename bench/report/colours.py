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
    "ready": "#8C6D1F",
    "pool": "#A6761D",
    "first_inference": "#F0E442",
    "inference": "#F0E442",
    "check": "#DDDDDD",
    "unattributed": "#000000",
}
