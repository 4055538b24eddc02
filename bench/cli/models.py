"""`bench model`: write a built-in model to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.app import app


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="resnet50|bert-base|tiny", help="The model to build.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .onnx file to write.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights; the same seed gives the same bytes.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a built-in model as ONNX (opset 17), with random weights made from a seed.

    The time a model takes does not depend on the values of its weights, so they are as good as trained ones for measuring; what it
    answers means nothing. resnet50: 102 MB, images 224x224. bert-base: 438 MB, token ids of any length up to 512. tiny: 0.3 MB.

    Example: bench model resnet50 -o resnet50.onnx
    """
    from bench.models import write_model
    from bench.units import format_size

    written = write_model(name, seed, output, force=force)
    if as_json:
        facts = {
            "path": str(written.path),
            "bytes": written.bytes,
            "sha256": written.sha256,
            "opset": written.opset,
            "seed": seed,
            "inputs": written.inputs,
            "outputs": written.outputs,
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{written.path}: {format_size(written.bytes)} ({written.bytes} bytes), opset {written.opset}, seed {seed}")
    typer.echo(f"sha256  {written.sha256}")
    for tensor in written.inputs:
        typer.echo(f"input   {tensor}")
    for tensor in written.outputs:
        typer.echo(f"output  {tensor}")
