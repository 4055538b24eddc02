"""The bond with Locust: options, start and end of a run, one sender in each process, exit codes.

Locust's users only stand for the run: whatever `-u` and `-r` say, every process that sends has one dispatcher, because
the shares are dealt to processes by messages and not to users.
"""

from __future__ import annotations

import locust
from locust import User, task
from locust.runners import MasterRunner, WorkerRunner

import logging
import signal
import sys
from typing import Any

import gevent
import pyarrow as pa
from gevent.event import Event

from bench.clock import now_ns
from bench.errors import EXIT_FINE, EXIT_INVALID_RUN, EXIT_WRONG_INPUT, BenchError, one_sentence
from scenarios.openloop.options import Scenario, make_plan
from scenarios.openloop.run import Plan, Run, run_bench
from scenarios.openloop.sink import SCHEMA, STOPPED
from scenarios.openloop.worker import DONE, GO, READY, ROWS, SHARE, STOP, Worker, same_host_mark, share_from

_LEAD_TIME_NS = 300_000_000
_READY_S = 60.0
_STOP_S = 30.0
_LOOK_S = 0.5
EXIT_FAILED = 70  # a defect of this program (sysexits.h, EX_SOFTWARE)

logger = logging.getLogger(__name__)


class OpenLoopUser(User):
    """Derive your locustfile's user from this; it has nothing to do itself."""

    abstract = True

    @task
    def stand(self) -> None:
        gevent.sleep(3600)


def install(scenario: Scenario) -> None:
    """Make the locustfile that calls this an open-loop scenario."""

    def add_options(parser: Any, **_: Any) -> None:
        for option in scenario.all_options:
            option.add_to(parser)

    def on_init(environment: Any, runner: Any, **_: Any) -> None:
        # Python's own handler would raise inside whatever runs, which may be the dispatcher between two of its steps.
        gevent.signal_handler(signal.SIGINT, _interrupt)
        if isinstance(runner, WorkerRunner):
            _attach_worker(environment, runner)
        else:
            _attach_lead(scenario, environment, runner)

    events: Any = locust.events
    events.init_command_line_parser.add_listener(add_options)
    events.init.add_listener(on_init)


def _interrupt() -> None:
    """Raise KeyboardInterrupt in the main greenlet, as gevent does, but without its traceback."""
    gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())


def _attach_worker(environment: Any, runner: Any) -> None:
    def send(kind: str, data: dict[str, Any]) -> None:
        batch = data.get("batch")
        runner.send_message(kind, data if batch is None else {**data, "batch": batch.serialize().to_pybytes()})

    worker = Worker(environment, send)

    def on_share(msg: Any, **_: Any) -> None:
        worker.take_share(share_from(msg.data))

    def on_go(msg: Any, **_: Any) -> None:
        worker.go(msg.data["start_ns"])

    def on_stop(msg: Any, **_: Any) -> None:
        worker.stop(msg.data["reason"])

    for kind, listener in ((SHARE, on_share), (GO, on_go), (STOP, on_stop)):
        runner.register_message(kind, listener, concurrent=True)

    def on_end(**_: Any) -> None:
        worker.stop(STOPPED)

    environment.events.quitting.add_listener(on_end)
    environment.events.test_stopping.add_listener(on_end)


def _attach_lead(scenario: Scenario, environment: Any, runner: Any) -> None:
    lead = Lead(scenario, environment, runner)
    options = environment.parsed_options
    if options.headless or options.autostart:
        try:
            lead.plan = make_plan(scenario, options)
        except BenchError as error:
            _say_wrong(error)
            sys.exit(EXIT_WRONG_INPUT)
    environment.events.test_start.add_listener(lead.on_test_start)
    environment.events.test_stopping.add_listener(lead.on_stopping)
    environment.events.quitting.add_listener(lead.on_stopping)
    environment.events.quit.add_listener(lead.on_quit)


def _say_wrong(error: BaseException) -> None:
    print(f"locust: {one_sentence(error)}", file=sys.stderr, flush=True)


class Lead:
    """Leads the runs of one Locust: deals the shares, collects the rows, closes the run."""

    def __init__(self, scenario: Scenario, environment: Any, runner: Any) -> None:
        self._scenario = scenario
        self._environment = environment
        self._runner = runner
        self._greenlet: Any = None
        self._run: Run | None = None
        self._ready: dict[int, dict[str, Any]] = {}
        self._news = Event()
        self._stopping = False
        self._clients: list[str] = []
        self._local: Worker | None = None
        self._unwritten: OSError | None = None
        self.plan: Plan | None = None
        if isinstance(runner, MasterRunner):
            for kind in (READY, ROWS, DONE):
                runner.register_message(kind, self._on_message)
        else:
            self._local = Worker(environment, self._take)

    def on_test_start(self, **_: Any) -> None:
        """Begin to lead, beside Locust's own start."""
        if self._local is None:
            clients = self._runner.clients
            self._clients = [client.id for client in clients.ready + clients.spawning + clients.running]
        else:
            self._clients = ["local"]
        self._stopping = False
        self._ready = {}
        self._run = None
        self._unwritten = None
        self._greenlet = gevent.spawn(self._lead)

    def on_stopping(self, **_: Any) -> None:
        """Locust wants the run to end (time over, Ctrl-C, the web page's button): end it, and wait until it is whole."""
        if self._greenlet is None or self._greenlet.ready() or self._greenlet is gevent.getcurrent():
            return
        self._stopping = True
        self._send_all(STOP, {"reason": STOPPED})
        self._news.set()
        self._greenlet.join(timeout=_STOP_S)

    def on_quit(self, **_: Any) -> None:
        """The last thing that Locust does: say where the run is."""
        if self._run is not None:
            print(self._run.final or self._run.folder.path, flush=True)

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
                    self._send_all(STOP, {"reason": STOPPED})
                    raise self._unwritten
            if self._unwritten is not None:
                raise self._unwritten
            run.finish()
            self._environment.process_exit_code = _verdict(run)
        except (BenchError, OSError) as error:
            _say_wrong(error)
            self._environment.process_exit_code = EXIT_WRONG_INPUT
        except Exception:  # a defect of ours: the run is kept as .partial, and Locust must not wait for ever
            logger.exception("the run failed")
            self._environment.process_exit_code = EXIT_FAILED
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
            if ready["failure"]:
                raise BenchError(ready["failure"])
            if ready["host"] != same_host_mark():
                raise BenchError("a worker runs on another host, whose clock is not this one's; run all workers on one host")
        if not self._stopping:
            start_ns = now_ns() + _LEAD_TIME_NS
            run.started(start_ns)
            self._send_all(GO, {"start_ns": start_ns})

    def _over(self, run: Run) -> bool:
        if self._stopping and run.start_ns is None:
            return True
        return all(worker in run.generators or self._lost(worker) for worker in range(run.workers))

    def _lost(self, worker: int) -> bool:
        if self._local is not None:
            return False
        client = self._runner.clients.get(self._clients[worker])
        return client is None or client.state == "missing"

    def _send_all(self, kind: str, data: dict[str, Any]) -> None:
        for worker in range(len(self._clients)):
            self._send(worker, kind, data)

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
        data = msg.data
        if "batch" in data:
            data = {**data, "batch": pa.ipc.read_record_batch(pa.py_buffer(data["batch"]), SCHEMA)}
        self._take(msg.type, data)

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        run = self._run
        if run is None or data["run_id"] != run.folder.run_id:
            return
        if kind == ROWS:
            if self._unwritten is None:
                try:
                    run.take_rows(data["batch"])
                except OSError as error:  # a full disk: the run ends, and keeps what was written
                    self._unwritten = error
                    self._news.set()
            return
        if kind == READY:
            self._ready[data["worker"]] = data
        else:
            run.generators[data["worker"]] = data["generator"]
        self._news.set()


def _verdict(run: Run) -> int:
    """Print what `bench check` says of the run, before Locust prints any number. The exit code."""
    done = run_bench("check", str(run.final))
    print(done.stdout, end="", flush=True)
    if done.returncode not in (EXIT_FINE, EXIT_INVALID_RUN):
        raise BenchError(f"the run could not be checked: {done.stderr.strip()}")
    return done.returncode
