"""Recorded traffic again: `locust -f scenarios/trace.py --headless --trace FILE` (or `--schedule FILE`, as `bench trace` writes it)."""

import locust  # noqa: F401

from scenarios.openloop.locustfile import OpenLoopUser, install
from scenarios.openloop.options import Scenario
from scenarios.openloop.sources import SOURCES, from_source


class Trace(OpenLoopUser):
    """Stands for the run in Locust's tables."""


install(Scenario(name="trace", make_schedule=from_source(None), options=SOURCES))
