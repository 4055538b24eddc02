"""Spikes on a base load: `locust -f scenarios/burst.py --headless`. Describe the spikes, or bring arrivals, a schedule or a trace."""

import locust  # noqa: F401

from scenarios.openloop.locustfile import OpenLoopUser, install
from scenarios.openloop.options import Option, Scenario
from scenarios.openloop.sources import SOURCES, from_source

SPIKES = (
    Option(flag="--base-rate", default=20.0, help="Arrivals per second between the spikes"),
    Option(flag="--peak-rate", default=200.0, help="Arrivals per second in a spike"),
    Option(flag="--spikes", default=5, help="How many spikes"),
    Option(flag="--hold", default="2s", help="How long each spike lasts"),
    Option(flag="--rest", default="4s", help="How long the base load lasts before the first spike and, on the average, after each"),
)
TRAIN = "train:base={base_rate},peak={peak_rate},spikes={spikes},hold={hold},rest={rest}"


class Burst(OpenLoopUser):
    """Stands for the run in Locust's tables."""


SCENARIO = Scenario(name="burst", make_schedule=from_source(TRAIN), options=(*SOURCES, *SPIKES))
install(SCENARIO)
