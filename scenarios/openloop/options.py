"""The options of every open-loop scenario, each with a default and an environment variable, and the plan they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.load.schedule import Schedule
from bench.records import RunFolder
from bench.slo import parse_slo_time_ns
from bench.units import parse_duration_ns
from scenarios.openloop.run import Plan, collect_environment
from scenarios.openloop.target import find_target

DEFAULT_HOST = "http://127.0.0.1:8000"
_MOST = 2**63 - 1  # what a message to a worker can carry


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One command-line option; its environment variable is COLDBURST_ and its name."""

    flag: str
    default: str | int | float | None
    help: str
    choices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    def value_of(self, text: str) -> str | int | float:
        """What somebody typed, with the type of the default. Raises BenchError where it has another, or is none of the choices."""
        if self.choices is not None and text not in self.choices:
            raise BenchError(f"{self.flag} is {text!r}, and must be one of {', '.join(self.choices)}")
        if self.default is None or isinstance(self.default, str):
            return text
        try:
            return type(self.default)(text)
        except ValueError:
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            raise BenchError(f"{self.flag} is {text!r}, and must be {kind}, such as {self.default}") from None

    def add_to(self, parser: Any) -> None:
        kind: type = str if self.default is None else type(self.default)
        variable = f"COLDBURST_{self.name.upper()}"
        text = self.help if self.default in (None, "") else f"{self.help} (default {self.default})"
        parser.add_argument(self.flag, type=kind, default=self.default, choices=self.choices, env_var=variable, help=text)


COMMON = (
    Option(flag="--seed", default=1, help="Seed of the arrivals and of the input values"),
    Option(flag="--model", default=None, help="Model to ask for (default: the only one that is loaded)"),
    Option(flag="--shape", default=None, help="Input shape, 8x3x224x224, or ids:1x64,mask:1x64 (default: batch 1, length 128)"),
    Option(flag="--probe", default=None, help="Engine directory (or its probe.npz): send its inputs, compare with its outputs"),
    Option(
        flag="--encoding",
        default="auto",
        choices=("auto", "binary", "json"),  # a default that has a name: the web page's form would choose the first one
        help="How tensors travel; auto: binary where the server says that it can, else json",
    ),
    Option(flag="--deadline", default="10s", help="An arrival without an answer this long after its time is a timeout"),
    Option(flag="--max-connections", default=4096, help="Most connections at once, over all workers; an arrival beyond that is not sent"),
    Option(flag="--slo", default="", help="Response time that counts as good, 100ms or p99=100ms"),
    Option(flag="--verify-every", default=100, help="Compare the values of every N-th answer; 0: of none"),
    Option(flag="--results", default="./results", help="Folder in which each run makes its own"),
)
"""What all scenarios share. `--host` is Locust's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named way to make a schedule from its own options."""

    name: str
    make_schedule: Callable[[Any], Schedule]
    options: tuple[Option, ...]

    @property
    def all_options(self) -> tuple[Option, ...]:
        return self.options + COMMON


def make_plan(scenario: Scenario, options: Any) -> Plan:
    """Everything that can be known before the first send. Raises BenchError for every wrong option and a wrong server."""
    deadline_ns = parse_duration_ns(options.deadline, "--deadline")
    slo_ns = parse_slo_time_ns(options.slo) if options.slo else None
    for flag, value, least in (
        ("--deadline", deadline_ns, 1),
        ("--max-connections", options.max_connections, 1),
        ("--verify-every", options.verify_every, 0),
        ("--seed", options.seed, 0),
    ):
        if not least <= value <= _MOST:
            raise BenchError(f"{flag} is {value}, and must be at least {least} and at most {_MOST}")
    results = Path(options.results)
    RunFolder.check_writable(results)  # early, before a server is asked for anything
    schedule = scenario.make_schedule(options)
    host = (options.host or DEFAULT_HOST).rstrip("/")
    target = find_target(
        host,
        model=options.model or None,
        shape=options.shape or None,
        encoding=None if options.encoding == "auto" else options.encoding,
        probe=Path(options.probe) if options.probe else None,
        seed=options.seed,
    )
    return Plan(
        scenario=scenario.name,
        schedule=schedule,
        target=target,
        results=results,
        seed=options.seed,
        deadline_ns=deadline_ns,
        max_connections=options.max_connections,
        slo_ns=slo_ns,
        verify_every=options.verify_every,
        settings={"host": host, **{option.name: getattr(options, option.name) for option in scenario.all_options}},
        environment=collect_environment(),
    )
