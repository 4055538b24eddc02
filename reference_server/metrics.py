"""What `/metrics` says (Prometheus exposition), gathered cheaply: append in the hot path, fold at the scrape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reference_server.server_timing import Timing

if TYPE_CHECKING:
    from reference_server.registry import ServedModel


class ModelMetrics:
    """What was seen of one model's requests. For use on the event loop's thread."""

    def record(self, outcome: str, response_ns: int, timing: Timing, shapes: tuple[tuple[int, ...], ...] = ()) -> None:
        """One request is over. `outcome` is ok, invalid, shed, load_failed, failed or cancelled; only ok ones enter the histograms.

        `response_ns` from the request's first byte to its reply; `shapes` of its inputs in the manifest's order.
        """
        raise NotImplementedError


async def expose(models: Sequence[ServedModel], accept: str = "") -> tuple[bytes, str]:
    """The exposition and its content type. Call on the event loop; the rendering happens in a thread."""
    raise NotImplementedError
