"""What /metrics says, read back with prometheus-client's own parser."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from bench.engine.manifest import BuildDetails, read_manifest, write_manifest
from reference_server.metrics import BUCKETS_NS, Histogram, ModelMetrics, expose
from reference_server.pool_settings import PoolSettings
from reference_server.registry import Registry
from reference_server.server_timing import Timing

SyntheticFactory = Callable[..., Path]
SERVER_PAGE = Path(__file__).parents[1] / "docs" / "server.md"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """(name, label value, ...) -> value, labels in the order of their names."""
    return {(s.name, *(s.labels[key] for key in sorted(s.labels))): s.value for family in parse(text) for s in family.samples}


def test_what_was_served_is_what_is_said(synthetic: SyntheticFactory) -> None:
    async def main() -> tuple[bytes, str, bytes, str]:
        registry = Registry([synthetic(service_ns=3_000_000), synthetic(name="idle")], PoolSettings(size=1))
        await registry.start()
        model = registry.models["synthetic"]

        async def one(batch: int) -> None:
            timing = Timing()
            await model.infer({"input": np.ones((batch, 1024), np.float32)}, None, timing)
            model.metrics.record("ok", 7_000_000, timing, ((batch, 1024),))

        await asyncio.gather(one(1), one(1), one(4))
        model.metrics.record("shed", 10, Timing())
        text = await expose(list(registry.models.values()))
        openmetrics = await expose(list(registry.models.values()), "application/openmetrics-text; version=1.0.0")
        await registry.close()
        return *text, *openmetrics

    body, content_type, openmetrics, openmetrics_type = asyncio.run(main())
    assert content_type.startswith("text/plain")
    assert openmetrics_type.startswith("application/openmetrics-text")
    assert list(parse_openmetrics(openmetrics.decode()))
    said = samples(body.decode())
    assert said["coldburst_requests_total", "synthetic", "ok"] == 3
    assert said["coldburst_requests_total", "synthetic", "shed"] == 1
    assert said["coldburst_pool_hits_total", "synthetic"] == 1
    assert said["coldburst_pool_misses_total", "synthetic"] == 2
    assert said["coldburst_loads_total", "synthetic", "ok"] == 1
    assert said["coldburst_loads_total", "synthetic", "failed"] == 0
    assert said["coldburst_engine_loads_total", "idle"] == 1
    assert said["coldburst_slots", "synthetic", "idle"] == 1
    assert said["coldburst_slots", "synthetic", "busy"] == 0
    assert said["coldburst_waiting", "synthetic"] == 0
    assert said["coldburst_ready", "synthetic"] == 1
    assert said["coldburst_batches_total", "1", "synthetic"] == 2
    assert said["coldburst_shapes_total", "synthetic", "input=4x1024"] == 1
    assert said["coldburst_response_seconds_count", "synthetic"] == 3
    assert said["coldburst_response_seconds_bucket", "0.005", "synthetic"] == 0
    assert said["coldburst_response_seconds_bucket", "0.01", "synthetic"] == 3
    assert said["coldburst_response_seconds_sum", "synthetic"] == 0.021
    assert said["coldburst_part_seconds_count", "synthetic", "infer"] == 3
    assert said["coldburst_part_seconds_bucket", "0.002", "synthetic", "infer"] == 0
    assert said["coldburst_load_seconds_count", "synthetic"] == 1
    assert said["coldburst_engine_info", "none", "synthetic", "none", "synthetic", "1", "1"] == 1
    assert said["coldburst_resident_bytes",] > 10_000_000
    # Not known is absent, not 0.
    unknown = {"coldburst_device_bytes", "coldburst_sm_clock_mhz", "coldburst_share_fused"}
    assert not unknown & {name[0] for name in said}
    documented = set(re.findall(r"`((?:coldburst|process)_\w+)`", SERVER_PAGE.read_text()))
    families = {f"{family.name}_total" if family.type == "counter" else family.name for family in parse(body.decode())}
    assert families | unknown == documented


@pytest.mark.parametrize(("nodes", "layers", "share"), [(122, 60, 1 - 60 / 122), (5, 7, 0), (122, None, None)])
def test_the_share_fused_is_the_manifests(synthetic: SyntheticFactory, nodes: int, layers: int | None, share: float | None) -> None:
    engine = synthetic()
    details = BuildDetails(versions={}, source_nodes=nodes, engine_layers=layers)
    write_manifest(engine, dataclasses.replace(read_manifest(engine), details=details))

    async def main() -> bytes:
        registry = Registry([engine, synthetic(name="other")], PoolSettings(size=1))
        body, _ = await expose(list(registry.models.values()))
        await registry.close()
        return body

    said = samples(asyncio.run(main()).decode())
    assert {name: value for name, value in said.items() if name[0] == "coldburst_share_fused"} == (
        {} if share is None else {("coldburst_share_fused", "synthetic"): share}
    )


def test_folding_counts_as_observing_one_by_one() -> None:
    metrics = ModelMetrics()
    rng = np.random.default_rng(3)
    values = [int(v) for v in rng.choice([*BUCKETS_NS, *(b + 1 for b in BUCKETS_NS), 0, 10**12], 3000)]
    expected = Histogram()
    for value in values:
        expected.observe(value)
        metrics.record("ok", value, Timing(infer_ns=value))
    response, *parts = metrics.histograms
    assert (response.counts, response.sum_ns) == (expected.counts, expected.sum_ns)
    assert parts[4].counts == expected.counts
    assert parts[0].counts == [3000] + [0] * len(BUCKETS_NS)


def test_labels_that_clients_choose_do_not_grow_without_bound() -> None:
    metrics = ModelMetrics()
    for batch in range(1, 1001):
        metrics.record("ok", 1, Timing(), ((batch, 4),))
    assert len(metrics.shapes) == len(metrics.batches) == 101
    assert metrics.shapes[None] == metrics.batches[None] == 900
    assert sum(metrics.shapes.values()) == 1000


def test_nothing_is_imported_before_it_is_needed(synthetic: SyntheticFactory) -> None:
    program = """
import sys
import reference_server.registry, reference_server.timeline
print(*sorted({"numpy", "prometheus_client", "pyarrow", "cryptography", "onnxruntime", "starlette"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
