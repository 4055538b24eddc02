"""A million arrivals in less than a second: nothing loops over arrivals in Python."""

from __future__ import annotations

import time

import pytest

from bench.load.arrivals_text import parse_arrivals


@pytest.mark.parametrize(
    "text",
    [
        "constant:rate=10000,duration=100s",
        "poisson:rate=10000,duration=100s",
        "gamma:rate=10000,cv=4,duration=100s",
        "mmpp:base=5000,peak=15000,on=1s,off=1s,duration=100s",
        "ramp:base=0,peak=20000,duration=100s",
        "flash:base=1000,peak=80000,lead=10s,rise=1s,decay=12s,rest=10s",
        "train:base=500,peak=5000,hold=2s,rest=8s,spikes=70",
    ],
)
def test_a_million_arrivals_in_a_second(text: str) -> None:
    process = parse_arrivals(text)
    taken = []
    for seed in range(3):
        start = time.perf_counter()
        count = len(process.schedule(seed))
        taken.append(time.perf_counter() - start)
        assert count > 900_000
    print(f"{text}: {count:,} arrivals in {min(taken):.3f} s")
    assert min(taken) < 1
