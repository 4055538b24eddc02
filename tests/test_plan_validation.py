"""Predicted against measured, where what was measured is the model's own truth with other seeds: the errors are then the noise,
and the right sizes are known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_runs import BASE, ENGINE_MB, MS, SLOT, load_run, load_runs, measured

from bench.capacity.measured import DEFAULTS
from bench.capacity.served import served
from bench.capacity.sizes import PLAN, Guess, Score, Tally, is_right, right_of, sentence
from bench.capacity.starts import no_starts
from bench.capacity.validation import Compared, Validation, runs_to_compare, validate
from bench.errors import BenchError
from bench.load.schedule import write_schedule
from bench.load.traces.importing import import_trace
from bench.load.traces.rows import Options
from bench.load.traces.transform import Steps
from bench.records import open_run

BURST = "train:base=20,peak=150,hold=1s,rest=2s,spikes=2"
SLO_NS = 60 * MS
SEEDS = range(1, 9)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two to five slots, five runs each."""
    return load_runs(tmp_path_factory.mktemp("runs"), BURST, (2, 3, 4, 5), seeds=(11, 12, 13, 14, 15))


@pytest.fixture(scope="module")
def made(runs: list[Path]) -> Validation:
    found, left_out = runs_to_compare(runs)
    assert not left_out
    return validate(measured(), found, plan="plan", slo_ns=SLO_NS, memory_bytes=10**9, seeds=SEEDS)


def test_runs_of_one_load_and_size_are_pooled(made: Validation) -> None:
    assert [(case.slots, len(case.runs)) for case in made.cases] == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert made.runs == 20 and all(case.arrivals > 1000 for case in made.cases)


def test_a_server_that_is_the_model_lies_where_the_model_expects_it(made: Validation) -> None:
    assert made.inside >= 3  # of 4 at 95 % each, with these seeds
    assert made.median_error is not None and made.noise is not None and made.worst_error is not None
    assert made.median_error < 0.1 < made.worst_error + 0.1
    for case in made.cases:
        assert case.p50.error == pytest.approx(0, abs=0.1)
        assert case.predicted_bytes == case.measured_bytes == BASE + ENGINE_MB + case.slots * SLOT
        assert case.predicted_shed == case.measured_shed == 0


def test_a_server_that_is_slower_than_the_model_lies_outside(runs: list[Path]) -> None:
    quick = dataclasses.replace(measured(), levels=tuple(level // 2 for level in measured().levels))
    found, _ = runs_to_compare(runs[5:10])
    other = validate(quick, found, plan="plan", slo_ns=SLO_NS, memory_bytes=None, seeds=SEEDS)
    assert other.inside == 0
    assert other.cases[0].p99.error is not None and other.cases[0].p99.error < -0.4


def test_every_spike_is_compared(made: Validation) -> None:
    for case in made.cases:
        assert len(case.spikes) == 2 * len(case.runs)
        assert {one.run for one in case.spikes} == set(case.runs)
        assert all(one.predicted_p99_ns and one.measured_p99_ns and one.arrivals > 50 for one in case.spikes)
    slow, quick = made.cases[0], made.cases[-1]
    assert all(one.measured_p99_ns > other.measured_p99_ns for one, other in zip(slow.spikes, quick.spikes, strict=True))  # type: ignore[operator]


def test_the_predicted_size_is_the_right_one_and_rules_of_thumb_are_scored_beside_it(made: Validation) -> None:
    (score,) = made.scores
    assert [size.slots for size in score.sizes] == [2, 3, 4, 5]
    times = [size.p99_ns for size in score.sizes]
    assert times == sorted(times, reverse=True)
    guesses = {guess.rule: guess for guess in score.guesses}
    assert guesses[PLAN].right is True
    assert guesses["always 1"].right is False
    assert guesses["memory / model size"].slots == 10**9 // 2_000_000 and guesses["memory / model size"].right is False
    assert right_of(made.scores)[PLAN] == Tally(right=1, undecided=0, loads=1)
    assert "the predicted number of slots is right in 1 of 1 load (" in made.sentence and "always 1: 0" in made.sentence


def test_which_size_is_right_follows_from_those_that_were_measured() -> None:
    clear = {2: "too few", 3: "enough"}
    assert [is_right(slots, clear) for slots in (1, 2, 3, 4)] == [False, False, True, False]
    straddling = {2: "too few", 3: "either", 4: "enough"}
    assert [is_right(slots, straddling) for slots in (2, 3, 4, 5)] == [False, True, True, False]
    assert is_right(1, {1: "enough"}) is True  # there is no smaller one
    assert is_right(3, {4: "enough"}) is None
    assert is_right(7, {4: "too few"}) is None and is_right(4, {4: "too few"}) is False


def test_all_rules_are_counted_over_the_same_loads() -> None:
    def load(*guesses: tuple[str, int | None, bool | None]) -> Score:
        found = tuple(Guess(rule=rule, slots=slots, right=right) for rule, slots, right in guesses)
        return Score(text="l", mode="warm-pool", slo_ns=1, sizes=(), guesses=found)

    scores = (
        load((PLAN, 2, True), ("rule", 1, False)),
        load((PLAN, 2, None), ("rule", None, None)),
        load((PLAN, 3, False), ("rule", 3, True)),
    )
    tallies = right_of(scores)
    assert tallies[PLAN] == Tally(right=1, undecided=1, loads=3) and tallies["rule"] == Tally(right=1, undecided=0, loads=3)
    assert tallies[PLAN].text == "1 of 3 loads, 1 not decided by the sizes that were measured"


def test_what_the_model_has_not_is_left_out(tmp_path: Path) -> None:
    """A first contact, and loads of another engine beside the traffic, are runs of an experiment and none of the plan's."""
    whole = tmp_path / "experiment"
    for name in ("00-warm", "00-warm+load", "01-warm"):
        load_run(whole / "runs" / name, BURST, seed=4, slots=3)
    order = [{"block": 0, "arm": "warm"}, {"block": 0, "arm": "warm+load"}, {"block": 1, "arm": "warm", "first_contact": True}]
    arms = [{"name": "warm", "mode": "warm-pool", "alone": None}, {"name": "warm+load", "mode": "warm-pool", "alone": "warm"}]
    order = [{**entry, "spikes": 1} for entry in order]
    record = {"schema_version": 1, "kind": "experiment", "run_id": "experiment", "engine": {}, "arms": arms, "order": order}
    (whole / "run.json").write_text(json.dumps(record))
    found, left_out = runs_to_compare([whole])
    assert [run.path.name for run in found] == ["00-warm"]
    assert [why.partition(":")[0] for why in left_out] == ["00-warm+load", "01-warm"]
    assert "loaded beside it" in left_out[0] and "first contact" in left_out[1]
    (whole / "run.json").write_text(json.dumps({**record, "order": [{"arm": "warm"}]}))
    with pytest.raises(BenchError, match=r"order\[0\]\.block is missing"):
        runs_to_compare([whole])


def test_engines_of_their_own_are_another_case(tmp_path: Path) -> None:
    runs = [load_run(tmp_path / str(number), BURST, seed=4, slots=3) for number in (0, 1)]
    record = json.loads((runs[1] / "run.json").read_text())
    record["setup"]["options"]["sharing"] = "copy"
    (runs[1] / "run.json").write_text(json.dumps(record))
    made = validate(measured(), [open_run(run) for run in runs], plan="plan", slo_ns=SLO_NS, memory_bytes=None, seeds=range(2))
    assert {case.name: case.predicted_bytes for case in made.cases} == {
        "warm-pool 3": BASE + ENGINE_MB + 3 * SLOT,
        "warm-pool 3, copy": None,  # a curve of slots that share an engine does not tell
    }


def with_setup(run: Path, **setup: Any) -> Path:
    record = json.loads((run / "run.json").read_text())
    record["setup"] = {**record["setup"], **setup}
    (run / "run.json").write_text(json.dumps(record))
    return run


def test_runs_whose_loads_were_not_measured_are_left_out_with_one_reason(tmp_path: Path) -> None:
    text = "constant:rate=2,duration=60s"
    runs = [load_run(tmp_path / name, text, seed=5, slots=3, mode=name.partition("-0")[0]) for name in ("cold-load-0", "cold-load-01")]
    runs += [load_run(tmp_path / "lazy-0", text, seed=5, slots=3, mode="lazy"), load_run(tmp_path / "warm", text, seed=5, slots=3)]
    without = measured(starts=no_starts(measured().engine))
    given: dict[str, Any] = {"plan": "plan", "slo_ns": None, "memory_bytes": None, "seeds": range(2)}
    made = validate(without, [open_run(run) for run in runs], **given)
    assert [case.mode for case in made.cases] == ["warm-pool"] and made.runs == 1
    assert made.left_out == (
        "cold-load-0, cold-load-01: cold-load loads while it serves, and what a start takes is not known without --coldstart",
        "lazy-0: lazy loads while it serves, and what a start takes is not known without --coldstart",
    )
    with pytest.raises(BenchError, match=r"none of the runs can be compared with \(lazy-0: lazy loads"):
        validate(without, [open_run(runs[2])], **given)


def test_runs_with_other_settings_than_the_curve_are_no_part_of_a_case(tmp_path: Path) -> None:
    runs = [load_run(tmp_path / name, BURST, seed=4, slots=3) for name in ("plain", "same", "per-request", "graphs", "threads")]
    for run, settings in zip(
        runs[1:],
        ({"buffers": "reuse", "cuda_graphs": "false"}, {"buffers": "per-request"}, {"cuda_graphs": "on"}, {"threads": "3"}),
        strict=True,
    ):
        with_setup(run, settings=settings)
    known = measured(settings={"threads": "1"})
    made = validate(known, [open_run(run) for run in runs], plan="plan", slo_ns=SLO_NS, memory_bytes=None, seeds=range(2))
    assert [case.runs for case in made.cases] == [("plain", "same")]
    assert made.left_out == (
        "per-request: served with buffers=per-request, and the curve was measured with buffers=reuse",
        "graphs: served with cuda_graphs=on, and the curve was measured with cuda_graphs=off",
        "threads: served with threads=3, and the curve was measured with threads=1",
    )


def test_what_a_run_does_not_tell_of_its_threads_is_not_denied(tmp_path: Path) -> None:
    """An arm that was left to choose; a server that somebody else started; one whose flags were kept; one that said it itself."""
    free, silent, told = (load_run(tmp_path / name, BURST, seed=4, slots=3) for name in ("free", "silent", "told"))
    for run, more in ((silent, {}), (told, {"server": {"flags": ["--mode=warm-pool", "--pool-size=3", "--set=threads=1"]}})):
        record = json.loads((run / "run.json").read_text())
        del record["setup"]
        record["target"] = {"server_parameters": {"mode": "warm-pool", "pool_size": 3, "sharing": "engine"}}
        (run / "run.json").write_text(json.dumps({**record, **more}))

    record["target"]["server_parameters"] |= {
        "settings": {"threads": "1"},
        "queue_limit": 7,
        "acquire_timeout_ns": None,
        "idle_timeout_ns": 10**9,
    }
    itself = load_run(tmp_path / "itself", BURST, seed=4, slots=3)
    (itself / "run.json").write_text(json.dumps(record))
    rules = served(open_run(itself)).rules
    assert (rules.queue_limit, rules.acquire_timeout_ns, rules.idle_timeout_ns) == (7, None, 10**9)

    def notes(*runs: Path) -> tuple[str, ...]:
        known = measured(settings={"threads": "1"})
        return validate(known, [open_run(run) for run in runs], plan="p", slo_ns=None, memory_bytes=None, seeds=range(2)).notes

    assert notes(told) == () == notes(itself)
    assert notes(silent) == (
        "1 of 1 runs do not say how many threads a slot had, so it is not known whether they were served with threads=1 as the curve was "
        "(bench serve --set threads=1)",
    )
    assert [note.partition(",")[0] for note in notes(free, told)] == ["1 of 2 runs left the number of threads to the server"]


def test_an_error_is_relative_and_unknown_where_something_is_missing() -> None:
    one: dict[str, Any] = dict.fromkeys(("low_ns", "high_ns", "lowest_run_ns", "highest_run_ns"))
    assert Compared(predicted_ns=120.0, measured_ns=100.0, **one).error == pytest.approx(0.2)
    assert Compared(predicted_ns=120.0, measured_ns=None, **one).error is None
    assert Compared(predicted_ns=120.0, measured_ns=100.0, **one).inside is None
    assert Compared(predicted_ns=120.0, measured_ns=100.0, **{**one, "low_ns": 90.0, "high_ns": 99.0}).inside is False


def test_an_error_beyond_ten_times_is_a_factor(made: Validation) -> None:
    far = dataclasses.replace(made, median_error=0.5, worst_error=1452.63)
    assert "off by 50.0% in the median and by a factor of 1,454 at worst" in sentence(far)


def test_every_mode_is_predicted_with_its_own_settings(tmp_path: Path) -> None:
    lazy = load_run(tmp_path / "lazy", BURST, seed=5, slots=4, mode="lazy")
    cold = load_run(tmp_path / "cold", "constant:rate=2,duration=60s", seed=5, slots=3, mode="cold-load")
    made = validate(measured(), [open_run(lazy), open_run(cold)], plan="plan", slo_ns=None, memory_bytes=None, seeds=SEEDS)
    by_mode = {case.mode: case for case in made.cases}
    assert by_mode["cold-load"].p99.error == pytest.approx(0, abs=0.02)  # 200 ms of load, 20 of service
    assert by_mode["cold-load"].p99.measured_ns > 200 * MS  # type: ignore[operator]
    assert by_mode["lazy"].p50.error == pytest.approx(0, abs=0.1)
    assert made.scores == ()  # nobody said what is good enough


def test_how_a_server_was_set_is_read_from_the_run(tmp_path: Path) -> None:
    options = {"min": "2", "max": "5", "idle": "7s", "queue": "9", "acquire": "300ms", "sharing": "copy"}
    run = load_run(tmp_path / "elastic", "constant:rate=5,duration=2s", seed=1, slots=5, mode="warm-pool", slo="80ms")
    record = json.loads((run / "run.json").read_text())
    record["setup"] = {"mode": "elastic", "options": options}
    (run / "run.json").write_text(json.dumps(record))
    how = served(open_run(run))
    assert (how.candidate.family, how.candidate.minimum, how.candidate.slots, how.sharing, how.slo_ns) == ("elastic", 2, 5, "copy", 80 * MS)
    assert (how.rules.queue_limit, how.rules.acquire_timeout_ns, how.rules.idle_timeout_ns) == (9, 300 * MS, 7 * 10**9)
    for slo, expected in (("p99=90ms", 90 * MS), ("", None)):  # as a scenario was given it; left out, it is empty
        record["settings"] = {"slo": slo}
        (run / "run.json").write_text(json.dumps(record))
        assert served(open_run(run)).slo_ns == expected
    del record["setup"]
    record["target"] = {"server_parameters": {"mode": "warm-pool", "pool_size": 3, "sharing": "engine"}}
    (run / "run.json").write_text(json.dumps(record))
    assert served(open_run(run)).candidate.slots == 3
    record["target"] = {}
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(BenchError, match="does not say how its server was set"):
        served(open_run(run))


def test_runs_of_another_engine_are_refused(tmp_path: Path) -> None:
    run = load_run(tmp_path / "run", "constant:rate=50,duration=3s", seed=1, slots=2)
    other = measured(engine={**measured().engine, "precision": "int8"})
    given: dict[str, Any] = {"plan": "plan", "slo_ns": None, "memory_bytes": None, "seeds": range(2)}
    with pytest.raises(BenchError, match=r"of another engine than the plan \(precision fp32 and not int8"):
        validate(other, [open_run(run)], **given)
    assert validate(other, [open_run(run)], anyway=True, **given).runs == 1


def test_what_is_no_load_run_is_refused(tmp_path: Path) -> None:
    from plan_runs import curve_run

    with pytest.raises(BenchError, match="is a curve run; a plan is validated with load runs"):
        runs_to_compare([curve_run(tmp_path / "curve", slots=1)])


def test_the_same_seeds_give_the_same_validation(runs: list[Path], made: Validation) -> None:
    found, _ = runs_to_compare(runs)
    again = validate(measured(), found, plan="plan", slo_ns=SLO_NS, memory_bytes=10**9, seeds=SEEDS)
    assert again == made and not np.isnan(again.median_error or np.nan)


def test_draws_of_one_cut_trace_are_one_load(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time\n" + "\n".join(str(number * 10) for number in range(400)) + "\n", "utf-8")
    loads = []
    for number, (factor, seed) in enumerate(((0.5, 1), (0.5, 2), (0.25, 1))):
        made = load_run(tmp_path / str(number), BURST, seed=1, slots=2)
        steps = Steps(rate_factor=factor, seed=seed)
        write_schedule(import_trace(trace, options=Options(unit="ms"), steps=steps), made / "schedule.parquet", force=True)
        loads.append(served(open_run(made)).load)
    assert loads[0] == loads[1] != loads[2]


def test_the_settings_that_change_nothing_are_the_runtimes_own() -> None:
    """bench may not import the server, so it has them written down; here they are held against it."""
    from reference_server.runtimes.onnxruntime import OrtOptions
    from reference_server.runtimes.tensorrt import TensorrtOptions

    own = {field.name: field.default for options in (OrtOptions, TensorrtOptions) for field in dataclasses.fields(options)}
    assert {name: {True: "on", False: "off"}.get(own[name], own[name]) for name in DEFAULTS} == DEFAULTS
