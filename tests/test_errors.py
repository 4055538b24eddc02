"""Errors as a person meets them: one sentence, and the exit code that goes with it."""

from __future__ import annotations

import pytest

from bench.errors import TRACEBACK_VARIABLE, BenchError, EngineRefused, GateMissed, InvalidRun, WrongAnswer, describe_defect, one_sentence


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


def test_a_defect_is_one_line_unless_its_place_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)
    error = KeyError("x" * 1000)
    told = describe_defect(error, "bench", "bench")
    assert told.startswith("bench: a defect of bench: KeyError: ") and len(told) < 450 and "\n" not in told
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    assert len(describe_defect(error, "bench", "bench").splitlines()) > 1
