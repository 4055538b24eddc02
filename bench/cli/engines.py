"""`bench build` and `bench key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.app import app


@app.command()
def build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A built-in name (resnet50, bert-base, tiny) or an .onnx file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The engine directory to make.")],
    runtime: options.Runtime = "onnxruntime",
    optimize: options.Optimize = "all",
    shape: options.Shape = None,
    values: options.Input = None,
    name: options.Name = None,
    model_version: Annotated[str, typer.Option(help="The model's version, as servers announce it.")] = "1",
    seed: options.Seed = 0,
    precision: options.Precision = "fp32",
    module: options.Module = "tensorrt",
    calibration: Annotated[
        Path | None, typer.Option(metavar="DATA.npz", help="Samples for int8 by input name, along the first axis. Without it: random.")
    ] = None,
    workspace: Annotated[str | None, typer.Option(help="The most device memory that a TensorRT tactic may use, such as 1GiB.")] = None,
    timing_cache: Annotated[Path | None, typer.Option(help="A file that TensorRT keeps its tactics' times in, for quicker builds.")] = None,
    optimization_level: Annotated[int | None, typer.Option(help="How long TensorRT searches, 0 to 5; else its own default.")] = None,
    version_compatible: Annotated[bool, typer.Option(help="A TensorRT engine that later TensorRT versions load too.")] = False,
    tolerance: Annotated[float | None, typer.Option(help="The relative error that a TensorRT engine may have; else by precision.")] = None,
    sign: Annotated[Path | None, typer.Option(metavar="KEY", help="Sign the engine with this private key (see bench key).")] = None,
    force: Annotated[bool, typer.Option(help="Replace an engine directory that is there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Build an engine ahead: optimised for this machine, proved against its source model, measured once.

    The directory holds the engine, manifest.json and probe.npz (inputs with the answers of the unoptimised model).
    An engine is code that the runtime executes: load only engines that you built or whose signer you trust.

    Examples: bench build resnet50 -o engines/resnet50

    bench build resnet50 --runtime tensorrt --precision fp16 --shape input=1x3x224x224:4x...:8x... -o engines/resnet50-fp16
    """
    import dataclasses

    from bench.cli.progress import steps
    from bench.engine.build import build_engine, check_request
    from bench.engine.request import TensorrtOptions
    from bench.engine.resolve import BuildOptions, build_request, is_built_in, measure_baseline, provide_built_in
    from bench.units import parse_size_bytes

    given = BuildOptions.from_flags(
        runtime=runtime,
        optimize=optimize,
        name=name,
        shapes=shape or [],
        inputs=values or [],
        seed=seed,
        tensorrt=TensorrtOptions(
            precision=precision,
            module=module,
            workspace_bytes=parse_size_bytes(workspace, "--workspace") if workspace is not None else None,
            timing_cache=timing_cache,
            optimization_level=optimization_level,
            version_compatible=version_compatible,
            calibration=calibration,
            tolerance=tolerance,
        ),
    )
    request, _ = build_request(model, given)
    request = dataclasses.replace(request, version=model_version, sign_with=sign, replace=force)
    check_request(request, output)
    with steps(f"building {request.model_name}") as progress:
        if is_built_in(model):
            progress("making the built-in model")
            provide_built_in(model, request.model)
        manifest = build_engine(request, output, measure=measure_baseline, progress=progress)
    if as_json:
        typer.echo(manifest.to_json().rstrip())
        return
    from bench.units import format_duration, format_size

    baseline = manifest.baseline
    typer.echo(f"engine   {output}: {manifest.title}")
    typer.echo(f"size     {format_size(manifest.engine_bytes)}, built in {format_duration(manifest.build_duration_ns)}")
    subject = "" if manifest.baseline is not None else " of the converted graph"
    typer.echo(f"parity   {manifest.parity_error:.2g} relative{subject} against the unoptimised model (allowed: {manifest.tolerance:.2g})")
    if baseline is not None:
        typer.echo(
            f"one slot {baseline.rate_per_s:.3g} requests/s, p50 {format_duration(baseline.p50_ns)}, "
            f"p99 {format_duration(baseline.p99_ns)} ({baseline.samples} samples, closed loop)"
        )
    else:
        typer.echo("one slot not measured: this machine cannot run the engine")


@app.command()
def key(
    output: Annotated[Path, typer.Option("--output", "-o", help="The private key's file; the public key is made beside it as NAME.pub.")],
) -> None:
    """Make an Ed25519 key pair to sign engines with.

    Sign with `bench build --sign KEY`; whoever loads the engine gives `--trust KEY.pub`, and then an unsigned or wrongly
    signed engine is refused.

    Example: bench key -o release.key
    """
    from bench.engine.signature import make_key

    public = make_key(output)
    typer.echo(f"private key {output} (keep it secret), public key {public}")
