"""Predicted against measured: `bench validate` case by case, then over all cases of a group; the tables of README.md."""

from __future__ import annotations

import csv
import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plans
from study import Case, Study

from bench.errors import BenchError
from bench.units import format_duration, parse_size_bytes

if TYPE_CHECKING:
    from bench.capacity.validation import Validation

SIMULATIONS = range(1, 21)
SPREAD = {"spread_percent", "slow_percent"}  # without them the truth is one number
BEGIN, END = "<!-- tables: written by the step `score` -->", "<!-- end of the tables -->"


def score(work: Path, study: Study, results: Path) -> None:
    """Write `GROUP/summary.json` for each group with runs, and the tables. Raises BenchError."""
    tables = []
    for group in ("synthetic", "real"):
        cases = [case for case in study.of(group) if any((work / "runs" / case.name / "runs").glob("*/run.json"))]
        if not cases:
            continue
        rows = []
        for case in cases:
            rows.append(_of_case(work, study, case))
            print(f"{case.name}: {rows[-1]['sentence']}", flush=True)
        known = [row for row in rows if set(study.engines[row["engine"]].get("declared", {"spread_percent"})).isdisjoint(SPREAD)]
        summary = {**overall(rows), "known_truth": overall(known) if known else None, "cases": rows}
        (results / group).mkdir(parents=True, exist_ok=True)
        (results / group / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
        write_runs(work, study, cases, results / group / "runs.csv")
        tables += text_of(group, summary)
    if not tables:
        raise BenchError("there are no runs yet: run the steps `synthetic` and `real` first")
    readme = results / "README.md"
    text = readme.read_text("utf-8") if readme.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text("\n".join([before + BEGIN, "", *tables, END]) + after, "utf-8")
    print("\n".join(tables))


def write_runs(work: Path, study: Study, cases: list[Case], path: Path) -> None:
    """A line for each run: how many arrivals and correct answers, the P50 and P99 of their response times, and the median inference."""
    import numpy as np
    import pyarrow.parquet as parquet

    with path.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(["load", "slots", "seed", "arrivals", "ok", "p50_ms", "p99_ms", "inference_p50_ms"])
        for case in cases:
            for place in sorted((work / "runs" / case.name / "runs").glob("??-pool-*")):
                block, _, slots = place.name.split("-")
                table = parquet.read_table(place / "requests.parquet", columns=["status", "intended_ns", "done_ns", "infer_ns"])
                ok = table.to_pandas().query("status == 'ok'")
                figures = *np.percentile(ok["done_ns"] - ok["intended_ns"], [50, 99], method="inverted_cdf"), ok["infer_ns"].median()
                rows.writerow([case.name, slots, study.seeds[int(block)], len(table), len(ok), *(f"{ns / 1e6:.3f}" for ns in figures)])


def _of_case(work: Path, study: Study, case: Case) -> dict[str, Any]:
    """What `bench validate` says of this case, beside what its plan said before."""
    from bench.capacity.sizes import PLAN, is_right
    from bench.capacity.validation import runs_to_compare, validate

    plan = plans.saved(work, case)
    said = plans.read(work)[case.name]
    found, left_out = runs_to_compare([work / "runs" / case.name])
    made: Validation = validate(
        plan.measured,
        found,
        plan=plan.saved.path.name,
        slo_ns=case.slo_ns,
        memory_bytes=parse_size_bytes(study.memory, "memory"),
        seeds=SIMULATIONS,
        left_out=left_out,
    )
    (work / "validations").mkdir(exist_ok=True)
    (work / "validations" / f"{case.name}.json").write_text(json.dumps(dataclasses.asdict(made), indent=1) + "\n", "utf-8")
    verdicts = {size.slots: size.verdict for one in made.scores for size in one.sizes}
    measured = [_of_size(one, said["pooled"].get(str(one.slots)), verdicts) for one in made.cases]
    guesses = {guess.rule: guess for one in made.scores for guess in one.guesses}
    rules = {name: {"slots": guess.slots, "right": guess.right} for name, guess in guesses.items() if name != PLAN}
    return {
        "name": case.name,
        "engine": case.engine,
        "load": case.arrivals or dict(case.trace or {}),
        "slo_ns": case.slo_ns,
        "planned_slots": said["slots"],
        "right": is_right(said["slots"], verdicts),
        "planned_with_the_arrivals": guesses[PLAN].slots if PLAN in guesses else None,
        "right_with_the_arrivals": guesses[PLAN].right if PLAN in guesses else None,
        "right_slots": right_slots(verdicts),
        "rules": rules,
        "sizes": measured,
        "left_out": list(made.left_out),
        "sentence": made.sentence,
    }


def _of_size(one: Any, pooled: Mapping[str, Any] | None, verdicts: Mapping[int, str]) -> dict[str, Any]:
    """One size of one case. `before`: predicted from the arrival process; else from the arrivals that came."""
    measured_ns = {"p50": one.p50.measured_ns, "p99": one.p99.measured_ns}
    before = None
    if pooled is not None:
        before = {
            name: {**pooled[name], "error": _error(pooled[name], value), "inside": _inside(pooled[name], value)}
            for name, value in measured_ns.items()
        }
    return {
        "slots": one.slots,
        "runs": len(one.runs),
        "arrivals": one.arrivals,
        "verdict": verdicts.get(one.slots),
        "noise": one.noise,
        **{
            name: {**dataclasses.asdict(figure), "error": figure.error, "inside": figure.inside}
            for name, figure in (("p50", one.p50), ("p99", one.p99))
        },
        "before": before,
    }


def _error(figure: Mapping[str, Any], measured_ns: float | None) -> float | None:
    return None if not measured_ns else float(figure["predicted_ns"]) / measured_ns - 1


def _inside(figure: Mapping[str, Any], measured_ns: float | None) -> bool | None:
    return None if measured_ns is None or figure["low_ns"] is None else bool(figure["low_ns"] <= measured_ns <= figure["high_ns"])


def right_slots(verdicts: Mapping[int, str]) -> int | None:
    """The smallest measured size that is right; None where what was measured does not decide."""
    from bench.capacity.sizes import is_right

    return next((size for size in sorted(verdicts) if is_right(size, verdicts)), None)


def clear(row: Mapping[str, Any]) -> bool:
    """Whether the verdict rests on no size whose interval straddles the SLO, at the planned one or one less."""
    verdicts = {size["slots"]: size["verdict"] for size in row["sizes"]}
    return "either" not in (verdicts.get(row["planned_slots"]), verdicts.get(row["planned_slots"] - 1))


def overall(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all cases and sizes."""
    sizes = [size for row in rows for size in row["sizes"]]
    planned = [size for row in rows for size in row["sizes"] if size["slots"] == row["planned_slots"]]
    names = list(dict.fromkeys(name for row in rows for name in row["rules"]))
    return {
        "loads": len(rows),
        "runs": sum(size["runs"] for size in sizes),
        "least_arrivals": min(size["arrivals"] for size in sizes),
        "right_sizes": sorted({row["right_slots"] for row in rows} - {None}),
        "planned_sizes": sorted({row["planned_slots"] for row in rows}),
        "noise": _median(size["noise"] for size in sizes),
        "median_error_p99": _median(abs(e) for e in (size["p99"]["error"] for size in sizes) if e is not None),
        "median_error_p99_planned_size": _median(abs(e) for e in (size["p99"]["error"] for size in planned) if e is not None),
        "median_error_p50": _median(abs(e) for e in (size["p50"]["error"] for size in sizes) if e is not None),
        "median_error_p99_before": _median(abs(size["before"]["p99"]["error"] or 0) for size in sizes if size["before"]),
        "inside_p99": _share(size["p99"]["inside"] for size in sizes),
        "inside_p50": _share(size["p50"]["inside"] for size in sizes),
        "inside_p99_before": _share(size["before"]["p99"]["inside"] for size in sizes if size["before"]),
        "inside_p50_before": _share(size["before"]["p50"]["inside"] for size in sizes if size["before"]),
        "right": _share(row["right"] for row in rows),
        "right_and_clear": _share(row["right"] for row in rows if clear(row)),
        "right_with_the_arrivals": _share(row["right_with_the_arrivals"] for row in rows),
        "rules_right": {name: _share(row["rules"].get(name, {}).get("right") for row in rows) for name in names},
        "left_out": sum(len(row["left_out"]) for row in rows),
    }


def _share(values: Iterable[bool | None]) -> list[int]:
    """[how many are true, of how many]: what cannot be decided counts as not right."""
    known = list(values)
    return [sum(value is True for value in known), len(known)]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def text_of(group: str, summary: Mapping[str, Any]) -> list[str]:
    """The group's tables in Markdown."""
    lines = [f"### {group.capitalize()}: {summary['loads']} loads, {summary['runs']} runs", ""]
    lines += ["| what | |", "|---|---|"]
    facts = {
        "right sizes that occur": ", ".join(map(str, summary["right_sizes"])),
        "median absolute error of P99, all sizes": _percent(summary["median_error_p99"]),
        "the same at the planned size only": _percent(summary["median_error_p99_planned_size"]),
        "the same, predicted before the arrivals were drawn": _percent(summary["median_error_p99_before"]),
        "median absolute error of P50": _percent(summary["median_error_p50"]),
        "noise floor: P99 from run to run (median)": _percent(summary["noise"]),
        "measured P99 within the simulation's 95 % interval, its arrivals known": _of(summary["inside_p99"]),
        "measured P50 within it, its arrivals known": _of(summary["inside_p50"]),
        "measured P99 within it, arrivals not known": _of(summary["inside_p99_before"]),
        "measured P50 within it, arrivals not known": _of(summary["inside_p50_before"]),
        **_known_facts(summary["known_truth"]),
        "**planned size right**": f"**{_of(summary['right'])}**",
        "of those that rest on no size whose interval straddles the SLO": _of(summary["right_and_clear"]),
        "size right that is named once the arrivals are known": _of(summary["right_with_the_arrivals"]),
        **{f"{name}: right": _of(share) for name, share in summary["rules_right"].items()},
        "fewest pooled requests of a size": str(summary["least_arrivals"]),
        "runs left out as not valid": str(summary["left_out"]),
    }
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["", "| load | SLO | planned | right | size | P99 measured | noise | predicted | error | before the run | inside |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in summary["cases"]:
        for number, size in enumerate(row["sizes"]):
            head = (
                (row["name"], format_duration(row["slo_ns"]), str(row["planned_slots"]), _yes(row["right"])) if number == 0 else ("",) * 4
            )
            lines.append("| " + " | ".join((*head, *_cells(size))) + " |")
    return [*lines, ""]


def _known_facts(known: Mapping[str, Any] | None) -> dict[str, str]:
    if known is None:
        return {}
    what = "engines of one constant time: measured"
    return {
        f"{what} P99 within it, arrivals not known": _of(known["inside_p99_before"]),
        f"{what} P50 within it, arrivals not known": _of(known["inside_p50_before"]),
        f"{what} P99 within it, arrivals known": _of(known["inside_p99"]),
        "engines of one constant time: median absolute error of P99": _percent(known["median_error_p99"]),
    }


def _cells(size: Mapping[str, Any]) -> tuple[str, ...]:
    p99, before = size["p99"], (size["before"] or {}).get("p99", {})
    return (
        f"{size['slots']} ({size['verdict']})",
        _time(p99["measured_ns"]),
        _percent(size["noise"]),
        _time(p99["predicted_ns"]),
        _percent(p99["error"], signed=True),
        f"{_time(before.get('low_ns'))} .. {_time(before.get('high_ns'))}",
        _yes(before.get("inside")),
    )


def _time(ns: float | None) -> str:
    return "-" if ns is None else format_duration(round(ns))


def _percent(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{value:+.1%}" if signed else f"{value:.1%}"


def _of(share: list[int]) -> str:
    return f"{share[0]} of {share[1]}" + (f" ({share[0] / share[1]:.0%})" if share[1] else "")


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[value]
