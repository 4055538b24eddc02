"""The HTTP server over TensorRT: a warm slot's time and where the rest of it goes, a refused shape, SIGTERM under load. Step `serve`.

Step `clocks`: what the timeline and /metrics tell of the GPU.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine.manifest import Manifest, read_manifest
from bench.engine.probe import read_probe
from bench.subprocesses import child_environment, module_command

BARE_SERVER = Path(__file__).parents[1] / "performance" / "bare_server.py"
REQUESTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A started process and its address, `host:port`; `ready_ms` from its start until it said so."""

    process: subprocess.Popen[str]
    address: str
    ready_ms: float | None


@contextmanager
def started(*command: str, until_ready: bool) -> Iterator[Server]:
    began = time.monotonic()
    with subprocess.Popen(command, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://([\w.:]+)", line)
            if found is None:
                assert process.stderr is not None
                raise AssertionError(f"{command}: {line} {process.stderr.read()[-2000:]}")
            ready = None
            while until_ready and ready is None:
                line = process.stdout.readline()
                assert line, "it ended before it was ready"
                ready = (time.monotonic() - began) * 1e3 if line.strip() == "ready" else None
            yield Server(process=process, address=found.group(1), ready_ms=ready)
        finally:
            if process.poll() is None:
                process.terminate()


def binary_request(engine: Path, batch: int = 1) -> tuple[bytes, dict[str, str]]:
    """The probe's smallest case as a body of the binary tensor extension, its first axis repeated `batch` times."""
    import numpy as np

    manifest = read_manifest(engine)
    case = read_probe(engine, manifest)
    described, data = [], b""
    for tensor in manifest.inputs:
        value = np.repeat(case.inputs[tensor.name], batch, axis=0)
        raw = value.tobytes()
        shape, size = list(value.shape), {"binary_data_size": len(raw)}
        described.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "parameters": size})
        data += raw
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return head + data, headers


def ask(connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, str, float]:
    """Status, body, Server-Timing and the round trip in us."""
    began = time.perf_counter_ns()
    connection.request("POST", path, body, dict(headers))
    response = connection.getresponse()
    content = response.read()
    return response.status, content, response.getheader("Server-Timing") or "", (time.perf_counter_ns() - began) / 1e3


def serve(engine: Path, bare_engine_p50_us: float | None) -> dict[str, Any]:
    """All of it for one engine. The two servers are asked in turns, so that a drift of the machine meets both."""
    manifest = read_manifest(engine)
    path = f"/v2/models/{manifest.name}/infer"
    body, headers = binary_request(engine)
    command = module_command("reference_server", str(engine), "--port", "0", "--pool-size", "1")
    facts: dict[str, Any] = {"body_bytes": len(body)}
    with started(*command, until_ready=True) as server, started(sys.executable, str(BARE_SERVER), until_ready=False) as bare:
        facts["ready_ms"] = server.ready_ms
        connections = {one.address: http.client.HTTPConnection(one.address, timeout=60) for one in (server, bare)}
        seen: dict[str, list[float]] = {address: [] for address in connections}
        parts: dict[str, list[float]] = {}
        for _ in range(REQUESTS):
            for address, connection in connections.items():
                status, content, timing, round_trip = ask(connection, path, body, headers)
                assert status == 200, content[:300]
                seen[address].append(round_trip)
                for name, value in re.findall(r"(\w+);dur=([\d.]+)", timing):
                    parts.setdefault(name, []).append(float(value) * 1e3)
        p50 = {name: statistics.median(seen[one.address]) for name, one in (("server", server), ("bare_handler", bare))}
        facts["p50_us"] = {**p50, **({"bare_engine": bare_engine_p50_us} if bare_engine_p50_us is not None else {})}
        facts["p99_us"] = sorted(seen[server.address])[REQUESTS * 99 // 100 - 1]
        facts["parts_p50_us"] = {name: statistics.median(values) for name, values in parts.items()}
        if bare_engine_p50_us is not None:
            facts["ratio"] = p50["server"] / (bare_engine_p50_us + p50["bare_handler"])
        facts["refused"] = _refused_batch(manifest, engine, connections[server.address], path)
        facts["sigterm"] = _sigterm_under_load(server, path, body, headers)
    return facts


def _refused_batch(manifest: Manifest, engine: Path, connection: http.client.HTTPConnection, path: str) -> str:
    assert manifest.max_batch is not None
    body, headers = binary_request(engine, manifest.max_batch + 1)
    status, content, _, _ = ask(connection, path, body, headers)
    assert status == 400, (status, content[:300])
    reason: str = json.loads(content)["error"]
    assert f"the maximum batch is {manifest.max_batch}" in reason, reason
    return reason


def _sigterm_under_load(server: Server, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Four clients without a pause; each request is answered, shed or refused at the door, and the process ends with code 0."""
    statuses: dict[str, int] = {}
    lock = threading.Lock()

    def load() -> None:
        connection = http.client.HTTPConnection(server.address, timeout=30)
        while True:
            try:
                status = str(ask(connection, path, body, headers)[0])
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            with lock:
                statuses[status] = statuses.get(status, 0) + 1
            if status != "200":
                return

    clients = [threading.Thread(target=load) for _ in range(4)]
    for client in clients:
        client.start()
    time.sleep(1)
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(60)
    for client in clients:
        client.join()
    assert server.process.stderr is not None
    errors = server.process.stderr.read()[-1000:]
    assert code == 0, (code, errors)
    return {"exit_code": code, "statuses": statuses, "stderr": errors}


def clocks(engine: Path, folder: Path) -> dict[str, Any]:
    """A server under load with a timeline: the GPU's clock in every sample from when its memory is known, and in /metrics, where the share
    fused and the precision are the manifest's."""
    manifest = read_manifest(engine)
    assert manifest.details is not None
    body, headers = binary_request(engine)
    path = folder / "clocks-timeline.jsonl"
    path.unlink(missing_ok=True)
    command = module_command("reference_server", str(engine), "--port", "0", "--pool-size", "1", "--timeline", str(path))
    with started(*command, until_ready=True) as server:
        connection = http.client.HTTPConnection(server.address, timeout=60)
        for _ in range(REQUESTS):
            status, content, _, _ = ask(connection, f"/v2/models/{manifest.name}/infer", body, headers)
            assert status == 200, content[:300]
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        connection.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    (clock,) = re.findall(r"^coldburst_sm_clock_mhz (\S+)$", metrics, re.MULTILINE)
    (share,) = re.findall(r"^coldburst_share_fused{[^}]*} (\S+)$", metrics, re.MULTILINE)
    assert 100 <= float(clock) <= 3000, clock
    assert 0 < float(share) <= 1, share
    assert float(share) == manifest.details.share_fused
    assert f'precision="{manifest.precision}"' in metrics
    metadata, *samples = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows = [dict(zip(metadata["columns"], sample, strict=True)) for sample in samples]
    known = [row["sm_clock_mhz"] for row in rows if row["device_bytes"] is not None][1:]  # the GPU may come into use within a sample
    assert len(known) >= 5, rows
    assert all(mhz is not None and 100 <= mhz <= 3000 for mhz in known), known
    times_ms = [row["t_ns"] / 1e6 for row in rows]
    gaps_ms = sorted(late - early for early, late in itertools.pairwise(times_ms))
    assert 45 < statistics.median(gaps_ms) < 60, gaps_ms
    return {
        "ready_ms": server.ready_ms,
        "metrics": {"sm_clock_mhz": float(clock), "share_fused": float(share)},
        "timeline": {"samples": len(rows), "lowest_mhz": min(known), "highest_mhz": max(known)},
        "between_samples_ms": {"median": statistics.median(gaps_ms), "largest": gaps_ms[-1]},
    }
