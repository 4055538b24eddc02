"""What a builder is asked, what it is given to work with, and what it gives back: the seam of bench.engine.build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import BuildDetails, ShapeRange
from bench.engine.manifest_reading import plain_name
from bench.engine.shapes import InputSource
from bench.engine.source import SourceModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtOptions:
    """Options of the TensorRT builder. `None` leaves the choice to TensorRT; `tolerance` None to the precision."""

    precision: str = "fp32"
    module: str = "tensorrt"
    workspace_bytes: int | None = None
    timing_cache: Path | None = None
    optimization_level: int | None = None
    version_compatible: bool = False
    calibration: Path | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. `shapes` and `inputs` are the texts of `--shape` and `--input` by tensor name."""

    model: Path
    runtime: str = "onnxruntime"
    optimize: str = "all"
    name: str | None = None
    version: str = "1"
    shapes: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    sign_with: Path | None = None
    replace: bool = False
    tensorrt: TensorrtOptions = field(default_factory=TensorrtOptions)

    @property
    def model_name(self) -> str:
        """The name given, or the file's stem with `-` for what a name may not hold."""
        return self.name if self.name is not None else plain_name(self.model.stem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The model as it was read, the probe's cases with the source's answers, and the folder that the engine goes into."""

    source: SourceModel
    profiles: tuple[Mapping[str, ShapeRange], ...]
    input_sources: Mapping[str, InputSource]
    cases: Sequence[Mapping[str, NDArray[Any]]]
    answers: Sequence[Mapping[str, NDArray[Any]]]
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The builder's part of the manifest. `runs_here`: whether this machine can load the engine, so that it can be measured.

    `files`: the one to load first. `parity_error` is the largest known so far: of the engine where the builder ran it,
    else of the converted graph.
    """

    files: tuple[Path, ...]
    precision: str
    runtime_version: str
    device: str
    device_features: tuple[str, ...] = ()
    options: Mapping[str, str]
    tolerance: float
    parity_error: float
    details: BuildDetails
    runs_here: bool = True
