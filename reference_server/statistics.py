"""The V2 statistics extension: how many requests a model answered, and where their time went, since the start.

Source: Triton, "Statistics Extension". `queue` there is all the waiting: this server's queue, pool and load.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import orjson

from reference_server.server_timing import Timing


@dataclass(slots=True)
class ModelStatistics:
    """Counts and summed ns; for use on the event loop's thread."""

    last_inference_ms: int = 0  # since the epoch
    inferences: int = 0  # rows of batches
    ok: int = 0
    ok_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    wait_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def record_ok(self, duration_ns: int, timing: Timing, batch: int) -> None:
        self.last_inference_ms = time.time_ns() // 10**6
        self.inferences += batch
        self.ok += 1
        self.ok_ns += duration_ns
        self.wait_ns += timing.queue_ns + timing.pool_ns + timing.load_ns
        self.input_ns += timing.input_ns
        self.infer_ns += timing.infer_ns
        self.output_ns += timing.output_ns

    def record_failed(self, duration_ns: int) -> None:
        self.failed += 1
        self.failed_ns += duration_ns

    def document(self, name: str, version: str) -> bytes:
        def spent(ns: int, count: int) -> dict[str, int]:
            return {"count": count, "ns": ns}

        model = {
            "name": name,
            "version": version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.inferences,
            "execution_count": self.ok,
            "inference_stats": {
                "success": spent(self.ok_ns, self.ok),
                "fail": spent(self.failed_ns, self.failed),
                "queue": spent(self.wait_ns, self.ok),
                "compute_input": spent(self.input_ns, self.ok),
                "compute_infer": spent(self.infer_ns, self.ok),
                "compute_output": spent(self.output_ns, self.ok),
            },
            "batch_stats": [],
        }
        return orjson.dumps({"model_stats": [model]})
