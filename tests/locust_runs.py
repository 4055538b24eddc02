"""Real Locust processes for tests, and what their runs left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.records import SavedRun, open_run

ROOT = Path(__file__).parent.parent
LOCUST = [sys.executable, "-m", "locust"]
QUICK = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


_HELD: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody else is given as long as this process lives, but that who names it can listen on.

    A socket is bound to it and does not listen, with SO_REUSEADDR as Locust's own sockets have: the kernel lets these share
    the port, and passes over it where any port will do.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])


class Locust:
    """One Locust process. Everything it printed is in `out` after `wait`."""

    def __init__(self, tmp_path: Path, url: str, *arguments: str, scenario: str = "steady", headless: bool = True) -> None:
        self.results = tmp_path / "results"
        self._log = (tmp_path / "locust.log").open("w+")
        self.process = subprocess.Popen(
            [*LOCUST, "-f", str(ROOT / "scenarios" / f"{scenario}.py"), "--host", url, "--results", str(self.results), "--only-summary"]
            + (["--headless"] if headless else [])
            + [f"--master-bind-port={(port := free_port())}", f"--master-port={port}"]  # two test runs on one machine
            + list(arguments),
            cwd=tmp_path,
            env=QUICK,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.out = ""

    def wait(self, timeout: float = 150) -> int:
        try:
            code = self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._log.seek(0)
            self.out = self._log.read()
            self._log.close()
        return code

    def partial(self) -> Path:
        """The folder of the run that goes on now."""
        return next(iter(self.results.glob("*.partial")))

    def run(self) -> SavedRun:
        """The one finished run: its path is the last thing that is printed, but for the writer of `--csv`, which Locust at times
        wakes once more after its files were closed."""
        told, _, _ = self.out.partition("Traceback (most recent call last):\n")
        assert told == self.out or "StatsCSVFileWriter.stats_writer" in self.out
        path = Path(told.strip().splitlines()[-1])
        assert [path] == list(self.results.iterdir())
        return open_run(path)


def until(condition: Callable[[], Any], what: str) -> None:
    give_up = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain until {what}"
        time.sleep(0.01)


def rows_of(run: SavedRun) -> list[dict[str, Any]]:
    """All rows, in the order of seq, after a look that there is exactly one for each arrival."""
    table, schedule = run.table("requests"), run.table("schedule")
    assert table is not None and schedule is not None
    rows: list[dict[str, Any]] = sorted(table.to_pylist(), key=lambda row: row["seq"])
    assert [row["seq"] for row in rows] == schedule.column("seq").to_pylist()
    assert [row["intended_ns"] for row in rows] == schedule.column("intended_ns").to_pylist()
    return rows


def ends(rows: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    return Counter((row["status"], row["error"]) for row in rows)
