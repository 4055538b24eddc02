"""The reference server as a child process: started on a free port of 127.0.0.1, known to be ready, ended on every way out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.errors import BenchError
from bench.subprocesses import Child, child_environment, module_command

DRAIN_TIMEOUT_S = 30.0


class ServerProcess:
    """A server that is starting. Times are CLOCK_MONOTONIC in ns: when it was started, said that it listens, was ready.

    Use it as a context manager. Raises BenchError with the server's own sentence where it does not come up.
    """

    def __init__(
        self,
        engines: Sequence[Path],
        flags: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        python: str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        command = module_command(
            "reference_server", "--port=0", "--stop-with-stdin", *flags, "--", *(str(e.resolve()) for e in engines), python=python
        )
        self._timeout_s = timeout_s
        self._child = Child(command, child_environment(environment))
        self.started_ns = self._child.started_ns
        try:
            line, self.listening_ns = self._child.read_line(timeout_s)
            self.url = line.removeprefix("listening on ")
            if self.url == line:
                raise BenchError(f"the server printed {line[:80]!r} where it was to say on which address it listens")
        except BaseException:
            self._child.stop()
            raise
        self.ready_ns: int | None = None
        self.phases: list[dict[str, Any]] = []  # of its start, known once it is ready, where it was started with --tell-phases

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self) -> int:
        """Wait for the server's word that it is ready. Returns when that came."""
        if self.ready_ns is None:
            line, seen_ns = self._child.read_line(self._timeout_s)
            word, _, facts = line.partition(" ")
            try:
                self.phases = json.loads(facts)["phases"] if facts else []
            except (ValueError, TypeError, KeyError):
                word = ""
            if word != "ready":
                raise BenchError(f"the server printed {line[:80]!r} where it was to say that it is ready")
            self.ready_ns = seen_ns
        return self.ready_ns

    def check_alive(self) -> None:
        """Raises BenchError with its last words where the server ended by itself."""
        if not self._child.running:
            raise BenchError(f"the server ended during the run: {self._child.complaint()}")

    def stop(self) -> None:
        """Drain it and end it."""
        self._child.stop(DRAIN_TIMEOUT_S)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
