"""`bench inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.app import app
from bench.engine.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from bench.engine.layers import Layer


@app.command("inspect")
def inspect_engine(
    engine: Annotated[Path, typer.Argument(metavar="ENGINE", help="An engine directory.")],
    show_layers: Annotated[bool, typer.Option("--layers", help="Also list the layers that a TensorRT engine executes.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what an engine is: versions, device, profiles, precision by layer, operators fused, parity, size, speed.

    Nothing is loaded: it is what was found out when the engine was built.

    Example: bench inspect engines/resnet50-fp16 --layers
    """
    import dataclasses
    import json

    manifest = read_manifest(engine)
    layers = _read_layers(engine)
    if as_json:
        fused = manifest.details.share_fused if manifest.details is not None else None
        listed = [dataclasses.asdict(layer) for layer in layers]
        typer.echo(json.dumps({**json.loads(manifest.to_json()), "share_fused": fused, "layers": listed}, indent=2))
        return
    for label, text in _rows(manifest):
        typer.echo(f"{label:<11} {text}")
    if show_layers:
        typer.echo("layers" if layers else "layers      not known")
        for layer in layers:
            tactic = f"  {layer.tactic}" if layer.tactic else ""
            typer.echo(f"  {layer.precision or '?':<5} {layer.kind:<16} {layer.name[:100]}{tactic}")


def _read_layers(engine: Path) -> tuple[Layer, ...]:
    from bench.engine.layers import parse_layers
    from bench.engine.tensorrt_builder import LAYERS_FILE

    try:
        return parse_layers((engine / LAYERS_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return ()


def _rows(manifest: Manifest) -> list[tuple[str, str]]:
    from bench.engine.shapes import show_dims
    from bench.units import format_duration, format_size

    rows = [("engine", manifest.title), ("built", f"{manifest.built_at} on {manifest.host}, {format_duration(manifest.build_duration_ns)}")]
    details = manifest.details
    if details is not None:
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in details.versions.items())))
        if details.gpu is not None:
            rows.append(("gpu", f"{details.gpu}, {manifest.device}, driver {details.driver or 'unknown'}"))
        if details.flags:
            rows.append(("flags", ", ".join(details.flags)))
    rows.append(("options", ", ".join(f"{key}={value}" for key, value in manifest.options.items())))
    rows += [("input", f"{t.name} {t.datatype} {show_dims(t)}") for t in manifest.inputs]
    rows += [("output", f"{t.name} {t.datatype} {show_dims(t)}") for t in manifest.outputs]
    for number, profile in enumerate(manifest.profiles):
        shapes = (f"{name} " + " : ".join("x".join(map(str, shape)) for shape in (r.min, r.opt, r.max)) for name, r in profile.items())
        rows.append((f"profile {number}", ", ".join(shapes)))
    rows.append(("size", format_size(manifest.engine_bytes)))
    if details is not None and details.engine_layers is not None:
        fused = details.share_fused
        share = f", {fused:.0%} of the operators fused away" if fused is not None else ""
        rows.append(("layers", f"{details.source_nodes} operators in the model, {details.engine_layers} layers executed{share}"))
    if details is not None and details.precision_evidence is not None:
        counts = ", ".join(f"{count} {name}" for name, count in details.layer_precisions.items())
        rows.append(("precision", f"{manifest.precision} asked for; {counts or 'layers not known'} ({details.precision_evidence})"))
    if details is not None and details.conversion_errors:
        rows.append(("conversion", f"{_errors(details.conversion_errors)} relative, the converted graph on the CPU"))
    if manifest.baseline is not None and manifest.baseline.errors:
        rows.append(("parity", f"{_errors(manifest.baseline.errors)} relative, the engine (allowed: {manifest.tolerance:.2g})"))
    else:
        rows.append(("parity", f"{manifest.parity_error:.2g} relative at most (allowed: {manifest.tolerance:.2g})"))
    if manifest.baseline is not None:
        baseline = manifest.baseline
        rows.append(
            (
                "one slot",
                f"{baseline.rate_per_s:.3g} requests/s, p50 {format_duration(baseline.p50_ns)}, p99 {format_duration(baseline.p99_ns)} "
                f"({baseline.samples} samples, closed loop)",
            )
        )
    return rows


def _errors(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
