"""The environment of a run in a few lines that a reader can judge a result by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.units import format_size


def environment_facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of name and text; what is not known is left out."""
    if not environment:
        return [("environment", "not recorded")]
    system, cpu = environment.get("system") or {}, environment.get("cpu") or {}
    memory, software = environment.get("memory") or {}, environment.get("software") or {}
    gpus = [str(gpu.get("name", gpu)) for gpu in environment.get("gpus") or ()]
    packages = software.get("packages") or {}
    commit = software.get("git_commit")
    facts = [
        ("measured at", environment.get("taken_at")),
        ("processor", _joined(cpu.get("model"), f"{cpu.get('usable_cores')} usable cores", cpu.get("architecture"))),
        ("governor", cpu.get("governor")),
        ("load average before", cpu.get("load_average_1min")),
        ("time stolen by neighbours", _share((environment.get("steal") or {}).get("recent"))),
        ("memory", format_size(memory.get("total_bytes"))),
        ("GPU", ", ".join(gpus) or "none"),
        ("system", _joined(system.get("os"), system.get("kernel"), system.get("container"), system.get("virtual_machine"))),
        ("Python", software.get("python")),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items())),
        ("commit", f"{commit}{' with changes' if software.get('git_dirty') else ''}" if commit else None),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _joined(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)


def _share(value: Any) -> str | None:
    return None if value is None else f"{value:.1%}"
