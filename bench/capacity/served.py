"""How the server of a run was set, as the simulation takes it: from the run's own record, never from a guess."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.capacity.candidates import ELASTIC, Candidate, Rules
from bench.capacity.measured import SAME_ENGINE
from bench.errors import BenchError
from bench.load.schedule import METADATA_KEY
from bench.slo import parse_slo_time_ns
from bench.units import parse_duration_ns

if TYPE_CHECKING:
    from bench.capacity.measured import Measured
    from bench.records import SavedRun

_OF_A_DRAW = ("seed", "before", "after", "gaps")  # of a trace's steps
_LOADED_BESIDE = "another engine was loaded beside it (--during load), which is not in the model"
_MODES = ("warm-pool", "elastic", "lazy", "cold-load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """candidate and rules: the server. load: what makes two runs of one load, whatever their seeds; text: the same for
    people. slo_ns: the run's own; None: it has none."""

    candidate: Candidate
    rules: Rules
    sharing: str
    load: str
    text: str
    slo_ns: int | None


def served(saved: SavedRun) -> Served:
    """Of one load run. Raises BenchError where it does not say how it was served."""
    options, mode = _options(saved)
    if mode not in _MODES:
        raise BenchError(
            f"{saved.path} does not say how its server was set ({mode or 'no mode'}), so it cannot be predicted: name runs "
            "of `bench burst`, or of the reference server"
        )
    try:
        slots = int(options.get("max", 4) if mode == ELASTIC else options.get("pool", 1))
        candidate = Candidate(family=mode, slots=slots, minimum=int(options.get("min", 1)) if mode == ELASTIC else 1)
        queue, acquire = options.get("queue"), options.get("acquire")
        rules = Rules(
            queue_limit=None if queue is None else int(queue),
            acquire_timeout_ns=None if acquire is None else parse_duration_ns(str(acquire), "acquire"),
            idle_timeout_ns=parse_duration_ns(str(options.get("idle", "30s")), "idle"),
        )
    except ValueError:
        raise BenchError(f"{saved.path / 'run.json'} has server options that are no numbers ({dict(options)})") from None
    load, text = _load(saved)
    return Served(candidate=candidate, rules=rules, sharing=str(options.get("sharing", "engine")), load=load, text=text, slo_ns=_slo(saved))


def differences(saved: SavedRun, measured: Measured) -> list[str]:
    """In what the run's engine is another one than the plan's; empty where it is the same, or not known."""
    engine = saved.run.get("engine") or {}
    if not engine:
        model = (saved.run.get("target") or {}).get("model")
        return [] if model in (None, measured.engine.get("name")) else [f"model {model} and not {measured.engine.get('name')}"]
    return [
        f"{what.replace('_', ' ')} {engine.get(what)} and not {measured.engine.get(what)}"
        for what in SAME_ENGINE
        if engine.get(what) != measured.engine.get(what)
    ]


def outside_the_model(saved: SavedRun) -> dict[str, str]:
    """The runs that met something which the plan does not simulate, by their folders' names, and what: a first contact, another engine
    that was loaded beside them."""
    found = {}
    try:
        if (saved.run.get("setup") or {}).get("alone"):
            found[saved.path.name] = _LOADED_BESIDE
        beside = {arm["name"] for arm in saved.run.get("arms") or () if arm.get("alone")}
        for entry in saved.run.get("order") or ():
            name = f"{entry['block']:02d}-{entry['arm']}"
            if entry.get("first_contact"):
                found[name] = "a spike that is a server's first contact is not in the model"
            elif entry["arm"] in beside:
                found[name] = _LOADED_BESIDE
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BenchError(f"{saved.path / 'run.json'} has a damaged list of its arms or runs") from None
    return found


def _options(saved: SavedRun) -> tuple[Mapping[str, Any], str | None]:
    """The arm's options of `bench burst`; else what the reference server said of itself."""
    setup = saved.run.get("setup") or {}
    if setup.get("mode") in _MODES:
        return setup.get("options") or {}, setup["mode"]
    told = (saved.run.get("target") or {}).get("server_parameters") or {}
    return {"pool": told.get("pool_size", 1), **{name: told[name] for name in ("min", "max", "sharing") if name in told}}, told.get("mode")


def _load(saved: SavedRun) -> tuple[str, str]:
    table = saved.table("schedule")
    if table is None:
        raise BenchError(f"{saved.path} has no schedule, so there is nothing to predict")
    about = json.loads((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    provenance = about.get("provenance") or {}
    if provenance.get("arrivals"):
        # Blocks of one experiment may have different numbers of spikes.
        own = {name: value for name, value in (provenance.get("parameters") or {}).items() if name != "spikes"}
        return f"{str(provenance['arrivals']).partition(':')[0]} {json.dumps(own, sort_keys=True)}", str(provenance["arrivals"])
    if provenance.get("transformations") and provenance.get("sha256"):
        # One trace cut in one way; what the seed of a step drew, and what came of it, is of the single run.
        steps = [{name: value for name, value in step.items() if name not in _OF_A_DRAW} for step in provenance["transformations"]]
        return f"{provenance['sha256']} {json.dumps(steps, sort_keys=True)}", str(provenance.get("trace") or provenance.get("format"))
    digest = str((saved.run.get("hashes") or {}).get("schedule_sha256", saved.path.name))
    return digest, str(provenance.get("file") or provenance.get("format") or f"schedule {digest[:12]}")


def _slo(saved: SavedRun) -> int | None:
    text = (saved.run.get("settings") or {}).get("slo")
    return parse_slo_time_ns(str(text), "the slo of the run") if text else None
