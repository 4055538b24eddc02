"""What `/metrics` says (Prometheus exposition), gathered cheaply: append in the hot path, fold at the scrape.

Nine labelled updates of prometheus-client's own instruments cost about 34 us a request, an append to an array 0.5 us.
prometheus-client is imported at the first scrape, in the thread that renders, and so is what the GPU's clock is asked of.
"""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from reference_server.phases import resident_bytes
from reference_server.server_timing import Timing
from reference_server.shared_core import shared_core_of_this_thread

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from reference_server.registry import ServedModel

# Upper bounds, 1-2-5 from 50 us to 5 minutes: Prometheus interpolates within a bucket, so its quantiles are rough;
# the exact ones come from the raw records.
BUCKETS_NS = (
    50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000, 200_000_000,
    500_000_000, 1_000_000_000, 2_000_000_000, 5_000_000_000, 10_000_000_000, 20_000_000_000, 60_000_000_000, 120_000_000_000,
    300_000_000_000,
)  # fmt: skip

PARTS = ("queue", "pool", "load", "input", "infer", "output")
_COLUMNS = 1 + len(PARTS)
_FOLD_AT = 1024 * _COLUMNS

# A label value that clients choose may not grow without bound.
_MOST_SHAPES = 100

Key = TypeVar("Key")

_STARTED_S = time.time() - time.process_time()  # close enough: what matters is that it differs after a restart

_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}")


class Histogram:
    """Counts of durations by bucket (the last one is beyond all bounds), and their sum in ns."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_NS) + 1)
        self.sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        self.counts[bisect_left(BUCKETS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def add(self, counts: Sequence[int], sum_ns: int) -> None:
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        self.sum_ns += sum_ns

    def cumulative(self) -> list[tuple[str, float]]:
        """As the exposition wants it: (upper bound in seconds, how many up to it)."""
        bounds = [repr(bound / 1e9) for bound in BUCKETS_NS] + ["+Inf"]
        total = 0
        rows = []
        for bound, count in zip(bounds, self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class ModelMetrics:
    """What was seen of one model's requests. For use on the event loop's thread."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.failed_ns = 0  # of all that were not ok
        self.last_ok_ns = 0  # since the epoch
        self.rows = 0  # of the batches that were answered
        self.shapes: dict[tuple[tuple[int, ...], ...] | None, int] = {}  # None: more kinds than are kept apart
        self.batches: dict[int | None, int] = {}
        self._histograms = tuple(Histogram() for _ in range(_COLUMNS))
        self._pending = array("q")

    def record(self, outcome: str, response_ns: int, timing: Timing, shapes: tuple[tuple[int, ...], ...] = ()) -> None:
        """One request is over. `outcome` is ok, invalid, shed, load_failed, failed or cancelled; only ok ones enter the histograms.

        `response_ns` from the request's first byte to its reply; `shapes` of its inputs in the manifest's order.
        """
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if outcome != "ok":
            self.failed_ns += response_ns
            return
        self.last_ok_ns = time.time_ns()
        self._pending.extend(
            (response_ns, timing.queue_ns, timing.pool_ns, timing.load_ns, timing.input_ns, timing.infer_ns, timing.output_ns)
        )
        if len(self._pending) >= _FOLD_AT:
            self._fold()
        first = shapes[0] if shapes else ()
        self.rows += first[0] if first else 1
        if shapes:
            _count(self.shapes, shapes)
        if first:
            _count(self.batches, first[0])

    @property
    def histograms(self) -> tuple[Histogram, ...]:
        """Of the response, and of the parts in the order of PARTS."""
        self._fold()
        return self._histograms

    def _fold(self) -> None:
        if not self._pending:
            return
        import numpy as np

        rows = np.frombuffer(self._pending, dtype=np.int64).reshape(-1, _COLUMNS)
        for histogram, column in zip(self._histograms, rows.T, strict=True):
            found = np.bincount(np.searchsorted(BUCKETS_NS, column, side="left"), minlength=len(histogram.counts))
            histogram.add(found.tolist(), int(column.sum()))
        self._pending = array("q")


def _count(seen: dict[Key | None, int], key: Key) -> None:
    if key in seen or len(seen) < _MOST_SHAPES:
        seen[key] = seen.get(key, 0) + 1
    else:
        seen[None] = seen.get(None, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """One model's numbers at the scrape, apart from the loop's, so that a thread may render them."""

    name: str
    info: dict[str, str]
    ready: bool
    outcomes: dict[str, int]
    histograms: tuple[tuple[list[tuple[str, float]], int], ...]
    load_histogram: tuple[list[tuple[str, float]], int]
    counters: dict[str, int]
    slots: dict[str, int]
    waiting: int
    shapes: dict[str, int]
    batches: dict[str, int]
    share_fused: float | None


def _snapshot(model: ServedModel) -> _Snapshot:
    manifest, pool, metrics = model.manifest, model.pool, model.metrics
    counts = pool.fleet.counts
    shape_names = [tensor.name for tensor in manifest.inputs]
    return _Snapshot(
        name=manifest.name,
        info={key: getattr(manifest, key) for key in ("version", "runtime", "runtime_version", "precision", "device")},
        ready=model.ready,
        outcomes=dict(metrics.outcomes),
        histograms=tuple((h.cumulative(), h.sum_ns) for h in metrics.histograms),
        load_histogram=(counts.load_histogram.cumulative(), counts.load_histogram.sum_ns),
        counters={
            "pool_hits": pool.hits,
            "pool_misses": pool.misses,
            "engine_loads": pool.fleet.source.engine_loads,
            "slot_failures": counts.slot_failures,
            "slot_rebuilds": counts.rebuilds,
            "loads_ok": counts.loads_ok,
            "loads_failed": counts.loads_failed,
        },
        slots={"busy": pool.fleet.busy, "idle": pool.fleet.idle, "loading": pool.fleet.loading},
        waiting=pool.waiting,
        shapes={
            "other"
            if shapes is None
            else ";".join(f"{n}={'x'.join(map(str, s))}" for n, s in zip(shape_names, shapes, strict=False)): n_seen
            for shapes, n_seen in metrics.shapes.items()
        },
        batches={"other" if batch is None else str(batch): seen for batch, seen in metrics.batches.items()},
        share_fused=manifest.details.share_fused if manifest.details is not None else None,
    )


async def expose(models: Sequence[ServedModel], accept: str = "") -> tuple[bytes, str]:
    """The exposition and its content type, OpenMetrics where `accept` asks for it. Call on the event loop; a thread renders."""
    snapshots = [_snapshot(model) for model in models]
    shared_core_of_this_thread().part()  # the thread would be confined too
    try:
        return await asyncio.to_thread(_render, snapshots, models, accept)
    except RuntimeError:  # the process may have no more threads
        return _render(snapshots, models, accept)


def _render(snapshots: Sequence[_Snapshot], models: Sequence[ServedModel], accept: str) -> tuple[bytes, str]:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

    class Snapshots(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(snapshots, models)

    registry = CollectorRegistry()
    registry.register(Snapshots())
    # What asks for a version that is none gets the text that all understand; the library would fail on it.
    versions = re.findall("version=([^;,]*)", accept)
    encode, content_type = choose_encoder(accept if all(_VERSION.fullmatch(version.strip()) for version in versions) else "")
    return encode(registry), content_type


def _metrics(snapshots: Sequence[_Snapshot], models: Sequence[ServedModel]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

    def counter(name: str, text: str, labels: Sequence[str]) -> CounterMetricFamily:
        return CounterMetricFamily(f"coldburst_{name}", text, labels=["model", *labels])

    info = InfoMetricFamily("coldburst_engine", "The engine that is served.", labels=["model"])
    fused = GaugeMetricFamily(
        "coldburst_share_fused", "Share of the model's operators that the engine does not execute on their own.", labels=["model"]
    )
    ready = GaugeMetricFamily("coldburst_ready", "1 where a request sent now would be answered.", labels=["model"])
    waiting = GaugeMetricFamily("coldburst_waiting", "Requests that wait for a slot.", labels=["model"])
    slots = GaugeMetricFamily("coldburst_slots", "Slots by state; loading ones are being made.", labels=["model", "state"])
    requests = counter("requests", "Infer requests by outcome.", ["outcome"])
    loads = counter("loads", "Slots made, with the engine's load where it was needed, by outcome; under cold-load, loads.", ["outcome"])
    batches = counter("batches", "Answered requests by batch size (the first input's first dimension).", ["batch"])
    shapes = counter("shapes", "Answered requests by the shapes of their inputs.", ["shapes"])
    response = HistogramMetricFamily("coldburst_response_seconds", "From the first byte of a request to its reply.", labels=["model"])
    parts = HistogramMetricFamily("coldburst_part_seconds", "The parts of an answered request's time.", labels=["model", "part"])
    load = HistogramMetricFamily("coldburst_load_seconds", "Time that successful loads took.", labels=["model"])
    plain = {
        "pool_hits": counter("pool_hits", "Requests that found a free slot.", []),
        "pool_misses": counter("pool_misses", "Requests that found none: they waited or were shed.", []),
        "engine_loads": counter("engine_loads", "Engines loaded.", []),
        "slot_failures": counter("slot_failures", "Slots taken out since they failed or answered wrongly.", []),
        "slot_rebuilds": counter("slot_rebuilds", "Loads that replace such slots.", []),
    }
    for snapshot in snapshots:
        name = snapshot.name
        info.add_metric([name], snapshot.info)
        if snapshot.share_fused is not None:
            fused.add_metric([name], snapshot.share_fused)
        ready.add_metric([name], float(snapshot.ready))
        waiting.add_metric([name], snapshot.waiting)
        for family, values in (
            (slots, snapshot.slots),
            (requests, snapshot.outcomes),
            (batches, snapshot.batches),
            (shapes, snapshot.shapes),
        ):
            for label, value in values.items():
                family.add_metric([name, label], value)
        for outcome in ("ok", "failed"):
            loads.add_metric([name, outcome], snapshot.counters[f"loads_{outcome}"])
        for key, family in plain.items():
            family.add_metric([name], snapshot.counters[key])
        (buckets, sum_ns), *part_rows = snapshot.histograms
        response.add_metric([name], buckets, sum_ns / 1e9)
        for part, (part_buckets, part_sum_ns) in zip(PARTS, part_rows, strict=True):
            parts.add_metric([name, part], part_buckets, part_sum_ns / 1e9)
        load.add_metric([name], snapshot.load_histogram[0], snapshot.load_histogram[1] / 1e9)
    # A gauge that is not known is absent: 0 would be a measured nothing.
    yield from (info, *([fused] if fused.samples else ()), ready, waiting, slots, requests, loads, batches, shapes)
    yield from (response, parts, load, *plain.values())
    for gauge, text, known in (
        ("resident_bytes", "Resident memory of the server process.", resident_bytes()),
        ("device_bytes", "Device memory in use, by whoever.", _first_known(model.device_bytes for model in models)),
        ("sm_clock_mhz", "Clock of the GPU's multiprocessors in MHz.", _first_known(model.sm_clock_mhz for model in models)),
    ):
        if known is not None:
            yield GaugeMetricFamily(f"coldburst_{gauge}", text, value=known)
    # The name that Prometheus' own process collector has: clients tell by it that a server was restarted.
    yield GaugeMetricFamily("process_start_time_seconds", "When the server process started, in Unix time.", value=_STARTED_S)
    yield CounterMetricFamily("coldburst_cpu_seconds", "CPU time of the server process.", value=time.process_time())


def _first_known(asked: Iterable[Callable[[], int | None]]) -> int | None:
    return next((answer for ask in asked if (answer := ask()) is not None), None)
