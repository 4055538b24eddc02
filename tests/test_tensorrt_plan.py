"""The path of TensorRT 8.6 through the plan builder, on a stand-in that records: that version has no build for machines without a GPU.

That the names are those of the real bindings is shown by test_tensorrt_symbols; that engines come out, by tests/gpu.
"""

from __future__ import annotations

import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.engine import tensorrt_plan
from bench.engine.tensorrt_plan import Plan, PlanRequest
from bench.errors import BenchError
from bench.models import write_model

# Numbers that are not those of any release: what is written as a number instead of asked for fails here.
Creation = enum.IntEnum("Creation", {"EXPLICIT_BATCH": 5})
Flag = enum.Enum("Flag", "FP16 INT8 VERSION_COMPATIBLE")
Preview = enum.Enum("Preview", "PROFILE_SHARING_0806")
Tactic = enum.IntEnum("Tactic", {"CUBLAS": 0, "EDGE_MASK_CONVOLUTIONS": 6, "JIT_CONVOLUTIONS": 9})


class Recorder:
    """TensorRT 8.6 as the builder sees it. `parses` False: node 1 is unknown to the parser."""

    __version__ = "8.6.1"

    def __init__(self, *, parses: bool = True, builds: bool = True) -> None:
        self.done: list[tuple[Any, ...]] = []
        recorder, done = self, self.done

        class ILogger:
            Severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1)

        class Config:
            def __getattr__(self, name: str) -> Any:
                if name.startswith(("set_", "add_", "create_")):
                    return lambda *arguments: done.append((name, *arguments)) or (0 if name == "add_optimization_profile" else None)
                raise AttributeError(name)

        class Builder:
            def __init__(self, log: Any) -> None:
                recorder.log = log

            def create_network(self, flags: int) -> Any:
                done.append(("create_network", flags))
                tensor = SimpleNamespace(name="input", is_shape_tensor=False)
                return SimpleNamespace(num_inputs=1, num_layers=7, get_input=lambda index: tensor)

            def create_builder_config(self) -> Any:
                return Config()

            def create_optimization_profile(self) -> Any:
                return SimpleNamespace(set_shape=lambda *shapes: done.append(("set_shape", *shapes)))

            def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
                if not builds:
                    recorder.log.log(1, "could not find any\nimplementation for node {x}")
                    return None
                return b"plan"

        class OnnxParser:
            num_errors = 1

            def __init__(self, network: Any, log: Any) -> None: ...

            def parse_from_file(self, path: str) -> bool:
                return parses

            def get_error(self, index: int) -> Any:
                code = SimpleNamespace(name="UNSUPPORTED_NODE")
                return SimpleNamespace(node=lambda: 1, desc=lambda: "no importer\nfor it", code=lambda: code)

        self.ILogger, self.Builder, self.OnnxParser = ILogger, Builder, OnnxParser
        self.NetworkDefinitionCreationFlag, self.BuilderFlag, self.PreviewFeature, self.TacticSource = Creation, Flag, Preview, Tactic
        self.ProfilingVerbosity = SimpleNamespace(DETAILED=2)
        self.MemoryPoolType = SimpleNamespace(WORKSPACE=0)


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A request for the tiny model, on a machine that seems to have a GPU; what is printed for the parent is dropped."""
    monkeypatch.setattr(tensorrt_plan, "send", lambda event: None)
    monkeypatch.setattr(tensorrt_plan, "find_gpu", lambda: {"name": "Stand-in", "compute_capability": "9.0", "cuda": "13.0"})
    monkeypatch.setattr(Plan, "_inspect", lambda self, serialized: {"runs_here": True, "engine_layers": 3, "layers": None})
    write_model("tiny", 0, tmp_path / "tiny.onnx")

    def make(precision: str, **changes: Any) -> PlanRequest:
        given: dict[str, Any] = {
            "graph": str(tmp_path / "tiny.onnx"), "plan": str(tmp_path / "model.plan"), "precision": precision,
            "profiles": [{"input": [[1, 64], [4, 64], [8, 64]]}, {"input": [[9, 64], [9, 64], [9, 64]]}], "workspace_bytes": None,
            "timing_cache": None, "optimization_level": None, "version_compatible": False, **changes,
        }  # fmt: skip
        return PlanRequest(**given)

    return make


@pytest.mark.parametrize(("precision", "flags"), [("fp32", []), ("fp16", [Flag.FP16]), ("int8", [Flag.FP16, Flag.INT8])])
def test_precision_by_flags(precision: str, flags: list[Flag], request_of: Any, tmp_path: Path) -> None:
    trt = Recorder()
    facts = Plan(trt, "tensorrt", request_of(precision)).build()
    assert (tmp_path / "model.plan").read_bytes() == b"plan"
    assert trt.done[0] == ("create_network", 1 << 5)
    assert [arguments[0] for name, *arguments in trt.done if name == "set_flag"] == flags
    assert ("set_preview_feature", Preview.PROFILE_SHARING_0806, True) in trt.done
    assert ("set_tactic_sources", 1 << 6 | 1 << 9) in trt.done
    assert [arguments for name, *arguments in trt.done if name == "set_shape"] == [
        ["input", (1, 64), (4, 64), (8, 64)], ["input", (9, 64), (9, 64), (9, 64)],
    ]  # fmt: skip
    assert facts["network_layers"] == 7
    assert set(facts["flags"]) == {flag.name for flag in flags} | {
        "EXPLICIT_BATCH", "PROFILE_SHARING_0806", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS",
    }  # fmt: skip


def test_version_compatible_and_workspace(request_of: Any) -> None:
    trt = Recorder()
    Plan(trt, "tensorrt", request_of("fp32", version_compatible=True, workspace_bytes=1 << 30)).build()
    assert ("set_flag", Flag.VERSION_COMPATIBLE) in trt.done
    assert ("set_memory_pool_limit", 0, 1 << 30) in trt.done


def test_a_node_is_named_by_its_number(request_of: Any) -> None:
    with pytest.raises(BenchError, match=r"cannot take the graph: node 'relu1' \(Relu\): no importer for it \(UNSUPPORTED_NODE\)$"):
        Plan(Recorder(parses=False), "tensorrt", request_of("fp32")).build()


def test_a_build_that_fails_gives_the_reason_of_the_log(request_of: Any) -> None:
    with pytest.raises(BenchError, match=r"cannot build .*tiny\.onnx: could not find any implementation for node \{x\}$"):
        Plan(Recorder(builds=False), "tensorrt", request_of("fp32")).build()


def test_without_a_gpu_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tensorrt_plan, "find_gpu", lambda: None)
    monkeypatch.setattr(tensorrt_plan, "import_tensorrt", lambda module: Recorder())
    assert tensorrt_plan.main(["tensorrt"]) == 2
    assert "there is none here; --module tensorrt_rtx needs none" in capsys.readouterr().err
