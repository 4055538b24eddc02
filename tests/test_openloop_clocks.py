"""Clocks of workers on other hosts: the estimate by its bound, and real workers whose CLOCK_MONOTONIC has another zero."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.records import SavedRun
from scenarios.openloop.clocks import Ping, clock_of, estimate
from tests.locust_runs import LOCUST, QUICK, ROOT, Locust, ends, free_port, rows_of
from tests.small_server import SmallServer

MS = 1_000_000
S = 1_000_000_000


@given(
    offset=st.integers(-(10**15), 10**15),
    ways=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**12)), min_size=1, max_size=70),
)
def test_the_true_offset_is_never_further_away_than_the_uncertainty(offset: int, ways: list[tuple[int, int, int]]) -> None:
    pings = [Ping(sent_ns=sent, answered_ns=sent + there + offset, received_ns=sent + there + back) for there, back, sent in ways]
    found = estimate(pings)
    assert abs(found.offset_ns - offset) <= found.uncertainty_ns
    assert found.round_trip_ns == min(there + back for there, back, _ in ways)
    assert found.uncertainty_ns <= found.round_trip_ns / 2 + 1 and found.pings == len(ways)


def test_one_clock_needs_both_the_marks_and_the_pings() -> None:
    near = estimate([Ping(sent_ns=0, answered_ns=30, received_ns=100)])
    far = estimate([Ping(sent_ns=0, answered_ns=5000, received_ns=100)])
    assert clock_of(1, "h", near, same_mark=True).to_json() == {
        "worker": 1, "host": "h", "shared": True, "offset_ns": 0, "uncertainty_ns": 0, "round_trip_ns": 100, "pings": 1,
        "end_offset_ns": None, "end_uncertainty_ns": None,
    }  # fmt: skip
    # Two clones of one virtual machine: the same marks, another clock.
    assert [clock_of(1, "h", far, same_mark=mark).shared for mark in (True, False)] == [False, False]
    assert clock_of(1, "h", near, same_mark=False).to_json()["offset_ns"] == -20


def other_clock(seconds: int) -> list[str]:
    """The command in front of another one that sets its CLOCK_MONOTONIC off by so much. Skips where that is not permitted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare(1), which makes time namespaces")
    ask = [sys.executable, "-c", "import time; print(time.monotonic())"]
    for more in ([], ["--user", "--map-root-user"]):
        command = [unshare, *more, "--time", "--kill-child", "--fork", "--monotonic", str(seconds)]
        done = subprocess.run([*command, *ask], capture_output=True, text=True)
        if done.returncode == 0 and abs(float(done.stdout) - time.monotonic() - seconds) < 60:
            return command
    pytest.skip(f"time namespaces are not permitted here ({done.stderr.strip()})")


@contextmanager
def workers(folder: Path, port: int, *fronts: list[str]) -> Iterator[None]:
    """Worker processes for the master at that port, each with the command in front of it."""
    started = []
    try:
        for number, front in enumerate(fronts):
            command = [*front, *LOCUST, "-f", str(ROOT / "scenarios" / "burst.py"), "--worker", f"--master-port={port}"]
            with (folder / f"worker-{number}.log").open("w") as log:
                started.append(subprocess.Popen(command, cwd=folder, env=QUICK, stdout=log, stderr=subprocess.STDOUT))
        yield
    finally:
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_with(folder: Path, url: str, *fronts: list[str], arrivals: str, through: int | None = None, port: int) -> tuple[int, SavedRun, str]:
    master = Locust(
        folder, url, "--master", f"--expect-workers={len(fronts)}", f"--master-bind-port={port}", "--arrivals", arrivals, scenario="burst"
    )
    with workers(folder, through or port, *fronts):
        code = master.wait()
    return code, master.run(), master.out


def test_workers_whose_clocks_are_off_send_one_schedule(tmp_path: Path) -> None:
    """Three senders, two of them with a clock of their own: one merged run as exact as on one clock, judged by the server's clock."""
    seconds = [0, 5000, -int(time.monotonic() / 2)]
    fronts = [[], *(other_clock(number) for number in seconds[1:])]
    with SmallServer() as server:
        code, run, out = run_with(tmp_path, server.url, *fronts, arrivals="constant:rate=150,duration=2s", port=free_port())
        came = sorted(server.times)
    rows = rows_of(run)
    assert ends(rows) == {("ok", None): 300} and code in (0, 3), out
    clocks = run.run["clocks"]
    assert sorted(round(clock["offset_ns"] / S) for clock in clocks) == sorted(seconds)
    assert sorted(clock["shared"] for clock in clocks) == [False, False, True]
    for clock in clocks:  # the namespace's offset is known exactly, which no other pair of hosts would tell
        true = round(clock["offset_ns"] / S) * S
        assert abs(clock["offset_ns"] - true) <= clock["uncertainty_ns"]
        if not clock["shared"]:
            assert abs(clock["end_offset_ns"] - true) <= clock["end_uncertainty_ns"]
            assert f"worker {clock['worker']} on {clock['host']} {'+' if true > 0 else '-'}" in out
    # Every request came to the server, on the host's own clock, after its intended time and in the order of the schedule's: had a
    # start been wrong by 20 ms, its worker's requests would stand three places from where they belong.
    start = run.run["start_monotonic_ns"]
    assert all(row["intended_ns"] <= row["sent_ns"] <= row["done_ns"] for row in rows)
    early = [moment - start - row["intended_ns"] for moment, row in zip(came, rows, strict=True)]
    assert min(early) > -max(clock["uncertainty_ns"] for clock in clocks)
    for row, moment in zip(sorted(rows, key=lambda row: row["sent_ns"]), came, strict=True):
        assert moment - start >= row["sent_ns"] - 2 * max(clock["uncertainty_ns"] for clock in clocks)


@contextmanager
def slow_way(port: int, one_way_s: float) -> Iterator[int]:
    """A port whose bytes come to `port`, and back, so much later."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 16):
            loop.call_later(one_way_s, writer.write, data)
        loop.call_later(one_way_s, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:  # the master may come a little later than its worker
            try:
                there = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.05)
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer), return_exceptions=True)

    made: list[Any] = []
    ready = threading.Event()

    async def main() -> None:
        stop = asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        made.extend((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield made[0]
    made[1].call_soon_threadsafe(made[2].set)
    thread.join(10)


def test_a_clock_that_cannot_be_known_well_makes_the_run_invalid(tmp_path: Path) -> None:
    front = other_clock(700)
    port = free_port()
    with SmallServer() as server, slow_way(port, 0.03) as through:
        code, run, out = run_with(tmp_path, server.url, front, arrivals="constant:rate=50,duration=1s", port=port, through=through)
    (clock,) = run.run["clocks"]
    assert code == 3 and not clock["shared"]
    assert clock["uncertainty_ns"] >= 30 * MS and abs(clock["offset_ns"] - 700 * S) <= clock["uncertainty_ns"]
    assert "INVALID: the clock of worker 0 on" in out and "run the workers near the master" in out
    assert len(rows_of(run)) == 50
