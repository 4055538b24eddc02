"""What it costs: a price is of one replica (its device, its machine) an hour."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.errors import BenchError

_FORM = re.compile(r"\s*([^\d\s.+-]*)\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(?:/\s*(h|hour|d|day|month))?\s*")
_DEAREST = 1e12
_HOURS = {None: 1.0, "h": 1.0, "hour": 1.0, "d": 24.0, "day": 24.0, "month": 730.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one replica an hour; `currency` is what stood before the number."""

    per_hour: float
    currency: str

    def text(self, amount: float | None) -> str:
        """An amount with three significant digits; `-` where it is not known."""
        if amount is None:
            return "-"
        return f"{self.currency}{amount:,.2f}" if amount >= 1 else f"{self.currency}{amount:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """per_hour: of the replicas that ran in the mean. per_million: requests, at the load's mean rate."""

    per_hour: float
    per_million: float


def parse_price(text: str) -> Price:
    """`2.5/h`, `$2.5/h`, `60/day`. Raises BenchError that shows the form, also for a negative price."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise BenchError(f"--price {text!r} is not a price of one replica: write it such as 2.5/h, 60/day or $1800/month")
    currency, number, unit = match.groups()
    amount = float(number)
    if amount < 0:
        raise BenchError(f"--price {text!r} is below 0: a replica costs 0 or more an hour")
    if amount > _DEAREST:
        raise BenchError(f"--price {text!r} is more than {_DEAREST:.0e}, the highest price that is taken: write that of one replica")
    return Price(per_hour=amount / _HOURS[unit], currency=currency)


def cost(price: Price, replicas: float, mean_per_s: float) -> Cost:
    """Of so many replicas in the mean, at this rate."""
    per_hour = price.per_hour * replicas
    return Cost(per_hour=per_hour, per_million=per_hour / (mean_per_s * 3600) * 1e6)
