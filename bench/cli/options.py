"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Runtime = Annotated[str, typer.Option(help="What runs the engine: onnxruntime or tensorrt.")]
Optimize = Annotated[str, typer.Option(help="Graph optimisation when the engine is built: all, basic or none.")]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=SIZES",
        help="Shape of an input: NAME=1x128, or NAME=min:opt:max; a comma begins the next profile. A first dynamic axis is the batch.",
    ),
]
Input = Annotated[list[str] | None, typer.Option("--input", metavar="NAME=VALUES", help="Values of an input: uniform:LO:HI or FILE.npz.")]
Precision = Annotated[str, typer.Option(help="Of a TensorRT engine: fp32 (in TF32), fp16 or int8.")]
Module = Annotated[str, typer.Option(help="Of a TensorRT engine: tensorrt, or tensorrt_rtx, which builds without a GPU.")]
Name = Annotated[str | None, typer.Option(help="The model's name; else the file's stem.")]
Seed = Annotated[int, typer.Option(help="Seed of the random input values.")]
Results = Annotated[Path, typer.Option(help="Folder that the run's own folder is made in.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the runtime, such as threads=4 or load_optimization=all."),
]
Trust = Annotated[Path | None, typer.Option(metavar="KEY", help="A public key: refuse an engine that it did not sign.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
