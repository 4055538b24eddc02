"""The inspector's JSON as 8.6, 10 and 11 write it."""

from __future__ import annotations

import json

from bench.engine.layers import Layer, count_precisions, evidence, parse_layers


def entry(name: str, kind: str, *types: str, **more: str) -> dict[str, object]:
    return {"Name": name, "LayerType": kind, "Inputs": [{"Name": "x", "Format/Datatype": t} for t in types], "Outputs": [], **more}


def test_layers_with_detail_and_control_characters() -> None:
    layers = [
        entry("conv1", "CaskConvolution", "Thirty-two wide channel vectorized row major Int8 format", TacticName="sm80_xmma"),
        entry("conv2", "CaskConvolution", "Channel major FP16 format where channel % 8 == 0"),
        entry("pool", "CaskPooling", "Row major linear FP32"),
        entry("mixed", "CaskGemm", "Row major linear FP32", "Two wide channel vectorized row major FP16 format"),
        entry("copy", "Reformat", "Row major linear FP32", "Row major linear INT8"),
    ]
    text = json.dumps({"Layers": layers, "Bindings": ["x"]}).replace("conv2", "con\x1fv\n2")
    found = parse_layers(text)
    assert found[0] == Layer(name="conv1", kind="CaskConvolution", precision="int8", tactic="sm80_xmma")
    assert found[1].name == "con\x1fv\n2"
    assert [layer.precision for layer in found] == ["int8", "fp16", "fp32", "fp16", "int8"]
    assert count_precisions(found) == {"fp16": 2, "fp32": 1, "int8": 1}  # what only carries values does not compute
    assert evidence(count_precisions(found), True) == "the inspector"


def test_keys_of_version_11() -> None:
    tensor = {"Name": "x", "Dimensions": [1], "Format": "Row major linear", "Datatype": "Half"}
    text = json.dumps({"Layers": [{"Name": "a", "LayerType": "gemm", "Inputs": [tensor], "Outputs": [tensor]}], "I/O Tensors": []})
    assert [layer.precision for layer in parse_layers(text)] == ["fp16"]


def test_what_is_hidden_is_said() -> None:
    layers = [
        entry("{ForeignNode[a...b]}", "Myelin", "Row major linear FP32"),
        entry("conv", "CaskConvolution", "N/A due to dynamic shapes"),
    ]
    counts = count_precisions(parse_layers(json.dumps({"Layers": layers})))
    assert counts == {"hidden": 2}
    assert "conclude from size" in evidence(counts, True)
    assert "but for 1 layers" in evidence({"fp16": 3, "hidden": 1}, True)
    assert "not inspected" in evidence({}, False)


def test_names_only_and_nonsense() -> None:
    assert parse_layers(json.dumps({"Layers": ["conv1 + relu1"]})) == (Layer(name="conv1 + relu1", kind="", precision=None, tactic=None),)
    assert parse_layers("no JSON") == ()
    assert parse_layers("[1]") == ()
