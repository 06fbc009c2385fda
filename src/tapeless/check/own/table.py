"""The cases on which a kernel is tried, the likeliest mistakes first: one table, the same for the same seed.

First the example as it is; then, one thing changed at a time: how autograd calls it and how dy lies in memory, the
shapes, the strides of inputs, the dtypes, the options, the numbers. Then two or three at once, drawn from all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tapeless.check.own.example import SCALES, Example
from tapeless.check.own.given import Claims
from tapeless.check.own.memory import LAYOUTS, takes

EDGES = (2, 17, 64, 65, 257, 1031)  # a vector's rest, a block, one beyond it, more than 1,024
ODD = (3, 7, 5, 11, 13, 9)  # all axes at once
SMALL = 12  # what other axes shrink to where they must
MOST = 150_000  # numbers in one input
HALVES = ("bfloat16", "float16")
NUMBERS = (
    "positive",
    "a mean of 100, a deviation of 0.1",
    "ties",
    "a row of zeros",
    "zeros",
    "small numbers",
    "numbers of 30",
    "one large number",
    "numbers of 1e4",
    "numbers of 1e-25",
    "numbers of 1e19",
    "NaN",
)
EXTREME = ("numbers of 1e4", "numbers of 1e-25", "numbers of 1e19", "one large number")
MODES = (
    "second backward of a graph",
    "two forwards",
    "inputs changed in between",
    "no_grad",
    "autocast",
    "double backward",
)


@dataclass(frozen=True)
class Case:
    """One call of a kernel, in words: what is changed from the example."""

    group: str
    dtype: str
    dims: tuple[tuple[str, int], ...]
    numbers: str = "random"
    layouts: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    mode: str = ""
    wanted: tuple[int, ...] | None = None
    output: int | None = None
    same: tuple[int, int] | None = None
    ranks: tuple[tuple[int, str], ...] = ()  # of leaves: "one axis more", "broadcast"
    mixed: bool = False
    changed: tuple[str, ...] = ()  # the axes whose sizes are not the example's

    def shapes(self, example: Example) -> list[tuple[int, ...] | None]:
        found: list[tuple[int, ...] | None] = []
        ranks = dict(self.ranks)
        for index, leaf in enumerate(example.leaves):
            if not leaf.array:
                found.append(None)
                continue
            shape = example.shape(leaf, dict(self.dims))
            way = ranks.get(index)
            if way == "one axis more":
                shape = (2, *shape)
            elif way == "broadcast":
                shape = (*shape[:-1], 1)
            found.append(shape)
        return found

    @property
    def key(self) -> tuple[Any, ...]:
        """Of its numbers: layouts and modes do not change them."""
        spread = tuple(each for each in self.layouts if each[1] in ("expanded", "one number"))
        return (self.dtype, self.dims, self.numbers, spread, repr(self.options), self.ranks, self.same, self.mixed)

    def seed(self, seed: int) -> int:
        drawn = np.random.SeedSequence([seed, *repr((self.dims, self.numbers, self.ranks)).encode()])
        return int(drawn.generate_state(1)[0])

    def parts(self) -> list[tuple[str, str]]:
        """What is changed, as kind and value."""
        found = [("axis", each) for each in self.changed]
        found += [("dy" if name == "dy" else "input", layout) for name, layout in self.layouts]
        found += [("option", f"{name}={value!r}") for name, value in self.options]
        found += [("rank", f"{index} {way}") for index, way in self.ranks]
        if self.numbers not in ("random", "as given"):
            found.append(("numbers", self.numbers))
        if self.mode:
            found.append(("mode", self.mode))
        if self.wanted is not None and self.same is None:
            found.append(("wanted", str(self.wanted)))
        if self.output is not None:
            found.append(("output", str(self.output)))
        if self.same is not None:
            found.append(("same", str(self.same)))
        if self.mixed:
            found.append(("dtype", f"{self.dtype}, mixed"))
        return found

    def title(self, example: Example) -> str:
        shapes = self.shapes(example)
        arrays = [
            f"{leaf.name} {'×'.join(map(str, shape)) or 'a number'}"
            for leaf, shape in zip(example.leaves, shapes, strict=True)
            if shape is not None
        ]
        words = [", ".join(arrays), self.dtype + (", the others float32" if self.mixed else "")]
        words += [f"{name} {spoken(layout)}" for name, layout in self.layouts]
        words += [f"{name}={value!r}" for name, value in self.options]
        words += [self.numbers] if self.numbers != "random" else []
        words += [self.mode] if self.mode else []
        if self.same is not None:
            words.append(f"one tensor is both {' and '.join(example.leaves[index].name for index in self.same)}")
        elif self.wanted is not None:
            words.append(f"only {', '.join(example.leaves[index].name for index in self.wanted)} asks for a gradient")
        words += [f"only output {self.output} is used"] if self.output is not None else []
        words += [f"{example.leaves[index].name} with {way}" for index, way in self.ranks if way == "broadcast"]
        return " · ".join(words)


def spoken(layout: str) -> str:
    return {"one number": "y.sum()'s, one number seen everywhere"}.get(layout, layout)


def cases(
    example: Example, claims: Claims, dtypes: Sequence[str], outputs: int, raw: bool, seed: int
) -> Iterator[Case]:
    """In order."""
    dims = tuple(example.dims.items())
    base = Case("example", dtypes[0], dims)
    yield replace(base, numbers="as given")
    yield base
    sizes = list(_sizes(example, claims))
    singles: list[Case] = []
    for case in _singles(example, claims, dtypes, outputs, raw, base, sizes):
        if _wanted(case, claims):
            singles.append(case)
            yield case
    yield from _pairs(base, singles, dtypes, claims, seed)


def _singles(
    example: Example, claims: Claims, dtypes: Sequence[str], outputs: int, raw: bool, base: Case, sizes: list[Case]
) -> Iterator[Case]:
    if not raw:
        yield from _as_autograd_calls(example, base, outputs)
    first = [replace(each, dtype=base.dtype) for each in sizes]
    yield from first
    if claims.strides or (claims.strides is None and not raw):
        for layout in LAYOUTS:
            for leaf, shape in zip(example.leaves, base.shapes(example), strict=True):
                if leaf.array and shape is not None and takes(layout, shape):
                    yield replace(base, group="strides of inputs", layouts=((leaf.name, layout),))
    for dtype in dtypes[1:]:
        yield replace(base, group="dtypes", dtype=dtype)
        for each in sizes:
            if each.changed and (len(each.changed) > 1 or dict(each.dims)[each.changed[0]] >= 257):
                yield replace(each, group="dtypes", dtype=dtype)
    for dtype in dtypes:
        if dtype in HALVES and not raw and len({len(leaf.axes) for leaf in example.leaves if leaf.floats}) > 1:
            yield replace(base, group="dtypes", dtype=dtype, mixed=True)
    yield from _options(base, claims)
    for dtype in dtypes[: 1 if raw else 3]:
        for numbers in NUMBERS:
            if dtype == base.dtype or numbers in ("positive", "a mean of 100, a deviation of 0.1", "numbers of 30"):
                yield replace(base, group="numbers", dtype=dtype, numbers=numbers)
    longest = [each for each in sizes if any(size >= 257 for _, size in each.dims)]
    for dtype in dtypes:
        for each in longest[-4:]:
            yield replace(each, group="numbers", dtype=dtype, numbers="positive")
    if not raw:
        yield from _ranks(example, base)
        for mode in MODES[3:]:
            yield replace(base, group="modes", mode=mode)


def _as_autograd_calls(example: Example, base: Case, outputs: int) -> Iterator[Case]:
    for layout in ("one number", *LAYOUTS):
        yield replace(base, group="strides of dy", layouts=(("dy", layout),))
    for index in example.wrt if len(example.wrt) > 1 else ():
        yield replace(base, group="modes", wanted=(index,))
    for output in range(outputs) if outputs > 1 else ():
        yield replace(base, group="modes", output=output)
    for mode in MODES[:3]:
        yield replace(base, group="modes", mode=mode)
    for one, other in combinations(example.wrt, 2):
        same = example.leaves[one].axes == example.leaves[other].axes
        if same and example.leaves[one].free and example.leaves[other].free:
            yield replace(base, group="modes", wanted=(one,), same=(one, other))


def _options(base: Case, claims: Claims) -> Iterator[Case]:
    for name, values in claims.options.items():
        for value in values if isinstance(values, list | tuple) else ():
            yield replace(base, group="options", options=((name, value),))


def _ranks(example: Example, base: Case) -> Iterator[Case]:
    arrays = [index for index, leaf in enumerate(example.leaves) if leaf.array and leaf.axes]
    widest = max((len(example.leaves[index].axes) for index in arrays), default=0)
    most = [index for index in arrays if len(example.leaves[index].axes) == widest]
    if widest:
        yield replace(base, group="shapes", ranks=tuple((index, "one axis more") for index in most))
    if len(arrays) > 1:
        for index in arrays:
            axes = example.leaves[index].axes
            others = [example.leaves[other].axes for other in arrays if other != index]
            if example.leaves[index].floats and axes[-1] != "1" and any(axes[-1:] == other[-1:] for other in others):
                yield replace(base, group="shapes", ranks=((index, "broadcast"),))


def _sizes(example: Example, claims: Claims) -> Iterator[Case]:
    """All axes 1, all of them odd, then each by itself at the edges, none, and all of them large; no input with more
    than MOST numbers, for which the other axes shrink."""
    dims = dict(example.dims)
    if not dims:
        return
    largest = max(dims.values())

    def made(wanted: Mapping[str, int], changed: Sequence[str]) -> Iterator[Case]:
        allowed = {name: _allowed(size, claims.sizes.get(name)) for name, size in wanted.items()}
        if allowed != dims:
            moved = tuple(name for name in changed if allowed[name] != dims[name])
            yield Case("shapes", "", tuple(allowed.items()), changed=moved or tuple(changed))

    seen = set()
    for wanted, changed in _wanted_sizes(example, dims, claims.largest, largest):
        for case in made(wanted, changed):
            if case.dims not in seen:
                seen.add(case.dims)
                yield case


def _wanted_sizes(
    example: Example, dims: dict[str, int], longest: int, largest: int
) -> Iterator[tuple[dict[str, int], list[str]]]:
    names = list(dims)
    yield dict(zip(names, (ODD[i % len(ODD)] for i in range(len(names))), strict=True)), names
    for size in EDGES:
        for name in names if size <= longest else ():
            for others in (largest, SMALL, 2):
                wanted = {each: size if each == name else min(old, others) for each, old in dims.items()}
                if _most(example, wanted) <= MOST:
                    yield wanted, [name]
                    break
    if len(names) > 1:
        for size in (65, 130):
            wanted = dict.fromkeys(names, min(size, longest))
            if _most(example, wanted) <= MOST:
                yield wanted, names
    for name in names:
        yield dims | {name: 1}, [name]
    yield dict.fromkeys(names, 1), names
    for name in names:
        yield dims | {name: 0}, [name]


def _most(example: Example, dims: Mapping[str, int]) -> int:
    return max((prod(example.shape(leaf, dims)) for leaf in example.leaves if leaf.array), default=0)


def _allowed(size: int, sizes: range | None) -> int:
    """The nearest that the author allows."""
    if sizes is None or size in sizes:
        return size
    return min(sizes, key=lambda each: abs(each - size)) if len(sizes) < 10_000 else max(sizes[0], min(size, sizes[-1]))


def _wanted(case: Case, claims: Claims) -> bool:
    """Whether the author promises it."""
    limits, sizes = claims.limits, dict(case.dims)
    if "empty" in limits and 0 in sizes.values():
        return False
    if "one" in limits and any(sizes[name] == 1 for name in case.changed):
        return False
    if "large" in limits and case.numbers in ("numbers of 1e4", "numbers of 1e19"):
        return False
    if "tiny" in limits and case.numbers == "numbers of 1e-25":
        return False
    if "nan" in limits and case.numbers == "NaN":
        return False
    if "rank" in limits and case.ranks:
        return False
    if ("double backward" in limits and case.mode == "double backward") or (
        "autocast" in limits and case.mode == "autocast"
    ):
        return False
    if "strides" in limits and any(name != "dy" for name, _ in case.layouts):
        return False
    most = max(claims.within, 1.0)
    factor = SCALES.get(case.numbers, (1.0, 0.0, False))[0]
    return not ((factor > most or (0 < factor < 1 / most)) or (claims.within < 100 and case.numbers in EXTREME))


def _pairs(base: Case, singles: Sequence[Case], dtypes: Sequence[str], claims: Claims, seed: int) -> Iterator[Case]:
    """Shapes with strides, dtypes, numbers and options, two or three at once."""
    rng = np.random.default_rng([seed, 5])
    usual = {"positive", "a mean of 100, a deviation of 0.1", "small numbers", "a row of zeros"}
    shapes = [x for x in singles if x.group == "shapes" and not x.ranks and 0 not in dict(x.dims).values()]
    lying = [x for x in singles if x.group in ("strides of dy", "strides of inputs")]
    others = [
        x for x in singles if (x.group == "numbers" and x.numbers in usual and not x.changed) or x.group == "options"
    ]
    modes = [
        x for x in singles if x.group == "modes" and (x.wanted is not None or x.mode in MODES[:2]) and x.same is None
    ]
    seen = set()
    for _ in range(claims.pairs):
        made = replace(base, group="pairs", dtype=str(rng.choice(list(dtypes))))
        if shapes and rng.random() < 0.7:
            picked = shapes[int(rng.integers(len(shapes)))]
            made = replace(made, dims=picked.dims, changed=picked.changed)
        if lying and rng.random() < 0.6:
            made = replace(made, layouts=lying[int(rng.integers(len(lying)))].layouts)
        if modes and rng.random() < 0.3:
            picked = modes[int(rng.integers(len(modes)))]
            made = replace(made, wanted=picked.wanted, mode=picked.mode)
        if others and rng.random() < 0.4:
            picked = others[int(rng.integers(len(others)))]
            made = replace(made, numbers=picked.numbers, options=picked.options)
        if made not in seen and len(made.parts()) > 1:
            seen.add(made)
            yield made
