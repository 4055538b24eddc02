"""What is analysed: a load run or an experiment on the disk, also one that is not whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.records import SavedRun, open_run

LOAD, EXPERIMENT = "load", "experiment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFiles:
    """The runs of one arm that are there. numbers: the block of each, which pairs it with another arm's run. planned: how
    many there were to be. setup: mode, options and settings as asked for; empty where the server was not ours.
    first_contact: the run whose spike met a server without any request before it; it is none of `runs`."""

    name: str
    runs: tuple[SavedRun, ...]
    numbers: tuple[int, ...]
    planned: int
    setup: Mapping[str, Any]
    first_contact: SavedRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What every number belongs to: a run or an experiment on the disk. title: engine, runtime, precision, device; device
    None where it is not known. schedule: a hash of every arrival of every block, the same for the same load."""

    path: Path
    kind: str
    title: str
    device: str | None
    engine: Mapping[str, Any]
    record: Mapping[str, Any]
    partial: bool
    slo_ns: int | None
    arms: tuple[ArmFiles, ...]

    @property
    def on_cpu(self) -> bool:
        return self.device is not None and self.device.startswith("cpu")

    @property
    def values_known(self) -> bool:
        """The generator had the right values to compare answers with: those of an engine's probe."""
        runs = [run.run for arm in self.arms for run in arm.runs]
        return bool(self.engine) or all((run.get("settings") or {}).get("probe") is not None for run in runs)


def open_subject(path: Path, slo_ns: int | None = None) -> Subject:
    """A load run or an experiment, also one that is not whole. Raises BenchError where it is another thing, or has no run."""
    saved = open_run(path)
    kind = saved.kind
    if kind == LOAD:
        return _single(saved, slo_ns)
    if kind != EXPERIMENT:
        raise BenchError(f"{path} is a {kind} run; only load runs and experiments have arrivals")
    engine = saved.run["engine"]
    arms = []
    for arm in saved.run["arms"]:
        whole = [entry for entry in saved.run["order"] if entry["arm"] == arm["name"]]
        planned = [entry for entry in whole if not entry.get("first_contact")]
        first = [run_place(saved, entry) for entry in whole if entry.get("first_contact")]
        contact = open_run(first[0], LOAD) if first and is_there(first[0]) else None
        places = [(entry["block"], run_place(saved, entry)) for entry in planned]
        found = [(block, open_run(place, LOAD)) for block, place in sorted(places) if is_there(place)]
        runs, numbers = tuple(run for _, run in found), tuple(block for block, _ in found)
        arms.append(ArmFiles(name=arm["name"], runs=runs, numbers=numbers, planned=len(planned), setup=arm, first_contact=contact))
    if not any(arm.runs for arm in arms):
        raise BenchError(f"{path} has no finished run yet; go on with it: bench burst --resume {saved.path}")
    return Subject(
        path=saved.path,
        kind=EXPERIMENT,
        title=str(saved.run.get("title") or engine.get("name") or saved.path.name),
        device=engine.get("device"),
        engine=engine,
        record=saved.run,
        partial=saved.partial,
        slo_ns=saved.run.get("slo_ns") if slo_ns is None else slo_ns,
        arms=tuple(arms),
    )


def run_place(saved: SavedRun, entry: Mapping[str, Any]) -> Path:
    """Where an experiment has the run that `entry` of its order plans."""
    return saved.path / "runs" / f"{entry['block']:02d}-{entry['arm']}"


def is_there(place: Path) -> bool:
    """A run that an interrupted experiment was in the middle of is done again when it goes on; it is not there yet."""
    return (place / "run.json").is_file()


def _single(saved: SavedRun, slo_ns: int | None) -> Subject:
    record, target = saved.run, saved.run.get("target") or {}
    engine = record.get("engine") or {}
    known = [target.get(key) for key in ("model", "platform", "server") if target.get(key)]
    title = record.get("title") or ", ".join(map(str, known)) or saved.path.name
    own_slo = (saved.read_json("summary.json") or {}).get("slo_ns")
    name = str(record.get("arm") or record.get("scenario") or saved.path.name)
    return Subject(
        path=saved.path,
        kind=LOAD,
        title=str(title),
        device=engine.get("device"),
        engine=engine,
        record=record,
        partial=saved.partial,
        slo_ns=own_slo if slo_ns is None else slo_ns,
        arms=(ArmFiles(name=name, runs=(saved,), numbers=(int(record.get("block", 0)),), planned=1, setup=record.get("setup") or {}),),
    )


def schedule_hash(subject: Subject) -> str:
    """Of every scheduled arrival (when, in which spike) of every block, whatever the file's bytes are."""
    digest = hashlib.sha256()
    blocks = {number: run for files in subject.arms for number, run in zip(files.numbers, files.runs, strict=True)}
    for number, run in sorted(blocks.items()):
        table = run.table("schedule", ["seq", "intended_ns", "spike"])
        if table is not None:
            digest.update(str(number).encode())
            for name in ("intended_ns", "spike"):
                digest.update(table.column(name).fill_null(-1).to_numpy().tobytes())
    return digest.hexdigest()
