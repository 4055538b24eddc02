"""What may be done to a trace: window, spread, cap-gap, scale-rate, scale-time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.load.traces.transform import SPREAD_AUTO, Arrivals, Steps, apply


def _arrivals(times: list[int], duration: int | None = None) -> Arrivals:
    at = np.array(sorted(times), np.int64)
    return Arrivals(
        times_ns=at, duration_ns=int(at[-1]) if duration is None else duration, extra=pa.table({"row": pa.array(range(len(at)))})
    )


def _rows(arrivals: Arrivals) -> list[int]:
    return arrivals.extra.column("row").to_pylist()


some_times = st.lists(st.integers(0, 10**12), min_size=1, max_size=80)
all_steps = st.builds(
    Steps,
    window=st.one_of(st.none(), st.tuples(st.integers(0, 10**11), st.one_of(st.none(), st.integers(2 * 10**11, 2 * 10**12)))),
    spread_ns=st.one_of(st.none(), st.integers(1, 10**10)),
    cap_gap_ns=st.one_of(st.none(), st.integers(1, 10**11)),
    rate_factor=st.one_of(st.none(), st.floats(0.2, 4)),
    time_factor=st.one_of(st.none(), st.floats(0.01, 100)),
    seed=st.integers(0, 1000),
)


@settings(max_examples=200, deadline=None)
@given(some_times, all_steps)
def test_any_steps_leave_a_schedule(times: list[int], steps: Steps) -> None:
    """Sorted, within the duration, a row for each time, the same again for the same seed, and every step is written down."""
    try:
        after, done = apply(_arrivals(times), steps)
    except BenchError as error:
        assert "holds no arrival" in str(error) or "leaves no arrival" in str(error)
        return
    assert (np.diff(after.times_ns) >= 0).all() and after.times_ns[0] >= 0 and after.times_ns[-1] <= after.duration_ns
    assert after.extra.num_rows == len(after.times_ns) > 0
    again, _ = apply(_arrivals(times), steps)
    assert again.times_ns.tolist() == after.times_ns.tolist() and again.extra.equals(after.extra)
    asked = [steps.window, steps.spread_ns, steps.cap_gap_ns, steps.rate_factor, steps.time_factor]
    names = ["window", "spread", "cap-gap", "scale-rate", "scale-time"]
    assert [step["step"] for step in done] == [name for name, value in zip(names, asked, strict=True) if value is not None]


def test_a_window_is_half_open_and_starts_at_zero() -> None:
    after, _ = apply(_arrivals([0, 10, 20, 30], 40), Steps(window=(10, 30)))
    assert (after.times_ns.tolist(), after.duration_ns, _rows(after)) == ([0, 10], 20, [1, 2])
    after, _ = apply(_arrivals([0, 10, 20, 30]), Steps(window=(15, None)))
    assert (after.times_ns.tolist(), after.duration_ns) == ([5, 15], 15)
    after, _ = apply(_arrivals([0, 10], 40), Steps(window=(5, 1000)))
    assert (after.times_ns.tolist(), after.duration_ns) == ([5], 35)
    with pytest.raises(BenchError, match="holds no arrival"):
        apply(_arrivals([0, 10, 20, 30]), Steps(window=(11, 19)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=60), st.integers(0, 99))
def test_spread_keeps_each_arrival_in_its_tick(seconds: list[int], seed: int) -> None:
    before = _arrivals([s * 10**9 for s in seconds])
    after, done = apply(before, Steps(spread_ns=10**9, seed=seed))
    assert (np.sort(after.times_ns // 10**9) == before.times_ns // 10**9).all()
    own = before.times_ns[np.array(_rows(after))]
    assert ((after.times_ns - own >= 0) & (after.times_ns - own < 10**9)).all()
    assert done == [{"step": "spread", "tick_ns": 10**9, "seed": seed}]


def test_spread_finds_the_tick_of_the_clock() -> None:
    _, done = apply(_arrivals([0, 0, 3000, 3000, 6000, 9001]), Steps(spread_ns=SPREAD_AUTO))
    assert done[0]["tick_ns"] == 3000
    with pytest.raises(BenchError, match="cannot be told: give it"):
        apply(_arrivals([5, 5]), Steps(spread_ns=SPREAD_AUTO))


def test_cap_gap_shortens_only_silences() -> None:
    after, done = apply(_arrivals([0, 5, 100, 103], 200), Steps(cap_gap_ns=10))
    assert (after.times_ns.tolist(), after.duration_ns, done[0]["gaps"]) == ([0, 5, 15, 18], 28, 2)


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 1.5, 3.0, 7.25])
def test_scale_rate_keeps_the_clock_and_the_shape(factor: float) -> None:
    """On 20,000 arrivals with a busy half: the count and each half within five standard errors of factor times before."""
    rng = np.random.default_rng(8)
    times = np.concatenate((rng.integers(0, 10**9, 15_000), rng.integers(10**9, 2 * 10**9, 5_000)))
    before = _arrivals(times.tolist(), 2 * 10**9)
    after, _ = apply(before, Steps(rate_factor=factor, seed=4))
    assert after.duration_ns == before.duration_ns
    share = factor % 1
    for part in (slice(0, 10**9), slice(10**9, 2 * 10**9)):
        was, now = (int(((a.times_ns >= part.start) & (a.times_ns < part.stop)).sum()) for a in (before, after))
        assert abs(now - factor * was) <= 5 * np.sqrt(was * share * (1 - share)) + factor
    counts = np.bincount(_rows(after), minlength=20_000)
    assert counts.min() >= int(factor) and counts.max() <= int(factor) + (share > 0)
    if factor >= 1:
        assert set(before.times_ns.tolist()) <= set(after.times_ns.tolist())
        assert len(set(after.times_ns.tolist())) > 0.9 * min(len(after.times_ns), 5 * len(before.times_ns))


def test_scale_rate_does_not_fill_a_silence() -> None:
    busy = [*range(1000), *range(10**9, 10**9 + 1000)]
    after, _ = apply(_arrivals(busy), Steps(rate_factor=3.0))
    assert len(after.times_ns) == 6000
    mean_gap = 10**9 // 1999
    assert ((after.times_ns < 1000 + mean_gap) | (after.times_ns >= 10**9)).all()


def test_scale_time_stretches_the_clock() -> None:
    after, _ = apply(_arrivals([0, 5, 10], 20), Steps(time_factor=2.5))
    assert (after.times_ns.tolist(), after.duration_ns) == ([0, 12, 25], 50)
    with pytest.raises(BenchError, match="longer than time stamps can count"):
        apply(_arrivals([0, 10**12]), Steps(time_factor=1e9))
