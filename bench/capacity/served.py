"""How the server of a run was set, as the simulation takes it: from the run's own record, never from a guess."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.capacity.candidates import ELASTIC, Candidate, Rules, lacking
from bench.capacity.measured import DEFAULTS, SAME_ENGINE
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


def settings_of(saved: SavedRun) -> dict[str, str] | None:
    """The runtime settings of its server: what the arm or the server's flags gave, and what the server said of itself. None where the
    run does not tell, as with a server that is not the reference server."""
    setup, flags, told = saved.run.get("setup"), (saved.run.get("server") or {}).get("flags"), _told(saved).get("settings")
    if setup is None and flags is None and told is None:
        return None
    given = {**(told or {}), **((setup or {}).get("settings") or {})}
    for flag in flags or ():
        name, is_set, value = str(flag).removeprefix("--set=").partition("=")
        if str(flag).startswith("--set=") and is_set:
            given.setdefault(name, value)
    return {name: str(value) for name, value in given.items()}


def unlike(saved: SavedRun, how: Served, measured: Measured) -> str | None:
    """Why the run was served in a way that the plan knows nothing of: its loads were not measured, or a setting is another one than
    the curve's servers had. None where nothing is known to differ."""
    why = lacking(how.candidate.family, measured, how.rules)
    if why is not None:
        return f"{how.candidate.family} loads while it serves, and {why}"
    told = settings_of(saved)
    if told is None:
        return None
    own, curve = ({**DEFAULTS, **_plain(measured.used(settings))} for settings in (told, measured.settings))
    other = sorted(name for name in own.keys() | curve.keys() if name in own and own[name] != curve.get(name))
    if not other:
        return None
    return (
        f"served with {', '.join(f'{name}={own[name]}' for name in other)}, and the curve was measured with "
        f"{', '.join(f'{name}={curve[name]}' if name in curve else f'{name} not set' for name in other)}"
    )


def thread_notes(runs: Sequence[SavedRun], measured: Measured) -> list[str]:
    """What is to be said of runs that left the threads of a slot to the server, or do not tell them. Those with another number than the
    curve's are left out (`unlike`)."""
    wanted = measured.own_settings.get("threads")
    if wanted is None:
        return []
    told = [settings_of(run) for run in runs]
    free, silent = sum(one is not None and "threads" not in one for one in told), sum(one is None for one in told)
    notes = []
    if free:
        notes.append(
            f"{free} of {len(runs)} runs left the number of threads to the server, and the curve was measured with threads={wanted}, so "
            f"their service times may be others: give it to the arm, as in bench burst --arms warm-pool:pool=2,threads={wanted}"
        )
    if silent:
        notes.append(
            f"{silent} of {len(runs)} runs do not say how many threads a slot had, so it is not known whether they were served with "
            f"threads={wanted} as the curve was (bench serve --set threads={wanted})"
        )
    return notes


def _plain(settings: Mapping[str, str]) -> dict[str, str]:
    """Switches in one of the ways in which they may be written."""
    switches = {name for name, value in DEFAULTS.items() if value in ("on", "off")}
    return {
        name: ("on" if value.lower() in ("1", "true", "yes", "on") else "off") if name in switches else value
        for name, value in settings.items()
    }


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
    told = _told(saved)
    given = {"pool": told.get("pool_size", 1), **{name: told[name] for name in ("min", "max", "sharing") if name in told}}
    if told.get("queue_limit") is not None:
        given["queue"] = told["queue_limit"]
    given |= {
        name: f"{told[key]}ns"
        for name, key in (("acquire", "acquire_timeout_ns"), ("idle", "idle_timeout_ns"))
        if told.get(key) is not None
    }
    return given, told.get("mode")


def _told(saved: SavedRun) -> Mapping[str, Any]:
    return (saved.run.get("target") or {}).get("server_parameters") or {}


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
