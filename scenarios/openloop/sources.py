"""Where a scenario's schedule comes from: a file, a trace, arrivals in words, or the scenario's own options."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.load.arrivals_text import parse_arrivals
from bench.load.schedule import Schedule, read_schedule
from bench.load.traces.importing import import_trace
from bench.load.traces.rows import Options
from bench.load.traces.told import how_it_was_read
from scenarios.openloop.options import Option

SOURCES = (
    Option(flag="--arrivals", default=None, help="Arrivals in words, such as poisson:rate=200,duration=30s (see bench schedule --help)"),
    Option(flag="--schedule", default=None, help="A schedule file, as bench schedule and bench trace write it"),
    Option(flag="--trace", default=None, help="A trace whose format tells itself (see bench trace --help)"),
)


def from_source(template: str | None) -> Callable[[Any], Schedule]:
    """The function that makes the schedule: of `--schedule`, `--trace` or `--arrivals` where one is given, otherwise of the
    arrivals that `template` says, filled with the options. Raises BenchError when called with more than one of them, or none."""

    def make_schedule(options: Any) -> Schedule:
        given = [option for option in SOURCES if getattr(options, option.name, None)]
        if len(given) > 1:
            raise BenchError(f"{given[0].flag} and {given[1].flag} exclude each other; give one")
        if not given:
            if template is None:
                raise BenchError("give the traffic to send with --trace FILE, --schedule FILE or --arrivals TEXT")
            values = vars(options)
            for name in ("rate", "base_rate", "peak_rate"):
                if f"{{{name}}}" in template and values[name] == 0:
                    raise BenchError(f"--{name.replace('_', '-')} is 0, and must be above 0")
            try:
                return parse_arrivals(template.format_map(values)).schedule(options.seed)
            except BenchError as error:
                raise BenchError(_in_options(str(error), template)) from None
        value = getattr(options, given[0].name)
        if given[0].name == "arrivals":
            return parse_arrivals(value).schedule(options.seed)
        if given[0].name == "schedule":
            return read_schedule(Path(value))
        schedule = import_trace(Path(value), options=Options(seed=options.seed))
        print("\n".join(how_it_was_read(schedule.provenance)), file=sys.stderr, flush=True)
        return schedule

    return make_schedule


def _in_options(sentence: str, template: str) -> str:
    """The sentence with the options that were given, where it names the keys of the arrivals that were made of them."""
    keys = {key: f"--{name.replace('_', '-')}" for key, name in re.findall(r"(\w+)=\{(\w+)\}", template)}
    named = rf"(^{template.partition(':')[0]}: |above )({'|'.join(keys)})\b"
    return re.sub(named, lambda found: ("above " if found[1] == "above " else "") + keys[found[2]], sentence) if keys else sentence
