"""Errors as a person meets them: one sentence, and the exit code that goes with it."""

from __future__ import annotations

import pytest

from bench.errors import BenchError, EngineRefused, GateMissed, InvalidRun, WrongAnswer, one_sentence


@pytest.mark.parametrize(("kind", "code"), [(BenchError, 2), (EngineRefused, 2), (WrongAnswer, 2), (GateMissed, 1), (InvalidRun, 3)])
def test_exit_codes(kind: type[BenchError], code: int) -> None:
    assert kind("why").exit_code == code
    assert isinstance(kind("why"), BenchError)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (BenchError("the engine\n  is\ttoo old"), "the engine is too old"),
        (FileNotFoundError(2, "No such file or directory", "a.onnx"), "No such file or directory: a.onnx"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("something odd"), "something odd"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_one_sentence(error: BaseException, sentence: str) -> None:
    assert one_sentence(error) == sentence
