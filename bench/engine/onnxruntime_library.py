"""ONNX Runtime's Python module, imported without its telemetry."""

from __future__ import annotations

import os
from types import ModuleType


def import_onnxruntime() -> ModuleType:
    """The module. From version 1.32 on its import makes `Microsoft/DeveloperTools/.onnxruntime` in the user's cache folder, with a
    device id and a database of events, unless ORT_DISABLE_TELEMETRY is set; `disable_telemetry_events()` comes too late for that.

    Who wants it may set ORT_DISABLE_TELEMETRY=0 themselves.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    module: ModuleType = onnxruntime
    return module
