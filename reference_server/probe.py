"""One cold start at a time, in this process, reported as JSON lines: `python -m reference_server.probe ENGINE --level process`.

Levels:
    process   this very process, from its first line to the first correct answer; one trial, then it ends
    engine    one more load of the engine in this process, up to a correct answer
    slot      one more slot on a loaded engine, up to a correct answer
    warm      one run on a slot that was used a moment ago, borrowed from a warm pool of one slot as the server's requests do
              it (checked too, but after the clock has stopped)
    floor     no cold start: the engine's bytes read from the file, copied in memory, and to the GPU (what no loader can beat)
    baseline  every probe case checked, then one slot in closed loop: errors, rate, p50 and p99 (the engine's manifest keeps them)

With `--resident` the process gets ready (engine loaded, one slot used), then runs one trial for each level name that it
reads from standard input, and ends when that ends. Every trial prints an `answer` line at the moment its answer is known
to be correct, then a `trial` line with the phases. Time stamps are CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

import time

FIRST_LINE_NS = time.monotonic_ns()  # before every other import: what came earlier is `spawn`

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from bench.clock import now_ns  # noqa: E402
from bench.engine.manifest import Manifest, check_answer, relative_error  # noqa: E402
from bench.engine.probe import ProbeCase, count_probe_cases, read_probe  # noqa: E402
from bench.errors import EXIT_DEFECT, EXIT_WRONG_INPUT, BenchError, describe_defect, one_sentence  # noqa: E402
from reference_server.loader import load_engine, run_probe  # noqa: E402
from reference_server.phases import Phases, resident_bytes  # noqa: E402
from reference_server.runtimes import DeviceSpoiled, Engine, Slot, open_runtime, parse_settings, usable_cores  # noqa: E402

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from reference_server.server_timing import Timing

LEVELS = ("process", "engine", "slot", "warm", "floor", "baseline")
STEADY_RUNS = 10
WARM_RUNS = 3
BASELINE_RUNS = 200
BASELINE_LIMIT_NS = 15_000_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m reference_server.probe", description="Cold-start trials of one engine, as JSON lines.")
    parser.add_argument("engine", type=Path)
    parser.add_argument("--level", choices=LEVELS, default="process")
    parser.add_argument("--resident", action="store_true", help="read the level of each trial from standard input")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="a setting of the runtime")
    parser.add_argument("--trust", type=Path, metavar="KEY", help="refuse an engine that this public key did not sign")
    given = parser.parse_args(arguments)
    try:
        settings = {"threads": str(usable_cores()), **parse_settings(given.settings)}
        if given.resident:
            serve_trials(given.engine, settings, given.trust)
        elif given.level == "process":
            process_trial(given.engine, settings, given.trust)
        else:
            Resident(given.engine, settings, given.trust).trial(given.level)
    except (BenchError, DeviceSpoiled, MemoryError, OSError) as error:
        print(f"probe: {one_sentence(error)}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except Exception as error:
        print(describe_defect(error, "probe", "the probe, or of the runtime that it runs"), file=sys.stderr)
        return EXIT_DEFECT
    return 0


def process_trial(engine_dir: Path, settings: dict[str, str], trust: Path | None) -> None:
    """A cold start of the whole process. The parent adds `spawn`: from its call to FIRST_LINE_NS."""
    phases = Phases()
    import numpy  # noqa: F401  (every runtime needs it: part of the imports, not of the library)

    phases.add("imports", FIRST_LINE_NS, now_ns())
    engine = load_engine(engine_dir, settings, phases, trust=trust)
    slot = engine.make_slot(phases)
    case = first_answer(engine_dir, engine, slot, phases)
    answered = answer_known()
    after = later_runs(slot, case)
    report("process", FIRST_LINE_NS, answered, phases, after)
    slot.close()
    engine.close()


def first_answer(engine_dir: Path, engine: Engine, slot: Slot, phases: Phases, case: ProbeCase | None = None) -> ProbeCase:
    """Read the probe (unless given), infer, check: `probe`, `first_inference`, `check`. Raises WrongAnswer."""
    if case is None:
        with phases.phase("probe"):
            case = read_probe(engine_dir, engine.manifest)
    with phases.phase("first_inference"):
        answer = slot.run(case.inputs)
    with phases.phase("check"):
        check_answer(engine.manifest, case.expected, answer.outputs)
    return case


def later_runs(slot: Slot, case: ProbeCase) -> Phases:
    """What comes after the first answer: `second_inference`, and `steady` (the median of further runs)."""
    after = Phases()
    with after.phase("second_inference"):
        slot.run(case.inputs)
    durations = []
    for _ in range(STEADY_RUNS):
        started = now_ns()
        slot.run(case.inputs)
        durations.append((now_ns() - started, started))
    duration, started = sorted(durations)[STEADY_RUNS // 2]
    after.add("steady", started, started + duration)
    return after


class Resident:
    """A process that is up: the runtime started, one engine loaded, one slot made and used."""

    def __init__(self, engine_dir: Path, settings: dict[str, str], trust: Path | None) -> None:
        self._engine_dir, self._settings, self._trust = engine_dir, settings, trust
        self._engine = load_engine(engine_dir, settings, Phases(), trust=trust)
        self._slot = self._engine.make_slot(Phases())
        self._case = read_probe(engine_dir, self._engine.manifest)
        self._pool: WarmPool | None = None
        for _ in range(3):
            run_probe(self._slot, self._engine.manifest, self._case)

    def trial(self, level: str) -> None:
        """Run one trial and print it. Raises BenchError for a level that a resident process cannot show."""
        if level == "baseline":
            self._baseline()
            return
        phases, after = Phases(), Phases()
        started = now_ns()
        if level == "engine":
            engine = load_engine(self._engine_dir, self._settings, phases, trust=self._trust)
            slot = engine.make_slot(phases)
            first_answer(self._engine_dir, engine, slot, phases, self._case)
            answered = answer_known()
            after = later_runs(slot, self._case)
            slot.close()
            engine.close()
        elif level == "slot":
            slot = self._engine.make_slot(phases)
            first_answer(self._engine_dir, self._engine, slot, phases, self._case)
            answered = answer_known()
            after = later_runs(slot, self._case)
            slot.close()
        elif level == "warm":
            if self._pool is None:
                self._pool = WarmPool(self._engine_dir, self._engine.manifest, self._settings, self._trust, self._case)
            for _ in range(WARM_RUNS):  # a slot in use has its memory in the caches
                self._pool.infer(self._case, Phases())
            outputs, started, answered = self._pool.infer(self._case, phases)
            send({"event": "answer"})
            with after.phase("check"):
                check_answer(self._engine.manifest, self._case.expected, outputs)
        elif level == "floor":
            # Both buffers are touched here, so that neither the read nor the copy pays for page faults.
            data, copy = (bytearray(self._engine.manifest.engine_bytes) for _ in range(2))
            started = now_ns()
            with phases.phase("read_file"):
                self._read_into(memoryview(data))
            with phases.phase("copy_memory"):
                memoryview(copy)[:] = data
            open_runtime(self._engine.manifest.runtime).measure_floors(len(data), phases)
            answered = answer_known()
        else:
            raise BenchError(f"a resident process cannot show level {level!r}")
        report(level, started, answered, phases, after)

    def _read_into(self, target: memoryview) -> None:
        offset = 0
        for file in self._engine.manifest.engine_files:
            with open(self._engine_dir / file.name, "rb", buffering=0) as stream:
                while offset < len(target) and (count := stream.readinto(target[offset:])):
                    offset += count

    def _baseline(self) -> None:
        errors = dict.fromkeys((t.name for t in self._engine.manifest.outputs), 0.0)
        for number in range(count_probe_cases(self._engine_dir)):
            case = read_probe(self._engine_dir, self._engine.manifest, number)
            answer = run_probe(self._slot, self._engine.manifest, case)
            for name in errors:
                errors[name] = max(errors[name], relative_error(case.expected[name], answer.outputs[name]))
        for _ in range(3):  # back to the first case's shapes
            self._slot.run(self._case.inputs)
        durations: list[int] = []
        began = now_ns()
        while len(durations) < BASELINE_RUNS and now_ns() - began < BASELINE_LIMIT_NS:
            started = now_ns()
            self._slot.run(self._case.inputs)
            durations.append(now_ns() - started)
        send({"event": "baseline", "elapsed_ns": now_ns() - began, "durations_ns": durations, "errors": errors})


class WarmPool:
    """The server's own pool with one warm slot, on an event loop that runs while a request is under way."""

    def __init__(self, engine_dir: Path, manifest: Manifest, settings: dict[str, str], trust: Path | None, case: ProbeCase) -> None:
        import asyncio

        import uvloop

        from reference_server.pool import Pool
        from reference_server.pool_settings import PoolSettings
        from reference_server.registry import end_process

        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        pool_settings = PoolSettings(options=settings, trust=trust, health_interval_ns=0)
        self._pool = Pool(engine_dir, manifest, pool_settings, on_device_spoiled=end_process)
        self._runner.run(self._pool.start())
        for _ in range(3):
            self.infer(case, Phases())

    def infer(self, case: ProbeCase, phases: Phases) -> tuple[dict[str, NDArray[Any]], int, int]:
        """One request: its outputs, when it asked the pool and when it had the answer, on the pool's own event loop.

        Phases: `pool` (until the slot has it) and `inference`; the way to the slot's thread and back is in neither.
        """
        from reference_server.server_timing import Timing

        timing = Timing()
        return self._runner.run(self._timed(case, timing, phases))

    async def _timed(self, case: ProbeCase, timing: Timing, phases: Phases) -> tuple[dict[str, NDArray[Any]], int, int]:
        started = now_ns()
        outputs = await self._pool.infer(case.inputs, None, timing)
        answered = now_ns()
        borrowed = started + timing.pool_ns + timing.load_ns
        phases.add("pool", started, borrowed)
        phases.add("inference", borrowed, borrowed + timing.input_ns + timing.infer_ns + timing.output_ns)
        return outputs, started, answered


def serve_trials(engine_dir: Path, settings: dict[str, str], trust: Path | None) -> None:
    """Run the trials that standard input asks for, one level a line."""
    resident = Resident(engine_dir, settings, trust)
    send({"event": "up"})
    for line in sys.stdin:
        resident.trial(line.strip())


def answer_known() -> int:
    """The clock at the moment the answer is known, and only then the line that says so."""
    answered_ns = now_ns()
    send({"event": "answer"})
    return answered_ns


def report(level: str, started_ns: int, answered_ns: int, phases: Phases, after: Phases) -> None:
    """Print the `trial` line: when it began, when its answer was known, and the phases before and after that."""
    send(
        {
            "event": "trial",
            "level": level,
            "pid": os.getpid(),
            "started_ns": started_ns,
            "answered_ns": answered_ns,
            "phases": [_row(p) for p in phases.recorded],
            "after": [_row(p) for p in after.recorded],
            "resident_bytes": resident_bytes(),
        }
    )


def _row(phase: object) -> dict[str, object]:
    return {name: getattr(phase, name) for name in ("name", "start_ns", "end_ns", "resident_bytes", "device_bytes")}


def send(event: dict[str, object]) -> None:
    """One line, written at once: the parent's clock stops when it reads it."""
    os.write(1, (json.dumps(event) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
