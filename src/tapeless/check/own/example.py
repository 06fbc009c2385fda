"""The inputs that a kernel is tried on: what the example shows of them, drawn anew, and placed in memory.

An input is a leaf: a tensor or an array, also inside of a list; or anything else, which is handed on. A float input is
drawn evenly between the smallest and the largest number of the example, so that what is positive stays so and
probabilities stay probabilities; an integer likewise. Axes of one size are taken for one axis that several inputs
share, unless `shapes` names them. `relate` makes inputs what they must be to each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tapeless.check.own.bounds import FORMATS
from tapeless.check.own.harness import as_array, is_tensor
from tapeless.errors import TapelessError
from tapeless.ops.contract import Array

# What is made of numbers between the example's least and largest: a factor and a summand, whether any sign is needed.
SCALES = {
    "positive": (0.25, 1.0, True),
    "a mean of 100, a deviation of 0.1": (0.1, 100.0, True),
    "small numbers": (1e-3, 0.0, False),
    "zeros": (0.0, 0.0, True),
    "numbers of 30": (30.0, 0.0, True),
    "numbers of 1e4": (1e4, 0.0, True),
    "numbers of 1e19": (1e19, 0.0, True),
    "numbers of 1e-25": (1e-25, 0.0, False),
}


@dataclass(frozen=True)
class Leaf:
    """One input: its example, its axes by name, what its numbers lie between."""

    name: str
    value: Any  # an array in float64, or of integers; else as given
    dtype: str = ""  # of the example, where it is floating-point
    axes: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    device: Any = None  # of a tensor
    gradient: bool = False  # is asked for

    @property
    def array(self) -> bool:
        return isinstance(self.value, np.ndarray)

    @property
    def floats(self) -> bool:
        return bool(self.dtype)

    @property
    def free(self) -> bool:
        """Its numbers have both signs: any size will do."""
        return self.low < 0 < self.high or self.low == self.high == 0


Tree = Any  # of inputs: the number of a leaf, or a list or a tuple of trees


@dataclass(frozen=True)
class Example:
    """The leaves of the inputs, how they hang together, the sizes of their axes."""

    leaves: tuple[Leaf, ...]
    tree: tuple[Tree, ...]
    dims: Mapping[str, int]
    relate: Callable[..., Any] | None = None

    @property
    def torch(self) -> bool:
        return any(leaf.device is not None for leaf in self.leaves)

    @property
    def device(self) -> Any:
        return next((leaf.device for leaf in self.leaves if leaf.device is not None), None)

    @property
    def wrt(self) -> tuple[int, ...]:
        return tuple(index for index, leaf in enumerate(self.leaves) if leaf.gradient)

    @property
    def gradients(self) -> tuple[str, ...]:
        return tuple(f"d{self.leaves[index].name}" for index in self.wrt)

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """The inputs as they were given, of these leaves."""
        return [_hung(each, values) for each in self.tree]

    def shape(self, leaf: Leaf, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(axis) if axis.isdigit() else dims[axis] for axis in leaf.axes)


def _hung(tree: Tree, values: Sequence[Any]) -> Any:
    if isinstance(tree, int):
        return values[tree]
    made = [_hung(each, values) for each in tree]
    return made if isinstance(tree, list) else tuple(made)


def example_of(
    names: Sequence[str],
    inputs: Sequence[Any],
    shapes: Any,
    wrt: Sequence[int | str] | None,
    relate: Callable[..., Any] | None,
) -> Example:
    leaves: list[Leaf] = []

    def taken(value: Any, name: str) -> Tree:
        if isinstance(value, list | tuple) and any(is_tensor(x) or isinstance(x, np.ndarray) for x in value):
            return type(value)([taken(each, f"{name}{number}") for number, each in enumerate(value)])
        leaves.append(_leaf(name, value))
        return len(leaves) - 1

    tree = tuple(taken(value, name) for name, value in zip(names, inputs, strict=True))
    chosen = _chosen(leaves, tree, names, wrt)
    axes, dims = _axes(leaves, tree, names, shapes)
    made = [
        replace(leaf, axes=each, gradient=index in chosen)
        for index, (leaf, each) in enumerate(zip(leaves, axes, strict=True))
    ]
    return Example(tuple(made), tree, dims, relate)


def _leaf(name: str, value: Any) -> Leaf:
    if not (is_tensor(value) or isinstance(value, np.ndarray)):
        return Leaf(name, value)
    if is_tensor(value):
        dtype, device = str(value.dtype).removeprefix("torch."), value.device
        array = as_array(value.detach().double() if value.is_floating_point() else value)
    else:
        dtype, device, array = str(value.dtype), None, value
    floats = dtype in FORMATS
    if array.dtype.kind == "f" and not floats:
        raise TapelessError(f"{name} is {dtype}: numbers are {', '.join(FORMATS)}.")
    if floats:
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            where = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
            raise TapelessError(f"{name} holds {array[where]} at {where}: choose finite inputs.")
    low, high = (float(array.min()), float(array.max())) if array.size and array.dtype.kind in "fiub" else (0.0, 0.0)
    return Leaf(name, np.array(array), dtype if floats else "", (), low, high, device)


def _chosen(
    leaves: Sequence[Leaf], tree: Sequence[Tree], names: Sequence[str], wrt: Sequence[int | str] | None
) -> set[int]:
    """The leaves whose gradients are asked for."""
    if wrt is None:
        found = {index for index, leaf in enumerate(leaves) if leaf.floats}
        if not found:
            raise TapelessError("no input is an array of floating-point numbers, so there is no gradient to check.")
        return found
    if isinstance(wrt, str) or not isinstance(wrt, Sequence) or not wrt:
        raise TapelessError(f"wrt must be numbers or names of inputs, such as [0, 2], not {wrt!r}.")
    found = set()
    for each in wrt:
        place = names.index(each) if isinstance(each, str) and each in names else each
        if not isinstance(place, int) or not 0 <= place < len(tree):
            raise TapelessError(f"wrt={list(wrt)}: there is no input {each!r}; choose among {', '.join(names)}.")
        inside = [index for index in _leaves_of(tree[place]) if leaves[index].floats]
        if not inside:
            floats = [leaf.name for leaf in leaves if leaf.floats]
            raise TapelessError(f"wrt={list(wrt)}: input {each!r} is no array of floats; choose among {floats}.")
        found |= set(inside)
    return found


def _leaves_of(tree: Tree) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    else:
        for each in tree:
            yield from _leaves_of(each)


def _axes(
    leaves: Sequence[Leaf], tree: Sequence[Tree], names: Sequence[str], shapes: Any
) -> tuple[list[tuple[str, ...]], dict[str, int]]:
    """The axes of each leaf by name, and their sizes."""
    found = [tuple("1" if n == 1 else f"n{n}" for n in leaf.value.shape) if leaf.array else () for leaf in leaves]
    dims: dict[str, int] = {}
    if shapes is not None:
        if isinstance(shapes, Mapping):
            shapes = [shapes.get(name) for name in names]
        if isinstance(shapes, str) or len(shapes) != len(tree):
            raise TapelessError(
                f"shapes must say the axes of each of the {len(tree)} inputs, such as ['R C', 'C', ''], not {shapes!r}."
            )
        for number, (each, spelling) in enumerate(zip(tree, shapes, strict=True)):
            for index in _leaves_of(each) if spelling is not None else ():
                found[index] = tuple(str(spelling).split())
                if len(found[index]) != len(found_shape := np.shape(leaves[index].value)):
                    raise TapelessError(
                        f"shapes says {str(spelling)!r} of input {number}, which has {len(found_shape)} axes."
                    )
    for number, (leaf, axes) in enumerate(zip(leaves, found, strict=True)):
        for axis, size in zip(axes, leaf.value.shape if leaf.array else (), strict=True):
            known = int(axis) if axis.isdigit() else dims.setdefault(axis, size)
            if known != size:
                raise TapelessError(
                    f"shapes calls two axes {axis}, but one is {known} and one, of input {number}, {size}."
                )
    return found, dims


# Numbers.


def drawn(example: Example, shapes: Sequence[tuple[int, ...] | None], dtype: str, numbers: str, seed: int) -> list[Any]:
    """Leaves of these shapes, rounded to the dtype; integers between the example's least and largest."""
    tensors = example.torch
    source = sys.modules["torch"].Generator().manual_seed(seed) if tensors else np.random.default_rng(seed)
    values: list[Any] = []
    widest = max((len(leaf.axes) for leaf in example.leaves if leaf.floats), default=0)
    for leaf, shape in zip(example.leaves, shapes, strict=True):
        if shape is None or not leaf.array:
            values.append(leaf.value)
        elif numbers == "as given":
            values.append(rounded(leaf.value, dtype) if leaf.floats else leaf.value.copy())
        elif leaf.floats:
            low, high = limits(leaf)
            array = _uniform(source, low, high, shape, tensors)
            values.append(rounded(_scaled(array, leaf, numbers, len(leaf.axes) == widest), dtype))
        elif leaf.value.dtype.kind == "b":
            values.append(_uniform(source, 0, 1, shape, tensors) > 0.5)
        else:
            values.append(_integers(source, int(leaf.low), int(leaf.high) + 1, shape, tensors).astype(leaf.value.dtype))
    if example.relate is not None and numbers != "as given":
        values = _related(example, values, dtype)
    return values


def limits(leaf: Leaf) -> tuple[float, float]:
    """What is drawn lies between these. What was constant, as a weight of ones, varies: else a mistake hides in it."""
    if leaf.low < leaf.high:
        return leaf.low, leaf.high
    if leaf.low == 0:
        return -1.0, 1.0
    return tuple(sorted((0.5 * leaf.low, 1.5 * leaf.low)))  # type: ignore[return-value]


def _uniform(source: Any, low: float, high: float, shape: tuple[int, ...], tensors: bool) -> Array:
    if tensors:
        torch = sys.modules["torch"]
        return np.asarray(torch.empty(shape).uniform_(low, high, generator=source).numpy())
    return np.asarray(source.uniform(low, high, shape), np.float32)


def _integers(source: Any, low: int, high: int, shape: tuple[int, ...], tensors: bool) -> Array:
    if tensors:
        return np.asarray(sys.modules["torch"].randint(low, high, shape, generator=source).numpy())
    return np.asarray(source.integers(low, high, shape))


def _scaled(array: Array, leaf: Leaf, numbers: str, main: bool) -> Array:
    if numbers in SCALES:
        factor, summand, signs = SCALES[numbers]
        if main and (leaf.free or not signs):
            return np.asarray(array * np.float32(factor) + np.float32(summand), np.float32)
    elif main and array.size and leaf.free:
        flat = array.reshape(-1)
        if numbers == "ties":
            return np.asarray(array.round())
        if numbers == "one large number":
            flat[0] = 100.0
        elif numbers == "a row of zeros":
            flat[: array.shape[-1] if array.ndim else 1] = 0.0
    if main and array.size and numbers == "NaN":
        array.reshape(-1)[array.size // 2] = np.nan
    return array


def numbers_text(numbers: str, leaf: Leaf, main: bool) -> list[str]:
    """The same for a script, around a tensor of the leaf's name."""
    if numbers in SCALES:
        factor, summand, signs = SCALES[numbers]
        if main and (leaf.free or not signs):
            return [f"{leaf.name} = {leaf.name} * {factor} + {summand}"]
    elif main and leaf.free:
        if numbers == "ties":
            return [f"{leaf.name} = {leaf.name}.round()"]
        if numbers == "one large number":
            return [f"{leaf.name}.view(-1)[0] = 100.0"]
        if numbers == "a row of zeros":
            return [f"{leaf.name}.view(-1)[: {leaf.name}.shape[-1]] = 0.0"]
    if main and numbers == "NaN":
        return [f"{leaf.name}.view(-1)[{leaf.name}.numel() // 2] = torch.nan"]
    return []


def rounded(array: Array, dtype: str) -> Array:
    """To a dtype, and back to float64."""
    with np.errstate(all="ignore"):
        if dtype in ("float64", "float32", "float16"):
            return np.asarray(array.astype(dtype), np.float64)
        torch = sys.modules["torch"]
        tensor = torch.from_numpy(np.array(array, np.float64))
        return np.asarray(tensor.to(getattr(torch, dtype)).double().numpy())


def _related(example: Example, values: list[Any], dtype: str) -> list[Any]:
    torch = sys.modules.get("torch")
    given = [
        torch.from_numpy(value) if leaf.device is not None and torch is not None and leaf.array else value
        for leaf, value in zip(example.leaves, values, strict=True)
    ]
    assert example.relate is not None
    made = example.relate(*example.arguments(given))
    made = list(made) if isinstance(made, tuple | list) else [made]
    if len(made) != len(example.tree):
        raise TapelessError(f"relate must return all {len(example.tree)} inputs, not {len(made)}.")
    found: list[Any] = [None] * len(values)

    def unhung(tree: Tree, value: Any) -> None:
        if isinstance(tree, int):
            found[tree] = value
        else:
            for part, each in zip(tree, value, strict=True):
                unhung(part, each)

    for tree, value in zip(example.tree, made, strict=True):
        unhung(tree, value)
    return [
        rounded(np.array(as_array(value), np.float64), dtype)
        if leaf.floats
        else as_array(value)
        if leaf.array
        else value
        for leaf, value in zip(example.leaves, found, strict=True)
    ]
