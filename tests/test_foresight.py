"""What is said before a burst that is too small to show what it is run for."""

from __future__ import annotations

from bench.experiment.foresight import shortcomings
from bench.load.arrivals_text import parse_arrivals
from bench.load.schedule import Schedule


def blocks(count: int, text: str) -> list[Schedule]:
    return [parse_arrivals(text).schedule(seed) for seed in range(count)]


def test_small_spikes_need_more_of_them() -> None:
    small = blocks(2, "train:base=50,peak=100,hold=500ms,rest=2s,spikes=6")
    (said,) = shortcomings(small, arms=2)
    assert said.startswith("12 spikes of about ") and "groups of 100 or more, and an interval needs 5: use --spikes 15" in said
    assert shortcomings(small, arms=1) == []  # nothing is compared


def test_few_spikes_and_a_thin_base() -> None:
    interval, base = shortcomings(blocks(1, "train:base=10,peak=400,hold=1s,rest=1s,spikes=4"), arms=2)
    assert "are too few, and an interval needs 5: use --spikes 5" in interval
    assert "before the first spikes of all blocks are too few for the base's P99 (100 are needed)" in base
    (tiny, _) = shortcomings(blocks(1, "train:base=10,peak=20,hold=1s,rest=1s,spikes=2"), arms=2)
    assert "have under 100 together" in tiny


def test_nothing_is_said_of_enough() -> None:
    assert shortcomings(blocks(2, "train:base=100,peak=400,hold=1s,rest=2s,spikes=3"), arms=2) == []
