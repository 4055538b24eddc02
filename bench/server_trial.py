"""The cold-start level `server`: a fresh server process until its first correct HTTP answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from bench.clock import now_ns
from bench.engine.manifest import Manifest, check_answer
from bench.engine.probe import ProbeCase, read_probe
from bench.errors import BenchError, WrongAnswer
from bench.inference_client import InferenceClient, decode_reply, encode_request
from bench.server_process import ServerProcess

STEADY_RUNS = 10
_PATIENCE_NS = 10_000_000_000  # a server that said it is ready and answers wrongly for this long is given up


def run_server_trial(engine_dir: Path, manifest: Manifest, start: Callable[[], ServerProcess]) -> dict[str, Any]:
    """One trial in the form that the probe reports, timed by this process's clock.

    Phases: `listen` (from the start until the server accepts connections), those of the load as the server reports them
    (`library` to `buffers`, `probe` and `warmup` for each probe case, `collect`), `connect` (a connection, and the question
    whether the server is ready), `first_inference` (one request over HTTP), `check`. After the answer: `ready_before_right`,
    the time in which ready was said before an answer was right (0 where the first answer after it was right),
    `second_inference`, `steady`. Raises BenchError where the server does not come up or answers something else.
    """
    case = read_probe(engine_dir, manifest)
    body, headers = encode_request(manifest, case.inputs)
    phases: list[dict[str, Any]] = []
    with start() as server:
        listening_bytes = _resident_bytes(server.pid)
        ready_ns = server.wait_ready()
        phases += _start_phases(server, ready_ns, listening_bytes)
        with InferenceClient(server.url) as client:
            if not client.ready():
                raise BenchError(f"the server printed ready and answers /v2/health/ready with another status than 200 ({server.url})")
            first_try_ns = right_try_ns = now_ns()
            phases.append(_phase("connect", ready_ns, first_try_ns, _resident_bytes(server.pid)))
            while True:
                status, reply_headers, reply = client.infer(manifest.name, body, headers)
                replied_ns = now_ns()
                problem = _problem(manifest, case, status, reply_headers, reply)
                checked_ns = now_ns()
                if problem is None:
                    break
                if checked_ns - first_try_ns > _PATIENCE_NS:
                    raise BenchError(f"the server says that it is ready and answers wrongly: {problem}")
                right_try_ns = now_ns()
            served_bytes = _resident_bytes(server.pid)
            phases.append(_phase("first_inference", right_try_ns, replied_ns, served_bytes))
            phases.append(_phase("check", replied_ns, checked_ns, served_bytes))
            after = [_phase("ready_before_right", first_try_ns, right_try_ns, served_bytes)]
            after += _later(client, manifest, body, headers, server.pid)
            resident_bytes = _resident_bytes(server.pid)
    return {
        "started_ns": server.started_ns,
        "answered_ns": checked_ns,
        "phases": phases,
        "after": after,
        "resident_bytes": resident_bytes,
    }


def _start_phases(server: ServerProcess, ready_ns: int, listening_bytes: int | None) -> list[dict[str, Any]]:
    """From the start of the server until it was ready. Its clock is ours, CLOCK_MONOTONIC of one host.

    Its word that it listens may have reached us when it was already loading: `listen` ends before that. Raises BenchError.
    """
    keys = ("name", "start_ns", "end_ns", "resident_bytes", "device_bytes")
    try:
        told = [{key: phase[key] for key in keys} for phase in server.phases]
        starts_ns = [int(phase["start_ns"]) for phase in told]
        ends_ns = [int(phase["end_ns"]) for phase in told]
    except (KeyError, TypeError, ValueError):
        raise BenchError("the server reported phases of its start that are not understood; is it of another version?") from None
    if not told or not server.started_ns <= starts_ns[0] or not ends_ns[-1] <= ready_ns or starts_ns != sorted(starts_ns):
        raise BenchError("the server did not report the phases of its start in their order; is it of another version?")
    return [_phase("listen", server.started_ns, min(server.listening_ns, starts_ns[0]), listening_bytes), *told]


def _problem(manifest: Manifest, case: ProbeCase, status: int, headers: Mapping[str, str], reply: bytes) -> str | None:
    if status != 200:
        return f"status {status}: {reply[:200].decode(errors='replace')}"
    try:
        check_answer(manifest, case.expected, decode_reply(headers, reply))
    except WrongAnswer as error:
        return str(error)
    return None


def _later(client: InferenceClient, manifest: Manifest, body: bytes, headers: Mapping[str, str], pid: int) -> list[dict[str, Any]]:
    runs = []
    for _ in range(1 + STEADY_RUNS):
        started = now_ns()
        client.infer(manifest.name, body, headers)
        runs.append((now_ns() - started, started))
    second, *others = runs
    duration, started = sorted(others)[STEADY_RUNS // 2]
    held = _resident_bytes(pid)
    return [_phase("second_inference", second[1], second[1] + second[0], held), _phase("steady", started, started + duration, held)]


def _phase(name: str, start_ns: int, end_ns: int, resident_bytes: int | None) -> dict[str, Any]:
    return {"name": name, "start_ns": start_ns, "end_ns": end_ns, "resident_bytes": resident_bytes, "device_bytes": None}


def _resident_bytes(pid: int) -> int | None:
    """Resident memory of the server's process; None where the host does not tell."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
