"""The syntax of `--shape` and `--input`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.manifest import DATATYPES, ShapeRange, Tensor
from bench.engine.shapes import (
    BATCH_AXIS,
    InputSource,
    make_values,
    parse_assignments,
    parse_input,
    parse_shape,
    resolve_shapes,
    show_dims,
)
from bench.errors import BenchError


def tensor(name: str, *dims: int | str, datatype: str = "FP32") -> Tensor:
    return Tensor(name=name, datatype=datatype, dims=dims)


def fixed(*shape: int) -> ShapeRange:
    return ShapeRange(min=shape, opt=shape, max=shape)


sizes = st.lists(st.integers(1, 10**6), min_size=1, max_size=6)


@given(sizes)
def test_one_shape_is_all_three(shape: list[int]) -> None:
    assert parse_shape("x".join(map(str, shape))) == fixed(*shape)


@given(sizes, sizes, sizes)
def test_three_shapes_are_read_in_order_or_refused(a: list[int], b: list[int], c: list[int]) -> None:
    text = ":".join("x".join(map(str, shape)) for shape in (a, b, c))
    grows = len(a) == len(b) == len(c) and all(x <= y <= z for x, y, z in zip(a, b, c, strict=True))
    if grows:
        assert parse_shape(text) == ShapeRange(min=tuple(a), opt=tuple(b), max=tuple(c))
    else:
        with pytest.raises(BenchError):
            parse_shape(text)


@given(st.lists(st.integers(1, 999), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3))
def test_dots_keep_the_remaining_axes_of_the_first(first: list[int], kept: int, more: int, yet_more: int) -> None:
    head = first[: max(0, len(first) - kept)]
    grown = [[size + by for size in head] for by in (more, more + yet_more)]
    rest = first[len(head) :]
    text = ":".join(["x".join(map(str, first)), *("x".join([*map(str, g), "..."]) for g in grown)])
    assert parse_shape(text) == ShapeRange(min=tuple(first), opt=tuple(grown[0] + rest), max=tuple(grown[1] + rest))


@given(st.text(max_size=12))
def test_any_text_is_a_shape_or_one_sentence(text: str) -> None:
    try:
        shape = parse_shape(text)
    except BenchError as refused:
        assert repr(text) in str(refused)
    else:
        assert all(size > 0 for size in shape.min)


@pytest.mark.parametrize(
    "text", ["", "x", "1x", "x1", "1X2", "-1x2", "1x2:3x4", "1:2:3:4", "...", "1x...", "1.5", "0x3", "3x2:2x2:4x2", "²"]
)
def test_what_is_not_a_shape_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="--shape"):
        parse_shape(text)


@pytest.mark.parametrize("text", ["a", "=1", "a=", "="])
def test_an_assignment_needs_both_sides(text: str) -> None:
    with pytest.raises(BenchError, match=r"--shape .* is not NAME=VALUE"):
        parse_assignments([text], "--shape")


def test_assignments_split_at_the_first_equals_sign_and_take_each_name_once() -> None:
    assert parse_assignments(["a=1", "b=c=d"], "--set") == {"a": "1", "b": "c=d"}
    with pytest.raises(BenchError, match="'a' twice"):
        parse_assignments(["a=1", "a=1"], "--set")


def test_a_fixed_shape_and_a_scalar_need_no_flag() -> None:
    assert resolve_shapes([tensor("x", 1, 3), tensor("rate")], {}) == {"x": fixed(1, 3), "rate": fixed()}


def test_an_unnamed_first_axis_is_the_batch_of_all_inputs() -> None:
    batch = ShapeRange(min=(1, 3), opt=(4, 3), max=(8, 3))
    inputs = [tensor("a", BATCH_AXIS, 3), tensor("b", BATCH_AXIS, 3)]
    assert resolve_shapes(inputs, {}) == {"a": batch, "b": batch}
    assert resolve_shapes(inputs, {"b": "2x3"}) == {"a": fixed(2, 3), "b": fixed(2, 3)}


def test_an_axis_that_inputs_share_is_given_once() -> None:
    inputs = [tensor("ids", "batch", "sequence"), tensor("mask", "batch", "sequence"), tensor("state", 2, "batch", 128)]
    ranges = resolve_shapes(inputs, {"ids": "1x8:2x16:4x32"})
    assert ranges["mask"] == ranges["ids"]
    assert ranges["state"] == ShapeRange(min=(2, 1, 128), opt=(2, 2, 128), max=(2, 4, 128))


def test_a_missing_size_names_the_flag_that_gives_it() -> None:
    with pytest.raises(BenchError, match=r"input 'ids' has the dynamic axis 1 \(sequence\) without a size: .*--shape ids=1xNx4"):
        resolve_shapes([tensor("ids", "batch", "sequence", 4)], {})


@pytest.mark.parametrize(
    ("given_shapes", "complaint"),
    [
        ({"nobody": "1x4"}, "'nobody', but the model's inputs are a, b"),
        ({"a": "1x4x4"}, r"has 3 axes, the input has 2: \[batch, 4\]"),
        ({"a": "1x5"}, "axis 1 is fixed at 4"),
        ({"a": "1x4:1x4:1x8"}, "axis 1 is fixed at 4"),
        ({"a": "1x4", "b": "2x9"}, "axis 'batch' was given another size for another input"),
        ({"a": "1x4:2x4:3x4", "b": "1x9"}, "axis 'batch' was given another size for another input"),
    ],
)
def test_conflicts_name_the_flag_and_the_model(given_shapes: dict[str, str], complaint: str) -> None:
    with pytest.raises(BenchError, match=complaint):
        resolve_shapes([tensor("a", "batch", 4), tensor("b", "batch", "length")], given_shapes)


def test_dims_for_a_person() -> None:
    assert show_dims(tensor("x", "batch", 3, "")) == "[batch, 3, ?]"


@pytest.mark.parametrize(
    "text", ["uniform:", "uniform:1", "uniform:a:b", "uniform:1:2:3", "uniform:2:1", "uniform:nan:1", "uniform:0:inf", "zeros"]
)
def test_what_is_not_an_input_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="--input x="):
        parse_input("x", text)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_uniform_values_lie_between_their_bounds(low: float, width: float) -> None:
    source = parse_input("x", f"uniform:{low!r}:{low + width!r}")
    values = make_values(tensor("x", 50, datatype="FP64"), (50,), source, np.random.default_rng(0))
    assert ((values >= low) & (values <= low + width)).all()


@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"BYTES"}))
def test_default_values_have_the_datatype_and_lie_between_0_and_1(datatype: str) -> None:
    values = make_values(tensor("x", 200, datatype=datatype), (200,), InputSource(), np.random.default_rng(0))
    assert values.dtype == np.dtype(DATATYPES[datatype])
    assert set(np.unique(values.astype(np.float64) >= 0)) == {True}
    assert values.astype(np.float64).max() <= 1
    if datatype == "BOOL":
        assert values.all()
    elif values.dtype.kind in "iu":
        assert set(values.tolist()) == {0, 1}  # both ends are included


@pytest.mark.parametrize("text", ["uniform:0:256", "uniform:-1:3", "uniform:0.5:3"])
def test_whole_numbers_must_fit_the_datatype(text: str) -> None:
    with pytest.raises(BenchError, match="does not fit UINT8"):
        make_values(tensor("x", 1, datatype="UINT8"), (1,), parse_input("x", text), np.random.default_rng(0))


def test_the_seed_gives_the_values() -> None:
    first, again, other = (make_values(tensor("x", 8), (8,), InputSource(), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def values_from(path: Path, target: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return make_values(target, shape, parse_input(target.name, str(path)), np.random.default_rng(0))


def test_an_array_of_the_users_is_taken_by_name_or_as_the_only_one(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.savez(tmp_path / "two.npz", x=rows, y=rows + 1)
    np.savez(tmp_path / "one.npz", whatever=rows)
    for path in (tmp_path / "two.npz", tmp_path / "one.npz"):
        values = values_from(path, tensor("x", "batch", 3), (2, 3))
        assert values.dtype == np.float32
        assert values.tolist() == rows.tolist()
    with pytest.raises(BenchError, match="no array 'z', only x, y"):
        parse_input("z", str(tmp_path / "two.npz"))


def test_an_array_is_repeated_along_the_batch_and_nowhere_else(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "x.npz", x=rows)
    assert values_from(tmp_path / "x.npz", tensor("x", "batch", 3), (5, 3)).tolist() == [*rows.tolist(), *rows.tolist(), rows[0].tolist()]
    assert values_from(tmp_path / "x.npz", tensor("x", "batch", 3), (1, 3)).tolist() == [rows[0].tolist()]
    with pytest.raises(BenchError, match=r"has shape \[2, 3\], the engine is built for \[2, 4\]; give --shape"):
        values_from(tmp_path / "x.npz", tensor("x", "batch", 4), (2, 4))


def test_an_array_of_another_kind_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([0.5, 1.5]))
    with pytest.raises(BenchError, match="the array is float64, the input takes INT64"):
        values_from(tmp_path / "x.npz", tensor("x", 2, datatype="INT64"), (2,))


def test_whole_numbers_that_the_datatype_cannot_hold_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([1, 2**40]))
    with pytest.raises(BenchError, match="values that INT32 cannot hold"):
        values_from(tmp_path / "x.npz", tensor("x", 2, datatype="INT32"), (2,))


def broken_npz(path: Path, how: str) -> None:
    if how == "missing":
        return
    np.savez(path, x=np.zeros(1000))
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "rubbish":
        path.write_bytes(b"not an archive")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped byte":
        path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif how == "an .npy":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    elif how == "pickled objects":
        np.savez(path, x=np.array([{}], dtype=object))
    elif how == "no arrays":
        np.savez(path)


@pytest.mark.parametrize("how", ["missing", "empty", "rubbish", "truncated", "flipped byte", "an .npy", "pickled objects", "no arrays"])
def test_a_file_of_values_that_cannot_be_read_is_one_sentence(tmp_path: Path, how: str) -> None:
    broken_npz(tmp_path / "x.npz", how)
    with pytest.raises(BenchError, match=r"--input x=.*x\.npz: "):
        parse_input("x", str(tmp_path / "x.npz"))


def test_more_values_than_fit_into_memory_are_one_sentence() -> None:
    for shape in ((2**45, 64), (2**62, 2**62)):
        with pytest.raises(BenchError, match=r"input 'x' of shape .* does not fit into memory"):
            make_values(tensor("x", "batch", 64), shape, InputSource(), np.random.default_rng(0))
