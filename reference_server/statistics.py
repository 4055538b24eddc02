"""The V2 statistics extension: how many requests a model answered, and where their time went, since the start.

Source: Triton, "Statistics Extension". `queue` there is all the waiting: this server's queue, pool and load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from reference_server.registry import ServedModel


def statistics_document(models: Sequence[ServedModel]) -> bytes:
    """The reply's JSON, from the same numbers as /metrics."""
    return orjson.dumps({"model_stats": [_statistics(model) for model in models]})


def _statistics(served: ServedModel) -> dict[str, Any]:
    metrics = served.metrics
    ok = metrics.outcomes.get("ok", 0)
    response, queue, pool, load, copy_in, infer, copy_out = (histogram.sum_ns for histogram in metrics.histograms)

    def spent(ns: int, count: int = ok) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "name": served.manifest.name,
        "version": served.manifest.version,
        "last_inference": metrics.last_ok_ns // 10**6,
        "inference_count": metrics.rows,
        "execution_count": ok,
        "inference_stats": {
            "success": spent(response),
            "fail": spent(metrics.failed_ns, sum(metrics.outcomes.values()) - ok),
            "queue": spent(queue + pool + load),
            "compute_input": spent(copy_in),
            "compute_infer": spent(infer),
            "compute_output": spent(copy_out),
        },
        "batch_stats": [],
    }
