"""One rate: `locust -f scenarios/steady.py --headless --rate 100 --duration 30s`. The shortest example of a scenario of your own."""

import locust  # noqa: F401

from scenarios.openloop.locustfile import OpenLoopUser, install
from scenarios.openloop.options import Option, Scenario
from scenarios.openloop.sources import from_source

OPTIONS = (
    Option(flag="--rate", default=50.0, help="Arrivals per second"),
    Option(flag="--duration", default="20s", help="How long load is offered"),
)


class Steady(OpenLoopUser):
    """Stands for the run in Locust's tables."""


install(Scenario(name="steady", make_schedule=from_source("poisson:rate={rate},duration={duration}"), options=OPTIONS))
