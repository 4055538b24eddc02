"""What `run.json` and `summary.json` of each kind of run must hold, as far as anything reads it. More may stand there.

What a name is called here, results/README.md explains. Needed is what every version that wrote this schema has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.json_rules import EXACT, Rule, anything, by_name, each, file_name, flag, nullable, number, record, text, whole

_NS = whole(-EXACT, EXACT)
_CLOCK_NS = whole(0)
_SHARE = number(0, 1)
_COUNT = whole(0, EXACT)
_SEED = whole(-(2**4000), 2**4000)

_ENVIRONMENT = nullable(
    record(
        system=nullable(record()),
        cpu=nullable(record(usable_cores=nullable(number()))),
        memory=nullable(record(total_bytes=nullable(_COUNT))),
        software=nullable(record(packages=nullable(by_name(anything)))),
        steal=nullable(record(recent=nullable(_SHARE))),
        gpus=nullable(each(anything)),
        warnings=nullable(each(text())),
    )
)
_HEAD: Mapping[str, Rule] = {
    "run_id": file_name,
    "created": text(),
    "coldburst_version": text(),
    "command": each(text()),
    "title": text(),
    "environment": _ENVIRONMENT,
    "clock": record(monotonic_ns=_CLOCK_NS, wall_ns=_CLOCK_NS),
    "start_monotonic_ns": nullable(_CLOCK_NS),
}
_ENGINE_TEXTS = ("name", "source_sha256", "runtime", "runtime_version", "precision", "device")
_SOME_ENGINE = record(**{name: text() for name in _ENGINE_TEXTS}, files=each(record({"bytes": _COUNT})))
"""Empty where the server was not ours."""
_ENGINE = record(
    {name: text() for name in ("name", "runtime", "runtime_version", "precision", "device")},
    source_sha256=text(),
    files=each(record({"bytes": _COUNT})),
    profiles=each(by_name(record({"min": each(whole(0))})), 1),
)
_SETUP = record({"mode": text()}, name=text(), options=by_name(text()), settings=by_name(text()), alone=nullable(text()))
_ARM = record({"name": file_name, "mode": text()}, options=by_name(text()), settings=by_name(text()), alone=nullable(text()))
_PLANNED = record({"block": whole(0, 10_000), "arm": file_name, "spikes": whole(1, 10**6)}, schedule_seed=whole(), first_contact=flag)
_SPIKES = record(
    base_per_s=number(1e-9),
    peak_per_s=number(1e-9),
    hold_ns=whole(1),
    rest_ns=whole(1),
    count=whole(1, 10**6),
    blocks=whole(1, 10_000),
    seed=_SEED,
)
_WORKER_CLOCK = record(
    {"worker": whole(), "shared": flag},
    host=text(),
    offset_ns=whole(-(2**63), 2**63),
    uncertainty_ns=_COUNT,
    end_offset_ns=nullable(whole(-(2**63), 2**63)),
    end_uncertainty_ns=nullable(_COUNT),
)
_LOAD_BESIDE = record(
    {"spike": whole(), "planned_ns": _NS, "began_ns": _NS, "ended_ns": _NS, "error": nullable(text())}, unloaded_ns=nullable(_NS)
)
_MEASURED = record(
    {
        "subject": text(),
        "engine": _ENGINE,
        "sharing": text("engine", "copy"),
        "settings": by_name(text()),
        "throughput_per_s": each(number(), 1),
        "memory": record(
            {"kind": text("resident", "device"), **{f"{what}_bytes": nullable(_COUNT) for what in ("base", "engine", "slot")}}
        ),
        "ready_level": nullable(text()),
        "notes": each(text()),
        "sources": by_name(text()),
    },
    busy=each(whole(1, 4096), 1),
)
_SLO_NS = nullable(whole(1))
_SUMS = {name: whole() for name in ("requests", "total_ns", "waiting_ns", "input_ns", "infer_ns", "output_ns")}


def _statistics(value: Any, where: str) -> str | None:
    """The sums of the window, or why there are none."""
    absent = isinstance(value, dict) and "absent" in value
    return record({"absent": text()})(value, where) if absent else record(_SUMS)(value, where)


_RULES: Mapping[str, Rule] = {
    "load": record(
        None,
        **_HEAD,
        scenario=text(),
        settings=record(slo=nullable(text())),
        versions=record(),
        seeds=record(),
        hashes=record(schedule_sha256=text()),
        target=nullable(record(model=text(), server_parameters=nullable(record(settings=nullable(record()))))),
        schedule=record(arrivals=whole(), duration_ns=whole(), provenance=record()),
        workers=whole(1, 10**6),
        started_at=text(),
        clocks=nullable(each(_WORKER_CLOCK)),
        arm=file_name,
        block=whole(0, 10_000),
        setup=nullable(_SETUP),
        server=nullable(record(started_ns=_CLOCK_NS, listening_ns=nullable(_CLOCK_NS), ready_ns=nullable(_CLOCK_NS), flags=each(text()))),
        engine=_SOME_ENGINE,
        loads=each(_LOAD_BESIDE),
        server_statistics=_statistics,
    ),
    "experiment": record(
        {"engine": _SOME_ENGINE, "arms": each(_ARM, 1), "order": each(_PLANNED, 1)},
        **_HEAD,
        engine_dir=nullable(text()),
        model=text(),
        shape=nullable(text()),
        capacities=by_name(record({"rate_per_s": number(1e-9)}, requests=whole(1), duration_ns=whole(1), senders=whole(1))),
        spikes=_SPIKES,
        slo_ns=_SLO_NS,
        deadline=text(),
        trust=nullable(text()),
        timeout_s=number(1e-3),
    ),
    "coldstart": record(
        {
            "settings": record({"trials": whole(1, 10**6)}, levels=each(text())),
            "variants": each(record({"label": text(), "engine": _ENGINE}, settings=by_name(text()), environment=by_name(text())), 1),
        },
        **_HEAD,
    ),
    "curve": record(
        {"run_id": file_name, "title": text(), "engine": _ENGINE, "sharing": text("engine", "copy"), "settings": by_name(text())},
        **_HEAD,
        slots=each(whole(1, 4096), 1),
        batches=each(whole(1), 1),
        duration_ns=whole(1),
        rounds=whole(1, 10_000),
        seed=_SEED,
        engine_dir=text(),
        senders_a_slot=whole(1),
    ),
    "plan": record({"measured": _MEASURED}, **_HEAD),
    "validation": record({"plan": record(measured=record(engine=_SOME_ENGINE))}, **_HEAD, runs=each(text())),
}
RESUME: Rule = record(
    {
        "run_id": file_name,
        "engine_dir": nullable(text()),
        "model": text(),
        "shape": nullable(text()),
        "spikes": record(),
        "slo_ns": _SLO_NS,
        "deadline": text(),
        "timeout_s": number(1e-3),
    }
)
"""What an experiment needs beside that to go on."""

LOAD_SUMMARY: Rule = record(
    slo_ns=_SLO_NS,
    server_restarted=nullable(flag),
    generators=each(
        record(
            {"cpu_ns": whole(), "wall_ns": whole(), "longest_pause_ns": whole(), "longest_flush_ns": whole(), "timer": text()},
            resent=whole(),
            failure=nullable(text()),
        )
    ),
)
"""`summary.json` of a load run; of other kinds each reader has its own."""


HEAD: Rule = record({"schema_version": whole(), "kind": text(*_RULES)})
"""What says how the rest is to be read."""


def run_rule(value: Any, where: str) -> str | None:
    """The rule of a `run.json` with such a head: that of its kind."""
    problem = _RULES[value["kind"]](value, where)
    return _order(value) if problem is None and value["kind"] == "experiment" else problem


def _order(run: Mapping[str, Any]) -> str | None:
    """Whether the order of an experiment is one of its arms, each with a run of its own in a block."""
    arms = [arm["name"] for arm in run["arms"]]
    twice = next((name for name in arms if arms.count(name) > 1), None)
    if twice is not None:
        return f"arms has {twice!r} twice"
    lost = next((arm["alone"] for arm in run["arms"] if arm.get("alone") is not None and arm["alone"] not in arms), None)
    if lost is not None:
        return f"arms has one that is {lost!r} with loads beside it, and no {lost!r}"
    seen: set[tuple[int, str]] = set()
    for at, entry in enumerate(run["order"]):
        place = (entry["block"], entry["arm"])
        if entry["arm"] not in arms:
            return f"order[{at}].arm is {entry['arm']!r}, which is none of the arms"
        if place in seen:
            return f"order[{at}] is block {entry['block']} of {entry['arm']} a second time"
        seen.add(place)
    return None
