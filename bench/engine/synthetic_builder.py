"""Engines of the synthetic runtime: declared times instead of work. For tests and for calibrating the tools themselves."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path

from bench.clock import now_ns, utc_now
from bench.engine.manifest import PROBE_FILE, SCHEMA_VERSION, Manifest, ShapeRange, Tensor, describe_file, write_manifest

ENGINE_FILE = "engine.json"
RUNTIME_VERSION = "1"


def build_synthetic(directory: Path, *, name: str = "synthetic", max_batch: int = 8, gate: Path | None = None, **declared: int) -> Manifest:
    """Write a synthetic engine directory. `declared`, and `gate`, are fields of `reference_server.runtimes.synthetic.Declaration`.

    Input `input` and output `output` are FP32 [batch, input_elements] and [batch, output_elements].
    """
    import numpy as np

    started = now_ns()
    directory.mkdir(parents=True, exist_ok=True)
    fields = declared if gate is None else {**declared, "gate": str(gate)}
    (directory / ENGINE_FILE).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")
    inputs, outputs = declared.get("input_elements", 1024), declared.get("output_elements", 1024)
    arrays: dict[str, np.ndarray] = {}
    for case, batch in enumerate(sorted({1, max_batch})):
        given = np.random.default_rng(case).random((batch, inputs), dtype=np.float32)
        arrays[f"{case}/input/input"] = given
        arrays[f"{case}/output/output"] = given[:, np.arange(outputs) % inputs] * np.float32(2)
    np.savez(directory / PROBE_FILE, allow_pickle=False, **arrays)
    profile: Mapping[str, ShapeRange] = {"input": ShapeRange(min=(1, inputs), opt=(1, inputs), max=(max_batch, inputs))}
    engine_file = describe_file(directory / ENGINE_FILE)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        version="1",
        source_sha256=engine_file.sha256,
        files=(engine_file, describe_file(directory / PROBE_FILE)),
        runtime="synthetic",
        runtime_version=RUNTIME_VERSION,
        precision="none",
        device="none",
        device_features=(),
        inputs=(Tensor(name="input", datatype="FP32", dims=("batch", inputs)),),
        outputs=(Tensor(name="output", datatype="FP32", dims=("batch", outputs)),),
        profiles=(profile,),
        options={},
        tolerance=1e-6,
        parity_error=0.0,
        built_at=utc_now(),
        build_duration_ns=now_ns() - started,
        host=platform.node(),
        baseline=None,
    )
    write_manifest(directory, manifest)
    return manifest
