"""The bond with Locust: options, start and end of a run, one sender in each process, exit codes.

Locust's users only stand for the run: whatever `-u` and `-r` say, every process that sends has one dispatcher, because
the shares are dealt to processes by messages and not to users.
"""

from __future__ import annotations

import locust
from locust import User, task
from locust.runners import WorkerRunner

import logging
import os
import signal
import socket
import sys
import time
from typing import Any

import gevent

from bench.clock import now_ns
from bench.errors import EXIT_INTERRUPTED, EXIT_WRONG_INPUT
from scenarios.openloop.lead import Lead
from scenarios.openloop.options import DEFAULT_HOST, Scenario
from scenarios.openloop.sink import STOPPED
from scenarios.openloop.web_form import check_form
from scenarios.openloop.worker import GO, PING, SHARE, STOP, Worker, share_from

_CONNECTED = ("--worker", "--master", "--mode_worker", "--mode_master")
_MASTER_SILENT_S = 15  # it answers a heartbeat each second

logger = logging.getLogger(__name__)


class OpenLoopUser(User):
    """Derive your locustfile's user from this; it has nothing to do itself."""

    abstract = True
    host = DEFAULT_HOST  # what the web page's form shows where no --host was given

    @task
    def stand(self) -> None:
        gevent.sleep(3600)


def install(scenario: Scenario) -> None:
    """Make the locustfile that calls this an open-loop scenario."""

    def add_options(parser: Any, **_: Any) -> None:
        _keep_to_itself(parser)
        for option in scenario.all_options:
            option.add_to(parser)

    def on_init(environment: Any, runner: Any, web_ui: Any = None, **_: Any) -> None:
        # Python's own handler would raise inside whatever runs, which may be the dispatcher between two of its steps.
        interrupt = _Interrupt()
        gevent.signal_handler(signal.SIGINT, interrupt)
        if isinstance(runner, WorkerRunner):
            _attach_worker(environment, runner)
        else:
            _attach_lead(scenario, environment, runner, web_ui)
        interrupt.ends_run = True

    events: Any = locust.events
    events.init_command_line_parser.add_listener(add_options)
    events.init.add_listener(on_init)


def _keep_to_itself(parser: Any) -> None:
    """Let `--processes N` take another port where Locust's own is in use: otherwise this master would fail, and its workers would
    join the one that listens there, take shares of its run, and leave it when their own master ends."""
    said = [*sys.argv[1:], *(f"--{name[len('LOCUST_') :].lower()}" for name in os.environ if name.startswith("LOCUST_"))]
    if not any(word.startswith("--processes") for word in said) or any(word.startswith(_CONNECTED) for word in said):
        return
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", parser.get_default("master_bind_port")))
        except OSError:
            one.bind(("", 0))
            port = one.getsockname()[1]
            parser.set_defaults(master_port=port, master_bind_port=port)


class _Interrupt:
    """What Ctrl-C does. Once Locust waits for its run, the first one ends the run, which stays whole; whoever presses it again
    does not want to wait for that: what there is of the run stays as `.partial`."""

    def __init__(self) -> None:
        self.ends_run = False

    def __call__(self) -> None:
        """Raise it in the main greenlet, as gevent does, but without a traceback."""
        error = KeyboardInterrupt() if self.ends_run else SystemExit(EXIT_INTERRUPTED)
        self.ends_run = False
        gevent.get_hub().handle_system_error(type(error), error)


def _attach_worker(environment: Any, runner: Any) -> None:
    def send(kind: str, data: dict[str, Any]) -> None:
        batch = data.get("batch")
        runner.send_message(kind, data if batch is None else {**data, "batch": batch.serialize().to_pybytes()})

    worker = Worker(environment, send)

    def on_share(msg: Any, **_: Any) -> None:
        try:
            share = share_from(msg.data)
        except (KeyError, TypeError, ValueError):
            worker.refuse(msg.data)
        else:
            worker.take_share(share)

    def on_go(msg: Any, **_: Any) -> None:
        worker.go(msg.data["start_ns"])

    def on_stop(msg: Any, **_: Any) -> None:
        worker.stop(msg.data["reason"])

    for kind, listener in ((SHARE, on_share), (GO, on_go), (STOP, on_stop)):
        runner.register_message(kind, listener, concurrent=True)

    def on_ping(msg: Any, **_: Any) -> None:
        runner.send_message(PING, {**msg.data, "answered_ns": now_ns()})

    runner.register_message(PING, on_ping)

    def watch_master() -> None:
        while True:
            gevent.sleep(1)
            heard = runner.last_heartbeat_timestamp
            if worker.busy and heard is not None and time.time() - heard > _MASTER_SILENT_S:
                logger.error("the master has been silent for %d s, so nobody records this load any more: it ends here", _MASTER_SILENT_S)
                environment.process_exit_code = EXIT_WRONG_INPUT
                worker.stop("the master was lost")
                runner.quit()
                return

    gevent.spawn(watch_master)

    def on_end(**_: Any) -> None:
        worker.stop(STOPPED)

    environment.events.quitting.add_listener(on_end)
    environment.events.test_stopping.add_listener(on_end)


def _attach_lead(scenario: Scenario, environment: Any, runner: Any, web_ui: Any) -> None:
    lead = Lead(scenario, environment, runner)
    options = environment.parsed_options
    if options.headless or options.autostart:
        lead.plan_run()
    if web_ui is not None:
        check_form(web_ui, lead.plan_from_form, lead.form_taken)
    environment.events.test_start.add_listener(lead.on_test_start)
    environment.events.test_stopping.add_listener(lead.on_stopping)
    environment.events.quitting.add_listener(lead.on_stopping)
    environment.events.quit.add_listener(lead.on_quit)
