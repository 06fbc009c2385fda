"""The class of a mistake, in the field's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.check.own.definition import Expected
from tapeless.check.own.example import SCALES
from tapeless.ops.contract import Array

if TYPE_CHECKING:
    from tapeless.check.own.judge import Problem
    from tapeless.check.own.runner import Bench
    from tapeless.check.own.table import Case

FEW = 2.0**9  # ulps: most of the digits of float32 are right
SAME = 1e-2  # so near a multiple of the truth is a multiple of it

MODES = {
    "second backward of a graph": "the second backward of a graph",
    "two forwards": "two forwards before a backward",
    "inputs changed in between": "an input that changes between forward and backward",
    "no_grad": "under no_grad",
    "autocast": "under autocast",
}


def class_of(bench: Bench, case: Case, problem: Problem, first: Case) -> str:
    """`case` is the smallest that shows it, `first` the one that was met."""
    words: list[str | None] = [_part(bench, case, first, kind, value) for kind, value in first.parts()]
    vague = None in words
    if first.dtype != bench.dtypes[0] and not first.mixed and _only_in(bench, first):
        words.append(f"in {first.dtype}")
    where = " and ".join(dict.fromkeys(word for word in words if word))
    if problem.kind == "numbers":
        one = problem.compared
        result = "the result of the forward" if problem.name[0] in "ys" else f"the gradient of {problem.name[1:]}"
        extreme = first.numbers in SCALES or first.numbers == "one large number"
        if one is not None and extreme and not first.layouts and np.isfinite(one.true) and not np.isfinite(one.found):
            return f"{result} overflows" + (f" for {where}" if where else "")
        if vague and one is not None and one.found:
            return f"{result} loses digits"
        if one is not None and first.dtype == "float32" and first.numbers in ("random", "as given") and one.error < FEW:
            return f"{result} loses digits"
        if not where:
            return f"{result} is wrong"
        return f"wrong for {where}" if not where.startswith(("in ", "under ")) else f"wrong {where}"
    if problem.kind == "raises" and where:
        return f"raises for {where}"
    if problem.kind in MODES:
        return f"wrong for {MODES[problem.kind]}"
    return problem.kind


def _only_in(bench: Bench, case: Case) -> bool:
    """Whether it is right in the dtype of the example."""
    from dataclasses import replace

    return bench.passes(replace(case, dtype=bench.dtypes[0]))


def _part(bench: Bench, case: Case, first: Case, kind: str, value: str) -> str | None:
    names = bench.example.leaves
    if kind == "axis":
        return _axis(bench, case, first, value)
    if kind == "dy":
        number = "a dy that is one number seen everywhere, as y.sum() makes it"
        return number if value == "one number" else "a dy that is not contiguous" + _which(value)
    if kind == "input":
        return "an input that is not contiguous" + _which(value)
    if kind == "rank":
        index, _, way = value.partition(" ")
        return "one axis more" if way == "one axis more" else f"{names[int(index)].name} that is broadcast"
    if kind == "wanted":
        assert first.wanted is not None
        only = ", ".join(names[index].name for index in first.wanted)
        return f"a gradient that only {only} asks for"
    if kind == "output":
        return f"output {value} used alone"
    if kind == "same":
        assert first.same is not None
        return f"one tensor as both {' and '.join(names[index].name for index in first.same)}"
    if kind == "mode":
        return MODES.get(value, value)
    if kind == "dtype":
        return f"inputs of two dtypes ({value.removesuffix(', mixed')} and float32)"
    return value


def _which(layout: str) -> str:
    return "" if layout == "transposed" else f" ({layout})"


def _axis(bench: Bench, case: Case, first: Case, name: str) -> str | None:
    """What about the size of an axis it is: the rest of a block, more than so many, one, none."""
    from dataclasses import replace

    size, spoken = dict(case.dims)[name], _spoken(bench, name)
    if size == 0:
        return f"an axis of size 0 ({spoken})"
    if size == 1:
        return f"an axis of size 1 ({spoken})"
    if len(first.changed) > 1:
        return f"other sizes than the example's ({spoken})"

    def passes(other: int) -> bool:
        dims = tuple((each, other if each == name else old) for each, old in case.dims)
        return bench.passes(replace(case, dims=dims))

    power = 1 << (size - 1).bit_length()
    for block in dict.fromkeys((power, 64, 128, 256)):
        if block > size and block <= 1024 and passes(block) and not passes(block + 1):
            return f"the {spoken} beyond the last full block"
    if passes(size - 1):
        return f"more than {size - 1} {spoken}"
    return None  # not of this size alone: of its numbers


def _spoken(bench: Bench, name: str) -> str:
    """columns or rows of the input with the most axes, or the axis by its name."""
    main = max((leaf for leaf in bench.example.leaves if leaf.array), key=lambda leaf: len(leaf.axes))
    if main.axes and main.axes[-1] == name:
        return "columns" if len(main.axes) > 1 else "numbers"
    if main.axes and main.axes[0] == name and len(main.axes) == 2:
        return "rows"
    return f"along {name}" if not name.startswith("n") else f"along the axis of {name[1:]}"


def diagnosis(name: str, found: Array, at: Expected) -> str:
    """What a wrong result looks like, where that can be seen."""
    true = at.allowed[name].true
    if not np.isfinite(found).all():
        return ", and not all of it is finite"
    if not found.any() and true.any():
        return ": all of it is 0"
    with np.errstate(all="ignore"):
        ratio = float((found * true).sum() / (true * true).sum())
        rest = float(np.abs(found - ratio * true).max() / np.abs(true).max())
    if rest < SAME and abs(ratio - 1) > max(10 * rest, 1e-4):
        if abs(ratio + 1) < SAME:
            return ": the sign is the wrong one"
        sizes = {size for value in at.values for size in np.shape(value)} | {true.size}
        for size in sorted(each for each in sizes if each > 1):
            for factor, words in ((size, "a sum where a mean is meant"), (1 / size, "a mean where a sum is meant")):
                if abs(ratio / factor - 1) < SAME:
                    return f": it is {ratio:.6g} times what it should be, {words}"
        return f": it is {ratio:.6g} times what it should be"
    if true.ndim == 2 and true.shape[0] == true.shape[1] and np.allclose(found, true.T, rtol=SAME):
        return ": it is transposed"
    return ""


def described(kernel: Any) -> str:
    """What a kernel is called in a report."""
    if isinstance(kernel, tuple | list):
        return ", ".join(described(each) for each in kernel if each is not None)
    name = getattr(kernel, "__qualname__", None) or getattr(kernel, "_name", None) or type(kernel).__name__
    return str(name).replace("<locals>.", "")
