"""What counts as a right answer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.openloop.verify import Output, ReplyCheck

OUTPUTS = (Output(name="y", datatype="FP32", shape=(-1, 2)),)


def binary(values: list[float], **changed: Any) -> tuple[bytes, int]:
    raw = np.array(values, "<f4").tobytes()
    output = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": len(raw)}, **changed}
    head = json.dumps({"outputs": [output]}).encode()
    return head + raw, len(head)


def plain(**changed: Any) -> bytes:
    return json.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0], **changed}]}).encode()


def check(every: int = 0, **options: Any) -> ReplyCheck:
    return ReplyCheck(OUTPUTS, batch=1, verify_every=every, **options)


def test_right_answers() -> None:
    one = check()
    for _ in range(3):
        assert one(*binary([1, 2]), 0) is None
        assert one(plain(), -1, 0) is None
        assert one(plain(data=[[1.0, 2.0]]), -1, 0) is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (plain(name="z"), "'y' is missing"),
        (plain(datatype="FP64"), "datatype FP64"),
        (plain(shape=[2, 2]), "shape [2, 2]"),
        (plain(shape=[2]), "shape [2]"),
        (plain(shape=None), "no shape"),
        (plain(data=[1.0]), "not the 2 values"),
        (plain(parameters={"binary_data_size": 8}), "no tensor bytes follow"),
        (plain(parameters=[1]), "parameters that are not an object"),
        (plain().replace(b"[1.0, 2.0]", b"[" * 900 + b"1" + b"]" * 900), "not the 2 values"),
        (json.dumps({"outputs": json.loads(plain())["outputs"] * 2}).encode(), "there twice"),
        (b'{"outputs": 3}', "not a V2"),
        (b"<html>", "not a V2"),
        (json.dumps({"outputs": [json.loads(plain())["outputs"][0], {"name": "extra"}]}).encode(), "'extra' was not declared"),
    ],
)
def test_wrong_json_answers(body: bytes, says: str) -> None:
    reason = check()(body, -1, 0)
    assert reason is not None and says in reason


def test_wrong_binary_answers() -> None:
    body, length = binary([1, 2])
    short = check()(body[:-1], length, 0)
    assert short is not None and "7 bytes of tensors where its JSON says 8" in short
    beyond = check()(body, len(body) + 1, 0)
    assert beyond is not None and "the body has" in beyond
    wrong_size = check()(*binary([1, 2, 3]), 0)
    assert wrong_size is not None and "12 bytes" in wrong_size


def test_values_against_the_first_answer() -> None:
    one = check(every=2)
    answers = [[1, 2], [9, 9], [1, 2.0005], [1, 2], [1, 2.1]]  # the 2nd and 4th are not looked at
    assert [one(*binary(values), seq) for seq, values in enumerate(answers)] == [None] * 5
    assert list(one.compare_samples()) == [4]
    assert one.compared == 3 and one.compare_samples() == {}


def test_values_against_known_ones() -> None:
    one = check(every=1, expected={"y": np.array([[1, 2]], "f4")})
    one(*binary([1, 2]), 7)
    one(*binary([1, 3]), 8)
    one(plain(), -1, 9)
    reasons = one.compare_samples()
    assert list(reasons) == [8] and "expected" in reasons[8]


def test_values_within_the_tolerance_of_the_engine() -> None:
    """An fp16 or int8 engine behind FP32 tensors answers right by its own measure."""
    body, head = binary([1.0, 2.01])
    for tolerance, wrong in ((None, True), (0.02, False)):
        one = check(every=1, expected={"y": np.array([[1, 2]], "f4")}, tolerance=tolerance)
        assert one(body, head, 1) is None
        assert bool(one.compare_samples()) == wrong


def test_a_comparison_that_fails_costs_its_own_row() -> None:
    one = check(every=1, expected={"z": np.zeros(2, "f4")})  # an output that the answer does not have
    assert one(plain(), -1, 5) is None
    assert "cannot be compared" in one.compare_samples()[5]
    deep = check(every=1)
    assert deep(plain().replace(b"[1.0, 2.0]", b"[" * 400 + b"1,2" + b"]" * 400), -1, 6) is None
    assert "not of the datatype" in deep.compare_samples()[6]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["y", "FP32", "name", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "datatype", "shape", "data", "parameters"]), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = st.fixed_dictionaries(
    {"name": JSON | st.just("y"), "datatype": JSON | st.just("FP32"), "shape": JSON | st.just([1, 2])},
    optional={"data": JSON | st.just([1, "a"]), "parameters": JSON | st.dictionaries(st.just("binary_data_size"), JSON | st.just(8))},
)


@given(outputs=st.lists(KEYS, max_size=2) | JSON, tail=st.binary(max_size=9), binary_length=st.booleans())
def test_no_answer_makes_the_check_fail_itself(outputs: Any, tail: bytes, binary_length: bool) -> None:
    one = check(every=1)
    head = json.dumps({"outputs": outputs}).encode()
    reason = one(head + tail, len(head), 1) if binary_length else one(head, -1, 1)
    assert reason is None or reason
    assert set(one.compare_samples()) <= {1}
