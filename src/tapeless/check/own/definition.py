"""What a kernel is compared with: a forward in float64 with a way to its gradients, and what may be lost beside it."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tapeless.check.differences import slope
from tapeless.check.own.bounds import (
    FORMATS,
    Allowed,
    by_rows,
    error_of,
    in_float64,
    noisy,
    spread_of,
    terms,
    torch_noise,
)
from tapeless.check.own.example import Example
from tapeless.check.own.harness import RefusalError, is_tensor
from tapeless.check.own.memory import as_float64
from tapeless.ops.contract import Array

STEP, ROUGH_STEP = 1e-150, 1e-10  # of the complex step, in complex128 and complex64
MOST_STEPS = 1200  # elements of which the complex step takes the derivative, a run of the forward each
DRAWS, FEW_DRAWS, MANY = 4, 2, 40_000  # of noise; numbers from which fewer do
PLAIN = (1e-2, 1e-3, 1e-4)  # steps of plain central differences
AGREES = 1e-7  # a backward with the slope of its forward, along a random direction

Options = Mapping[str, Any]


@dataclass
class Computed:
    """Outputs, what the forward saves, and gradients; the dtype of each result by name."""

    outputs: list[Array]
    saved: list[Array] = field(default_factory=list)
    gradients: list[Array] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    raw_saved: Any = None

    def results(self, example: Example) -> dict[str, Array]:
        pairs = dict(zip(example.gradients, self.gradients, strict=True)) if self.gradients else {}
        return named("y", self.outputs) | named("saved", self.saved) | pairs


@dataclass(frozen=True)
class Definition:
    """`way`: "autograd", "backward" (its own, proven), "complex step", "itself" (the kernel in float64) or "none"."""

    function: Callable[..., Any]
    example: Example
    way: str
    backward: Callable[..., Any] | None = None
    saved: bool = False

    def compute(
        self,
        values: Sequence[Any],
        dys: Callable[[list[Array]], list[Array]] | None,
        dtype: str = "float64",
        options: Options | None = None,
        noise: tuple[str, int] | None = None,
        gradients: bool = True,
    ) -> Computed:
        """`dys` makes dy of the outputs. `noise`: every operation off by a rounding of a dtype, drawn from a seed."""
        keywords = taken_by(self.function, options or {})
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(np.errstate(all="ignore"))
            if self.example.torch:
                if dtype == "float64" and self.way != "itself":
                    stack.enter_context(in_float64())
                if noise is not None:
                    stack.enter_context(torch_noise(*noise))
                if self.way in ("autograd", "itself", "none"):
                    return self._by_autograd(values, dys, dtype, keywords, gradients)
            return self._by_functions(values, dys, dtype, keywords, noise, gradients)

    def _given(self, values: Sequence[Any], dtype: str, noise: tuple[str, int] | None) -> list[Any]:
        made: list[Any] = []
        rng = np.random.default_rng(noise[1] if noise else 0)
        for leaf, value in zip(self.example.leaves, values, strict=True):
            if not leaf.array:
                made.append(value)
            elif leaf.device is not None:
                made.append(tensor_of(value, dtype if leaf.floats else "", leaf.device))
            elif leaf.floats:
                array = value.astype(dtype)
                made.append(noisy(array, FORMATS[noise[0]].unit, rng) if noise else array)
            else:
                made.append(value.copy())
        return made

    def _by_autograd(self, values: Sequence[Any], dys: Any, dtype: str, options: Options, gradients: bool) -> Computed:
        torch, example = sys.modules["torch"], self.example
        given = self._given(values, dtype, None)
        for index in example.wrt if gradients else ():
            given[index].requires_grad_()
        with torch.enable_grad() if gradients else torch.no_grad():
            outputs = floats_of(self.function(*example.arguments(given), **options))
        arrays = [as_float64(each) for each in outputs]
        dtypes = {name: dtype_of(each) for name, each in named("y", outputs).items()}
        if dys is None or not gradients:
            return Computed(arrays, dtypes=dtypes)
        asked = [(y, dy) for y, dy in zip(outputs, dys(arrays), strict=True) if y.requires_grad]
        if not asked:
            raise RefusalError("autograd finds no way from the output to the inputs: does it leave torch, or detach?")
        found = torch.autograd.grad(
            [y for y, _ in asked],
            [given[index] for index in example.wrt],
            [tensor_of(dy, dtype_of(y), y.device) for y, dy in asked],
            allow_unused=True,
        )
        return Computed(arrays, [], [_or_zeros(g, values[i]) for g, i in zip(found, example.wrt, strict=True)], dtypes)

    def _by_functions(
        self, values: Sequence[Any], dys: Any, dtype: str, options: Options, noise: Any, gradients: bool
    ) -> Computed:
        given, example = self._given(values, dtype, noise), self.example
        returned = self.function(*example.arguments(given), **options)
        returned, kept = returned if self.saved else (returned, None)
        outputs = _listed(returned)
        done = Computed(
            [as_float64(each) for each in outputs], [as_float64(x) for x in flattened(kept)], raw_saved=kept
        )
        done.dtypes = {name: dtype_of(each) for name, each in named("y", outputs).items()}
        if dys is None or not gradients or self.way == "none":
            return done
        incoming = dys(done.outputs)
        if self.way == "complex step":
            done.gradients = self._by_complex_step(values, incoming, dtype, options, noise)
            return done
        assert self.backward is not None
        handed = [
            tensor_of(dy, dtype, example.device)
            if example.torch
            else (
                noisy(dy.astype(dtype), FORMATS[noise[0]].unit, np.random.default_rng(noise[1]))
                if noise
                else dy.astype(dtype)
            )
            for dy in incoming
        ]
        dy = handed[0] if not isinstance(returned, tuple | list) else tuple(handed)
        first = [dy, kept] if self.saved else [dy]
        fresh = self._given(values, dtype, noise)
        found = self.backward(*first, *example.arguments(fresh), **taken_by(self.backward, options))
        done.gradients = [
            _or_zeros(each, values[index]) for each, index in zip(picked(found, example), example.wrt, strict=True)
        ]
        return done

    def _by_complex_step(
        self, values: Sequence[Any], dys: list[Array], dtype: str, options: Options, noise: Any
    ) -> list[Array]:
        step, wide = (STEP, np.complex128) if dtype == "float64" else (ROUGH_STEP, np.complex64)
        found = []
        for index in self.example.wrt:
            gradient = np.zeros(values[index].size)
            for element in range(values[index].size):
                given = self._given(values, dtype, noise)
                moved = np.array(given[index]).astype(wide)
                moved.reshape(-1)[element] += 1j * step
                given[index] = noisy(moved, FORMATS[noise[0]].unit, np.random.default_rng(noise[1])) if noise else moved
                returned = self.function(*self.example.arguments(given), **options)
                outputs = _listed(returned[0] if self.saved else returned)
                pairs = zip(dys, outputs, strict=True)
                gradient[element] = float(sum((dy * np.asarray(y).imag).sum() for dy, y in pairs)) / step
            found.append(gradient.reshape(values[index].shape))
        return found


def taken_by(function: Any, options: Options) -> dict[str, Any]:
    """Those options that a function has parameters for."""
    if not options:
        return {}
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters
    except (TypeError, ValueError):
        return dict(options)
    if any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in parameters}


def named(word: str, values: Sequence[Any]) -> dict[str, Any]:
    """y, or y0, y1, … where there are several."""
    return {word if len(values) == 1 else f"{word}{number}": each for number, each in enumerate(values)}


def dtype_of(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")


def tensor_of(value: Array, dtype: str, device: Any) -> Any:
    torch = sys.modules["torch"]
    tensor = torch.from_numpy(np.array(value))
    return tensor.to(device=device, dtype=getattr(torch, dtype)) if dtype else tensor.to(device)


def floats_of(returned: Any) -> list[Any]:
    """The outputs that are numbers: others, a mask or a count, take no gradient."""
    if returned is None:
        raise RefusalError("the forward returned None: is there a `return` at its end?")
    found = [each for each in _listed(returned) if is_tensor(each) and (each.is_floating_point() or each.is_complex())]
    if not found:
        raise RefusalError("the forward returns no tensor of numbers.")
    return found


def _listed(returned: Any) -> list[Any]:
    """The outputs in order, out of tuples and lists."""
    if isinstance(returned, tuple | list):
        return [each for part in returned for each in _listed(part)]
    return [returned]


def flattened(saved: Any) -> list[Any]:
    """The arrays among what a forward keeps for its backward, in order."""
    if saved is None:
        return []
    each = saved.values() if isinstance(saved, dict) else saved if isinstance(saved, tuple | list) else (saved,)
    return [value for value in each if hasattr(value, "shape") and hasattr(value, "dtype")]


def picked(found: Any, example: Example) -> list[Any]:
    """The gradients that a backward returned, one for each that is asked for: of these alone, or of all inputs."""
    if found is None:
        raise RefusalError("the backward returned None: is there a `return` at its end?")
    gradients = _listed(found)
    if len(gradients) == len(example.leaves):
        return [gradients[index] for index in example.wrt]
    if len(gradients) == len(example.wrt):
        return gradients
    wanted = len(example.wrt)
    words = str(wanted) if wanted == len(example.leaves) else f"{wanted} (or {len(example.leaves)}, with None)"
    names = ", ".join(example.leaves[index].name for index in example.wrt)
    raise RefusalError(
        f"the backward returned {len(gradients)} gradients where {words} are needed: one for each of {names}."
    )


def _or_zeros(gradient: Any, value: Array) -> Array:
    return np.zeros(value.shape) if gradient is None else as_float64(gradient)


# What it says at some inputs.


@dataclass(frozen=True)
class Expected:
    """The truth at some inputs, and what may be lost of it, by result."""

    values: list[Any]
    dys: list[Array]
    allowed: dict[str, Allowed]
    raw_saved: Any = None
    saved: int = 0

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.allowed if name[0] == "y"]


def expected(
    definition: Definition,
    values: list[Any],
    make_dy: Callable[[list[Array]], list[Array]],
    dtype: str,
    options: Options,
    *,
    finite: bool = True,
    gradients: bool = True,
    rounding: str = "",
    own: bool = True,
) -> Expected | None:
    """None where the definition does not take these inputs. `rounding`: the dtype computed in, if it is another."""
    example = definition.example
    if (
        definition.way == "complex step"
        and sum(v.size for v, x in zip(values, example.leaves, strict=True) if x.floats) > MOST_STEPS
    ):
        return None
    dys: list[Array] = []

    def dy_of(outputs: list[Array]) -> list[Array]:
        if not dys:
            dys.extend(make_dy(outputs))
        return dys

    floats = [value for value, leaf in zip(values, example.leaves, strict=True) if leaf.floats]
    if finite and not all(np.isfinite(each).all() for each in floats):
        return None  # beyond the range of the dtype
    try:
        done = definition.compute(values, dy_of, "float64", options, gradients=gradients)
    except RefusalError:
        raise
    except Exception:  # the definition's own way of saying no
        return None
    if not dys:
        dy_of(done.outputs)
    true = done.results(example)
    if not all(np.isfinite(each).all() for each in true.values()) and finite:
        return None
    computed = rounding or dtype
    way = "float32" if computed == "float64" else computed  # of which float64 can hold the roundings
    scale = FORMATS[computed].unit / FORMATS[way].unit
    draws = []
    many = sum(each.size for each in true.values()) > MANY or definition.way == "complex step"
    for seed in range((FEW_DRAWS if many else DRAWS) if finite else 0):
        off = _moved(example, values, way, seed)
        try:
            noise = (way, seed)
            shaken = [_shaken(dy, way, seed) for dy in dys]
            moved = definition.compute(off, partial(_given, shaken), "float64", options, noise, gradients)
            draws.append(moved.results(example))
        except Exception:  # what is off by a rounding may be out of its domain
            continue
    torchs = None
    if definition.way != "itself" and own:
        try:
            torchs = definition.compute(values, dy_of, dtype, options, gradients=gradients)
        except Exception:  # not in this dtype
            torchs = None
    theirs = torchs.results(example) if torchs else {}
    found = {}
    for name, each in true.items():
        spread = scale * spread_of(each, [draw[name] for draw in draws]) if draws else np.zeros(each.shape)
        error = None
        kind = (torchs.dtypes.get(name, "") if torchs else "") or ""
        if name in theirs and theirs[name].shape == each.shape and definition.way != "complex step":
            error = by_rows(error_of(theirs[name], each, FORMATS[dtype].largest), 0)
        read = [value for value, leaf in zip(values, example.leaves, strict=True) if leaf.array]
        found[name] = Allowed(each, spread, *terms(each, [*read, *dys]), error, kind)
    return Expected(values, dys, found, done.raw_saved, len(done.saved))


def _given(dys: list[Array], outputs: list[Array]) -> list[Array]:
    return dys


def _shaken(value: Array, dtype: str, seed: int, least: float = 0.0) -> Array:
    """Every number off by up to a rounding, one that is smaller than `least` by as much as that. Two draws after each
    other go opposite ways, so that ties and kinks show."""
    rng = np.random.default_rng([seed // 2, 7, value.size])
    off = rng.choice((-1, 1), value.shape) * rng.uniform(0.5, 1, value.shape) * (1 - 2 * (seed % 2))
    return np.asarray(value + FORMATS[dtype].unit * off * np.maximum(np.abs(value), least))


def _moved(example: Example, values: list[Any], dtype: str, seed: int) -> list[Any]:
    """The inputs off by a rounding; one that is 0 by a thousandth of a rounding of the example's largest."""
    made = []
    for leaf, value in zip(example.leaves, values, strict=True):
        least = 1e-3 * max(abs(leaf.low), abs(leaf.high)) if leaf.floats and leaf.free else 0.0
        made.append(_shaken(value, dtype, seed, least) if leaf.floats and value.size else value)
    return made


def _central(dys: list[Array], ahead: list[Array], behind: list[Array]) -> float:
    return sum(float((dy * (one - other)).sum()) for dy, one, other in zip(dys, ahead, behind, strict=True))


def disagreement(definition: Definition, at: Expected, options: Options, seed: int) -> str:
    """Of a backward that is its own truth: whether it is the slope of its forward, along a random direction."""
    example, rng = definition.example, np.random.default_rng([seed, 11])
    gradients = [at.allowed[name].true for name in example.gradients]
    directions = {}
    for index in example.wrt:
        value = at.values[index]
        size = float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0
        directions[index] = rng.normal(size=value.shape) * (size or 1.0)
    true_sum = sum(float((g * d).sum()) for g, d in zip(gradients, directions.values(), strict=True))
    scale = sum(float(np.linalg.norm(g * d)) for g, d in zip(gradients, directions.values(), strict=True))
    base = [at.allowed[name].true for name in at.outputs]
    scale = max(scale, sum(float(np.linalg.norm(dy * y)) for dy, y in zip(at.dys, base, strict=True)) * 1e-3)

    def line(t: float) -> list[Array]:
        moved = [value + t * directions[i] if i in directions else value for i, value in enumerate(at.values)]
        try:
            found = definition.compute(moved, None, "float64", options, gradients=False).outputs
        except Exception:  # out of its domain
            return [np.full_like(each, np.nan) for each in base]
        return found if [x.shape for x in found] == [x.shape for x in base] else [np.full_like(x, np.nan) for x in base]

    with np.errstate(all="ignore"):
        found = slope(line, at.dys, 0.1, 0.1 * AGREES * scale)
    off = abs(found.value - true_sum)
    # Where something inside is rounded to float32, small steps see the rest alone: larger ones must say the same.
    agree = False
    if found.bound > 0.1 * AGREES * scale:
        plain = [_central(at.dys, line(t), line(-t)) / (2 * t) for t in PLAIN]
        unrest = 4 * max(abs(plain[0] - plain[1]), abs(plain[1] - plain[2]))
        agree = min(abs(each - true_sum) for each in plain) <= unrest
    if off > found.bound + AGREES * scale and found.bound < 0.1 * off and not agree:
        return (
            f"in float64 its backward is not the derivative of its forward: along a random direction the slope is "
            f"{found.value:.9g}, the backward says {true_sum:.9g}"
        )
    return ""
