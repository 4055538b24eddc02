"""`bench env`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.app import app

if TYPE_CHECKING:
    from bench.environment import Environment


@app.command()
def env(
    results: Annotated[Path, typer.Option(help="The folder that results go to: its file system is looked at.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Show what a result needs to be believed: processor, limits, memory, GPU, versions, and what disturbs here.

    Never fails; what cannot be found out is "unknown". Times may be stolen by neighbours and clocks may change: each
    such finding comes as a warning with its remedy. Every run keeps the same facts in its run.json.

    Example: bench env --json > environment.json
    """
    from bench.environment import collect, to_json, warnings

    environment = collect(results)
    if as_json:
        import json

        typer.echo(json.dumps(to_json(environment) | {"warnings": warnings(environment)}, indent=2))
        return
    _print(environment, warnings(environment))


def _print(environment: Environment, found: list[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from bench.environment import to_json

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    facts = to_json(environment)
    sections: dict[str, Any] = {name: value for name, value in facts.items() if isinstance(value, dict)}
    gpus = facts["gpus"]
    sections |= {f"gpu {index}": gpu for index, gpu in enumerate(gpus or ())}
    for section, values in sections.items():
        for index, (label, value) in enumerate(_rows(values)):
            table.add_row(section if index == 0 else "", label, escape(value))
    if not gpus:
        table.add_row("gpu", "", "unknown" if gpus is None else "no NVIDIA driver here")
    console = Console()
    console.print(table)
    for warning in found:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _rows(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield name, "  ".join(f"{key} {text}" for key, text in value.items()) or "none"
        else:
            yield _shown(name, value)


def _shown(name: str, value: Any) -> tuple[str, str]:
    """A field as a person reads it: the unit moves from the field's name to the number."""
    from bench.units import format_duration, format_size

    stem, _, unit = name.rpartition("_")
    label = (stem if unit in ("bytes", "ns", "mhz", "w", "c") else name).replace("_", " ")
    if value is None:
        return label, "unknown"
    if value == "" or (name in ("quota_cores", "limit_bytes") and value == 0):
        return label, "none seen" if value == "" else "none"
    if isinstance(value, bool):
        return label, "yes" if value else "no"
    if unit == "bytes":
        return label, format_size(value)
    if unit == "ns":
        return label, format_duration(value)
    if name in ("since_boot", "recent", "resolution", "utilisation"):
        return label, f"{value:.1%}"
    if unit in ("mhz", "w", "c"):
        return label, f"{value:.0f} {({'mhz': 'MHz', 'w': 'W', 'c': '°C'})[unit]}"
    return label, f"{value:g}" if isinstance(value, float) else str(value)
