"""`bench serve`: the reference server as a child process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.errors import BenchError


def _flag(text: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, metavar=metavar)
    return option


@app.command()
def serve(
    subjects: Annotated[
        list[str], typer.Argument(metavar="ENGINE|MODEL|NAME...", help="What to serve; several get a pool each. Models are built first.")
    ],
    mode: Annotated[str | None, _flag("cold-load, lazy, warm-pool or elastic: when engines and slots are loaded.", "MODE")] = None,
    pool_size: Annotated[int | None, _flag("Slots of each model, or loads at a time in cold-load.")] = None,
    least: Annotated[int | None, typer.Option("--min", metavar="N", help="Elastic: slots kept when nothing comes.")] = None,
    most: Annotated[int | None, typer.Option("--max", metavar="N", help="Elastic: slots at most.")] = None,
    idle_timeout: Annotated[str | None, _flag("Elastic: an idle slot is dropped after this.", "TIME")] = None,
    sharing: Annotated[str | None, _flag("engine (one for all slots) or copy (one each).", "HOW")] = None,
    queue_limit: Annotated[int | None, _flag("Requests that may wait; more get 503.")] = None,
    acquire_timeout: Annotated[str | None, _flag("Longest wait for a slot, then 503.", "TIME")] = None,
    settings: options.Settings = None,
    health_interval: Annotated[str | None, _flag("Probe idle slots this often; 0 is never.", "TIME")] = None,
    on_demand: Annotated[
        list[str] | None,
        typer.Option(
            "--on-demand", metavar="NAME=ENGINE|MODEL|NAME", help="Loaded and unloaded as clients of this host ask, as NAME; repeatable."
        ),
    ] = None,
    trust: options.Trust = None,
    host: Annotated[str | None, _flag("Address to listen on.", "HOST")] = None,
    port: Annotated[int | None, _flag("Port to listen on, 0 for any free one.", "PORT")] = None,
    timeline: Annotated[Path | None, _flag("Write the server's state every 50 ms to this file.", "FILE")] = None,
    drain_timeout: Annotated[str | None, _flag("Time to finish after SIGTERM or Ctrl-C.", "TIME")] = None,
    max_body: Annotated[str | None, _flag("Largest request body.", "SIZE")] = None,
    header_timeout: Annotated[str | None, _flag("Time for a request's headers to arrive.", "TIME")] = None,
    body_timeout: Annotated[str | None, _flag("Time for a body to arrive, or a reply to be taken.", "TIME")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line for each request, on standard error.")] = False,
    tell_phases: Annotated[
        bool, typer.Option("--tell-phases", help="Where the time of the start went, as JSON behind the word `ready`.")
    ] = False,
    runtime: options.Runtime = "onnxruntime",
    optimize: options.Optimize = "all",
    shape: options.Shape = None,
    values: options.Input = None,
) -> None:
    """Serve engines over the Open Inference Protocol (V2), every wait accounted for, until SIGTERM or Ctrl-C.

    The flags that are left out have the server's own values: see python -m reference_server --help. It prints
    `listening on http://HOST:PORT` once it is live and `ready` once it is ready. Its exit code is this command's.

    Example: bench serve tiny --mode warm-pool --pool-size 2 --port 8000
    """
    from bench.cli.progress import steps
    from bench.engine.resolve import BuildOptions, resolve_engine

    build = BuildOptions.from_flags(runtime=runtime, optimize=optimize, name=None, shapes=shape or [], inputs=values or [], seed=0)
    engines = []
    for subject in subjects:
        with steps(f"engine of {subject}") as progress:
            engines.append(resolve_engine(subject, build, progress))
    asked = []
    for text in on_demand or []:
        called, separator, subject = text.partition("=")
        if not separator or not subject:
            raise BenchError(f"--on-demand {text!r} is not NAME=ENGINE, such as second=tiny")
        with steps(f"engine of {subject}") as progress:
            asked.append(f"--on-demand={called}={resolve_engine(subject, build, progress)}")
    given: dict[str, object] = {
        "--mode": mode,
        "--pool-size": pool_size,
        "--min": least,
        "--max": most,
        "--idle-timeout": idle_timeout,
        "--sharing": sharing,
        "--queue-limit": queue_limit,
        "--acquire-timeout": acquire_timeout,
        "--health-interval": health_interval,
        "--trust": trust,
        "--host": host,
        "--port": port,
        "--timeline": timeline,
        "--drain-timeout": drain_timeout,
        "--max-body": max_body,
        "--header-timeout": header_timeout,
        "--body-timeout": body_timeout,
    }
    switches = [flag for flag, on in (("--log-json", log_json), ("--tell-phases", tell_phases)) if on]
    raise typer.Exit(run_server(engines, given, settings or [], [*asked, *switches]))


def run_server(engines: list[Path], flags: Mapping[str, object], settings: list[str], switches: list[str]) -> int:
    """Start the server, forward SIGTERM and SIGINT to it, and return its exit code (128 + N where signal N ended it)."""
    from bench.subprocesses import child_environment, module_command

    arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    arguments += [f"--set={setting}" for setting in settings]
    arguments += ["--stop-with-stdin", *switches]
    forwarded = (signal.SIGTERM, signal.SIGINT)
    # Until the child is there a signal must not be lost: it is held back, and delivered when the handler can forward it.
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    try:
        # In a session of its own, a Ctrl-C at the terminal reaches it once, through us. Nothing is ever written to its
        # standard input: that ends when this process does, however it does.
        child = subprocess.Popen(
            [*module_command("reference_server", *arguments, "--"), *map(str, engines)],
            env=child_environment(),
            stdin=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded),
        )
        for number in forwarded:
            signal.signal(number, lambda seen, _: child.send_signal(seen))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    code = child.wait()
    return code if code >= 0 else 128 - code
