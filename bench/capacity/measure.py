"""Measure a service curve: for each number of slots a fresh server, kept saturated in closed loop.

A server with k slots gets 2 k senders, so that behind each slot a request waits and k slots are busy, always: with k
senders a slot would idle while its client reads the answer, and the level would be of some number below k. Every slot
gets the same threads at every level, those of the largest server, so that the number of busy slots is all that changes.
The levels come in random order, and again in each round, so that drift of the machine meets all of them alike.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.capacity.service import CURVE, DRAIN, LEAST_SAMPLES, RAMP, STEADY
from bench.clock import now_ns, wall_anchor
from bench.closed_loop import Answer, Request, ask, closed_loop
from bench.engine.manifest import Manifest, check_answer, check_request_shapes, read_manifest
from bench.engine.probe import ProbeCase, read_probe
from bench.errors import BenchError
from bench.host import read_cpu
from bench.inference_client import InferenceClient, decode_reply, encode_request, server_parts_ns
from bench.records import RunFolder, TableStream
from bench.server_process import ServerProcess
from bench.server_timeline import read_server_timeline, timeline_schema

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SLOTS = 128
PARTS = ("queue", "pool", "load", "input", "infer", "output")
_SENDERS_A_SLOT = 2
_RAMP_SHARE = 0.1  # of the duration, before answers count; and until every sender has one
_PATIENCE_NS = 120 * 10**9  # beyond the duration, for a slow engine to give 100 answers


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePlan:
    """What is measured: every number of `slots`, each with every size of `batches` (empty: the smallest that the engine
    takes), `rounds` times for `duration_ns`."""

    engine_dir: Path
    slots: tuple[int, ...] = tuple(range(1, 9))
    batches: tuple[int, ...] = ()
    duration_ns: int = 3 * 10**9
    rounds: int = 2
    seed: int = 0
    sharing: str = "engine"
    settings: Mapping[str, str] = field(default_factory=dict)
    trust: Path | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedServer:
    """One server of the run."""

    round: int
    slots: int


def parse_counts(text: str, flag: str, most: int) -> tuple[int, ...]:
    """`1..8`, `4`, `1,2,4..6`: whole numbers from 1 to `most`, ascending, each once. Raises BenchError."""
    found: set[int] = set()
    for word in text.split(","):
        low, separator, high = word.strip().partition("..")
        ends = (low, high) if separator else (low, low)
        if not all(end.isascii() and end.isdigit() and len(end) <= 9 for end in ends):
            raise BenchError(f"{flag} {text!r} is not a list of whole numbers or ranges, such as 1..8 or 1,2,4")
        first, last = int(ends[0]), int(ends[1])
        if not 1 <= first <= last <= most:
            raise BenchError(f"{flag} {text!r}: {word.strip()} is not within 1 and {most}, from low to high")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def check_plan(plan: CurvePlan) -> CurvePlan:
    """The plan with what it left open filled in: batch sizes, and the threads of a slot. Raises BenchError."""
    if plan.rounds < 1 or plan.rounds > 100:
        raise BenchError(f"--rounds {plan.rounds} is not within 1 and 100")
    if plan.duration_ns <= 0:
        raise BenchError("--duration must be above 0")
    if plan.sharing not in ("engine", "copy"):
        raise BenchError(f"--sharing {plan.sharing} is neither engine nor copy")
    manifest = read_manifest(plan.engine_dir)
    case = read_probe(plan.engine_dir, manifest)
    own = _own_batch(manifest, case)
    for batch in plan.batches:
        if manifest.max_batch is None and batch != own:
            raise BenchError(f"--batch {batch}: engine {manifest.name} has no dynamic first axis, so it takes no batch but its own")
        shapes = {name: array.shape if batch == own else (batch, *array.shape[1:]) for name, array in case.inputs.items()}
        check_request_shapes(manifest, shapes)
    threads = max(1, int(read_cpu().usable_cores or 1) // max(plan.slots))  # as the server itself shares them out
    return dataclasses.replace(plan, batches=plan.batches or (own,), settings={"threads": str(threads), **plan.settings})


def order_servers(plan: CurvePlan) -> list[PlannedServer]:
    """All servers in the order in which they run: rounds of one each, shuffled inside the round from the seed."""
    draw, ordered = random.Random(plan.seed), []
    for number in range(plan.rounds):
        servers = [PlannedServer(round=number, slots=slots) for slots in plan.slots]
        draw.shuffle(servers)
        ordered += servers
    return ordered


def start_run(results: Path, run_id: str, plan: CurvePlan, environment: Mapping[str, Any], command: Sequence[str]) -> RunFolder:
    """Make the run folder and write its `run.json`. `plan` is one that `check_plan` gave."""
    folder = RunFolder.create(results, run_id)
    manifest = read_manifest(plan.engine_dir)
    folder.write_run(
        CURVE,
        {
            "clock": wall_anchor(),
            "start_monotonic_ns": now_ns(),
            "title": manifest.title,
            "engine": json.loads(manifest.to_json()),
            "engine_dir": str(plan.engine_dir.resolve()),
            "slots": list(plan.slots),
            "batches": list(plan.batches),
            "duration_ns": plan.duration_ns,
            "rounds": plan.rounds,
            "seed": plan.seed,
            "sharing": plan.sharing,
            "settings": dict(plan.settings),
            "senders_a_slot": _SENDERS_A_SLOT,
            "environment": dict(environment),
        },
        command,
    )
    return folder


def measure(folder: RunFolder, plan: CurvePlan, progress: Callable[[int, int], None] = lambda _done, _all: None) -> None:
    """Run the plan and write its rows. On Ctrl-C, and where a server fails, what was measured until then is in the tables.

    Raises BenchError with the server's own sentence.
    """
    zero_ns = json.loads((folder.path / "run.json").read_text("utf-8"))["start_monotonic_ns"]
    requests, timeline = folder.table("requests", request_schema()), folder.table("timeline", curve_timeline_schema())
    servers = folder.table("servers", server_schema())
    ordered = order_servers(plan)
    for number, planned in enumerate(ordered):
        progress(number, len(ordered))
        samples = folder.path / f"timeline-{number:03d}.jsonl"
        flags = ["--mode=warm-pool", f"--pool-size={planned.slots}", f"--sharing={plan.sharing}", f"--timeline={samples.resolve()}"]
        flags += [f"--set={key}={value}" for key, value in plan.settings.items()]
        flags += [] if plan.trust is None else [f"--trust={plan.trust.resolve()}"]
        try:
            with ServerProcess([plan.engine_dir], flags, timeout_s=plan.timeout_s) as server:
                ready_ns = server.wait_ready()
                times = {"started_ns": server.started_ns, "listening_ns": server.listening_ns, "ready_ns": ready_ns}
                servers.write([{"round": planned.round, "slots": planned.slots, **{name: ns - zero_ns for name, ns in times.items()}}])
                for batch in plan.batches:
                    _level(server, plan, planned, batch, requests, zero_ns)
                server.check_alive()
        finally:
            _keep_timeline(samples, planned, timeline, zero_ns)
    progress(len(ordered), len(ordered))


def _level(server: ServerProcess, plan: CurvePlan, planned: PlannedServer, batch: int, table: TableStream, zero_ns: int) -> None:
    request = _first_answer(server.url, plan.engine_dir, batch)
    answers: list[tuple[int, int, int, int, str]] = []
    senders, began_ns = _SENDERS_A_SLOT * planned.slots, now_ns()
    least = -(-LEAST_SAMPLES // plan.rounds) + 1
    waited_for = set(range(senders))
    steady_ns: int | None = None
    counted = 0

    def take(answer: Answer) -> None:
        nonlocal steady_ns, counted
        answers.append((answer.sender, answer.sent_ns, answer.done_ns, len(answer.body), answer.headers.get("server-timing", "")))
        if steady_ns is not None:
            counted += 1
            return
        waited_for.discard(answer.sender)
        if not waited_for and answer.done_ns - began_ns >= _RAMP_SHARE * plan.duration_ns:
            steady_ns = answer.done_ns

    def goes_on() -> bool:
        since_ns = now_ns() - (steady_ns or now_ns())
        if now_ns() - began_ns > plan.duration_ns + _PATIENCE_NS:
            return False
        return since_ns < plan.duration_ns or counted < least

    try:
        closed_loop(server.url, request, senders=senders, take=take, goes_on=goes_on)
    finally:
        ended_ns = max((sent for _, sent, _, _, _ in answers), default=0)  # the last send: from then on slots run dry
        _write(table, answers, planned, batch, (steady_ns, ended_ns), zero_ns)


def _write(
    table: TableStream,
    answers: Sequence[tuple[int, int, int, int, str]],
    planned: PlannedServer,
    batch: int,
    steady: tuple[int | None, int],
    zero_ns: int,
) -> None:
    start_ns, end_ns = steady
    rows = []
    for sender, sent_ns, done_ns, size, timing in sorted(answers, key=lambda answer: answer[2]):
        parts = server_parts_ns(timing)
        rows.append(
            {
                "round": planned.round,
                "busy": planned.slots,
                "batch": batch,
                "phase": RAMP if start_ns is None or done_ns < start_ns else STEADY if done_ns <= end_ns else DRAIN,
                "sent_ns": sent_ns - zero_ns,
                "done_ns": done_ns - zero_ns,
                "bytes": size,
                "worker": sender,
                **{f"{part}_ns": parts.get(part) for part in PARTS},
            }
        )
    if rows:
        table.write(rows)


def _first_answer(url: str, engine_dir: Path, batch: int) -> Request:
    """The request of this batch size, after its first answer was found correct. Raises BenchError."""
    manifest = read_manifest(engine_dir)
    case = _of_batch(manifest, read_probe(engine_dir, manifest), batch)
    body, headers = encode_request(manifest, case.inputs)
    request = Request(model=manifest.name, body=body, headers=headers)
    with InferenceClient(url) as client:
        answer = ask(client, request)
    check_answer(manifest, case.expected, decode_reply(answer.headers, answer.body))
    return request


def _own_batch(manifest: Manifest, case: ProbeCase) -> int:
    """The batch size of the probe's smallest case; 1 where the engine has no batch axis."""
    return 1 if manifest.max_batch is None else int(case.inputs[manifest.inputs[0].name].shape[0])


def _of_batch(manifest: Manifest, case: ProbeCase, batch: int) -> ProbeCase:
    """The case with its rows repeated until there are `batch`. What has no batch axis stays as it is."""
    import numpy as np

    own = _own_batch(manifest, case)
    if batch == own:
        return case
    fixed = {tensor.name for tensor in manifest.outputs if not tensor.dims or isinstance(tensor.dims[0], int)}
    return ProbeCase(
        inputs={name: np.resize(array, (batch, *array.shape[1:])) for name, array in case.inputs.items()},
        expected={
            name: array if name in fixed else np.resize(array, (array.shape[0] // own * batch, *array.shape[1:]))
            for name, array in case.expected.items()
        },
    )


def _keep_timeline(samples: Path, planned: PlannedServer, table: TableStream, zero_ns: int) -> None:
    """Move a server's timeline into the run's table; nothing where the server ended before it had one."""
    if not samples.exists():
        return
    _, rows = read_server_timeline(samples, zero_ns=zero_ns)
    import pyarrow as pa

    for name, value in (("slots", planned.slots), ("round", planned.round)):
        rows = rows.add_column(0, name, pa.repeat(pa.scalar(value, pa.int32()), rows.num_rows))
    for batch in rows.cast(curve_timeline_schema()).to_batches():
        table.write_batch(batch)
    samples.unlink()


def request_schema() -> pa.Schema:
    """One row a request that was answered; times in ns since the run's start, the server's parts null where not told."""
    import pyarrow as pa

    return pa.schema(
        [
            ("round", pa.int32()),
            ("busy", pa.int32()),
            ("batch", pa.int32()),
            ("phase", pa.string()),
            ("sent_ns", pa.int64()),
            ("done_ns", pa.int64()),
            ("bytes", pa.int64()),
            ("worker", pa.int32()),
            *((f"{part}_ns", pa.int64()) for part in PARTS),
        ]
    )


def server_schema() -> pa.Schema:
    """One row a server: started, listening and ready, in ns since the run's start."""
    import pyarrow as pa

    return pa.schema(
        [("round", pa.int32()), ("slots", pa.int32()), *((f"{at}_ns", pa.int64()) for at in ("started", "listening", "ready"))]
    )


def curve_timeline_schema() -> pa.Schema:
    """The columns of a server's timeline, after the round and the number of slots of the server."""
    import pyarrow as pa

    own = [pa.field("round", pa.int32()), pa.field("slots", pa.int32())]
    return pa.schema([*own, *timeline_schema()])
