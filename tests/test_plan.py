"""The plan against servers whose truth is known: sizes that can be worked out by hand, limits that were put there, nonsense refused."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_runs import BASE, ENGINE_MB, MB, MS, OVERHEAD_NS, SERVICE_NS, SLOT, curve_run, measured, starts

from bench.analysis.statistics import Interval
from bench.capacity.candidates import COLD, ELASTIC, FAMILIES, LAZY, SCALE_OUT, WARM, Candidate, Rules
from bench.capacity.choice import MEAN, miss_text, next_size, why_chosen
from bench.capacity.cost import cost, parse_price
from bench.capacity.goal import parse_goal
from bench.capacity.limits import COMPUTE, MEMORY, START
from bench.capacity.measured import HeldMemory, fit, read_measured, write_measured
from bench.capacity.offered import Offered, of_process, of_schedule, with_cv, with_length, with_peak, with_rate
from bench.capacity.plan import Plan, make_plan, sentence
from bench.capacity.predict import further_run, predict, replica_bytes, simulate_one
from bench.capacity.rules_of_thumb import erlang_c, erlang_c_slots, rules_of_thumb
from bench.capacity.search import Bounds
from bench.capacity.sensitivity import BURSTINESS, LENGTH, PEAK
from bench.capacity.service import ServiceCurve, read_service_curve
from bench.capacity.starts import no_starts
from bench.errors import BenchError
from bench.load.arrivals_text import parse_arrivals
from bench.report.figures_plan import pareto, service
from bench.report.plan_decisions import decisions
from bench.report.plan_page import curve_table, plan_page, sensitivity_table, statements

SEEDS = (1, 2, 3)
MORE_SEEDS = tuple(range(1, 9))
BURST = "train:base=10,peak=120,hold=2s,rest=4s,spikes=4"


def load(text: str = BURST, seeds: tuple[int, ...] = SEEDS) -> Offered:
    return of_process(parse_arrivals(text), seeds)


def bounds(*, slots: int = 8, replicas: int = 4, usable: int | None = None) -> Bounds:
    return Bounds(most_slots=slots, most_replicas=replicas, usable_bytes=usable)


def plan(slo: str = "p99=100ms", text: str = BURST, **given: Any) -> Plan:
    made = given.pop("measured", None) or measured()
    goal = parse_goal([slo], given.pop("goodput", None))
    rules, limits = given.pop("rules", Rules()), given.pop("bounds", bounds())
    seeds = given.pop("seeds", SEEDS)
    return make_plan(made, load(text, seeds), goal, rules, limits, seeds, vary=given.pop("vary", False), **given)


def family(made: Plan, name: str) -> Any:
    return next(one for one in made.families if one.name == name)


def test_the_smallest_warm_pool_is_the_one_below_which_nothing_holds() -> None:
    made = plan(families=(WARM,))
    assert made.holds and made.answer is not None
    slots = made.answer.candidate.slots
    offered, goal = load(), parse_goal(["p99=100ms"], None)
    for number in range(1, 9):
        found = predict(Candidate(family=WARM, slots=number), measured(), offered, goal, Rules(), SEEDS)
        assert found.holds == (number >= slots)
    assert 2 <= slots <= 7  # 120/s of 20 ms and more are at least 2.4 slots' work
    assert made.limit is not None and made.limit.what == COMPUTE
    assert made.limit.smaller is not None and made.limit.smaller.candidate.slots == slots - 1 and not made.limit.smaller.holds


def test_even_arrivals_need_exactly_as_many_slots_as_are_busy_at_once() -> None:
    """100/s, each 21 to 23 ms with three busy (and no spread): two slots cannot, three can, and nobody waits."""
    exact = measured(levels=tuple(np.array([SERVICE_NS], np.int64) for _ in range(4)), throughput_per_s=(50.0, 100.0, 150.0, 200.0))
    made = plan("p99=22ms", "constant:rate=120,duration=10s", measured=exact, bounds=bounds(slots=4), families=(WARM,))
    assert made.holds and made.answer is not None and made.answer.candidate.slots == 3
    assert made.answer.values_ns == (SERVICE_NS + OVERHEAD_NS,)
    # 3 slots of 20 ms answer 150/s, a quarter more than 120/s
    assert made.headroom == pytest.approx(0.25, abs=0.03)


def test_the_answer_is_one_sentence_with_its_numbers() -> None:
    made = plan(price=parse_price("2.5/h"))
    assert made.sentence.startswith("Take warm-pool, ") and made.sentence.endswith(".") and ". " not in made.sentence
    assert "of 100 ms" in made.sentence and "more load" in made.sentence and "2.50 an hour" in made.sentence and "limits" in made.sentence


def test_memory_is_that_of_the_process_the_engine_and_every_slot() -> None:
    made = plan(families=(WARM,))
    assert made.answer is not None
    slots = made.answer.candidate.slots
    assert made.answer.held_bytes == made.answer.peak_bytes == made.answer.replica_bytes == BASE + ENGINE_MB + slots * SLOT
    cold = replica_bytes(Candidate(family=COLD, slots=3), measured())
    assert cold == BASE + 3 * (ENGINE_MB + SLOT)


def test_memory_that_is_too_small_for_the_slots_takes_more_replicas_and_says_so() -> None:
    wide = plan(families=(WARM,)).answer
    assert wide is not None and wide.candidate.replicas == 1
    two = BASE + ENGINE_MB + 2 * SLOT
    made = plan(families=(WARM,), bounds=bounds(usable=two))
    assert made.holds and made.answer is not None and made.limit is not None
    assert made.answer.candidate.slots <= 2 and made.answer.candidate.replicas >= 2
    assert made.limit.what == MEMORY
    alone = plan(families=(WARM,), bounds=bounds(usable=two, replicas=1))
    assert not alone.holds and alone.limit is not None and alone.limit.what == MEMORY
    assert alone.sentence.startswith("Nothing holds p99 <= 100 ms; warm-pool, ") and "memory limits" in alone.sentence


def test_compute_limits_where_all_slots_and_replicas_are_too_few() -> None:
    made = plan("p99=40ms", "constant:rate=400,cv=1,duration=5s", families=(WARM,), bounds=bounds(slots=2, replicas=2))
    assert not made.holds and made.limit is not None and made.limit.what == COMPUTE
    assert made.answer is not None and (made.answer.candidate.slots, made.answer.candidate.replicas) == (2, 2)
    assert made.headroom is None and "--max-replicas" in made.sentence


def test_start_time_limits_a_cold_load_whose_loads_take_longer_than_the_slo() -> None:
    made = plan(families=(COLD,))
    assert not made.holds and made.limit is not None and made.limit.what == START
    quick = plan(families=(COLD,), measured=measured(starts=starts(cold_load_ms=1)))
    assert quick.holds
    assert len(made.tried) == 1  # it is not simulated with every number of places: none could help


def test_what_holds_less_in_the_mean_is_taken_only_where_that_is_asked_for() -> None:
    """One request in ten seconds, and a second to answer it: nothing need be held in between, which helps nobody by itself."""
    text = "constant:rate=0.1,duration=600s"
    warm = plan("p99=1s", text, families=(WARM, COLD))
    assert warm.answer is not None and warm.answer.candidate.family == WARM and warm.memory_by == "peak"
    why = why_chosen(warm)
    assert why is not None and "of those with as much it is the fastest" in why and f"why warm-pool, 1 slot: {why}" in statements(warm)
    made = plan("p99=1s", text, families=(WARM, COLD), memory_by=MEAN)
    assert made.holds and made.answer is not None and made.answer.candidate.family == COLD
    assert "holds the least in the mean" in (why_chosen(made) or "")
    assert any("loads while it serves" in note for note in made.notes) and not any("loads while" in note for note in warm.notes)
    assert made.answer.held_bytes is not None and made.answer.held_bytes < BASE + 0.1 * (ENGINE_MB + SLOT)
    assert made.answer.peak_bytes == BASE + ENGINE_MB + SLOT


def test_the_way_that_holds_the_least_at_its_peak_is_taken_with_its_reason() -> None:
    """Two places that load hold two engines at once and little in the mean; one warm slot holds one engine, always."""
    quick = measured(starts=starts(cold_load_ms=15))
    made = plan("p99=60ms", "train:base=5,peak=60,hold=1s,rest=6s,spikes=4", measured=quick, families=(WARM, COLD))
    warm, cold = family(made, WARM), family(made, COLD)
    assert warm.holds and cold.holds and warm.prediction.replicas == cold.prediction.replicas
    assert cold.prediction.held_bytes < 0.8 * warm.prediction.held_bytes and cold.prediction.peak_bytes > warm.prediction.peak_bytes
    assert made.answer == warm.prediction
    assert "of the ways with as few replicas it holds the least at its peak (" in (why_chosen(made) or "")


def test_scale_out_needs_a_reserve_as_long_as_replicas_take_to_start() -> None:
    """200/s are four slots' work; a replica has two, so two replicas and a bit are needed while the load lasts."""
    text = "step:base=20,peak=200,lead=10s,hold=60s,rest=10s"
    limits = bounds(slots=2, replicas=6)
    slow = plan("p99=300ms", text, bounds=limits, rules=Rules(ready_ns=45 * 10**9, detect_ns=15 * 10**9), families=(WARM, SCALE_OUT))
    quick = plan("p99=300ms", text, bounds=limits, rules=Rules(ready_ns=100 * MS, detect_ns=50 * MS), families=(WARM, SCALE_OUT))
    warm = family(slow, WARM).prediction
    assert family(slow, WARM).holds and warm.candidate.replicas >= 3
    # A minute after the peak has come is too late: less than the warm pool does not hold.
    late, in_time = family(slow, SCALE_OUT), family(quick, SCALE_OUT)
    assert not late.holds and late.prediction.value_ns > 300 * MS and slow.answer is not None and slow.answer.candidate.family == WARM
    assert any("reserve: all " in one for one in statements(slow))
    assert in_time.holds and in_time.prediction.candidate.replicas < warm.candidate.replicas
    assert any(f"reserve: {in_time.prediction.candidate.replicas} replica" in one for one in statements(quick))
    assert quick.answer is not None and quick.answer.candidate.family == SCALE_OUT
    assert quick.answer.replicas < warm.replicas  # it does not run them all before the peak


def test_elastic_holds_less_than_warm_when_spikes_are_rare() -> None:
    text = "train:base=2,peak=100,hold=2s,rest=60s,spikes=3,jitter=0"
    made = plan("p99=400ms", text, families=(WARM, ELASTIC), rules=Rules(idle_timeout_ns=5 * 10**9))
    warm, elastic = family(made, WARM), family(made, ELASTIC)
    assert warm.holds and elastic.holds
    assert elastic.prediction.held_bytes < warm.prediction.held_bytes
    assert elastic.prediction.candidate.slots >= warm.prediction.candidate.slots


def test_what_was_not_measured_is_left_out_with_its_reason() -> None:
    none = dataclasses.replace(starts(), cold_load_ns=None, load_ns=None, slot_ns=None, ready_ns=None, ready_level=None)
    made = plan(measured=measured(starts=none))
    assert [one.name for one in made.families] == list(FAMILIES)
    assert {one.name for one in made.families if one.why} == {ELASTIC, SCALE_OUT, LAZY, COLD}
    told = [note for note in made.notes if "left out" in note]
    assert made.holds and told == [
        "elastic, scale-out, lazy and cold-load are left out: what a start takes is not known without --coldstart"
    ]
    assert "without --coldstart" not in " ".join(note for note in made.notes if note not in told)
    with pytest.raises(BenchError, match=r"can be planned \(lazy and cold-load are left out: what a start takes"):
        plan(measured=measured(starts=none), families=(LAZY, COLD))
    with pytest.raises(BenchError, match=r"can be planned \(elastic is left out: it has no size"):
        plan(families=(ELASTIC,), bounds=bounds(slots=1))
    unknown = HeldMemory(kind="resident", base_bytes=None, engine_bytes=None, slot_bytes=None)
    assert plan(measured=measured(memory=unknown), families=(WARM,)).holds


def test_sheds_do_not_buy_a_percentile() -> None:
    """A queue limit of 0 gives one slot a fine p99 of what it takes; the share of good answers says what that is worth."""
    made = plan(families=(WARM,), bounds=bounds(slots=1, replicas=1), rules=Rules(queue_limit=0))
    assert made.answer is not None and made.answer.value_ns < 100 * MS and made.answer.shed_share > 0.3
    assert not made.holds and "of the arrivals are answered in time" in made.sentence
    assert plan(families=(WARM,), bounds=bounds(slots=1, replicas=1), rules=Rules(queue_limit=0), goodput=0.2).holds
    assert "in time" in plan(families=(WARM,), rules=Rules(queue_limit=0)).sentence.partition("limits:")[2]


def test_goals_of_a_phase_count_its_arrivals_only() -> None:
    goal = parse_goal(["spike.p99=100ms", "base.p50=30ms"], 0.5)
    found = predict(Candidate(family=WARM, slots=2), measured(), load(), goal, Rules(), SEEDS)
    every = predict(Candidate(family=WARM, slots=2), measured(), load(), parse_goal(["p99=100ms"], None), Rules(), SEEDS)
    assert found.values_ns[0] is not None and found.values_ns[1] is not None
    assert found.values_ns[1] < 30 * MS < every.value_ns <= found.values_ns[0]
    with pytest.raises(BenchError, match="the load has no phase 'lunch', only base, rest, spike"):
        plan("lunch.p99=100ms")


def test_the_prediction_is_the_pooled_percentile_of_the_simulated_runs() -> None:
    candidate, offered = Candidate(family=WARM, slots=3), load()
    runs = [simulate_one(candidate, measured(), Rules(), one.intended_ns, seed) for one, seed in zip(offered.schedules, SEEDS, strict=True)]
    pooled = np.sort(np.concatenate([run.response_ns for run in runs]))
    found = predict(candidate, measured(), offered, parse_goal(["p99=100ms"], None), Rules(), SEEDS)
    assert found.p99_ns == pooled[math.ceil(0.99 * len(pooled)) - 1]
    assert found.attainment == (pooled <= 100 * MS).mean()
    assert found.interval is None
    more = predict(candidate, measured(), load(seeds=MORE_SEEDS), parse_goal(["p99=100ms"], None), Rules(), MORE_SEEDS)
    assert more.interval is not None and more.p99_ns is not None and more.interval.low < more.p99_ns < more.interval.high


def test_the_interval_of_a_further_run_holds_as_many_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(2000):
        values = np.exp(rng.normal(3, 0.4, 6))
        spread = further_run(list(values[:5]))
        assert spread is not None
        inside += spread.low <= values[5] <= spread.high
    assert 0.93 < inside / 2000 < 0.97
    assert further_run([1.0] * 4) is None and further_run([1.0] * 5) is not None and further_run([1.0] * 5 + [None]) is None
    wide = further_run([50.0, 60.0, 100.0, 400.0, 900.0], 40.0)
    assert wide is not None and wide.low == 40.0  # no answer is faster


def test_a_few_seeds_give_no_interval_and_say_so() -> None:
    few, many = plan(families=(WARM,), seeds=(1, 2)), plan(families=(WARM,), seeds=MORE_SEEDS)
    assert few.answer is not None and few.answer.interval is None and "single run" not in few.sentence
    assert "2 seeds cannot tell how single runs differ: give --seeds 5 or more" in few.notes
    assert many.answer is not None and many.answer.interval is not None and "single run" in many.sentence
    assert not any("cannot tell how single runs differ" in note for note in many.notes)


def test_a_single_run_that_may_miss_is_told_with_the_size_to_take_instead() -> None:
    made = plan("p99=100ms", "train:base=10,peak=120,hold=2s,rest=4s,spikes=2", families=(WARM,), seeds=MORE_SEEDS)
    answer = made.answer
    assert answer is not None and answer.interval is not None
    slots = answer.candidate.slots
    sure = dataclasses.replace(made, answer=dataclasses.replace(answer, interval=Interval(low=50.0 * MS, high=100.0 * MS)))
    assert not sure.may_miss and miss_text(sure) is None and "50.0 ms to 100 ms in a single run" in sentence(sure)
    doubtful = dataclasses.replace(made, answer=dataclasses.replace(answer, interval=Interval(low=50.0 * MS, high=101.0 * MS)))
    assert doubtful.may_miss
    larger = next_size(doubtful)
    assert larger is not None and larger.candidate.slots > slots and larger.interval is not None and larger.interval.high <= 100 * MS
    told = f"it holds over all seeds, but a single run may miss it (50.0 ms to 101 ms); the next size to take is {larger.candidate.text}: "
    assert told in sentence(doubtful) and f"single runs: {miss_text(doubtful)}" in statements(doubtful)
    assert ("A SINGLE RUN MAY MISS", "bad") in plan_page(doubtful, "p", {}).badges
    assert "- **A single run may miss the SLO**: " in decisions(doubtful, None)
    alone = dataclasses.replace(doubtful, tried=tuple(one for one in made.tried if one.candidate.slots <= slots))
    assert "no larger size that was simulated holds" in sentence(alone)


def test_other_loads_near_the_slo_are_marked() -> None:
    made = plan("p99=100ms", families=(WARM,), seeds=MORE_SEEDS, vary=True)
    rows = {(row[0], row[1]): row[4] for row in sensitivity_table(made).rows}
    for one, said in zip(made.variations, rows.values(), strict=True):
        spread = one.chosen.interval
        assert spread is not None
        assert said == ("yes" if one.chosen.holds else "no") + ("*" if spread.low <= 100 * MS < spread.high else "")
    assert {said[-1] for said in rows.values()} > {"*"}


def test_the_planned_load_among_others_has_the_plan_s_own_answer() -> None:
    for slo in ("p99=100ms", "p99=60ms", "p99=22ms"):  # the last one is missed by all
        made = plan(slo, families=(WARM,), seeds=MORE_SEEDS, vary=True, bounds=bounds(replicas=1))
        planned = [one for one in made.variations if one.planned]
        assert len(planned) == 3 and made.answer is not None
        assert {(one.chosen, one.answer) for one in planned} == {(made.answer, made.answer.candidate if made.holds else None)}


# The load, and other ones


def test_other_loads_change_one_thing() -> None:
    own = load("train:base=10,peak=100,hold=2s,rest=4s,spikes=4,jitter=0")
    assert with_rate(own, 2.0, SEEDS).mean_per_s == pytest.approx(2 * own.mean_per_s, rel=0.15)
    higher, longer = with_peak(own, 2.0, SEEDS), with_length(own, 2.0, SEEDS)
    assert higher is not None and higher.peak_per_s == 200 and higher.duration_s == own.duration_s
    assert longer is not None and longer.peak_per_s == 100 and longer.duration_s == own.duration_s + 8
    assert with_peak(own, 0.05, SEEDS) is None  # no spike would be left
    assert with_length(load("poisson:rate=5,duration=60s"), 2.0, SEEDS) is None
    assert with_cv(own, 4.0, SEEDS).cv == 4.0


def test_a_schedule_keeps_its_rate_over_time_whatever_its_gaps() -> None:
    schedule = parse_arrivals("step:base=20,peak=200,lead=5s,hold=5s,rest=5s").schedule(3)
    own = of_schedule(schedule, "a schedule", SEEDS)
    assert own.peak_per_s == 200 and own.cv is None
    clustered, stretched, more = with_cv(own, 4.0, SEEDS), with_length(own, 2.0, SEEDS), with_rate(own, 3.0, SEEDS)
    assert stretched is not None
    for other, seconds, rate in ((clustered, 15, 200), (stretched, 30, 200), (more, 15, 600)):
        (spike,) = other.schedules[0].spikes
        length = (spike.end_ns - spike.start_ns) / 1e9
        inside = (other.schedules[0].spike == 0).sum() / length
        assert other.duration_s == pytest.approx(seconds, abs=0.1)
        assert inside == pytest.approx(rate, rel=0.35 if other is clustered else 0.12)

    def gap_cv(one: Offered) -> float:
        gaps = np.diff(one.schedules[0].intended_ns[one.schedules[0].spike == 0])
        return float(gaps.std() / gaps.mean())

    assert gap_cv(clustered) > 2 > gap_cv(stretched)


def test_the_answer_grows_with_the_peak_and_with_burstiness() -> None:
    made = plan(vary=True, families=(WARM,))
    for what in (PEAK, BURSTINESS):
        sizes = [one.answer.slots * one.answer.replicas for one in made.variations if one.what == what and one.answer is not None]
        assert sizes == sorted(sizes) and sizes[-1] > sizes[0]
    planned = [one for one in made.variations if one.planned]
    assert {one.what for one in planned} == {PEAK, LENGTH, BURSTINESS}
    assert made.answer is not None and all(one.answer == made.answer.candidate for one in planned)


def test_a_load_too_small_to_be_made_smaller_is_planned_all_the_same() -> None:
    made = plan(text="constant:rate=1,duration=1s", vary=True, families=(WARM,))
    assert made.holds and made.answer is not None and made.answer.candidate.slots == 1
    assert 1.0 in {one.value for one in made.variations}


def test_no_size_on_the_frontier_is_beaten_by_another() -> None:
    tried = [one for one in plan().tried if one.values_ns[0] is not None]
    best = pareto(tried, lambda one: one.held_bytes or 0.0)
    for one in best:
        assert not [other for other in tried if (other.held_bytes or 0) < (one.held_bytes or 0) and other.value_ns < one.value_ns]
    assert 2 <= len(best) < len(tried)


# Rules of thumb


def test_erlang_c_is_the_textbook_s() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.409, abs=5e-4)
    assert erlang_c(3, 3.0) == 1.0
    assert erlang_c_slots(50, 0.02, 0.01, 0.99) is None  # no number makes a service shorter
    # With a bound that is the service time nobody may wait: of a load of 1, 2.0 % do with four servers, 0.4 % with five.
    assert erlang_c(4, 1.0) == pytest.approx(0.0204, abs=1e-4) and erlang_c(5, 1.0) == pytest.approx(0.0038, abs=1e-4)
    assert erlang_c_slots(50, 0.02, 0.02, 0.99) == 5


def test_rules_of_thumb_take_what_they_say() -> None:
    rules = {
        rule.name: rule.slots
        for rule in rules_of_thumb(
            mean_per_s=10, peak_per_s=100, service_s=0.02, bound_s=0.1, share=0.99, memory_bytes=1000 * MB, model_bytes=102 * MB
        )
    }
    assert rules == {"always 1": 1, "Erlang C at the mean rate": 1, "Erlang C at the peak rate": 3, "memory / model size": 9}


# Prices


def test_prices_are_read_as_people_write_them() -> None:
    assert (parse_price("2.5/h").per_hour, parse_price("$60/day").per_hour, parse_price("2").per_hour) == (2.5, 2.5, 2.0)
    paid = cost(parse_price("3.6/h"), 2, 10.0)
    assert (paid.per_hour, paid.per_million) == (7.2, pytest.approx(200.0))
    for text in ("-1/h", "free", "2.5/week", "nan/h", "1e308/h", "1e999/h"):
        with pytest.raises(BenchError, match="--price"):
            parse_price(text)


# Nonsense


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"slo": "p99=5ms"}, "half of the requests take longer than that with nobody else there"),
        ({"bounds": bounds(usable=120 * MB)}, "--memory leaves 120 MB behind the reserve, and one slot of known needs 175 MB"),
    ],
)
def test_nonsense_is_refused_before_anything_is_simulated(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BenchError, match=complaint):
        plan(**given)


def test_memory_without_a_measured_slot_is_refused() -> None:
    unknown = HeldMemory(kind="resident", base_bytes=None, engine_bytes=None, slot_bytes=None)
    with pytest.raises(BenchError, match="--memory needs to know what a slot holds"):
        plan(measured=measured(memory=unknown), bounds=bounds(usable=10**9))


def test_the_overhead_of_larger_servers_is_not_that_of_smaller_ones() -> None:
    known = measured(3, overheads_ns=tuple(np.array([level * MS], np.int64) for level in (1, 2, 50)))
    assert known.overhead_ns(2).tolist() == [MS, 2 * MS]
    run = simulate_one(Candidate(family="warm-pool", slots=1), known, Rules(), np.array([0, 10**9], np.int64), seed=1)
    assert (run.response_ns - run.service_ns).tolist() == [MS, MS]


def test_a_saturated_server_answers_as_many_a_second_as_the_curve(tmp_path: Path) -> None:
    curve = read_service_curve(curve_run(tmp_path / "curve", slots=2))
    level = dataclasses.replace(curve.levels[1], throughput_per_s=curve.levels[1].throughput_per_s * 0.8)
    known = fit(dataclasses.replace(curve, levels=(curve.levels[0], level)), no_starts(curve.engine), {})
    assert curve.levels[0].turnaround_ns == 0 < level.turnaround_ns
    run = simulate_one(Candidate(family="warm-pool", slots=2), known, Rules(), np.zeros(2000, np.int64), seed=1)
    assert 2000 / run.end_ns * 1e9 == pytest.approx(level.throughput_per_s, rel=0.01)
    alone = simulate_one(Candidate(family="warm-pool", slots=1), known, Rules(), np.zeros(1, np.int64), seed=1)
    assert alone.response_ns[0] <= SERVICE_NS * 1.05 + OVERHEAD_NS


def with_levels(curve: ServiceCurve, slots: tuple[int, ...], throughput: float = 1.0) -> ServiceCurve:
    """Only these levels, which answered so much less than their slots could have."""
    levels = [dataclasses.replace(one, throughput_per_s=one.throughput_per_s * throughput) for one in curve.levels if one.busy in slots]
    return dataclasses.replace(curve, levels=tuple(levels))


def test_only_what_was_measured_is_shown_as_measured(tmp_path: Path) -> None:
    curve = with_levels(read_service_curve(curve_run(tmp_path / "curve")), (1, 2, 4))
    known = fit(curve, no_starts(curve.engine), {})
    assert (known.busy, len(known.levels)) == ((1, 2, 4), 4) and (known.levels[2] == known.levels[3]).all()
    made = plan(measured=known, families=(WARM,), bounds=bounds(slots=4))
    assert made.curve_slots == (1, 2, 4) and "measured with 1, 2, 4 busy slots" in made.notes[0]
    table = curve_table(made)
    assert [row[0] for row in table.rows] == ["1", "2", "4"] and "In between" in table.note
    assert "Only the dots were measured" in service(made).caption and "every slot always busy" in service(made).caption
    back = read_measured(tmp_path, json.loads(json.dumps(write_measured(known, tmp_path))))
    assert back.busy == (1, 2, 4)


def test_the_useful_slots_are_some_that_were_measured(tmp_path: Path) -> None:
    curve = read_service_curve(curve_run(tmp_path / "curve", slots=2))
    first, second = curve.levels
    levels = (dataclasses.replace(first, throughput_per_s=10.0), dataclasses.replace(second, busy=32, throughput_per_s=320.0))
    assert fit(dataclasses.replace(curve, levels=levels), no_starts(curve.engine), {}).useful_slots == 32


def test_a_curve_whose_slots_were_idle_is_told_of_before_any_number(tmp_path: Path) -> None:
    whole = read_service_curve(curve_run(tmp_path / "curve", slots=2))
    idle = fit(with_levels(whole, (1, 2), 0.7), no_starts(whole.engine), {})
    made = plan(measured=idle, families=(WARM,), bounds=bounds(slots=2))
    assert "slots were idle at 2 of 2 levels" in made.notes[0] and not made.invalid
    assert "always busy" not in service(made).caption
    never = fit(with_levels(whole, (1, 2), 0.3), no_starts(whole.engine), {})
    made = plan(measured=never, families=(WARM,), bounds=bounds(slots=2))
    assert made.invalid[0].startswith("the service curve is not valid: slots stood idle for most of the time at 2 of 2 levels")
    page = plan_page(made, "p", {})
    assert page.invalid == made.invalid and ("INVALID", "bad") in page.badges and page.sentence.startswith("Not valid: ")
    assert decisions(made, None).startswith("- **Nothing yet**: the service curve is not valid")


def test_a_runtime_without_threads_needs_none_of_the_curve_s() -> None:
    settings = {"threads": "2"}
    assert measured(settings=settings).own_settings == settings
    assert measured(settings=settings, engine={**measured().engine, "runtime": "tensorrt"}).own_settings == {}


def test_what_was_measured_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    own = measured()
    back = read_measured(tmp_path, json.loads(json.dumps(write_measured(own, tmp_path))))
    assert all((one == other).all() for one, other in zip(own.levels, back.levels, strict=True))
    assert all((one == other).all() for one, other in zip(own.overheads_ns, back.overheads_ns, strict=True))
    assert back.memory == own.memory and back.throughput_per_s == own.throughput_per_s
    for name in ("cold_load_ns", "load_ns", "slot_ns", "ready_ns"):
        assert (getattr(back.starts, name) == getattr(own.starts, name)).all()
    (tmp_path / "measured.parquet").write_bytes(b"damaged")
    with pytest.raises(BenchError, match="make the plan again"):
        read_measured(tmp_path, {})


def test_runs_of_two_engines_are_not_put_together(tmp_path: Path) -> None:
    from plan_runs import curve_run

    from bench.capacity.service import read_service_curve

    other = dataclasses.replace(starts(), engine={**starts().engine, "precision": "fp16"})
    with pytest.raises(BenchError, match="precision is fp32 in the curve and fp16 in the cold starts"):
        fit(read_service_curve(curve_run(tmp_path / "curve")), other, {})
