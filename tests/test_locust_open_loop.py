"""Real Locust processes against a real server in this process: every arrival accounted for, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.analysis.validity import check_run
from bench.errors import BenchError
from bench.records import open_run
from scenarios.openloop.server_start import server_process_start
from tests.locust_runs import LOCUST, QUICK, ROOT, Locust, ends, free_port, rows_of, until
from tests.small_server import Exchange, SmallServer


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with SmallServer() as running:
        yield running


async def chunked(exchange: Exchange) -> None:
    """In chunks, with the server's parts, slowly every now and then."""
    body = json.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}).encode()
    exchange.writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
    exchange.writer.write(b"Server-Timing: queue;dur=0.5, pool;dur=0, load;dur=0, input;dur=0.001, infer;dur=1, output;dur=0\r\n\r\n")
    for start in range(0, len(body), 7):
        piece = body[start : start + 7]
        exchange.writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if exchange.number % 50 == 0:
            await exchange.writer.drain()
            await asyncio.sleep(0.001)
    exchange.writer.write(b"0\r\n\r\n")


def test_two_workers_merge_to_exactly_the_schedule(tmp_path: Path) -> None:
    with SmallServer(chunked) as server:
        arguments = [
            "--processes",
            "2",
            "-u",
            "7",
            "-r",
            "3",
            "--base-rate",
            "20",
            "--peak-rate",
            "200",
            "--spikes",
            "2",
            "--hold",
            "500ms",
        ]
        locust = Locust(tmp_path, server.url, *arguments, "--rest", "500ms", "--csv", str(tmp_path / "stats"), scenario="burst")
        code = locust.wait()
    run = locust.run()
    rows = rows_of(run)
    assert ends(rows) == {("ok", None): len(rows)} and len(server.times) == len(rows)
    assert {(row["seq"] % 2, row["worker"]) for row in rows} == {(0, 0), (1, 1)}
    assert all(row["intended_ns"] <= row["sent_ns"] <= row["done_ns"] for row in rows)
    assert {(row["queue_ns"], row["pool_ns"], row["infer_ns"], row["http_status"]) for row in rows} == {(500_000, 0, 1_000_000, 200)}
    assert not run.partial and run.run["kind"] == "load" and run.run["scenario"] == "burst" and run.run["workers"] == 2
    assert run.run["settings"]["peak_rate"] == 200 and run.run["hashes"]["schedule_sha256"] and run.run["start_monotonic_ns"]
    summary = run.read_json("summary.json")
    assert summary is not None and summary["counts"] == {"ok": len(rows)} and len(summary["generators"]) == 2
    assert summary["lost_workers"] == 0 and all(one["values_compared"] > 0 for one in summary["generators"])
    # The verdict stands before any number; whether this busy machine made the run invalid is not this test's matter.
    assert code == (0 if check_run(run.path).valid else 3)
    assert locust.out.index(f"{run.path}: ") < locust.out.index("Response time percentiles")
    totals = (tmp_path / "stats_stats.csv").read_text().splitlines()[-1].split(",")
    assert totals[1:4] == ["Aggregated", str(len(rows)), "0"]


def nearest_rank(values: list[int], percent: int) -> int:
    ordered = sorted(values)
    return ordered[math.ceil(percent * len(ordered) / 100) - 1]


def test_a_stall_is_seen_by_every_arrival_that_was_due_in_it(tmp_path: Path) -> None:
    """The worked example of coordinated omission: 100/s for 3 s, and a server that says nothing for 1 s in the middle."""
    stalled: list[int] = []

    async def stall(exchange: Exchange) -> None:
        if exchange.number == 100:
            stalled.append(time.monotonic_ns())
            time.sleep(1)  # the whole server, as a garbage collection or an engine load would
            stalled.append(time.monotonic_ns())
        exchange.ok()

    with SmallServer(stall) as server:
        locust = Locust(tmp_path, server.url, "--arrivals", "constant:rate=100,duration=3s", scenario="burst")
        locust.wait()
        rows = rows_of(locust.run())
    assert ends(rows) == {("ok", None): 300}
    start = locust.run().run["start_monotonic_ns"]
    begin, end = (moment - start for moment in stalled)
    due_in_it = [row for row in rows if begin <= row["intended_ns"] < end]
    assert len(due_in_it) >= 95
    # No answer can have come before the stall's end: a bound without any tolerance.
    assert all(row["done_ns"] >= end for row in due_in_it)
    assert sum(row["sent_ns"] < end for row in due_in_it) >= 50  # they were sent although nothing was answered
    # What anybody would compute from the schedule and the stall alone bounds the percentiles from below.
    expected = [max(0, end - row["intended_ns"]) if row["intended_ns"] >= begin else 0 for row in rows]
    response = [row["done_ns"] - row["intended_ns"] for row in rows]
    for percent in (70, 90, 99):
        assert nearest_rank(response, percent) >= nearest_rank(expected, percent)
    assert nearest_rank(expected, 99) > 900_000_000
    summary = locust.run().read_json("summary.json")
    assert summary is not None and summary["response_ns_of_ok"]["p99"] == nearest_rank(response, 99)
    # A closed loop, which waits for each answer, meets the same stall once, and its p99 knows nothing of it.
    stalled.clear()
    with SmallServer(stall) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        trips = []
        for _ in range(300):
            before = time.monotonic_ns()
            client.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200")
            trips.append(time.monotonic_ns() - before)
    assert max(trips) >= 1_000_000_000 > 5 * nearest_rank(trips, 99)


def test_wrong_answers_are_told_apart(tmp_path: Path) -> None:
    async def every_kind(exchange: Exchange) -> None:
        kind = exchange.number % 10
        if kind == 1:
            exchange.ok(datatype="FP64")
        elif kind == 2:
            exchange.ok(shape=[2, 2])
        elif kind == 3:
            exchange.ok(data=[1.0])
        elif kind == 4:
            exchange.ok(data=[1.0, 7.0])
        elif kind == 5:
            exchange.json({"error": "busy"}, "503 Service Unavailable")
        elif kind == 6:
            exchange.json({"error": "boom"}, "500 Internal Server Error")
        elif kind == 7:
            exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            exchange.writer.close()
        elif kind == 8:
            exchange.writer.write(b"nonsense\r\n\r\n")
            exchange.writer.close()
        elif kind == 9:
            await asyncio.sleep(60)
        else:
            exchange.ok(extra="Connection: close\r\n" if exchange.number % 20 else "")

    with SmallServer(every_kind) as server:
        arrivals = ["--arrivals", "constant:rate=50,duration=2s", "--deadline", "2s", "--verify-every", "1"]
        locust = Locust(tmp_path, server.url, *arrivals, "--slo", "p99=1s", scenario="burst")
        assert locust.wait() in (0, 3)  # failed requests are data
        run = locust.run()
    rows = rows_of(run)
    assert ends(rows) == {
        ("ok", None): 10,
        ("wrong", "output 'y' has datatype FP64, declared is FP32"): 10,
        ("wrong", "output 'y' has shape [2, 2], declared is [1, 2]"): 10,
        ("wrong", "output 'y' has not the 2 values of its shape [1, 2]"): 10,
        ("wrong", "output 'y' has other values than the first answer to the same input"): 10,
        ("shed", "HTTP 503"): 10,
        ("error", "HTTP 500"): 10,
        ("error", "the connection was closed in the middle of the answer"): 10,
        ("error", "the answer is not HTTP/1.1"): 10,
        ("timeout", "no answer within the deadline"): 10,
    }
    assert all(row["done_ns"] - row["intended_ns"] >= 2_000_000_000 for row in rows if row["status"] == "timeout")
    summary = run.read_json("summary.json")
    assert summary is not None and summary["ok_within_slo"] <= 10 and summary["counts"]["shed"] == 10
    assert f"in time        {summary['ok_within_slo'] / 100:.2%} of all arrivals were answered within 1.00 s" in locust.out


def test_an_odd_answer_costs_its_own_row_and_what_is_sent_once_more_is_counted(tmp_path: Path) -> None:
    async def odd(exchange: Exchange) -> None:
        kind = exchange.number % 7
        if kind == 1:
            exchange.ok(parameters=[1])
        elif kind == 2:
            exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}")
        elif kind == 3:
            exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")
        elif kind == 4:
            body = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":' + b"[" * 900 + b"1" + b"]" * 900 + b"}]}"
            exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif kind == 6:
            exchange.writer.close()  # with the request read and not a byte of answer
        else:
            exchange.ok(extra="Server-Timing: queue;dur=1e400, infer;dur=-1\r\n")

    with SmallServer(odd) as server:
        arguments = ["--arrivals", "constant:rate=70,duration=1s", "--verify-every", "1", "--max-connections", "1"]
        locust = Locust(tmp_path, server.url, *arguments, scenario="burst")
        assert locust.wait() in (0, 3) and "Traceback" not in locust.out
        arrived = len(server.times)
    rows, summary = rows_of(locust.run()), locust.run().read_json("summary.json")
    reasons = Counter((row["status"], (row["error"] or "")[:33]) for row in rows if row["sent_ns"] is not None)
    assert set(reasons) - {("error", "the connection was closed without"[:33])} == {
        ("ok", ""),
        ("wrong", "output 'y' has parameters that are not an object"[:33]),
        ("error", "the answer's Content-Length is no length"[:33]),
        ("wrong", "output 'y' has not the 2 values of its shape"[:33]),
    }
    assert summary is not None and summary["resent"] == arrived - sum(reasons.values()) > 0
    assert f"{summary['resent']} requests once more" in locust.out


def test_a_full_results_folder_keeps_what_there_is(tmp_path: Path, server: SmallServer) -> None:
    listing = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); sys.argv[0] = 'locust'; "
    command = [
        sys.executable,
        "-c",
        listing + "runpy.run_module('locust', run_name='__main__')",
        "-f",
        str(ROOT / "scenarios" / "burst.py"),
    ]
    arguments = ["--host", server.url, "--results", str(tmp_path / "r"), "--headless", "--arrivals", "constant:rate=2000,duration=2s"]
    done = subprocess.run([*command, *arguments, "--only-summary"], capture_output=True, text=True, env=QUICK, timeout=150)
    assert done.returncode == 2 and "Traceback" not in done.stderr + done.stdout
    assert "\nlocust: File too large: " in "\n" + done.stderr
    (partial,) = (tmp_path / "r").iterdir()
    assert done.stdout.splitlines()[-1] == str(partial) and partial.name.endswith(".partial")
    assert open_run(partial).table("requests") is not None


SEEDS = """
import locust
import sys
from types import SimpleNamespace
from scenarios.openloop.sources import from_source
for seed in (1, 1, 2):
    schedule = from_source(None)(SimpleNamespace(trace=sys.argv[1], schedule=None, arrivals=None, seed=seed))
    print(schedule.intended_ns.tolist())
"""


def test_the_seed_draws_the_arrivals_of_a_trace_of_counts(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("HashOwner,HashApp,HashFunction,Trigger,1\no,a,f,http,5\n")
    command = [sys.executable, "-c", SEEDS, str(tmp_path / "counts.csv")]
    first, again, other = subprocess.run(command, capture_output=True, text=True, env=QUICK, check=True).stdout.splitlines()
    assert first == again != other


def metrics(answer: bytes, *, drip: bool = False) -> float | None:
    """What a server that answers /metrics with these bytes is understood to say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.recv(65_536)
                client.sendall(answer)
                while drip:
                    time.sleep(0.1)
                    client.sendall(b"#")

        thread = threading.Thread(target=serve)
        thread.start()
        began = time.monotonic()
        found = server_process_start(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert time.monotonic() - began < 8
        thread.join(60)
    return found


def test_no_metrics_page_can_spoil_a_run() -> None:
    good = b"HTTP/1.1 200 OK\r\n\r\n# HELP x\nprocess_start_time_seconds 1.7e+09\n"
    assert metrics(good) == 1.7e9
    for bad in (
        b"garbage\r\n\r\n",
        b"",
        good.replace(b"1.7e+09", b"1.2.3e+"),
        good.replace(b"200", b"404"),
        good.replace(b"1.7e+09\n", b"1"),
    ):
        assert metrics(bad) is None
    assert metrics(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", drip=True) is None


def test_a_server_that_reads_slowly_gets_whole_requests(tmp_path: Path) -> None:
    with SmallServer(read_delay_s=0.2) as server:
        arrivals = ["--arrivals", "constant:rate=20,duration=500ms", "--shape", "100000x4"]
        locust = Locust(tmp_path, server.url, *arrivals, scenario="burst")
        locust.wait()
        run = locust.run()
        received = server.received
    # The answer's batch is 1 where 100,000 were asked for, so each is wrong; what counts here is that each was whole.
    assert {row["status"] for row in rows_of(run)} == {"wrong"}
    assert len(received) == 10 and len(set(received)) == 1 and received[0] > 4_000_000
    assert received[0] < run.run["target"]["request_bytes"]


def test_a_full_pool_is_said_and_never_passed(tmp_path: Path) -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)
        exchange.ok()

    with SmallServer(slow) as server:
        locust = Locust(tmp_path, server.url, "--arrivals", "constant:rate=100,duration=1s", "--max-connections", "3", scenario="burst")
        assert locust.wait() == 3
        rows = rows_of(locust.run())
        most = server.most_connections
    kinds = ends(rows)
    assert kinds["ok", None] + kinds["not_sent", "limit of 3 connections reached"] == 100
    assert 3 <= kinds["ok", None] <= 12 and len(server.times) == kinds["ok", None]
    assert most <= 4  # the three, and Locust's question for the model before
    assert "raise --max-connections" in locust.out


def test_a_server_that_dies(tmp_path: Path) -> None:
    async def die_at_fifty(exchange: Exchange) -> None:
        if exchange.number < 50:
            exchange.ok()
        else:  # not only at 50: others may have come before it is gone
            exchange.server.die()

    with SmallServer(die_at_fifty) as server:
        locust = Locust(tmp_path, server.url, "--arrivals", "constant:rate=100,duration=1s", scenario="burst")
        assert locust.wait() == 3
    run = locust.run()
    rows = rows_of(run)
    counts = Counter(row["status"] for row in rows)
    assert counts["ok"] == 50 and counts["error"] >= 1 and counts["not_sent"] == 50 - counts["error"]
    assert server.gone_ns is not None
    gone_ns = server.gone_ns - run.run["start_monotonic_ns"]
    assert all(row["sent_ns"] < gone_ns for row in rows if row["status"] == "error")  # what was on its way, and nothing later
    assert {row["error"] for row in rows if row["status"] == "not_sent"} == {"connect failed: Connection refused"}
    assert "see whether the server still runs" in locust.out


@pytest.mark.parametrize("how", ["ctrl-c", "run-time"])
def test_stopping_early_leaves_the_rest_as_rows(tmp_path: Path, server: SmallServer, how: str) -> None:
    arguments = ["--arrivals", "constant:rate=100,duration=10min"]
    locust = Locust(tmp_path, server.url, *arguments, *(["-t", "8s"] if how == "run-time" else []), scenario="burst")
    if how == "ctrl-c":
        until(lambda: len(server.times) > 30, "requests come")
        locust.process.send_signal(signal.SIGINT)
    code = locust.wait()
    run = locust.run()
    rows = rows_of(run)
    kinds = ends(rows)
    assert kinds["ok", None] == len(server.times) > 30
    assert kinds["not_sent", "stopped"] == 60_000 - kinds["ok", None]
    assert re.search(rf"Aggregated +{kinds['ok', None]} +0\(0.00%\)", locust.out)  # no failures in Locust's own table
    assert code == (0 if check_run(run.path).valid else 3)


@pytest.mark.parametrize("when", ["before the run", "while it ends"])
def test_ctrl_c_that_cannot_wait_ends_at_once_without_a_traceback(tmp_path: Path, when: str) -> None:
    came = threading.Event()
    held: list[socket.socket] = []

    async def never(_: Exchange) -> None:
        came.set()

    with SmallServer(answer=never) as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = server.url if when == "while it ends" else f"http://127.0.0.1:{silent.getsockname()[1]}"
        locust = Locust(tmp_path, url, "--arrivals", "constant:rate=100,duration=10min", scenario="burst")
        if when == "while it ends":
            until(came.is_set, "a request comes")  # none is answered, so that the end takes its 2 s
            locust.process.send_signal(signal.SIGINT)
            until(lambda: "the run ends" in (tmp_path / "locust.log").read_text(), "the run ends")
        else:
            held.append(silent.accept()[0])  # it asks for the model, and waits
        locust.process.send_signal(signal.SIGINT)
        assert locust.wait() == 130, locust.out
        for one in held:
            one.close()
    assert "Traceback" not in locust.out
    assert len(list(tmp_path.glob("results/*.partial"))) == (when == "while it ends")


def test_kill_9_leaves_what_was_flushed(tmp_path: Path, server: SmallServer) -> None:
    locust = Locust(tmp_path, server.url, "--arrivals", "constant:rate=200,duration=10min", scenario="burst")

    def kept() -> int:
        """Rows in the folder, 0 where there is none yet."""
        for folder in locust.results.glob("*.partial"):
            with contextlib.suppress(BenchError):
                table = open_run(folder).table("requests")
                return 0 if table is None else table.num_rows
        return 0

    until(lambda: kept() > 200, "rows are flushed")
    locust.process.kill()
    answered = len(server.times)
    locust.wait()
    run = open_run(locust.partial())
    table = run.table("requests")
    assert run.partial and table is not None
    assert table.num_rows <= answered
    assert sorted(table.column("seq").to_pylist()) == list(range(table.num_rows)) and table.num_rows > 200
    done = subprocess.run([sys.executable, "-m", "bench", "check", str(run.path)], capture_output=True, text=True, env=QUICK, cwd=ROOT)
    assert done.returncode == 3
    assert "did not end by itself" in done.stdout and "have no row, because the run was cut off" in done.stdout


@pytest.mark.parametrize("senders", [[], ["--processes", "2"]])
def test_a_folder_that_is_taken_away_ends_the_run(tmp_path: Path, server: SmallServer, senders: list[str]) -> None:
    """Long before its time, because nothing of it could be kept."""
    locust = Locust(tmp_path, server.url, *senders, "--arrivals", "constant:rate=100,duration=1min", scenario="burst")
    until(lambda: len(server.times) > 100, "requests come")
    children = Path(f"/proc/{locust.process.pid}/task/{locust.process.pid}/children").read_text().split()
    shutil.rmtree(locust.results)
    assert locust.wait() == 2, locust.out
    until(lambda: not any(running(child) for child in children), "both workers have ended")
    (said,) = (line for line in locust.out.splitlines() if line.startswith("locust: "))
    assert str(locust.results) in said and "was removed or moved while the run went on" in said
    assert "Traceback" not in locust.out and not locust.results.exists()
    assert len(server.times) < 4000


def test_a_killed_worker_is_accounted_for(tmp_path: Path, server: SmallServer) -> None:
    locust = Locust(tmp_path, server.url, "--processes", "2", "--arrivals", "constant:rate=100,duration=4s", scenario="burst")
    until(lambda: len(server.times) > 100, "requests come")
    children = Path(f"/proc/{locust.process.pid}/task/{locust.process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(int(children[0]), signal.SIGKILL)
    assert locust.wait() == 3
    rows = rows_of(locust.run())
    counts = Counter((row["worker"], row["status"]) for row in rows)
    lost = [row for row in rows if row["status"] == "lost_worker"]
    assert len({row["seq"] % 2 for row in lost}) == 1 and 50 < len(lost) <= 200
    assert sum(count for (_, status), count in counts.items() if status == "ok") == 400 - len(lost)
    assert "a worker died" in locust.out


def test_web_page_shows_the_response_time(tmp_path: Path, server: SmallServer) -> None:
    port = free_port()
    listener = tmp_path / "listening.py"
    listener.write_text(
        "import locust\n@locust.events.request.add_listener\ndef heard(response_time, **_):\n"
        f"    open({str(tmp_path / 'heard')!r}, 'a').write('x')\n"
    )
    arguments = ["-f", f"{ROOT / 'scenarios' / 'steady.py'},{listener}", "--web-host", "127.0.0.1", "--web-port", str(port)]
    locust = Locust(tmp_path, server.url, *arguments, "--rate", "100", "--duration", "2s", headless=False)
    page = f"http://127.0.0.1:{port}"

    def ask(path: str, data: dict[str, str] | None = None) -> Any:
        body = urllib.parse.urlencode(data).encode() if data else None
        try:
            with urllib.request.urlopen(page + path, body, timeout=60) as reply:
                return json.loads(reply.read())
        except OSError:
            return None

    try:
        until(lambda: ask("/stats/requests"), "the web page is there")
        for finished in range(2):  # one run after the other
            assert ask("/swarm", {"user_count": "1", "spawn_rate": "1", "host": server.url})["success"]
            until(lambda done=finished + 1: len(list(locust.results.glob("*-steady-m-????"))) == done, "the run has ended")
            until(lambda: ask("/stats/requests")["state"] == "stopped", "Locust has stopped")
            server.times.clear()
        until(lambda: ask("/stats/requests")["stats"][-1]["num_requests"] > 0, "the page's numbers are fresh")
        stats = ask("/stats/requests")["stats"][-1]
        run = open_run(max(locust.results.iterdir(), key=lambda path: path.stat().st_mtime))
        rows = rows_of(run)
        assert stats["num_requests"] == len(rows)
        longest = max(row["done_ns"] - row["intended_ns"] for row in rows) / 1e6
        assert abs(stats["max_response_time"] - longest) <= 1
        assert len((tmp_path / "heard").read_text()) == sum(len(rows_of(open_run(path))) for path in locust.results.iterdir())
    finally:
        locust.process.send_signal(signal.SIGINT)
        locust.wait()


OPTIONS = {
    "burst": "--arrivals --base-rate --peak-rate --spikes --hold --rest --schedule --trace",
    "steady": "--rate --duration",
    "trace": "--schedule --trace --arrivals",
}
COMMON = "--seed --model --shape --probe --encoding --deadline --max-connections --slo --verify-every --results --host"


HELP = """
import sys
from locust.argument_parser import get_parser
from locust.util.load_locustfile import load_locustfile
load_locustfile(sys.argv[1])
get_parser().print_help()
"""


@pytest.mark.parametrize("scenario", OPTIONS)
def test_every_option_is_in_the_help(scenario: str) -> None:
    """Locust goes on when a listener's option cannot be registered: only its help tells. (`locust -f FILE --help` itself
    prints its own options before it looks at FILE, so the test asks for the help as it stands after that.)"""
    arguments = [sys.executable, "-c", HELP, str(ROOT / "scenarios" / f"{scenario}.py")]
    text = subprocess.run(arguments, capture_output=True, text=True, env=QUICK, check=True).stdout
    for option in f"{OPTIONS[scenario]} {COMMON}".split():
        assert re.search(rf"^\s+(-\w\b.*, )?{option}\b", text, re.MULTILINE), option


MANY = """
import json, sys
import locust
from locust.argument_parser import get_parser
from locust.util.load_locustfile import load_locustfile
load_locustfile(sys.argv[1])
from bench.errors import BenchError, one_sentence
from scenarios.burst import SCENARIO
from scenarios.openloop.options import make_plan
for arguments in json.load(sys.stdin):
    try:
        make_plan(SCENARIO, get_parser().parse_args(arguments))
        print("accepted")
    except BenchError as error:
        print(one_sentence(error))
"""


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    def probe(output: str, kind: str, size: int) -> Path:
        path = tmp_path / f"{output}-{kind}-{size}.npz"
        np.savez(path, **{"0/input/x": np.zeros((1, 4), "f4"), f"0/output/{output}": np.zeros((1, size), kind)})
        return path

    no_times, old = tmp_path / "no_times.txt", tmp_path / "old.parquet"
    no_times.write_text("nothing here\n")
    metadata = {b"coldburst.schedule": json.dumps({"schema_version": 99}).encode()}
    pq.write_table(pa.table({"seq": [0], "intended_ns": [0]}).replace_schema_metadata(metadata), old)
    with SmallServer() as server, SmallServer(models=()) as none:
        cases: list[tuple[str, list[str], str]] = [
            (server.url + "/elsewhere", [], "not as a V2 inference server"),
            ("ftp://x", [], "not an address like"),
            ("http://[::1", [], "not an address like"),
            (f"http://{'a' * 64}.example", [], "not an address like"),
            (server.url + "/\u00e9", [], "not an address like"),
            (server.url, ["--model", "nope"], "has no model 'nope'"),
            (none.url, [], "does not tell which models"),
            (server.url, ["--peak-rate", "0"], "--peak-rate is 0, and must be above 0"),
            (server.url, ["--base-rate", "0"], "--base-rate is 0, and must be above 0"),
            (server.url, ["--seed", "-1"], "--seed is -1"),
            (server.url, ["--probe", str(probe("other", "f4", 2))], "has the outputs other, but the model has y: it belongs to another"),
            (server.url, ["--probe", str(probe("y", "f8", 2))], "output 'y' as float64 of shape .1, 2., but the model has FP32"),
            (server.url, ["--probe", str(probe("y", "f4", 3))], "output 'y' as float32 of shape .1, 3., but the model has FP32"),
            (server.url, ["--base-rate", "-1"], "^--base-rate is -1, and must not be negative$"),
            (server.url, ["--peak-rate", "10"], "^--peak-rate is 10, and must be above --base-rate, 20$"),
            (server.url, ["--hold", "soon"], "^--hold 'soon' is not a time"),
            (server.url, ["--shape", "2x5"], "does not fit input 'x'"),
            (server.url, ["--shape", "q:2x4"], "the model has x"),
            (server.url, ["--probe", str(tmp_path)], "cannot be read"),
            (server.url, ["--schedule", str(old)], "version 99"),
            (server.url, ["--schedule", str(no_times)], "not a readable Parquet file"),
            (server.url, ["--trace", str(no_times)], re.escape(str(no_times))),
            (server.url, ["--schedule", str(old), "--arrivals", "x"], "exclude each other"),
            (server.url, ["--results", "/proc/nowhere"], "cannot be written"),
            (server.url, ["--deadline", "10"], "--deadline '10' is not a time"),
            (server.url, ["--slo", "p50=1s"], "names another percentile than p99"),
            (server.url, ["--max-connections", "0"], "at least 1"),
            (server.url, ["--verify-every", str(10**30)], f"at most {2**63 - 1}"),
        ]
        given = json.dumps([["--host", url, "--results", str(tmp_path), *arguments] for url, arguments, _ in cases])
        command = [sys.executable, "-c", MANY, str(ROOT / "scenarios" / "burst.py")]
        said = subprocess.run(command, input=given, capture_output=True, text=True, env=QUICK, check=True).stdout.splitlines()
    assert len(said) == len(cases)
    for sentence, (_, _, says) in zip(said, cases, strict=True):
        assert re.search(says, sentence), sentence


def test_wrong_input_ends_locust_with_2(tmp_path: Path) -> None:
    with SmallServer() as server, SmallServer(models=("a", "b")) as several, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, and nobody listens
        cases: list[tuple[str, list[str], str]] = [
            (f"http://127.0.0.1:{silent.getsockname()[1]}", [], "nobody listens at .*bench serve tiny"),
            (several.url, [], r"several models \(a, b\); choose one with --model"),
            (server.url, ["--processes", "3", "--arrivals", "constant:rate=2,duration=1s"], "3 workers are more than the 2 arrivals"),
            (server.url, ["--processes", "3", "--max-connections", "2"], "--max-connections 2 leaves none for some of the 3 workers"),
        ]
        started = []
        for number, (url, arguments, says) in enumerate(cases):
            (tmp_path / str(number)).mkdir()
            started.append((Locust(tmp_path / str(number), url, *arguments, scenario="burst"), says))
        for locust, says in started:
            assert locust.wait() == 2, locust.out
            sentences = [line for line in locust.out.splitlines() if line.startswith("locust: ")]
            assert len(sentences) == 1 and re.search(says, sentences[0]), locust.out
            assert "Traceback" not in locust.out


IMPATIENT = """
import scenarios.burst
import scenarios.openloop.locustfile
from scenarios.burst import Burst
scenarios.openloop.locustfile._MASTER_SILENT_S = 6
"""


def test_workers_of_a_killed_master_end_the_load(tmp_path: Path, server: SmallServer) -> None:
    """Nobody records what they send any more."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    master = Locust(tmp_path, server.url, "--processes", "2", "-f", "impatient.py", "--arrivals", "constant:rate=50,duration=10min")
    until(lambda: len(server.times) > 50, "requests come")
    children = Path(f"/proc/{master.process.pid}/task/{master.process.pid}/children").read_text().split()
    master.process.kill()
    try:
        until(lambda: not any(running(child) for child in children), "both workers have ended")
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
    master.wait()
    assert master.out.count("the master has been silent for 6 s, so nobody records this load any more") == 2
    assert "Traceback" not in master.out


def running(pid: str) -> bool:
    """Not gone, and not only waiting for somebody to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_two_at_once_keep_their_workers(tmp_path: Path, server: SmallServer) -> None:
    """Where another master has Locust's port, `--processes` takes another one; its workers would join the stranger otherwise."""
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # in use already: just as well
            other.bind(("", 5557))
            other.listen()
        command = [*LOCUST, "-f", str(ROOT / "scenarios" / "burst.py"), "--host", server.url, "--results", str(tmp_path / "results")]
        arguments = ["--headless", "--only-summary", "--processes", "2", "--arrivals", "constant:rate=50,duration=1s"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=QUICK, cwd=tmp_path, timeout=150)
    assert done.returncode in (0, 3), done.stderr
    rows = rows_of(open_run(Path(done.stdout.splitlines()[-1])))
    assert ends(rows) == {("ok", None): 50} and {row["worker"] for row in rows} == {0, 1}
