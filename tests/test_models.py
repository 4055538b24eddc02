"""The built-in models: valid, bounded, exact to the byte, and alive."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from bench.errors import BenchError
from bench.models import BUILT_IN, WrittenModel, write_model

Written = Callable[[str], WrittenModel]

SMALL = ("tiny", "resnet50")
SIZES = {"tiny": (1_000, 1_000_000), "resnet50": (101_000_000, 103_000_000), "bert-base": (430_000_000, 445_000_000)}
TINY_WEIGHTS_SHA256 = "dc1e10ae38c76fd73c3244bb738d866dc40fc595fb1dab042bc2bef01e96b1bb"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """`written(name)`: the model of seed 0, built once for all tests."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def write(name: str) -> WrittenModel:
        return write_model(name, 0, folder / f"{name}.onnx")

    yield write
    shutil.rmtree(folder)  # half a gigabyte, which pytest would keep for its last three runs


def cli(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", "model", *arguments], capture_output=True, text=True, timeout=120, **options)


def run(path: Path, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


@pytest.mark.parametrize("name", BUILT_IN)
def test_is_valid_onnx_within_the_bounds_that_old_readers_set(name: str, written: Written) -> None:
    model = written(name)
    onnx.checker.check_model(str(model.path), full_check=True)
    proto = onnx.load(model.path)
    assert proto.ir_version <= 8
    assert [(opset.domain, opset.version <= 17) for opset in proto.opset_import] == [("", True)]
    low, high = SIZES[name]
    assert low < model.bytes < high
    assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in proto.graph.initializer)
    dynamic = {dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    assert dynamic == ({"batch", "sequence"} if name == "bert-base" else {"batch"})


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_reported_is_what_lies_on_the_disk(name: str, written: Written) -> None:
    model = written(name)
    with model.path.open("rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == model.sha256
    assert model.path.stat().st_size == model.bytes
    assert [path.name for path in model.path.parent.iterdir() if path.name.endswith(".partial")] == []


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_gives_the_same_bytes_in_another_process(name: str, tmp_path: Path, written: Written) -> None:
    other = tmp_path / "other.onnx"
    done = cli(name, "--seed", "0", "-o", str(other), "--json")
    assert done.returncode == 0, done.stderr
    assert other.read_bytes() == written(name).path.read_bytes()
    assert json.loads(done.stdout)["sha256"] == written(name).sha256


def test_another_seed_gives_other_bytes_of_the_same_size(tmp_path: Path, written: Written) -> None:
    models = [write_model("tiny", seed, tmp_path / f"{seed}.onnx") for seed in (1, 2**70)]
    assert len({written("tiny").sha256, *(model.sha256 for model in models)}) == 3
    assert {model.bytes for model in models} == {written("tiny").bytes}


def test_the_weights_of_seed_0_have_not_changed(written: Written) -> None:
    """Results name their model by its seed: another numpy, or a change here, must not give the seed other weights."""
    tensors = onnx.load(written("tiny").path).graph.initializer
    assert hashlib.sha256(b"".join(tensor.raw_data for tensor in tensors)).hexdigest() == TINY_WEIGHTS_SHA256


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_answers_are_finite_and_depend_on_the_input(name: str, batch: int, written: Written) -> None:
    shape = {"tiny": (64,), "resnet50": (3, 224, 224)}[name]
    given = np.random.default_rng(batch).random((batch, *shape), dtype=np.float32)
    logits = run(written(name).path, {"input": given})["logits"]
    assert logits.shape == (batch, {"tiny": 16, "resnet50": 1000}[name])
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
    between_rows = np.abs(logits - logits[:1]).max(axis=1)[1:] / np.abs(logits).max()
    assert (between_rows > 5e-3).all()  # several times the tolerance of a correct answer: a swapped row is seen


def test_bert_base_answers_for_any_length_and_heeds_its_mask(written: Written) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 30522, (3, 9))
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    changed = ids.copy()
    changed[1, 5:] = (ids[1, 5:] + 1) % 30522  # only where the mask says not to look
    changed[2, 5:] = (ids[2, 5:] + 1) % 30522
    both = {name: np.concatenate([first, second]) for name, first, second in (("input_ids", ids, changed), ("attention_mask", mask, mask))}
    both["token_type_ids"] = np.zeros_like(both["input_ids"])
    answer = run(written("bert-base").path, both)
    assert answer["last_hidden_state"].shape == (6, 9, 768)
    assert answer["pooler_output"].shape == (6, 768)
    assert all(np.isfinite(value).all() and 0.1 < value.std() < 10 for value in answer.values())
    moved = np.abs(answer["pooler_output"][:3] - answer["pooler_output"][3:]).max(axis=1)
    assert moved[0] < 1e-5
    assert moved[1] < 1e-5
    assert moved[2] > 1e-2


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_defaults_name_inputs_of_the_model(name: str, written: Written) -> None:
    names = {described.split()[0] for described in written(name).inputs}
    assert set(BUILT_IN[name].default_shapes) <= names
    assert set(BUILT_IN[name].default_inputs) <= names


def test_the_command_prints_what_it_wrote(tmp_path: Path, written: Written) -> None:
    done = cli("tiny", "-o", "sub/tiny.onnx", cwd=tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    for fact in (written("tiny").sha256, "opset 17", "input FP32 [batch, 64]", "logits FP32 [batch, 16]", "sub/tiny.onnx"):
        assert fact in done.stdout
    assert (tmp_path / "sub" / "tiny.onnx").is_file()


def test_an_unknown_name_is_one_sentence_with_the_known_ones(tmp_path: Path) -> None:
    done = cli("vgg16", "-o", str(tmp_path / "vgg.onnx"))
    assert done.returncode == 2
    assert done.stderr == "bench: there is no built-in model 'vgg16': choose one of resnet50, bert-base, tiny\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_overwritten_only_when_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    path.write_text("precious")
    with pytest.raises(BenchError, match=r"tiny\.onnx exists already.*--force"):
        write_model("tiny", 0, path)
    assert path.read_text() == "precious"
    model = write_model("tiny", 0, path, force=True)
    assert path.stat().st_size == model.bytes
    with pytest.raises(BenchError, match="is a folder"):
        write_model("tiny", 0, tmp_path, force=True)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BenchError, match=r"^folder .*file cannot be made: File exists$"):
        write_model("tiny", 0, tmp_path / "file" / "tiny.onnx")
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); from bench.cli import main; main()"
    )
    full = tmp_path / "full"
    done = subprocess.run(
        [sys.executable, "-c", limited, "model", "tiny", "-o", str(full / "tiny.onnx")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr == f"bench: {full / 'tiny.onnx'} cannot be written: {os.strerror(errno.EFBIG)}\n"
    assert list(full.iterdir()) == []


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="seed -1 is negative"):
        write_model("tiny", -1, tmp_path / "tiny.onnx")


def test_naming_the_models_imports_nothing_heavy() -> None:
    code = "import sys, bench.models, bench.cli.run; print([m for m in ('numpy', 'onnx', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
