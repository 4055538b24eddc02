"""The state of the server every 50 ms, in a file, since a scrape cannot see a spike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_server.registry import ServedModel


class Timeline:
    """A thread that samples `models` into `path`, which must not exist. Raises BenchError where it cannot be written."""

    def __init__(self, path: Path, models: Sequence[ServedModel]) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
