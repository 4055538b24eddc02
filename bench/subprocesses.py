"""Child processes: our own modules started with the right interpreter and path, read line by line, never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import bench
from bench.clock import now_ns
from bench.errors import EXIT_WRONG_INPUT, BenchError
from bench.units import format_duration

STOP_TIMEOUT_S = 5.0
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)\b")
_SPEAKERS = ("probe: ", "reference_server: ", "locust: ")


def module_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command that runs a module of this project. `-P` keeps the working folder, which may hold a `bench` too, off the path."""
    return [python or sys.executable, "-P", "-m", module, *arguments]


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment and `extra`, with the project's folder first on the path where it is not an installed one."""
    environment = {**os.environ, **(extra or {})}
    root = Path(bench.__file__).resolve().parent.parent
    if str(root) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH", "")]))
    return environment


class Child:
    """A child process in a session of its own (Ctrl-C goes to us, and we stop it), with its lines and the time of each.

    Use it as a context manager: the child is ended on every way out. `started_ns` was read just before it was started.
    A child of our own ends when its standard input does, so also when we are killed; `dies_with_us` asks the kernel to
    see to that for one that is not ours (Linux; prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], *, dies_with_us: bool = False) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in stop)
        self._buffer = b""
        self._buffer_ns = 0
        self.started_ns = now_ns()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent if dies_with_us and sys.platform == "linux" else None,
            )
        except OSError as error:
            self._errors.close()
            raise BenchError(f"{command[0]} cannot be started: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_line(self, text: str) -> None:
        """Raises BenchError with the child's own words where it is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise BenchError(self.complaint()) from None

    def read_line(self, timeout_s: float) -> tuple[str, int]:
        """The next line and when its bytes arrived (ns). Raises BenchError where the child ended or says nothing in time."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        while b"\n" not in self._buffer:
            left_s = (deadline_ns - now_ns()) / 1e9
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise BenchError(
                    f"process {self.pid} said nothing for {format_duration(timeout_s * 1e9)} and was stopped; a longer time: --timeout"
                )
            arrived = os.read(descriptor, 1 << 16)
            self._buffer_ns = now_ns()
            if not arrived:
                raise BenchError(self.complaint())
            self._buffer += arrived
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(), self._buffer_ns

    def read_to_end(self, timeout_s: float) -> list[str]:
        """All further lines, until the child closes its output. Raises BenchError where that takes longer."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        while True:
            left_s = (deadline_ns - now_ns()) / 1e9
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise BenchError(f"process {self.pid} did not end within {format_duration(timeout_s * 1e9)} and was stopped")
            arrived = os.read(descriptor, 1 << 16)
            if not arrived:
                rest, self._buffer = self._buffer, b""
                return rest.decode(errors="replace").splitlines()
            self._buffer += arrived

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def complaint(self) -> str:
        """Why the child ended, in its own last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
        # Locust's tables may follow: what was said to the user or raised comes before whatever stands last.
        last = [*lines[-1:], ""][0]
        spoken = next((line for line in reversed(lines) if line.startswith(_SPEAKERS)), None)
        raised = next((line for line in reversed(lines) if _RAISED.match(line)), None)
        words = (spoken or last) if code == EXIT_WRONG_INPUT else (raised or spoken or last)
        for speaker in _SPEAKERS:
            words = words.removeprefix(speaker)
        # Anything else is a crash, and says so.
        return words if code == EXIT_WRONG_INPUT and words else f"the child process {how}" + (f": {words}" if words else "")

    def wait(self, timeout_s: float) -> int:
        """Close its input, wait for its end, and return its exit code. Raises BenchError where it does not end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"process {self.pid} did not end within {format_duration(timeout_s * 1e9)} and was stopped") from None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask it to end (SIGTERM), and after `timeout_s` make it end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Turn SIGTERM into KeyboardInterrupt for a while, as SIGINT is, so that both leave by the same way: results kept,
    children ended. The event is set once either came: code that swallows the interrupt cannot hide that."""
    came = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        came.set()
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
