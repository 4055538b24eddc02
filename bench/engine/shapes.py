"""Which shapes and values an engine is built and probed with: the syntax of `--shape` and `--input`.

    --shape input_ids=1x128                          one shape
    --shape input=1x3x224x224:4x...:8x...            smallest, most frequent and largest; `...` keeps the axes of the first
    --shape input=1x3x224x224,2x3x224x224:4x...:8x...    two profiles: a comma begins the next one
    --input input_ids=uniform:0:30521                seeded values between two bounds (both included for integers)
    --input image=FILE.npz                           an array of that name in an .npz file, or the only one in it

A first axis that is dynamic is the batch unless it is given a size: profile 1:4:8. Any other dynamic axis needs one.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.engine.manifest import DATATYPES, ShapeRange, Tensor
from bench.engine.probe import UNREADABLE, read_array
from bench.errors import BenchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BATCH_AXIS = "batch"
BATCH_PROFILE = (1, 4, 8)


def parse_assignments(texts: Sequence[str], flag: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping. A tensor's name may hold `=`-free text only. Raises BenchError."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise BenchError(f"{flag} {text!r} is not NAME=VALUE")
        if name in found:
            raise BenchError(f"{flag} names {name!r} twice; give it once")
        found[name] = value
    return found


def parse_shape(text: str, flag: str = "--shape") -> ShapeRange:
    """`1x128` or `1x128:4x128:8x128` (`...` repeats the remaining axes of the first). Raises BenchError."""
    parts = text.split(":")
    if len(parts) not in (1, 3):
        raise BenchError(f"{flag} {text!r} is not one shape such as 1x128, nor three of them as min:opt:max")
    first = _sizes(parts[0], (), text, flag)
    shapes = [first, *(_sizes(part, first, text, flag) for part in parts[1:])] * (1 if len(parts) == 3 else 3)
    low, opt, high = shapes
    if not len(low) == len(opt) == len(high):
        raise BenchError(f"{flag} {text!r}: the three shapes have {len(low)}, {len(opt)} and {len(high)} axes")
    if any(not a <= b <= c for a, b, c in zip(low, opt, high, strict=True)):
        raise BenchError(f"{flag} {text!r}: each axis must grow from min over opt to max")
    return ShapeRange(min=low, opt=opt, max=high)


def _sizes(text: str, first: tuple[int, ...], whole: str, flag: str) -> tuple[int, ...]:
    kept: tuple[int, ...] = ()
    if first and text.endswith("..."):
        head = text.removesuffix("...").removesuffix("x")
        kept = first[len(head.split("x")) if head else 0 :]
        if not head:
            return kept
        text = head
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise BenchError(f"{flag} {whole!r}: {text!r} is not a shape, write sizes joined by x such as 1x3x224x224")
    sizes = tuple(int(size) for size in text.split("x")) + kept
    if 0 in sizes:
        raise BenchError(f"{flag} {whole!r}: an axis of size 0 holds nothing to infer")
    return sizes


def resolve_profiles(tensors: Sequence[Tensor], given: Mapping[str, str]) -> tuple[dict[str, ShapeRange], ...]:
    """One range of shapes an input and profile. An input given once for several profiles has that shape in all of them.

    Raises BenchError.
    """
    split = {name: text.split(",") for name, text in given.items()}
    count = max((len(parts) for parts in split.values()), default=1)
    for name, parts in split.items():
        if len(parts) not in (1, count):
            raise BenchError(f"--shape {name}={given[name]} names {len(parts)} profiles, another input names {count}")
    return tuple(
        resolve_shapes(tensors, {name: parts[number] if len(parts) > 1 else parts[0] for name, parts in split.items()})
        for number in range(count)
    )


def resolve_shapes(tensors: Sequence[Tensor], given: Mapping[str, str]) -> dict[str, ShapeRange]:
    """The range of shapes for every input, from its declared dims and what the user gave.

    A size given for a named axis (`sequence`) holds for all inputs that share the name. Raises BenchError that says
    which flag is missing or wrong.
    """
    names = [t.name for t in tensors]
    for name in given:
        if name not in names:
            raise BenchError(f"--shape names {name!r}, but the model's inputs are {', '.join(names)}")
    ranges: dict[str, ShapeRange] = {}
    axes: dict[str, tuple[int, int, int]] = {}
    for tensor in tensors:
        if tensor.name not in given:
            continue
        shape = parse_shape(given[tensor.name])
        if len(shape.min) != len(tensor.dims):
            raise BenchError(
                f"--shape {tensor.name}={given[tensor.name]} has {len(shape.min)} axes, "
                f"the input has {len(tensor.dims)}: {show_dims(tensor)}"
            )
        for axis, dim in enumerate(tensor.dims):
            sizes = (shape.min[axis], shape.opt[axis], shape.max[axis])
            if isinstance(dim, int) and sizes != (dim, dim, dim):
                raise BenchError(f"--shape {tensor.name}={given[tensor.name]}: axis {axis} is fixed at {dim} in the model")
            if isinstance(dim, str) and dim and axes.setdefault(dim, sizes) != sizes:
                raise BenchError(f"--shape {tensor.name}={given[tensor.name]}: axis {dim!r} was given another size for another input")
        ranges[tensor.name] = shape
    for tensor in tensors:
        if tensor.name in ranges:
            continue
        sizes_by_axis = [_axis_sizes(tensor, axis, dim, axes) for axis, dim in enumerate(tensor.dims)]
        low, opt, high = zip(*sizes_by_axis, strict=True) if sizes_by_axis else ((), (), ())
        ranges[tensor.name] = ShapeRange(min=low, opt=opt, max=high)
    return ranges


def _axis_sizes(tensor: Tensor, axis: int, dim: int | str, axes: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    if isinstance(dim, int):
        return (dim, dim, dim)
    if dim in axes:
        return axes[dim]
    if axis == 0:
        return BATCH_PROFILE
    raise BenchError(
        f"input {tensor.name!r} has the dynamic axis {axis} ({dim or 'unnamed'}) without a size: "
        f"give one with --shape {tensor.name}={'x'.join(_hint(d) for d in tensor.dims)}"
    )


def _hint(dim: int | str) -> str:
    return str(dim) if isinstance(dim, int) else "1" if dim == BATCH_AXIS else "N"


def show_dims(tensor: Tensor) -> str:
    """The dims for a person: `[batch, 3, ?]`."""
    return "[" + ", ".join(str(dim) if dim != "" else "?" for dim in tensor.dims) + "]"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """Where an input's values come from: seeded uniform numbers, or an array of the user's."""

    low: float = 0.0
    high: float = 1.0
    array: Any = None  # numpy array, where the user brought one


def parse_input(name: str, text: str) -> InputSource:
    """`uniform:LO:HI` or the path of an .npz file. Raises BenchError."""
    if text.startswith("uniform:"):
        parts = text.split(":")
        try:
            low, high = (float(part) for part in parts[1:])
        except ValueError:
            raise BenchError(f"--input {name}={text} is not uniform:LO:HI with two numbers") from None
        if not (math.isfinite(high - low) and low <= high):
            raise BenchError(f"--input {name}={text}: LO must not be above HI, and both and their difference must be finite")
        return InputSource(low=low, high=high)
    import numpy as np

    path = Path(text)
    if path.exists() and not path.is_file():
        raise BenchError(f"--input {name}={text}: is not a regular file")
    if path.suffix != ".npz":
        raise BenchError(f"--input {name}={text} is neither uniform:LO:HI nor an .npz file")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BenchError(f"--input {name}={text}: holds one array without a name; write it with numpy.savez")
        with archive:
            key = name if name in archive.files else archive.files[0] if len(archive.files) == 1 else None
            if key is None:
                raise BenchError(f"--input {name}={text}: the file has no array {name!r}, only {', '.join(archive.files) or 'none'}")
            return InputSource(array=read_array(archive, key))
    except FileNotFoundError:
        raise BenchError(f"--input {name}={text}: no such file") from None
    except UNREADABLE as error:
        raise BenchError(f"--input {name}={text}: cannot be read as .npz without pickled objects ({error})") from None


def make_values(tensor: Tensor, shape: Sequence[int], source: InputSource, generator: np.random.Generator) -> NDArray[Any]:
    """Values of one input: C-contiguous, of the tensor's datatype and of `shape`. Raises BenchError.

    An array of the user's is repeated along the first axis where only that axis differs.
    """
    try:
        if math.prod(shape) * 8 > sys.maxsize:  # numpy raises another error for these
            raise MemoryError
        return _make_values(tensor, shape, source, generator)
    except MemoryError:
        raise BenchError(
            f"input {tensor.name!r} of shape {list(shape)} does not fit into memory; give a smaller one with --shape"
        ) from None


def _make_values(tensor: Tensor, shape: Sequence[int], source: InputSource, generator: np.random.Generator) -> NDArray[Any]:
    import numpy as np

    dtype = np.dtype(DATATYPES[tensor.datatype])
    if source.array is not None:
        return _fit(tensor, tuple(shape), source.array, dtype)
    if dtype == np.dtype(object):
        return np.full(tuple(shape), "a", dtype=object)
    if dtype == np.dtype(bool):
        return np.ones(tuple(shape), dtype=bool)
    if dtype.kind == "f":
        if max(abs(source.low), abs(source.high)) > float(np.finfo(dtype).max):
            raise BenchError(f"--input {tensor.name}=uniform:{source.low:g}:{source.high:g} does not fit {tensor.datatype}")
        return np.asarray(generator.uniform(source.low, source.high, tuple(shape)).astype(dtype))
    limits = np.iinfo(dtype)
    if source.low < limits.min or source.high > limits.max or source.low != int(source.low) or source.high != int(source.high):
        raise BenchError(
            f"--input {tensor.name}=uniform:{source.low:g}:{source.high:g} does not fit {tensor.datatype}: give whole numbers in its range"
        )
    return np.asarray(generator.integers(int(source.low), int(source.high), tuple(shape), dtype=dtype, endpoint=True))


def _fit(tensor: Tensor, shape: tuple[int, ...], array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    import numpy as np

    if dtype != np.dtype(object) and not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise BenchError(f"--input {tensor.name}: the array is {array.dtype}, the input takes {tensor.datatype}")
    if array.shape != shape and len(shape) > 0 and array.shape[1:] == shape[1:] and len(array) > 0:
        array = np.resize(array, shape)
    if array.shape != shape:
        raise BenchError(
            f"--input {tensor.name}: the array has shape {list(array.shape)}, the engine is built for {list(shape)}; give --shape"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is looked for below
        fitted = np.ascontiguousarray(array.astype(dtype)).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(fitted).all():
        raise BenchError(f"--input {tensor.name}: the array holds NaN, infinities or values that {tensor.datatype} cannot hold")
    if dtype.kind in "iu" and not np.array_equal(fitted, array):
        raise BenchError(f"--input {tensor.name}: the array holds values that {tensor.datatype} cannot hold")
    return fitted
