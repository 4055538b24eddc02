"""The start form of the real web page, over HTTP: what it shows, what a run that was started from it does, what it refuses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.load.arrivals_text import parse_arrivals
from bench.records import SavedRun, open_run
from tests.locust_runs import LOCUST, QUICK, ROOT, Locust, ends, free_port, rows_of, until
from tests.small_server import SmallServer


class Page:
    """A Locust with its web page."""

    def __init__(self, folder: Path, url: str, *arguments: str, scenario: str = "burst") -> None:
        port = free_port()
        where = ["--web-host", "127.0.0.1", "--web-port", str(port)]
        self._url = f"http://127.0.0.1:{port}"
        self.locust = Locust(folder, url, *where, *arguments, scenario=scenario, headless=False)
        until(lambda: self._answers(), "the web page is there")

    def _answers(self) -> bool:
        try:
            return bool(self.get("/stats/requests"))
        except OSError:
            return False

    def read(self, path: str, form: dict[str, str] | None = None) -> str:
        body = urllib.parse.urlencode(form).encode() if form is not None else None
        with urllib.request.urlopen(self._url + path, body, timeout=60) as reply:
            return str(reply.read(), "utf-8")

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))

    def start(self, **form: str) -> dict[str, Any]:
        """Press the button with these fields."""
        answer: dict[str, Any] = json.loads(self.read("/swarm", {"user_count": "1", "spawn_rate": "1", **form}))
        return answer

    def arguments(self) -> dict[str, Any]:
        """What the page makes its form of."""
        found = re.search(r"window\.templateArgs = (\{.*\})", self.read("/"))
        assert found is not None
        arguments: dict[str, Any] = json.loads(found.group(1))
        return arguments

    def runs(self) -> list[Path]:
        return sorted(self.locust.results.glob("*-m-????")) if self.locust.results.is_dir() else []

    def next_run(self, before: list[Path]) -> SavedRun:
        """The run that comes beside those of before, when it has ended and Locust has stopped."""
        until(lambda: len(self.runs()) > len(before), "the run has ended")
        until(lambda: self.get("/stats/requests")["state"] == "stopped", "Locust has stopped")
        (path,) = set(self.runs()) - set(before)
        return open_run(path)

    def end(self) -> int:
        self.locust.process.send_signal(signal.SIGINT)
        return self.locust.wait()


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with SmallServer() as running:
        yield running


def test_the_form_shows_every_option_with_its_default(tmp_path: Path, server: SmallServer) -> None:
    page = Page(tmp_path, server.url, "--peak-rate", "150")
    try:
        shown = page.arguments()
    finally:
        page.end()
    defaults = {name: option["default_value"] for name, option in shown["extra_options"].items()}
    assert defaults == {
        **dict.fromkeys(("arrivals", "schedule", "trace", "model", "shape", "probe")),
        "base_rate": 20.0, "peak_rate": 150.0, "spikes": 5, "hold": "2s", "rest": "4s", "seed": 1, "deadline": "10s", "slo": "",
        "encoding": "auto", "max_connections": 4096, "verify_every": 100, "results": str(page.locust.results),
    }  # fmt: skip
    # Locust's page chooses the first of the choices where a default is none of them.
    assert shown["extra_options"]["encoding"]["choices"] == ["auto", "binary", "json"]
    assert shown["host"] == server.url and not shown["missing_host_warning"]
    assert "Traceback" not in page.locust.out


def test_bad_values_are_one_sentence_and_the_page_lives_on(tmp_path: Path, server: SmallServer) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, and nobody listens
        cases = [
            ({"peak_rate": "fast"}, "--peak-rate is 'fast', and must be a number, such as 200.0"),
            ({"spikes": "2.5"}, "--spikes is '2.5', and must be a whole number, such as 5"),
            ({"max_connections": ""}, "--max-connections is '', and must be a whole number, such as 4096"),
            ({"encoding": "xml"}, "--encoding is 'xml', and must be one of auto, binary, json"),
            ({"peak_rate": "0"}, "--peak-rate is 0, and must be above 0"),
            ({"peak_rate": "nan"}, "nan"),
            ({"hold": "soon"}, "'soon' is not a time"),
            ({"arrivals": "poisson"}, "poisson"),
            ({"arrivals": "constant:rate=1,duration=1s", "schedule": "x"}, "--arrivals and --schedule exclude each other"),
            ({"schedule": str(tmp_path / "none.parquet")}, "none.parquet"),
            ({"model": "nope"}, "has no model 'nope'"),
            ({"results": str(tmp_path / "file" / "below")}, "cannot be written"),
            ({"host": f"http://127.0.0.1:{silent.getsockname()[1]}"}, "nobody listens at"),
            ({"host": "ftp://x"}, "not an address like"),
        ]
        page = Page(tmp_path, server.url, "--rest", "500ms")
        try:
            for form, sentence in cases:
                answer = page.start(host=server.url, **form) if "host" not in form else page.start(**form)
                assert answer["success"] is False and sentence in answer["message"], (form, answer)
                assert "\n" not in answer["message"]
            log = "\n".join(page.get("/logs")["master"])
            assert all(sentence in log for _, sentence in cases)
            assert page.get("/stats/requests")["state"] == "ready" and page.runs() == [] and not server.times
            # Locust's own refusal leaves nothing behind that a later start would use.
            assert page.start(user_count="many", arrivals="constant:rate=1,duration=10min")["success"] is False
            assert page.start(spikes="1", hold="500ms", arrivals="")["success"]
            run = page.next_run([])
        finally:
            code = page.end()
    assert run.run["settings"]["spikes"] == 1 and run.run["settings"]["hold"] == "500ms" and run.run["settings"]["rest"] == "500ms"
    assert code in (0, 3) and "Traceback" not in page.locust.out
    assert page.locust.out.strip().splitlines()[-1] == str(run.path)


def test_each_start_is_a_run_of_its_own_over_the_same_workers(tmp_path: Path, server: SmallServer) -> None:
    asked = ["constant:rate=100,duration=1s", "poisson:rate=80,duration=1s"]
    page = Page(tmp_path, server.url, "--processes", "2", "--peak-rate", "50")
    try:
        until(lambda: page.get("/stats/requests")["worker_count"] == 2, "both workers are there")
        runs = []
        for number, arrivals in enumerate(asked):
            before = page.runs()
            assert page.start(host=server.url, arrivals=arrivals, seed=str(number + 5), verify_every="7")["success"]
            refused = page.start(host=server.url, arrivals="constant:rate=5,duration=1s")
            assert refused["success"] is False and "a run goes on" in refused["message"]
            runs.append(page.next_run(before))
        logged = "\n".join(page.get("/logs")["master"])
    finally:
        page.end()
    for number, (run, arrivals) in enumerate(zip(runs, asked, strict=True)):
        rows = rows_of(run)
        assert [row["intended_ns"] for row in rows] == parse_arrivals(arrivals).schedule(number + 5).intended_ns.tolist()
        assert ends(rows) == {("ok", None): len(rows)} and {row["worker"] for row in rows} == {0, 1}
        assert run.run["settings"]["arrivals"] == arrivals and run.run["settings"]["verify_every"] == 7
        assert run.run["settings"]["peak_rate"] == 50 and f"{run.path}: " in logged
    assert len(server.times) == sum(len(rows_of(run)) for run in runs)
    assert "Traceback" not in page.locust.out


OLD = """
from scenarios.burst import Burst
import scenarios.openloop.worker
class bench:
    __version__ = "0.0.1"
scenarios.openloop.worker.bench = bench
"""


def test_a_worker_that_does_not_fit_is_named_and_the_others_hang_up(tmp_path: Path, server: SmallServer) -> None:
    (tmp_path / "old.py").write_text(OLD)
    port = free_port()
    page = Page(tmp_path, server.url, "--master", f"--master-bind-port={port}")
    workers = []
    try:
        for file in (ROOT / "scenarios" / "burst.py", tmp_path / "old.py"):
            command = [*LOCUST, "-f", str(file), "--worker", f"--master-port={port}"]
            workers.append(subprocess.Popen(command, cwd=tmp_path, env=QUICK, stderr=subprocess.DEVNULL))
        until(lambda: page.get("/stats/requests")["worker_count"] == 2, "both workers are there")
        assert page.start(host=server.url)["success"]
        until(lambda: page.get("/stats/requests")["state"] == "stopped", "Locust has stopped")
        assert "runs another version of coldburst, 0.0.1 instead of" in "\n".join(page.get("/logs")["master"])
        until(lambda: server.connections == 0, "no worker is connected any more")
        assert server.most_connections > 1 and not server.times
    finally:
        code = page.end()
        for worker in workers:
            worker.wait(60)
    assert code == 2 and "Traceback" not in page.locust.out
