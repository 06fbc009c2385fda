"""`tapeless.check.op`: an op of your own, proven: its backward, its float32 kernel, or both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any, overload

import numpy as np

from tapeless.check.own.bench import Claims
from tapeless.check.own.callables import Pair, as_array, is_tensor
from tapeless.check.own.definition import missing
from tapeless.check.own.float32 import prove_kernel
from tapeless.check.own.function import is_function, kernel_of, pair_of, prove_function
from tapeless.check.own.proof import Report, prove
from tapeless.check.own.report import Float32Report
from tapeless.errors import TapelessError
from tapeless.inputs import check_seed
from tapeless.ops.contract import Array

Function = Callable[..., Any]


@overload
def op(
    forward: type[Any], backward: Any, *, wrt: Sequence[int] | None = None, seed: int = 0, **claims: Any
) -> Float32Report: ...
@overload
def op(
    forward: Function,
    backward: Any,
    inputs: Any = None,
    *,
    wrt: Sequence[int] | None = None,
    dy: Any = None,
    saved: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    kernel: None = None,
) -> Report: ...
@overload
def op(
    forward: Function,
    backward: Any,
    inputs: Any = None,
    *,
    kernel: Any,
    wrt: Sequence[int] | None = None,
    saved: bool = False,
    seed: int = 0,
    writes: bool | None = None,
    adds: Collection[str] = (),
    shapes: Sequence[str] | None = None,
    largest: int = 1031,
    within: float = inf,
    strides: bool = False,
    repeatable: bool = True,
    case: str | None = None,
) -> Float32Report: ...
def op(
    forward: Function,
    backward: Any = None,
    inputs: Any = None,
    *,
    kernel: Any = None,
    wrt: Sequence[int] | None = None,
    dy: Any = None,
    saved: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    **claims: Any,
) -> Report | Float32Report:
    """Prove that `backward` is the derivative of `forward` at these inputs, NumPy arrays or torch tensors in float64.

    `forward(*inputs)` returns y, or a tuple of outputs; `backward(dy, *inputs)` returns the gradient of each input
    (None for what takes none), dy being a tuple where y is. With `saved=True` they are
    `forward(*inputs) -> (y, saved)` and `backward(dy, saved, *inputs)`. `wrt` picks inputs by number; by default all
    float64 arrays. A random `dy` is drawn from `seed` unless one is given.

    `kernel=(forward, backward)`, either of them None, holds a float32 kernel to that definition: `op(forward, inputs,
    kernel=…)` needs no backward in float64. A `torch.autograd.Function` is taken as it is, `op(MyFunction, inputs)`, or
    as the kernel of a definition, `op(forward, inputs, kernel=MyFunction)`.

    Of a kernel: `writes` says whether it writes into outputs that it is given first or returns them (seen from its
    arguments by default); `adds` names the gradients that it always adds to; `shapes` the axes of each input (["R C",
    "C"]), which are otherwise told by their sizes; `largest` the longest axis tried; `within` how far from 1 numbers
    may be; `strides=True` that it takes arrays that are not contiguous; `repeatable=False` that its bits may differ;
    `case` tries one case alone.
    """
    if inputs is None and not callable(backward):
        backward, inputs = None, backward
    if inputs is None:
        raise TapelessError("there are no inputs: op(forward, backward, inputs), or op(forward, inputs, kernel=…).")
    check_seed(seed)
    if is_function(forward):
        if backward is not None or kernel is not None:
            raise TapelessError("a torch.autograd.Function has its own backward: op(MyFunction, inputs).")
        made = _pair(*pair_of(forward), inputs, False, kernel=True)
        return prove_function(forward, made, _checked_wrt(made, wrt), _claims(claims), seed)
    if kernel is None:
        if claims:
            raise TapelessError(
                f"{min(claims)} is said of a kernel, and there is none: give kernel=(forward, backward)."
            )
        pair = _pair(forward, backward, inputs, saved, kernel=False)
        chosen = _checked_wrt(pair, wrt)
        if tolerance is not None and not (isinstance(tolerance, int | float) and 0 < tolerance < 1):
            raise TapelessError(f"tolerance must be a number between 0 and 1, not {tolerance!r}.")
        return prove(pair, chosen, dy, seed, tolerance)
    if dy is not None or tolerance is not None:
        raise TapelessError("a kernel is tried with many dy, and its tolerance follows from its sizes: leave both out.")
    pair = _pair(forward, missing if backward is None else backward, inputs, saved, kernel=True)
    chosen = _checked_wrt(pair, wrt)
    functions, extras = kernel_of(kernel)
    if is_function(kernel):
        claims |= {"writes": False}
        if not pair.tensors:
            raise TapelessError(f"{kernel.__name__} is torch's: its inputs, and its definition's, must be tensors.")
    return prove_kernel(pair, chosen, functions, _claims(claims), seed, extras)


def _claims(given: dict[str, Any]) -> Claims:
    unknown = set(given) - set(Claims.__dataclass_fields__)
    if unknown:
        raise TapelessError(
            f"op takes no {min(unknown)}: of a kernel it takes {', '.join(Claims.__dataclass_fields__)}."
        )
    adds, within, largest = given.get("adds", ()), given.get("within", inf), given.get("largest", 1)
    if isinstance(adds, str) or not all(isinstance(name, str) for name in adds):
        raise TapelessError(f"adds must be names of gradients, such as ['dweight'], not {adds!r}.")
    if isinstance(within, bool) or not isinstance(within, int | float) or not within > 1:
        raise TapelessError(f"within must be a number above 1, such as 1e6, not {within!r}.")
    if isinstance(largest, bool) or not isinstance(largest, int) or largest < 1:
        raise TapelessError(f"largest must be a whole number of at least 1, not {largest!r}.")
    if not isinstance(given.get("writes"), bool | None):
        raise TapelessError(f"writes must be True or False, not {given['writes']!r}.")
    for name in ("strides", "repeatable"):
        if not isinstance(given.get(name, True), bool):
            raise TapelessError(f"{name} must be True or False, not {given[name]!r}.")
    return Claims(**given | {"adds": frozenset(adds)})


def _pair(forward: Any, backward: Any, inputs: Any, saved: Any, kernel: bool) -> Pair:
    for what, function in (("forward", forward), ("backward", backward)):
        if not callable(function):
            raise TapelessError(f"{what} must be a function, not {function!r}.")
    if not isinstance(saved, bool):
        raise TapelessError(f"saved must be True or False, not {saved!r}.")
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    devices = tuple(value.device if is_tensor(value) else None for value in given)
    arrays = [as_array(value) if is_tensor(value) else value for value in given]
    names = _names(forward, len(given))
    for index, (name, value) in enumerate(zip(names, arrays, strict=True)):
        if isinstance(value, np.ndarray):
            arrays[index] = _checked_input(name, value, kernel, devices[index] is not None)
    return Pair(forward, backward, tuple(arrays), devices, names, saved)


def _checked_input(name: str, value: Array, kernel: bool, tensor: bool) -> Array:
    if kernel and value.dtype == np.float32:
        value = value.astype(np.float64)
    if value.dtype.kind in "fc" and value.dtype != np.float64:
        way = ".double()" if tensor else ".astype('float64')"
        raise TapelessError(f"{name} is {value.dtype}, and a proof needs float64: convert it, {way}.")
    if value.dtype == np.float64 and not np.isfinite(value).all():
        where = tuple(int(axis) for axis in np.argwhere(~np.isfinite(value))[0])
        raise TapelessError(f"{name} holds {value[where]} at {where}: choose finite inputs.")
    return value


def _names(forward: Any, count: int) -> tuple[str, ...]:
    """The names of the forward's parameters, where it has as many."""
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):  # built in: nobody wrote a signature
        parameters = []
    plain = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return tuple(plain[index] if index < len(plain) else f"input{index}" for index in range(count))


def _checked_wrt(pair: Pair, wrt: Sequence[int] | None) -> tuple[int, ...]:
    floats = [
        index
        for index, value in enumerate(pair.inputs)
        if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.size
    ]
    if wrt is None:
        if not floats:
            raise TapelessError("no input is a float64 array with anything in it, so there is no gradient to check.")
        return tuple(floats)
    if not isinstance(wrt, Sequence):
        raise TapelessError(f"wrt must be numbers of inputs, such as [0, 2], not {wrt!r}.")
    chosen = tuple(wrt)
    for index in chosen:
        if index not in floats:
            raise TapelessError(f"wrt={list(chosen)}: input {index!r} is no float64 array; choose among {floats}.")
    if not chosen or len(set(chosen)) != len(chosen):
        raise TapelessError(f"wrt={list(chosen)} must name at least one input, and each once.")
    return chosen
