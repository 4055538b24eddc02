"""`python -m reference_server ENGINE...`: see reference_server.serving."""

from __future__ import annotations

import os
import signal
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def main() -> None:
    """Run the server; a signal that comes while it is imported ends it as any other does before a request was accepted."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    from reference_server.serving import main as serve

    serve()


if __name__ == "__main__":
    main()
