"""`bench --help` answers in under 0.4 s, and `bench env` in under 0.5 s with Python's own start left out."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

TRIALS = 10


def median_s(*arguments: str) -> float:
    """The median wall time of a process, from its start until it has ended; once before, so that files are cached."""
    times = []
    for _ in range(TRIALS + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def test_help_answers_at_once() -> None:
    taken = median_s("-m", "bench", "--help")
    print(f"\nbench --help: median {taken:.3f} s of {TRIALS}")
    assert taken < 0.4


def test_the_environment_is_seen_in_half_a_second() -> None:
    whole, python = median_s("-c", "from bench.environment import collect; collect()"), median_s("-c", "pass")
    print(f"\nlooking at the environment: median {whole:.3f} s of {TRIALS}, of which {python:.3f} s are Python's start")
    assert whole - python < 0.5
