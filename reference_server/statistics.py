"""The V2 statistics extension: how many requests a model answered, and where their time went, since the start.

Source: Triton, "Statistics Extension". `queue` there is all the waiting: this server's queue, pool and load.
"""

from __future__ import annotations

import orjson

from reference_server.metrics import ModelMetrics


def statistics_document(name: str, version: str, metrics: ModelMetrics) -> bytes:
    """The reply's JSON, from the same numbers as /metrics."""
    ok = metrics.outcomes.get("ok", 0)
    response, queue, pool, load, copy_in, infer, copy_out = (histogram.sum_ns for histogram in metrics.histograms)

    def spent(ns: int, count: int = ok) -> dict[str, int]:
        return {"count": count, "ns": ns}

    model = {
        "name": name,
        "version": version,
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
    return orjson.dumps({"model_stats": [model]})
