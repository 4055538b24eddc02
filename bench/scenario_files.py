"""The locustfiles that come with this program, found without importing them (they import Locust, which patches sockets)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bench.errors import BenchError


def scenario_files() -> dict[str, Path]:
    """The installed locustfiles by name. Raises BenchError where there are none."""
    spec = importlib.util.find_spec("scenarios")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    places.append(Path(__file__).resolve().parents[1] / "scenarios")
    for place in places:
        found = {path.stem: path for path in sorted(place.glob("*.py")) if not path.name.startswith("_")}
        if found:
            return found
    raise BenchError(f"the scenarios are not installed beside bench (looked in {', '.join(map(str, places))}); install coldburst again")


def scenario_file(name: str) -> Path:
    """The locustfile of one scenario. Raises BenchError where there is none of that name."""
    files = scenario_files()
    if name not in files:
        raise BenchError(f"there is no scenario {name!r}; there are {', '.join(files)}")
    return files[name]
