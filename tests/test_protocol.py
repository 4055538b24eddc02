"""The V2 codec: exact round trips, and for anything else one clear refusal."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bench.engine.manifest import DATATYPES, SCHEMA_VERSION, EngineFile, Manifest, ShapeRange, Tensor
from reference_server.documents import model_metadata
from reference_server.protocol import Codec, InferRequest
from reference_server.tensors import RequestRefused, shorten

MAX_BATCH = 4


def manifest_of(*inputs: Tensor, outputs: tuple[Tensor, ...] | None = None) -> Manifest:
    """A manifest that takes `inputs` (dynamic axes 1 to MAX_BATCH) and gives `outputs`, by default the same tensors."""

    def shape(tensor: Tensor, dynamic: int) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else dynamic for dim in tensor.dims)

    profile = {t.name: ShapeRange(min=shape(t, 1), opt=shape(t, 1), max=shape(t, MAX_BATCH)) for t in inputs}
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name="model",
        version="1",
        source_sha256="",
        files=(EngineFile(name="engine", bytes=0, sha256=""),),
        runtime="synthetic",
        runtime_version="1",
        precision="none",
        device="none",
        device_features=(),
        inputs=inputs,
        outputs=inputs if outputs is None else outputs,
        profiles=(profile,),
        options={},
        tolerance=0.0,
        parity_error=0.0,
        built_at="",
        build_duration_ns=0,
        host="",
        baseline=None,
    )


def tensor_of(datatype: str, name: str = "x") -> Tensor:
    return Tensor(name=name, datatype=datatype, dims=("batch", 3))


def codec_of(datatype: str = "FP32") -> Codec:
    return Codec(manifest_of(tensor_of(datatype)))


def as_body(request: object, binary: bytes = b"") -> tuple[bytes, str | None]:
    head = request if isinstance(request, bytes) else json.dumps(request).encode()
    return head + binary, str(len(head)) if binary else None


def request_of(**changes: Any) -> dict[str, Any]:
    """A good FP32 request with the first input changed; a change to None takes the key away."""
    entry = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} | changes
    return {"inputs": [{key: value for key, value in entry.items() if value is not None}]}


def refusal(codec: Codec, body: bytes, header_length: str | None = None) -> str:
    with pytest.raises(RequestRefused) as refused:
        codec.decode(body, header_length)
    assert 400 <= refused.value.status < 500
    return refused.value.message


def arrays(datatype: str) -> st.SearchStrategy[NDArray[Any]]:
    dtype = np.dtype(DATATYPES[datatype])
    shapes = st.tuples(st.integers(1, MAX_BATCH), st.just(3))
    if datatype == "BYTES":
        return hnp.arrays(object, shapes, elements=st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(str.encode))
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    return hnp.arrays(dtype, shapes, elements=hnp.from_dtype(dtype, **finite))


datatypes = st.sampled_from(sorted(DATATYPES))
json_datatypes = st.sampled_from(sorted(set(DATATYPES) - {"FP16"}))


def parse_reply(body: bytes, header_length: int | None) -> tuple[dict[str, Any], bytes]:
    if header_length is None:
        return orjson.loads(body), b""
    return orjson.loads(body[:header_length]), body[header_length:]


@given(st.data(), datatypes)
def test_binary_there_and_back_is_bit_exact(data: st.DataObject, datatype: str) -> None:
    array = data.draw(arrays(datatype))
    codec = codec_of(datatype)
    raw = b"".join(len(v).to_bytes(4, "little") + v for v in array.flat) if datatype == "BYTES" else array.tobytes()
    entry = {"name": "x", "shape": list(array.shape), "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
    body, header_length = as_body({"id": "7", "inputs": [entry], "parameters": {"binary_data_output": True}}, raw)
    request = codec.decode(body, header_length)
    assert request.inputs["x"].dtype == array.dtype and request.inputs["x"].shape == array.shape
    reply = codec.encode(request, {"x": array})
    sent = b"".join(bytes(chunk) for chunk in reply.chunks)
    head, tensors = parse_reply(sent, reply.header_length)
    assert len(sent) == reply.content_length
    assert tensors == raw
    assert head["id"] == "7"
    assert head["outputs"] == [entry]


@given(st.data(), json_datatypes, st.booleans())
def test_json_there_and_back_is_exact(data: st.DataObject, datatype: str, nested: bool) -> None:
    array = data.draw(arrays(datatype))
    codec = codec_of(datatype)
    values: Any = [v.decode() for v in array.flat] if datatype == "BYTES" else array.reshape(-1).tolist()
    flat = values
    if nested:
        values = [values[i : i + 3] for i in range(0, len(values), 3)]
    request = codec.decode(orjson.dumps(request_of(shape=list(array.shape), datatype=datatype, data=values)), None)
    assert request.inputs["x"].dtype == array.dtype
    assert request.inputs["x"].tolist() == array.tolist()
    reply = codec.encode(request, {"x": array})
    head, _ = parse_reply(b"".join(bytes(chunk) for chunk in reply.chunks), reply.header_length)
    back = np.array(head["outputs"][0]["data"], array.dtype if datatype != "BYTES" else object)
    assert back.tolist() == flat


def test_binary_input_is_a_view_of_the_body() -> None:
    raw = np.arange(3, dtype=np.float32).tobytes()
    body, header_length = as_body(request_of(data=None, parameters={"binary_data_size": 12}), raw)
    array = codec_of().decode(body, header_length).inputs["x"]
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))
    assert not array.flags.writeable


def test_a_head_seen_before_changes_nothing_but_the_time() -> None:
    codec = codec_of("BOOL")
    raw = b"\0\1\1"
    body, length = as_body(request_of(datatype="BOOL", data=None, parameters={"binary_data_size": 3}), raw)
    first, second = codec.decode(body, length), codec.decode(body, length)
    assert first.inputs["x"].tolist() == second.inputs["x"].tolist() == [[False, True, True]]
    assert (first.shapes, first.names, first.binary, first.id) == (second.shapes, second.names, second.binary, second.id)
    for torn, names in ((raw[:-1], "2 bytes of binary data came"), (raw + b"\0", "1 bytes follow"), (b"\2\0\0", "other than 0 and 1")):
        assert names in refusal(codec, as_body(request_of(datatype="BOOL", data=None, parameters={"binary_data_size": 3}), torn)[0], length)


def test_large_output_is_sent_without_a_copy() -> None:
    codec = codec_of()
    body, _ = as_body(request_of() | {"outputs": [{"name": "x", "parameters": {"binary_data": True}}]})
    answer = np.zeros((4, 3), np.float32)
    reply = codec.encode(codec.decode(body, None), {"x": answer})
    assert np.shares_memory(np.frombuffer(reply.chunks[1], np.uint8), answer)


@pytest.mark.parametrize("value", [0.1, 1e308, 5e-324, -0.0, 2**53 + 1])
def test_fp64_keeps_every_bit(value: float) -> None:
    codec = codec_of("FP64")
    request = codec.decode(orjson.dumps(request_of(datatype="FP64", data=[value] * 3)), None)
    reply = codec.encode(request, request.inputs)
    assert orjson.loads(bytes(reply.chunks[0]))["outputs"][0]["data"] == [float(value)] * 3


@pytest.mark.parametrize(("datatype", "value"), [("INT64", 2**63 - 1), ("INT64", -(2**63)), ("UINT64", 2**64 - 1)])
def test_64_bit_integers_are_exact(datatype: str, value: int) -> None:
    codec = codec_of(datatype)
    request = codec.decode(orjson.dumps(request_of(datatype=datatype, data=[value] * 3)), None)
    assert request.inputs["x"].tolist() == [[value] * 3]
    assert str(value).encode() in bytes(codec.encode(request, request.inputs).chunks[0])


BAD_BODIES: list[tuple[object, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"inputs": ' + b"[" * 500 + b"]" * 500 + b"}", "not an object"),
    (b"[]", "not a JSON object"),
    (b"{}", "'inputs'"),
    ({"inputs": {}}, "'inputs'"),
    ({"inputs": []}, "input 'x' is missing"),
    ({"inputs": [3]}, "not an object"),
    ({"inputs": [{"name": "y" * 10_000}]}, "unknown input 'yyy"),
    ({"inputs": [{"name": f"i{n}"} for n in range(5000)]}, "5000 inputs"),
    ({"inputs": [{"name": "x"}] * 2}, "given twice"),
    (request_of(name=None), "unknown input null"),
    (request_of(name=["x"]), "unknown input"),
    (request_of(datatype="FP64"), "has datatype 'FP64', the model takes FP32"),
    (request_of(datatype="BYTES"), "has datatype 'BYTES'"),
    (request_of(datatype=None), "has datatype null"),
    (request_of(shape=None), "'shape' is missing"),
    (request_of(shape=[3]), "1 axes"),
    (request_of(shape=[1] * 5000), "5000 axes"),
    (request_of(shape=[1, math.nan]), "not JSON"),
    (request_of(shape=[1.0, 3]), "not an integer"),
    (request_of(shape=[True, 3]), "not an integer"),
    (request_of(shape=[-1, 3]), "sizes start at 1"),
    (request_of(shape=[0, 3], data=[]), "sizes start at 1"),
    (request_of(shape=[1, 4], data=[1, 2, 3, 4]), "[1, 3] to [4, 3]"),
    (request_of(shape=[5, 3], data=[1] * 15), "the maximum batch is 4"),
    (request_of(shape=[2**62, 2**62]), "its shape"),
    (request_of(shape=[10**30, 3]), "not an integer"),
    (request_of(data=None), "'data' is not a list"),
    (request_of(data="abc"), "'data' is not a list"),
    (request_of(data=[1, 2]), "has 2 values"),
    (request_of(data=[1, 2, None]), "null"),
    (request_of(data=[1, 2, True]), "a boolean"),
    (request_of(data=[1, 2, "3"]), "a string"),
    (request_of(data=[1, 2, [3]]), "a list"),
    (request_of(data=[1, 2, {}]), "an object"),
    (request_of(data=[[1, 2], [3]]), "not of shape"),
    (request_of(data=[[[1, 2, 3]]]), "not of shape"),
    (request_of(data=[1, 2, 1e39]), "out of range"),
    (b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,1e999]}]}', "not JSON"),
    (request_of(data=[1, 2, math.inf]), "not JSON"),
    (request_of(parameters=3), "'parameters' is not an object"),
    (request_of(parameters={"binary_data_size": 12}), "no Inference-Header-Content-Length"),
    (request_of(parameters={"binary_data_size": -1}), "not a size"),
    (request_of(parameters={"binary_data_size": "12"}), "not a size"),
    (request_of(parameters={"shared_memory_region": "r"}), "shared memory"),
    (request_of() | {"parameters": []}, "'parameters' is not an object"),
    (request_of() | {"parameters": {"binary_data_output": 1}}, "not true or false"),
    (request_of() | {"id": 3}, "'id' is 3"),
    (request_of() | {"outputs": {}}, "'outputs' is not a list"),
    (request_of() | {"outputs": ["x"]}, "unknown output"),
    (request_of() | {"outputs": [{"name": "nope"}]}, "unknown output 'nope'"),
    (request_of() | {"outputs": [{"name": "x"}] * 2}, "asked for twice"),
    (request_of() | {"outputs": [{"name": "x", "parameters": {"classification": 3}}]}, "classification"),
]


@pytest.mark.parametrize(("request_", "names"), BAD_BODIES)
def test_a_bad_request_says_what_was_wrong(request_: object, names: str) -> None:
    message = refusal(codec_of(), as_body(request_)[0])
    assert names in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("datatype", "data", "names"),
    [
        ("INT8", [1, 2, 128], "128, which is out of range"),
        ("UINT8", [1, 2, -1], "-1, which is out of range"),
        ("INT64", [1, 2, 2**63], "out of range"),
        ("UINT64", [1, 2, 2**64], "a number with a fraction"),
        ("INT32", [1, 2, 3.0], "a number with a fraction"),
        ("INT32", [1, 2, True], "a boolean"),
        ("BOOL", [1, 0, 1], "an integer"),
        ("FP16", [1, 2, 3], "FP16, which JSON data cannot carry"),
        ("BYTES", [1, 2, 3], "an integer"),
    ],
)
def test_json_values_must_be_of_the_datatype(datatype: str, data: list[Any], names: str) -> None:
    assert names in refusal(codec_of(datatype), as_body(request_of(datatype=datatype, data=data))[0])


@pytest.mark.parametrize(
    ("size", "binary", "header_length", "names"),
    [
        (12, b"\0" * 11, None, "11 bytes of binary data came"),
        (12, b"\0" * 13, None, "1 bytes follow"),
        (8, b"\0" * 8, None, "takes 12 bytes"),
        (12, b"\0" * 12, "99999", "the body has"),
        (12, b"\0" * 12, "-1", "not a length"),
        (12, b"\0" * 12, "1" * 500, "not a length"),
        (12, b"\0" * 12, "\u00b2", "not a length"),
        (12, b"\0" * 12, "0", "not JSON"),
        (2**70, b"\0" * 12, None, "not a size"),
    ],
)
def test_short_long_and_torn_binary(size: int, binary: bytes, header_length: str | None, names: str) -> None:
    body, length = as_body(request_of(data=None, parameters={"binary_data_size": size}), binary)
    assert names in refusal(codec_of(), body, length if header_length is None else header_length)


def test_binary_values_that_no_datatype_has() -> None:
    body, length = as_body(request_of(datatype="BOOL", data=None, parameters={"binary_data_size": 3}), b"\0\1\2")
    assert "other than 0 and 1" in refusal(codec_of("BOOL"), body, length)
    for raw in (b"\xff\xff\xff\xff", b"\1\0", b"\0" * 8):
        body, length = as_body(request_of(datatype="BYTES", data=None, parameters={"binary_data_size": len(raw)}), raw)
        assert "BYTES" in refusal(codec_of("BYTES"), body, length)


def test_inputs_must_agree_on_a_named_axis() -> None:
    codec = Codec(manifest_of(tensor_of("FP32", "a"), tensor_of("FP32", "b")))
    entries = [{"name": n, "shape": [batch, 3], "datatype": "FP32", "data": [0] * 3 * batch} for n, batch in (("a", 1), ("b", 2))]
    assert "axis 'batch' is 1 in input 'a' and 2 in input 'b'" in refusal(codec, orjson.dumps({"inputs": entries}))


def test_what_json_cannot_carry_is_refused_not_altered() -> None:
    codec = codec_of()
    request = codec.decode(orjson.dumps(request_of()), None)
    with pytest.raises(RequestRefused, match="NaN or infinity") as refused:
        codec.encode(request, {"x": np.array([[1, np.nan, 3]], np.float32)})
    assert refused.value.status == 406
    half = Codec(manifest_of(tensor_of("FP32"), outputs=(tensor_of("FP16", "y"),)))
    assert "output 'y' is FP16" in refusal(half, orjson.dumps(request_of()))


def test_requested_outputs_and_their_order() -> None:
    codec = Codec(manifest_of(tensor_of("FP32"), outputs=(tensor_of("FP32", "a"), tensor_of("INT8", "b"))))
    outputs = {"a": np.zeros((1, 3), np.float32), "b": np.ones((1, 3), np.int8)}
    body = orjson.dumps(request_of() | {"outputs": [{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}]})
    request = codec.decode(body, None)
    assert request.names == ("b", "a")
    reply = codec.encode(request, outputs)
    head, tensors = parse_reply(b"".join(bytes(chunk) for chunk in reply.chunks), reply.header_length)
    assert [output["name"] for output in head["outputs"]] == ["b", "a"]
    assert tensors == b"\1\1\1"
    assert codec.decode(orjson.dumps(request_of()), None).names is None


def test_metadata_says_minus_one_for_a_dynamic_axis() -> None:
    document = orjson.loads(model_metadata(replace(manifest_of(tensor_of("FP32")), name="resnet50")))
    assert document["name"] == "resnet50"
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]


scalars = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8)
keys = st.sampled_from(["name", "shape", "data", "datatype", "parameters", "id"])
json_values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12)


def decode_or_refuse(body: bytes, header_length: str | None) -> InferRequest | None:
    try:
        return codec_of().decode(body, header_length)
    except RequestRefused as refused:
        assert 400 <= refused.status < 500
        assert refused.message
        return None


@settings(max_examples=300)
@given(st.binary(max_size=200), st.none() | st.text(max_size=6) | st.integers(-5, 300).map(str))
def test_rubbish_is_refused(body: bytes, header_length: str | None) -> None:
    assert decode_or_refuse(body, header_length) is None


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), json_values), json_values, st.binary(max_size=30)
)
def test_mutated_requests_are_answered_or_refused(changes: dict[str, Any], rest: Any, binary: bytes) -> None:
    raw = request_of(**changes) | ({"outputs": rest, "parameters": rest} if rest is not None else {})
    body, header_length = as_body(json.dumps(raw).encode(), binary)
    request = decode_or_refuse(body, header_length)
    if request is not None:
        assert request.inputs["x"].shape[1] == 3 and np.isfinite(request.inputs["x"]).all()


def test_whatever_a_client_sent_is_quoted_shortly() -> None:
    deep: Any = []
    for _ in range(1000):
        deep = [deep]
    for value in (deep, {"a": deep}, [deep] * 1000, ["x" * 10**6] * 10, {str(n): n for n in range(10**5)}, "x" * 10**6, None, 2**63):
        assert 0 < len(shorten(value)) <= 80
    assert shorten([1, 2.5, "three", None, {"four": [True]}]) == "[1, 2.5, 'three', None, {'four': [True]}]"
