"""Leads the runs of one Locust, from the only process or the master: deals the shares, starts them together, ends the run."""

from __future__ import annotations

import locust  # noqa: F401
from locust.runners import MasterRunner

import ipaddress
import logging
import socket
import sys
from collections.abc import Mapping
from typing import Any

import gevent
import pyarrow as pa
from gevent.event import Event

import bench
from bench.clock import now_ns
from bench.errors import EXIT_FINE, EXIT_INVALID_RUN, EXIT_WRONG_INPUT, BenchError, one_sentence
from scenarios.openloop.clocks import ONE_CLOCK, ClockOffset, Pinger, WorkerClock, clock_mark, clock_of, estimate, host_mark
from scenarios.openloop.options import Scenario, make_plan
from scenarios.openloop.run import Plan, Run, run_bench
from scenarios.openloop.sink import SCHEMA, STOPPED
from scenarios.openloop.web_form import options_of_form
from scenarios.openloop.worker import DONE, DRAIN_S, GO, PING, READY, ROWS, SHARE, STOP, Worker, share_from

_LEAD_TIME_NS = 300_000_000
_READY_S = 60.0
_STOP_S = 30.0
_LOOK_S = 0.5
_PING_NS = 5_000_000_000
_COME_BACK_S = 5.0
_BEGIN_S = 5.0
EXIT_FAILED = 70  # a defect of this program (sysexits.h, EX_SOFTWARE)

logger = logging.getLogger(__name__)


class Lead:
    """Leads one run after the other. `plan` is the next one, where it is known before Locust starts it."""

    def __init__(self, scenario: Scenario, environment: Any, runner: Any) -> None:
        self._scenario = scenario
        self._environment = environment
        self._runner = runner
        self._greenlet: Any = None
        self._run: Run | None = None
        self._ready: dict[int, dict[str, Any]] = {}
        self._pingers: dict[int, Pinger] = {}
        self._news = Event()
        self._stopping = False
        self._ending = False
        self._preparing = False
        self._begun = Event()
        self._clients: list[str] = []
        self._local: Worker | None = None
        self._unwritten: OSError | BenchError | None = None
        self.plan: Plan | None = None
        if isinstance(runner, MasterRunner):
            for kind in (READY, ROWS, DONE, PING):
                runner.register_message(kind, self._on_message)
        else:
            self._local = Worker(environment, self._take)

    def plan_run(self) -> None:
        """Make the plan of the run that begins at once. Ends the process with 2 where an option or the server is wrong."""
        try:
            self.plan = make_plan(self._scenario, self._environment.parsed_options)
        except BenchError as error:
            _say_wrong(error)
            sys.exit(EXIT_WRONG_INPUT)

    def plan_from_form(self, form: Mapping[str, str]) -> None:
        """Make the plan of the run that the web page asks for. Raises BenchError, and then nothing has changed."""
        if self._ending:  # the verdict is out, and Locust stops its users
            self._greenlet.join(timeout=_COME_BACK_S)
        if self._preparing or (self._greenlet is not None and not self._greenlet.ready()):
            raise BenchError("a run goes on, and its load is not to be changed: stop it, or wait for its end, and start again")
        self._preparing = True
        try:
            self._await_workers()
            self.plan = make_plan(self._scenario, options_of_form(self._scenario, self._environment.parsed_options, form))
            self._begun.clear()
        except BaseException:
            self._preparing = False
            raise

    def form_taken(self, taken: bool) -> None:
        """Locust starts the run of `plan_from_form`, or refused the form: then, or where it does not come to start, forget the plan."""
        if not (taken and self._begun.wait(timeout=_BEGIN_S)):
            self.plan = None
        self._preparing = False

    def on_test_start(self, **_: Any) -> None:
        """Begin to lead, beside Locust's own start."""
        if self._greenlet is not None and not self._greenlet.ready():
            return  # its end is near: Locust has stopped its users already
        self._clients = self._connected() if self._local is None else ["local"]
        self._stopping = self._ending = False
        self._ready = {}
        self._run = None
        self._unwritten = None
        self._greenlet = gevent.spawn(self._lead)
        self._begun.set()

    def on_stopping(self, **_: Any) -> None:
        """Locust wants the run to end (time over, Ctrl-C, the web page's button): end it, and wait until it is whole."""
        if self._greenlet is None or self._greenlet.ready() or self._greenlet is gevent.getcurrent():
            return
        self._stopping = True
        logger.info("the run ends: what is in flight gets %.0f s (Ctrl-C again ends at once)", DRAIN_S)
        self._stop_senders()
        self._news.set()
        self._greenlet.join(timeout=_STOP_S)

    def on_quit(self, **_: Any) -> None:
        """The last thing that Locust does: say where the run is."""
        if self._run is not None and (path := self._run.final or self._run.folder.path).exists():
            print(path, flush=True)

    def _connected(self) -> list[str]:
        clients = self._runner.clients
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def _await_workers(self) -> None:
        """After a run its workers report back one by one: the next one is for all of them. Raises BenchError without any."""
        if self._local is not None:
            return
        expected = len(self._run.generators) if self._run is not None else 1
        give_up = now_ns() + int(_COME_BACK_S * 1e9)
        while len(self._connected()) < max(expected, 1):
            if now_ns() > give_up:
                if self._connected():
                    return
                raise BenchError("no worker has connected to this master yet: start one with locust -f ... --worker, and start again")
            gevent.sleep(0.05)

    def _lead(self) -> None:
        try:
            plan = self.plan or make_plan(self._scenario, self._environment.parsed_options)
            self.plan = None
            run = Run(plan, workers=len(self._clients))
            self._run = run
            self._start(run)
            while not self._over(run):
                self._news.wait(timeout=_LOOK_S)
                self._news.clear()
                if self._unwritten is not None:
                    raise self._unwritten
            if self._unwritten is not None:
                raise self._unwritten
            self._ask_clocks_again(run)
            run.finish()
            self._environment.process_exit_code = self._verdict(run)
        except (BenchError, OSError) as error:
            self._stop_senders()  # also those that wait for a start which does not come, with their connections open
            self._say(error)
            self._environment.process_exit_code = EXIT_WRONG_INPUT
        except Exception:  # a defect of ours: the run is kept as .partial, and Locust must not wait for ever
            self._stop_senders()
            logger.exception("the run failed")
            self._environment.process_exit_code = EXIT_FAILED
        self._ending = True
        if self._stopping:
            return
        if self._environment.parsed_options.headless:
            self._runner.quit()
        else:
            self._runner.stop()

    def _start(self, run: Run) -> None:
        for worker, share in enumerate(run.shares()):
            self._send(worker, SHARE, share.message())
        give_up = now_ns() + int(_READY_S * 1e9)
        while len(self._ready) < run.workers:
            if self._stopping:
                break
            lost = [worker for worker in range(run.workers) if self._lost(worker)]
            if lost or now_ns() > give_up:
                raise BenchError("a worker was lost before the start, so nothing was sent; start the run again")
            self._news.wait(timeout=_LOOK_S)
            self._news.clear()
        for ready in self._ready.values():
            _refuse_unfit(ready, run.plan.target.host, run.plan.target.address[0])
        run.clocks = self._clocks(run)
        if not self._stopping:
            # The word to go travels, too: to a worker far away it takes half of a round trip.
            start_ns = now_ns() + _LEAD_TIME_NS + 2 * max(clock.start.round_trip_ns for clock in run.clocks)
            run.started(start_ns)
            for clock in run.clocks:
                self._send(clock.worker, GO, {"start_ns": start_ns + clock.start.offset_ns})

    def _clocks(self, run: Run) -> list[WorkerClock]:
        """Each worker's clock against this process's own; one worker after the other, so that none makes another one's pings slow."""
        if self._local is not None:
            return [WorkerClock(worker=0, host=socket.gethostname(), shared=True, start=ONE_CLOCK)]
        clocks = []
        for worker, ready in sorted(self._ready.items()):
            measured = self._measure(run, worker)
            if measured is not None:
                clocks.append(clock_of(worker, ready["name"], measured, same_mark=ready["clock"] == clock_mark()))
            elif not self._stopping:
                raise BenchError(f"worker {worker} ({ready['name']}) did not answer when its clock was asked; start the run again")
        return clocks

    def _ask_clocks_again(self, run: Run) -> None:
        """After the end, because clocks drift: how far is each worker's clock now? A worker that has gone leaves that unknown."""
        for clock in run.clocks:
            if not clock.shared and clock.worker in run.generators:
                clock.end = self._measure(run, clock.worker)

    def _measure(self, run: Run, worker: int) -> ClockOffset | None:
        """The offset of one worker's clock, None where it does not answer."""

        def send(data: dict[str, Any]) -> None:
            self._send(worker, PING, {"run_id": run.folder.run_id, "worker": worker, **data})

        pinger = self._pingers[worker] = Pinger(send)
        give_up = now_ns() + _PING_NS
        pinger.ping()
        while not pinger.ended.wait(timeout=_LOOK_S):
            if now_ns() > give_up or self._lost(worker):
                break
        return estimate(pinger.pings) if pinger.pings else None

    def _over(self, run: Run) -> bool:
        if self._stopping and run.start_ns is None:
            return True
        return all(worker in run.generators or self._lost(worker) for worker in range(run.workers))

    def _lost(self, worker: int) -> bool:
        if self._local is not None:
            return False
        client = self._runner.clients.get(self._clients[worker])
        return client is None or client.state == "missing"

    def _stop_senders(self) -> None:
        for worker in range(len(self._clients)):
            self._send(worker, STOP, {"reason": STOPPED})

    def _send(self, worker: int, kind: str, data: dict[str, Any]) -> None:
        if self._local is None:
            self._runner.send_message(kind, data, client_id=self._clients[worker])
        elif kind == SHARE:
            self._local.take_share(share_from(data))
        elif kind == GO:
            gevent.spawn(self._local.go, data["start_ns"])
        else:
            gevent.spawn(self._local.stop, data["reason"])

    def _on_message(self, msg: Any, **_: Any) -> None:
        received_ns = now_ns()
        data = msg.data
        if "batch" in data:
            data = {**data, "batch": pa.ipc.read_record_batch(pa.py_buffer(data["batch"]), SCHEMA)}
        elif msg.type == PING:
            data = {**data, "received_ns": received_ns}
        self._take(msg.type, data)

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        run = self._run
        if run is None or data["run_id"] != run.folder.run_id:
            return
        if kind == ROWS:
            if self._unwritten is None:
                try:
                    run.take_rows(data["batch"])
                except (OSError, BenchError) as error:  # a full disk, a folder that is gone: the run ends, and keeps what was written
                    self._unwritten = error
                    self._news.set()
            return
        if kind == PING:
            self._pingers[data["worker"]].take_answer(data)
            return
        if kind == READY:
            self._ready[data["worker"]] = data
        else:
            run.generators[data["worker"]] = data["generator"]
        self._news.set()

    def _verdict(self, run: Run) -> int:
        """Print what `bench check` says of the run, before Locust prints any number. The exit code."""
        done = run_bench("check", str(run.final))
        print(done.stdout, end="", flush=True)
        if done.returncode not in (EXIT_FINE, EXIT_INVALID_RUN):
            raise BenchError(f"the run could not be checked: {done.stderr.strip()}")
        if not self._environment.parsed_options.headless:  # the web page has no terminal, but shows the log
            for line in done.stdout.splitlines():
                if line.startswith(str(run.final)) or line.lstrip().startswith(("INVALID", "in time")):
                    logger.log(logging.INFO if done.returncode == EXIT_FINE else logging.WARNING, line.strip())
        return done.returncode

    def _say(self, error: BaseException) -> None:
        if self._environment.parsed_options.headless:
            _say_wrong(error)
        else:
            logger.error(one_sentence(error))


def _say_wrong(error: BaseException) -> None:
    print(f"locust: {one_sentence(error)}", file=sys.stderr, flush=True)


def _refuse_unfit(ready: Mapping[str, Any], host: str, server: str) -> None:
    """Raises BenchError where a worker, as it describes itself, cannot take part."""
    who = f"worker {ready['worker']} ({ready.get('name', 'of unknown name')})"
    if ready.get("version") != bench.__version__:
        version = ready.get("version", "an earlier one")
        raise BenchError(
            f"{who} runs another version of coldburst, {version} instead of {bench.__version__}; install the same on all hosts"
        )
    if ready["host"] != host_mark() and _is_loopback(server):
        raise BenchError(f"{who} is another host, where {host} is that host itself; give --host an address that all workers reach")
    if ready["failure"]:
        raise BenchError(f"{who}: {ready['failure']}")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
