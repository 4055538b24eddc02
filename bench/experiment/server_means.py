"""What a server that tells no Server-Timing says of its parts: the V2 statistics extension, before and after a run.

These are sums over all requests that it answered in between, whoever sent them: means of the window, never a
percentile, and nothing of a single request. Source: Triton, "Statistics Extension" (`inference_stats`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.errors import BenchError
from bench.inference_client import InferenceClient
from bench.json_rules import MOST_WHOLE

# Ours -> theirs. `queue` there is all the waiting: for a slot and for a load too.
PARTS = {"total": "success", "waiting": "queue", "input": "compute_input", "infer": "compute_infer", "output": "compute_output"}


def read_statistics(url: str, model: str) -> dict[str, Any]:
    """The sums so far (`requests`, and `<part>_ns` for each of PARTS, `failed`), or `absent` with the reason."""
    try:
        with InferenceClient(url, timeout_s=10) as client:
            found = client.statistics(model)["inference_stats"]
        sums = {f"{ours}_ns": int(found[theirs]["ns"]) for ours, theirs in PARTS.items()}
        counted = {"requests": int(found["success"]["count"]), "failed": int(found["fail"]["count"]), **sums}
        if not all(0 <= count <= MOST_WHOLE for count in counted.values()):
            raise ValueError("it has a count that no server can have reached")
        return counted
    except BenchError as error:
        return {"absent": str(error)}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return {"absent": f"the statistics of {url} are not those of the extension ({type(error).__name__}: {error})"}


def statistics_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of the window, or `absent` with the reason."""
    for one in (before, after):
        if "absent" in one:
            return {"absent": one["absent"]}
    window = {name: after[name] - before[name] for name in before}
    if any(value < 0 for value in window.values()):
        return {"absent": "the counts went back during the run: the server was started anew"}
    if not window["requests"]:
        return {"absent": "the server counted no request in the window"}
    return window
