"""The error that a kernel may have, derived for its dtype.

Truth is the definition in float64, on the inputs as rounded to their dtype. What a right kernel loses beside it has
three parts, and each is known for every element of every result:

(1)  the rounding of the output: one unit in the last place (ulp) of its dtype;
(2)  the roundings on the way. The definition is computed in float64 some times more, and the result of every one of its
     operations, forward and backward, is multiplied by 1 ± u, u the dtype's unit roundoff, the sign by chance; its
     inputs are, too. How far the results then move at most, σ, is what a computation in that dtype loses, cancellation
     included (Monte Carlo arithmetic: Parker, "Monte Carlo arithmetic", 1997). SPREADS·σ is allowed;
(3)  sums of n terms, added one after the other in float32 (float64): √n/2 times σ for the unit roundoff of that type.

And never less than what PyTorch's own computation of the definition in that dtype loses on the same numbers. σ and
PyTorch's error are taken over rows of a result: one element may be right by chance.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tapeless.ops.contract import Array

SPREADS = 5.0  # σ: what is off by more than that is no rounding
TIMES_TORCH = 2.0  # of PyTorch's own error
LEAST_ROW = 16  # elements over which σ is taken at least, where a result has as many
BROKEN = 2.0**-4  # of a result: neither digit nor size is right
KINK = 0.1  # of a result: if roundings move it by as much, it jumps
# Operations whose results are exact: they copy, select or change a sign.
EXACT = {
    *("clone", "copy", "copy_", "detach", "to", "_to_copy", "contiguous", "lift_fresh", "lift_fresh_copy", "view_of"),
    *("select", "slice", "index", "gather", "index_select", "embedding", "select_backward", "slice_backward", "where"),
    *("cat", "stack", "expand", "repeat", "flip", "roll", "constant_pad_nd", "tril", "triu", "broadcast_in_dim"),
    *("zero_", "fill_", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "arange", "scalar_tensor"),
    *("empty", "empty_like", "empty_strided", "new_zeros", "new_empty", "new_ones", "new_full", "normal"),
    *("neg", "abs", "sign", "relu", "relu_", "threshold_backward", "clamp", "clamp_min", "clamp_max"),
    *("amax", "amin", "max", "min", "maximum", "minimum", "sort", "topk", "value_selecting_reduction_backward"),
    *("masked_fill", "masked_fill_", "scatter", "index_put", "index_put_", "max_pool2d_with_indices"),
}
# Operations that PyTorch computes in one piece and that round inside: they are taken apart, but for halves.
FUSED = (
    "norm",
    "softmax",
    "silu",
    "gelu",
    "loss",
    "mish",
    "softplus",
    "sigmoid_backward",
    "tanh_backward",
    "scaled_dot",
)


@dataclass(frozen=True)
class Format:
    """A floating-point format: bits of a significand, the smallest normal exponent, the largest number."""

    digits: int
    least: int
    largest: float

    @property
    def unit(self) -> float:
        """The unit roundoff: half of the distance between 1 and the next number."""
        return 2.0**-self.digits

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return 2.0 ** max(self.least - self.digits + 1, -1074)

    def ulp(self, values: Array) -> Array:
        """The unit in the last place of each value."""
        exponents = np.frexp(np.abs(values))[1] - 1
        return np.asarray(np.ldexp(1.0, np.maximum(exponents, self.least) - self.digits + 1))


FORMATS = {
    "float64": Format(53, -1022, float(np.finfo(np.float64).max)),
    "float32": Format(24, -126, float(np.finfo(np.float32).max)),
    "bfloat16": Format(8, -126, 3.3895313892515355e38),
    "float16": Format(11, -14, 65504.0),
    "float8_e4m3fn": Format(4, -6, 448.0),
    "float8_e5m2": Format(3, -14, 57344.0),
}


def accumulates(dtype: str) -> str:
    """The type in which a good kernel of this dtype adds."""
    return dtype if dtype == "float64" else "float32"


# Noise: PyTorch's operations, and NumPy's.


@contextmanager
def torch_noise(dtype: str, seed: int) -> Iterator[None]:
    """Every floating-point operation of PyTorch is off by a random rounding of this dtype."""
    torch, unit, least = sys.modules["torch"], FORMATS[dtype].unit, FORMATS[dtype].smallest / 2
    generator = torch.Generator().manual_seed(seed)
    table = _decompositions() if dtype in ("float32", "float64") else {}  # halves are computed in float32 inside

    def shaken(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64 or not value.numel():
            return value
        draw = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
        return value * (1 + unit * draw) + least * draw * (value != 0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _noise_mode()(table, shaken):
            yield


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    import torch._decomp

    found = torch._decomp.decomposition_table
    return {op: way for op, way in found.items() if any(word in str(op) for word in FUSED) and ".out" not in str(op)}


@cache
def _noise_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noise(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, table: Any, shaken: Callable[[Any], Any]) -> None:
            super().__init__()
            self.table, self.shaken = table, shaken

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = kwargs or {}
            if func in self.table:
                try:
                    with self:
                        found = self.table[func](*args, **keywords)
                    if found is not NotImplemented:
                        return found
                except (RuntimeError, NotImplementedError, AssertionError, TypeError):
                    pass  # not for these arguments: as one piece then
            found = func(*args, **keywords)
            if func.overloadpacket.__name__ in EXACT:
                return found
            aliases = [each.alias_info for each in func._schema.returns]
            if any(alias is not None and not alias.is_write for alias in aliases):
                return found  # a view
            if any(alias is not None for alias in aliases):
                if isinstance(found, sys.modules["torch"].Tensor):
                    found.copy_(self.shaken(found))
                return found
            return type(found)(map(self.shaken, found)) if isinstance(found, tuple | list) else self.shaken(found)

    return Noise


class NoisyArray(np.ndarray[Any, Any]):
    """A NumPy array of which every operation is off by a random rounding. `_noise`: the unit roundoff, and numbers."""

    _noise: tuple[float, np.random.Generator]

    def __array_finalize__(self, other: Any) -> None:
        if getattr(other, "_noise", None) is not None:
            self._noise = other._noise

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [each.view(np.ndarray) if isinstance(each, NoisyArray) else each for each in inputs]
        if out is not None:
            options["out"] = tuple(each.view(np.ndarray) if isinstance(each, NoisyArray) else each for each in out)
        found = getattr(ufunc, method)(*plain, **options)
        if method == "at" or ufunc in (np.negative, np.absolute, np.maximum, np.minimum, np.conjugate):
            return found
        if out is not None:
            return out[0]
        return tuple(map(self._shaken, found)) if isinstance(found, tuple) else self._shaken(found)

    def _shaken(self, found: Any) -> Any:
        array = np.asarray(found)
        if array.dtype.kind not in "fc":
            return found
        return noisy(_off(array, *self._noise), *self._noise)


def _off(array: Array, unit: float, rng: np.random.Generator) -> Array:
    with np.errstate(all="ignore"):
        if array.dtype.kind != "c":
            return np.asarray(array * (1 + unit * rng.choice((-1, 1), array.shape)))
        off = np.array(array)
        off.real *= 1 + unit * rng.choice((-1, 1), array.shape)
        off.imag *= 1 + unit * rng.choice((-1, 1), array.shape)
        return off


def noisy(array: Array, unit: float, rng: np.random.Generator) -> NoisyArray:
    made = np.array(array).view(NoisyArray)
    made._noise = unit, rng
    return made


@contextmanager
def in_float64() -> Iterator[None]:
    """A definition in torch that converts to a narrower type on its way keeps its float64: truth has all its digits."""
    from torch.overrides import TorchFunctionMode

    torch = sys.modules["torch"]
    narrow = (torch.float32, torch.bfloat16, torch.float16)
    methods = {"float", "half", "bfloat16"}

    def widened(value: Any) -> Any:
        return torch.float64 if value in narrow else value

    class Wide(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = {
                name: widened(value) if isinstance(value, torch.dtype) else value
                for name, value in (kwargs or {}).items()
            }
            name = getattr(func, "__name__", "")
            if name in methods and len(args) == 1 and isinstance(args[0], torch.Tensor):
                return args[0].double()
            if any(isinstance(each, torch.dtype) for each in args):
                args = tuple(widened(each) if isinstance(each, torch.dtype) else each for each in args)
            return func(*args, **keywords)

    with Wide():
        yield


# What may be lost.


@dataclass(frozen=True)
class Allowed:
    """Of one result: truth, what may be lost of each element by the dtype's roundings, and what PyTorch loses."""

    true: Array
    spread: Array  # σ for the dtype of the inputs, by element
    terms: int  # numbers summed into one
    reduces: bool = False  # over axes that the result does not have
    own: Array | None = None  # PyTorch's own error, by element; infinite where it is not finite
    own_dtype: str = ""

    def errors(self, dtype: str, computed: str) -> tuple[Array, Array]:
        """The error that is allowed of each element of a result in `dtype`, computed with `computed`: without
        PyTorch's own, and with it."""
        fmt, way = FORMATS[dtype], FORMATS[computed]
        with np.errstate(all="ignore"):
            ulps = fmt.ulp(self.true)
            summing = np.sqrt(self.terms) / 2 * FORMATS[accumulates(computed)].unit / way.unit
            alone = ulps + (SPREADS + summing) * self.spread + 4 * 2.0 ** min(way.least, fmt.least)
            alone = np.where(np.isfinite(alone), alone, np.inf)
            return alone, alone if self.own is None else np.maximum(alone, TIMES_TORCH * self.own + ulps / 2)


def terms(result: Array, read: Sequence[Array]) -> tuple[int, bool]:
    """How many numbers go into one of the result: those axes of what is read that the result does not have; where it
    has them all, its own longest. And whether it lacks any."""
    most = 1
    for value in read:
        lacking: Counter[int] = Counter(np.shape(value)) - Counter(result.shape)
        most = max(most, prod(lacking.elements()))
    return (most, True) if most > 1 else (max(result.shape, default=1), False)


def by_rows(errors: Array, power: float = 2.0) -> Array:
    """Each element's own, or that of its row where that is more: the root mean square, or with 0 the largest."""
    if errors.size < 2:
        return errors
    with np.errstate(all="ignore"):
        axes, width = 1, errors.shape[-1]
        while width < LEAST_ROW and axes < errors.ndim:
            axes += 1
            width = prod(errors.shape[-axes:])
        over = tuple(range(errors.ndim - axes, errors.ndim))
        if power:
            row = np.sqrt(np.mean(np.square(errors), axis=over, keepdims=True))
        else:
            row = errors.max(axis=over, keepdims=True)
        return np.maximum(errors, row)


def spread_of(true: Array, draws: Sequence[Array]) -> Array:
    """σ: how far the draws are from the truth at most."""
    with np.errstate(all="ignore"):
        farthest = np.zeros(true.shape)
        for each in draws:
            farthest = np.fmax(farthest, np.abs(each - true))
        jumps = by_rows(farthest, 0)  # at ties and kinks any of a row may be the one that is chosen
        return np.where(jumps > KINK * by_rows(np.abs(true), 0), jumps, by_rows(farthest))


def error_of(found: Array, true: Array, largest: float) -> Array:
    """Of each element; infinite where one is finite and the other not. What exceeds the type may be infinite."""
    with np.errstate(all="ignore"):
        off = np.abs(found - true)
        beyond = (np.abs(true) >= largest * (1 - 2.0**-8)) & (np.abs(found) >= largest * (1 - 2.0**-8))
        alike = (found == true) | (np.isnan(found) & np.isnan(true)) | (beyond & (np.sign(found) == np.sign(true)))
        return np.where(alike, 0.0, np.where(np.isfinite(off), off, np.inf))


@dataclass(frozen=True)
class Compared:
    """One result beside the truth: in ulps of the place where it is worst."""

    name: str
    share: float  # of what is allowed: above 1 is wrong
    error: float
    allowed: float
    torch: float | None
    where: tuple[int, ...]
    found: float
    true: float
    limited: bool = False  # allowed only because PyTorch in that dtype is no better
    errors: Array | None = None  # by element, in parts of what is allowed

    @property
    def ok(self) -> bool:
        return self.share <= 1


def compare(name: str, found: Array, dtype: str, computed: str, allowed: Allowed) -> Compared:
    """A result of a kernel, of the definition's shape, within what is allowed."""
    true, fmt = allowed.true, FORMATS[dtype]
    if not true.size:
        return Compared(name, 0.0, 0.0, 0.0, None, (), 0.0, 0.0)
    with np.errstate(all="ignore"):
        errors = error_of(found, true, fmt.largest)
        alone, most = allowed.errors(dtype, computed)
        shares = np.where(errors == 0, 0.0, errors / most)
        shares = np.where(np.isinf(errors), np.where(np.isinf(most), 0.5, np.inf), shares)
        worst = tuple(int(axis) for axis in np.unravel_index(int(np.argmax(shares)), shares.shape))
        units = fmt.ulp(np.maximum(np.abs(true), by_rows(np.abs(true))))[worst]
        broken = (errors > alone) & (errors > BROKEN * by_rows(np.abs(true), 0)) & (shares <= 1)
        own = None if allowed.own is None else float(allowed.own[worst] / units)
        return Compared(
            name,
            float(shares[worst]),
            float(errors[worst] / units),
            float(most[worst] / units),
            own,
            worst,
            float(found[worst]),
            float(true[worst]),
            bool(broken.any()),
            shares,
        )
