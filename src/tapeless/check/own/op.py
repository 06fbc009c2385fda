"""`tapeless.check.op`: an op of your own, proven: its backward, its float32 kernel, or both.

A `torch.autograd.Function` is taken as it is: its forward and backward as plain functions, and what is asked of no
other kernel, since autograd calls it in ways that its caller does not see. Gradients for some of the inputs only; a dy
that has no memory of its own, as from `y.sum()`, or gaps in it, as from a transposition; one output used and the others
not; one tensor in two places.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import Any, overload

import numpy as np

from tapeless.check.own.cases import At, is_float, missing, moved_by_a_rounding, named
from tapeless.check.own.float32 import Bench, Claims, Extra, Float32Report, prove_kernel
from tapeless.check.own.gradient import Report, prove
from tapeless.check.own.harness import (
    POSITIONAL,
    Pair,
    arguments,
    as_array,
    first_line,
    handed,
    is_tensor,
    parameters_of,
)
from tapeless.errors import TapelessError
from tapeless.inputs import check_seed
from tapeless.ops.contract import Array

DRAWS = 4  # of inputs that are off by a rounding

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
    plain = [each.name for each in parameters_of(forward) if each.kind in POSITIONAL]
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


# A torch.autograd.Function.


def is_function(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, type) and issubclass(value, torch.autograd.Function)


def pair_of(function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A Function's two directions: `forward(*inputs)`, and `backward(dy, *inputs)` through autograd."""

    def forward(*inputs: Any) -> Any:
        outputs = _outputs(function, inputs)
        copies = tuple(each.detach().clone() for each in outputs)
        return copies if len(copies) > 1 else copies[0]

    def backward(dy: Any, *inputs: Any) -> list[Any]:
        incoming = dy if isinstance(dy, tuple) else (dy,)
        wanted = [index for index, value in enumerate(inputs) if _differentiable(value)]
        found = dict(zip(wanted, _asked(function, inputs, wanted, incoming), strict=True))
        return [found.get(index) for index in range(len(inputs))]

    names = _parameters(function)
    forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return forward, backward


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Those of its forward, without the context where it takes one."""
    parameters = list(inspect.signature(function.forward).parameters.values())
    has_context = function.setup_context is sys.modules["torch"].autograd.Function.setup_context
    return parameters[1:] if has_context else parameters


def _differentiable(value: Any) -> bool:
    """Complex too: the forward is asked for it where the complex step is tried."""
    return hasattr(value, "is_floating_point") and bool(value.is_floating_point() or value.is_complex())


def _outputs(function: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs that are numbers: others, a mask or a count, take no gradient."""
    returned = function.apply(*inputs)
    if returned is None:
        raise TapelessError(f"the forward of {function.__name__} returned None: is there a `return` at its end?")
    outputs = [each for each in (returned if isinstance(returned, tuple) else (returned,)) if _differentiable(each)]
    if not outputs:
        raise TapelessError(f"{function.__name__} returns no tensor of numbers.")
    return outputs


def _asked(
    function: Any, inputs: Sequence[Any], wanted: Sequence[int], dy: Sequence[Any], same: tuple[int, int] | None = None
) -> list[Any]:
    """Autograd's gradients of some of the inputs, the others asking for none; `same`: one tensor in two places."""
    torch = sys.modules["torch"]
    given = list(inputs)
    for index in wanted:
        given[index] = given[index].detach().requires_grad_()
    if same is not None:
        given[same[1]] = given[same[0]]
    with torch.enable_grad():
        outputs = _outputs(function, given)
    kept = [(output, each) for output, each in zip(outputs, dy, strict=True) if each is not None]
    found = torch.autograd.grad(
        [output for output, _ in kept],
        [given[index] for index in wanted],
        [each for _, each in kept],
        allow_unused=True,
    )
    return [each if each is None else each.clone() for each in found]


def prove_function(function: Any, pair: Pair, wrt: tuple[int, ...], claims: Claims, seed: int) -> Float32Report:
    """In float64 it is its own definition: first that is proven, then its float32 is held to it."""
    if not pair.tensors:
        raise TapelessError(f"{function.__name__} is torch's: its inputs must be tensors.")
    torch = sys.modules["torch"]
    elsewhere = f"Give it a definition: op(forward, inputs, kernel={function.__name__})."
    try:
        narrow = {str(each.dtype) for each in _outputs(function, arguments(pair)) if each.dtype != torch.float64}
    except TapelessError:
        raise
    except Exception as error:  # a kernel that takes float32 alone
        said = f"it raised {type(error).__name__}: {first_line(error)}"
        return Float32Report("refused", f"{function.__name__} does not take float64 ({said}). {elsewhere}", None)
    if narrow:
        reason = f"{function.__name__} returns {min(narrow)} for float64, and cannot be its own definition. {elsewhere}"
        return Float32Report("refused", reason, None)
    kernel, extras = kernel_of(function)
    report = prove_kernel(pair, wrt, kernel, replace(claims, writes=False), seed, extras, itself=True)
    if report.definition is not None and report.definition.verdict == "refused":
        return Float32Report("refused", report.definition.reason, None)
    if report.definition is not None and report.definition.verdict == "wrong":
        return replace(report, verdict="wrong", reason="In float64 its backward is not the derivative of its forward.")
    return report


class AutogradCalls:
    """What autograd may ask of a Function, tried at one set of inputs in float32."""

    def __init__(self, function: Any, bench: Bench, at: At) -> None:
        self.function, self.bench, self.at = function, bench, at
        self.definition, self.rng = bench.definition, bench.rng(f"autograd {at.case}")
        self.tensors = [
            handed(value.astype(np.float32) if is_float(value) else value, device)
            if isinstance(value, np.ndarray)
            else value
            for value, device in zip(at.inputs, self.definition.pair.devices, strict=True)
        ]

    def try_all(self) -> None:
        torch, inputs = sys.modules["torch"], self.at.inputs
        names, wrt = self.definition.names, self.definition.wrt
        shapes = [each.shape for each in self.definition.outputs(inputs)[0]]
        usual = [np.asarray(self.rng.normal(size=shape).astype(np.float32), np.float64) for shape in shapes]
        device = next(device for device in self.definition.pair.devices if device is not None)

        def narrow() -> list[Any]:  # anew each time: a backward may write into it
            return [handed(each.astype(np.float32), device) for each in usual]

        for index in wrt if len(wrt) > 1 else ():
            self.compare(f"where only {names[index]} asks for a gradient", [index], usual, narrow())
        expanded = [torch.ones((), device=device).expand(shape) for shape in shapes]
        self.compare("where dy is y.sum()'s, one number seen everywhere", wrt, list(map(np.ones, shapes)), expanded)
        gaps = [each.repeat_interleave(2, -1)[..., ::2] if each.ndim else each for each in narrow()]
        self.compare("where dy is not contiguous", wrt, usual, gaps)
        for output in range(len(shapes)) if len(shapes) > 1 else ():
            alone = [each if number == output else 0 * each for number, each in enumerate(usual)]
            given = [each if number == output else None for number, each in enumerate(narrow())]
            self.compare(f"where only output {output} is used", wrt, alone, given)
        for first, second in combinations(wrt, 2):
            if np.shape(inputs[first]) == np.shape(inputs[second]):
                what = f"where one tensor is both {names[first]} and {names[second]}"
                self.compare(what, [first], usual, narrow(), (first, second))

    def compare(
        self,
        what: str,
        wanted: Sequence[int],
        dy: list[Array],
        given: Sequence[Any],
        same: tuple[int, int] | None = None,
    ) -> None:
        """The gradients that are asked for to what the definition says; `given`: dy as autograd hands it over."""
        inputs, at = self.at.inputs, replace(self.at, dy=named("dy", dy))
        try:
            found = _asked(self.function, self.tensors, wanted, given, same)
        except Exception as raised:  # the user's own code
            sentence = f"the backward raises {type(raised).__name__} {what}: {first_line(raised)}"
            self.bench.note("autograd", at.case, sentence, at)
            return
        taken = [inputs[same[0]] if same and index == same[1] else value for index, value in enumerate(inputs)]
        true, *moved = [
            _summed_up(self.definition.gradients(*each), self.definition.wrt, wanted, same)
            for each in ((taken, dy), *(moved_by_a_rounding(taken, dy, self.rng) for _ in range(DRAWS)))
        ]
        for place, index in enumerate(wanted):
            gradient = np.zeros(true[place].shape) if found[place] is None else as_array(found[place])
            others = [each[place] for each in moved]
            name = f"d{self.definition.names[index]}"
            self.bench.compare_result("autograd", at, name, gradient, true[place], others, [*inputs, *dy], f" {what}")


def _summed_up(
    gradients: list[Array], wrt: Sequence[int], wanted: Sequence[int], same: tuple[int, int] | None
) -> list[Array]:
    by_input = dict(zip(wrt, gradients, strict=True))
    if same is not None:
        return [by_input[same[0]] + by_input[same[1]]]
    return [by_input[index] for index in wanted]


def kernel_of(kernel: Any) -> tuple[Sequence[Any], list[Extra]]:
    """The two directions of a kernel, and what is asked of it besides."""
    if is_function(kernel):
        return pair_of(kernel), [lambda bench, at: AutogradCalls(kernel, bench, at).try_all()]
    if isinstance(kernel, tuple | list) and len(kernel) == 2 and any(each is not None for each in kernel):
        return kernel, []
    raise TapelessError(
        f"kernel must be (forward, backward), one of which may be None, or a torch.autograd.Function, not {kernel!r}."
    )
