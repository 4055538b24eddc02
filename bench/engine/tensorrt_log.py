"""The logger that TensorRT is given, by the builder and by the server."""

from __future__ import annotations

from collections import deque
from typing import Any


def make_log(trt: Any) -> Any:
    """One that keeps the last errors; `log.last_error()` says them, since most calls tell of a failure by None or False.

    TensorRT calls it from any thread. `trt` is the imported module.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._errors: deque[str] = deque(maxlen=4)
            self._serious = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

        def log(self, severity: Any, message: str) -> None:
            if severity in self._serious:
                self._errors.append(" ".join(message.split())[:300])

        def last_error(self) -> str:
            return self._errors[-1] if self._errors else "it gave no reason"

    return Log()
