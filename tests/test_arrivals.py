"""Arrival processes against theory. Seeds are fixed; each bound says how many standard errors it allows."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.errors import BenchError
from bench.load.arrivals import ArrivalProcess, Mmpp
from bench.load.arrivals_text import EXAMPLES, PROCESSES, parse_arrivals
from bench.load.profile import NO_SPIKE, PHASES, SECOND_NS, Piece, Profile

SEEDS = range(100, 140)
LONG = {
    "constant": "constant:rate=37.5,duration=200s",
    "poisson": "poisson:rate=50,duration=200s",
    "gamma": "gamma:rate=200,cv=3,duration=200s",
    "gamma-even": "gamma:rate=50,cv=0.5,duration=200s",
    "mmpp": "mmpp:base=20,peak=200,on=2s,off=8s,duration=400s",
    "rate": "rate:0s=10,50s=100,100s=100,101s=10,200s=0",
    "ramp": "ramp:base=10,peak=200,duration=60s",
    "step": "step:base=50,peak=500,lead=30s,hold=10s,rest=40s",
    "flash": "flash:base=20,peak=400,lead=20s,rise=1s,decay=8s,rest=20s",
    "train": "train:base=50,peak=300,hold=2s,rest=8s,spikes=10",
    "train-clustered": "train:base=50,peak=300,hold=5s,rest=5s,spikes=10,cv=2",
}
processes = pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())


@processes
def test_the_mean_count_is_the_expected_one(text: str) -> None:
    """Within four standard errors of the mean over 40 seeds, the error taken from the seeds themselves."""
    process = parse_arrivals(text)
    counts = np.array([len(process.schedule(seed)) for seed in SEEDS])
    error = counts.std(ddof=1) / math.sqrt(len(SEEDS))
    assert abs(counts.mean() - process.expected.count) <= 4 * error + 1e-6


@processes
def test_the_dispersion_is_the_expected_one(text: str) -> None:
    """Variance over mean of the counts of all whole seconds of 40 seeds: within 15 %, or 0.03 where it is about 0."""
    process = parse_arrivals(text)
    expected = process.expected.dispersion
    assert expected is not None
    counts = np.concatenate([_counts_per_second(process, seed) for seed in SEEDS])
    assert counts.var() / counts.mean() == pytest.approx(expected, rel=0.15, abs=0.03)


def _counts_per_second(process: ArrivalProcess, seed: int) -> np.ndarray:
    schedule = process.schedule(seed)
    seconds = schedule.duration_ns // SECOND_NS
    return np.bincount(schedule.intended_ns // SECOND_NS, minlength=seconds)[:seconds]


@pytest.mark.parametrize("text", [t for n, t in LONG.items() if n not in ("constant", "gamma", "gamma-even", "train-clustered")])
def test_the_counts_follow_the_rate(text: str) -> None:
    """In 20 equal parts of the run the counts of 40 seeds add up to the area under the drawn rates (chi-square, p > 0.001)."""
    process = parse_arrivals(text)
    observed, expected = np.zeros(20), np.zeros(20)
    for seed in SEEDS:
        schedule = process.schedule(seed)
        edges = np.linspace(0, schedule.duration_ns, 21).astype(np.int64)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed).spawn(2)[0]))
        observed += np.histogram(schedule.intended_ns, edges)[0]
        expected += np.diff(process.profile(rng).area_until(edges))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert stats.chi2.sf(chi_square, 20) > 0.001


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5, 6.0])
def test_gaps_are_gamma(cv: float) -> None:
    """On 20,000 gaps: those above 1 us by Kolmogorov-Smirnov (p > 0.001), the share below within four standard errors. Of
    a clustered stream a large part of the gaps is shorter than the ns in which times are counted."""
    times = parse_arrivals(f"gamma:rate=1000,cv={cv},duration=20s").schedule(11).intended_ns
    gaps = np.diff(times) / SECOND_NS
    law = stats.gamma(1 / cv**2, scale=cv**2 / 1000)
    below = float(law.cdf(1e-6))
    assert abs((gaps <= 1e-6).mean() - below) <= 4 * math.sqrt(below * (1 - below) / len(gaps)) + 1e-6
    assert stats.kstest(gaps[gaps > 1e-6], lambda gap: (law.cdf(gap) - below) / (1 - below)).pvalue > 0.001


@pytest.mark.parametrize("name", ["poisson", "rate", "ramp", "step", "flash", "train"])
def test_on_the_clock_of_expected_arrivals_gaps_are_exponential(name: str) -> None:
    """The time change back: gaps in area under the rate are exponential with mean 1 (Kolmogorov-Smirnov, p > 0.001)."""
    process = parse_arrivals(LONG[name])
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(5).spawn(2)[0]))
    areas = process.profile(rng).area_until(process.schedule(5).intended_ns)
    assert stats.kstest(np.diff(areas), stats.expon.cdf).pvalue > 0.001


def test_constant_is_even_and_starts_at_zero() -> None:
    schedule = parse_arrivals("constant:rate=10,duration=1s").schedule(3)
    assert schedule.intended_ns.tolist() == [i * 100_000_000 for i in range(10)]
    thirds = parse_arrivals("constant:rate=3,duration=2s").schedule(3)
    assert thirds.intended_ns.tolist() == [round(i * SECOND_NS / 3) for i in range(6)]


def test_mmpp_stays_as_long_as_it_says() -> None:
    """Mean stays at the peak over 40 seeds, within four standard errors; the share of time at the peak within 10 %."""
    process = parse_arrivals("mmpp:base=1,peak=20,on=2s,off=8s,duration=2000s")
    assert isinstance(process, Mmpp)
    whole, on_ns = [], 0
    for seed in SEEDS:
        schedule = process.schedule(seed)
        whole += [s.end_ns - s.start_ns for s in schedule.spikes if s.start_ns > 0 and s.end_ns < schedule.duration_ns]
        on_ns += sum(s.end_ns - s.start_ns for s in schedule.spikes)
    stays = np.array(whole) / SECOND_NS
    assert abs(stays.mean() - 2) < 4 * stays.std() / math.sqrt(len(stays))
    assert on_ns / (len(SEEDS) * process.duration_ns) == pytest.approx(0.2, rel=0.1)


def test_rests_of_a_train_differ_but_keep_their_bounds() -> None:
    spikes = parse_arrivals("train:base=5,peak=50,hold=1s,rest=4s,spikes=50,jitter=0.25").schedule(9).spikes
    rests = np.array([after.start_ns - before.end_ns for before, after in pairwise(spikes)])
    assert len(spikes) == 50 and len(set(rests.tolist())) == 49
    assert rests.min() >= 3 * SECOND_NS and rests.max() <= 5 * SECOND_NS
    assert {s.end_ns - s.start_ns for s in spikes} == {SECOND_NS}


def test_phases_of_the_shapes() -> None:
    def phases(text: str) -> list[str]:
        column = parse_arrivals(text).schedule(1).table.column("phase").to_pylist()
        return [phase for i, phase in enumerate(column) if i == 0 or column[i - 1] != phase]

    assert phases(EXAMPLES["step"]) == ["base", "spike", "rest"]
    assert phases(EXAMPLES["flash"]) == ["base", "spike", "decay", "rest"]
    assert phases("train:base=50,peak=500,hold=2s,rest=8s,spikes=2") == ["base", "spike", "rest", "spike", "rest"]
    assert phases(EXAMPLES["poisson"]) == ["steady"]
    assert phases(EXAMPLES["ramp"]) == ["ramp"]


rates = st.floats(0.5, 300).map(lambda x: round(x, 2))
times = st.integers(10, 3000).map(lambda ms: f"{ms}ms")
texts = st.one_of(
    st.builds("constant:rate={},duration={}".format, rates, times),
    st.builds("poisson:rate={},duration={}".format, rates, times),
    st.builds("gamma:rate={},cv={},duration={}".format, rates, st.sampled_from([0.2, 1, 3, 12]), times),
    st.builds(lambda b, p, on, off, d: f"mmpp:base={b},peak={b + p},on={on},off={off},duration={d}", rates, rates, times, times, times),
    st.builds(lambda b, p, d: f"ramp:base={b},peak={b + p},duration={d}", rates, rates, times),
    st.builds(lambda b, p, h, r: f"step:base={b},peak={b + p},hold={h},rest={r}", rates, rates, times, times),
    st.builds(lambda b, p, r, d: f"flash:base={b},peak={b + p},lead={d},rise={r},decay={d},rest={r}", rates, rates, times, times),
    st.builds(
        lambda b, p, h, r, n, cv: f"train:base={b},peak={b + p},hold={h},rest={r},spikes={n},cv={cv}",
        st.sampled_from([0.0, 5.0]),
        rates,
        times,
        times,
        st.integers(1, 6),
        st.sampled_from([0, 1, 2]),
    ),
    st.builds(lambda a, b, c: f"rate:0s={a},700ms={b},1s=0,1500ms={c}", rates, rates, rates),
)


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(0, 2**32))
def test_what_every_schedule_keeps(text: str, seed: int) -> None:
    """Sorted, inside the duration, the same again for the same seed, labels that agree with the spike table, and a text
    that reads back as the same process."""
    process = parse_arrivals(text)
    assert parse_arrivals(process.text) == process
    try:
        schedule = process.schedule(seed)
    except BenchError as error:
        assert "no arrivals" in str(error)
        return
    at = schedule.intended_ns
    assert at.dtype == np.int64 and (np.diff(at) >= 0).all() and at[0] >= 0 and at[-1] < schedule.duration_ns
    assert schedule.seq.tolist() == list(range(len(at)))
    assert schedule.table.equals(process.schedule(seed).table)
    inside = np.full(len(at), NO_SPIKE)
    for spike in schedule.spikes:
        inside[(at >= spike.start_ns) & (at < spike.end_ns)] = spike.index
    assert (inside == schedule.spike).all()
    spiky = np.isin(schedule.table.column("phase").to_pylist(), ["spike", "decay"])
    assert (spiky == (schedule.spike != NO_SPIKE)).all()


pieces = st.lists(
    st.builds(
        lambda ns, a, b: Piece(duration_ns=ns, start_rate=a, end_rate=b, phase="base"),
        st.integers(1, 10**10),
        st.sampled_from([0.0, 1.0, 50.0, 1e4]),
        st.sampled_from([0.0, 1.0, 50.0, 1e4]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(pieces, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30))
def test_times_at_inverts_area_until(parts: list[Piece], shares: list[float]) -> None:
    profile = Profile.of(parts)
    if profile.count == 0:
        return
    areas = np.sort(np.array(shares)) * profile.count
    found = profile.times_at(areas)
    assert (np.diff(found) >= 0).all() and found[0] >= 0 and found[-1] < profile.duration_ns
    # A time is a whole ns, so an area is met to within the arrivals of two of them.
    assert np.allclose(profile.area_until(found), areas, rtol=1e-9, atol=2 * profile.peak_rate / SECOND_NS + 1e-9 * profile.count)


def test_windows_too_small_for_a_large_cv_have_no_expected_dispersion() -> None:
    assert parse_arrivals("gamma:rate=1,cv=10,duration=600s").expected.dispersion is None
    assert parse_arrivals("poisson:rate=10,duration=500ms").expected.dispersion is None
    assert parse_arrivals("gamma:rate=1000,cv=4,duration=60s").expected_in(10 * SECOND_NS).dispersion == pytest.approx(16, rel=0.01)


def test_each_process_names_its_source_and_has_an_example() -> None:
    assert set(EXAMPLES) == set(PROCESSES)
    for name, process in PROCESSES.items():
        assert process.source and process.__doc__, name
        assert parse_arrivals(EXAMPLES[name]).name == name
    assert len(set(PHASES)) == len(PHASES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poisson:rate=0,duration=1s", "rate is 0, and must be above 0"),
        ("poisson:rate=-3,duration=1s", "rate is -3"),
        ("poisson:rate=nan,duration=1s", "write a number"),
        ("poisson:rate=fast,duration=1s", "write a number"),
        ("poisson:rate=5,duration=30", "is not a time"),
        ("poisson:rate=5,duration=-1s", "must not be negative"),
        ("poisson:rate=5,duration=0s", "duration is 0s"),
        ("poisson:rate=5,duration=1e300s", "longer than"),
        ("poisson:rate=5", "duration is missing"),
        ("poisson:rate=5,duration=1s,color=3", "no key 'color'"),
        ("poisson:rate=5,rate=6,duration=1s", "twice"),
        ("poisson:rate", "not key=value"),
        ("poisson", "rate is missing"),
        ("weibull:rate=5", "no process 'weibull'"),
        ("", "no process ''"),
        ("gamma:rate=5,cv=-1,duration=1s", "cv is -1"),
        ("gamma:rate=5,duration=1s", "cv is missing"),
        ("step:base=50,peak=50,hold=1s", "must be above base"),
        ("step:base=-1,peak=50,hold=1s", "must not be negative"),
        ("train:base=1,peak=5,hold=1s,rest=1s,spikes=0", "spikes is 0"),
        ("train:base=1,peak=5,hold=1s,rest=1s,spikes=2.5", "whole number"),
        ("train:base=1,peak=5,hold=1s,rest=1s,spikes=2,jitter=2", "jitter is 2"),
        ("rate:0s=5", "two points"),
        ("rate:1s=5,2s=5", "first point must be at 0s"),
        ("rate:0s=5,2s=5,1s=5", "must grow"),
        ("rate:0s=0,2s=0", "above 0"),
        ("rate:0s=-1,2s=0", "must not be negative"),
        ("poisson:rate=1e9,duration=1h", "shorten the run"),
        ("poisson:rate=0.001,duration=1ms", "no arrivals"),
        ("mmpp:base=1,peak=2,on=1ns,off=1ns,duration=1h", "switches more than"),
    ],
)
def test_a_wrong_text_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        parse_arrivals(text).schedule(1)
    assert "\n" not in str(caught.value)


def test_duration_beside_the_text() -> None:
    assert parse_arrivals("poisson:rate=5", duration="3s") == parse_arrivals("poisson:rate=5/s,duration=3s")
    for text in ("poisson:rate=5,duration=1s", "step:base=1,peak=2,hold=1s", "rate:0s=1,1s=1"):
        with pytest.raises(BenchError, match="duration"):
            parse_arrivals(text, duration="3s")


def test_a_jump_in_a_rate_is_a_time_given_twice() -> None:
    times = parse_arrivals("rate:0s=0,1s=0,1s=500,2s=500").schedule(2).intended_ns
    assert times[0] >= SECOND_NS and 400 < len(times) < 600
