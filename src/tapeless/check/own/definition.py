"""What a float32 kernel is held to: somebody's definition in float64, and its gradients.

They come from the definition's own backward, which is proven first; or, where there is none, from torch's autograd for
a definition in torch, and from the complex step for one in NumPy. A step of 1e-150 is nothing beside any number that
float32 has, and float64 still has its products.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tapeless.check.own.callables import (
    Pair,
    RefusalError,
    as_array,
    complex_outputs,
    first_line,
    first_outputs,
    gradients_of,
    handed,
    outputs_of,
)
from tapeless.check.own.gradient import Subject, not_analytic
from tapeless.check.own.proof import Report, prove
from tapeless.errors import TapelessError
from tapeless.ops.contract import Array

STEP = 1e-150
ROUGH_STEP, ROUGH_RANGE = 1e-10, 1e15  # of the same in complex64, and how far from 1 numbers may be for it
MOST = 300_000  # numbers in one input
MOST_STEPS = 2500  # elements of which the complex step takes the derivative, a run of the forward each


@dataclass(frozen=True)
class Definition:
    """A forward in float64 with a way to its gradients. `inputs` everywhere: arrays for tensors, else as given."""

    pair: Pair
    wrt: tuple[int, ...]  # the inputs that take gradients
    way: str  # "backward", "autograd" or "complex step"
    itself: bool = False  # it is the kernel under test, computed in float64

    @property
    def names(self) -> tuple[str, ...]:
        return self.pair.names

    @property
    def most(self) -> int:
        """Numbers in one input at which gradients can be had in reasonable time."""
        return MOST_STEPS if self.way == "complex step" else MOST

    def outputs(self, inputs: Sequence[Any], dtype: Any = np.float64) -> tuple[list[Array], list[Array]]:
        """What the forward returns, and what it saves, where that is arrays."""
        pair = replace(self.pair, inputs=_in(dtype, inputs))
        outputs, saved = outputs_of(pair, pair.forward(*_handed(pair)))
        return [as_array(each) for each in outputs], flattened(saved)

    def gradients(self, inputs: Sequence[Any], dy: Sequence[Array], dtype: Any = np.float64) -> list[Array]:
        pair = replace(self.pair, inputs=_in(dtype, inputs))
        weights = [np.asarray(each, dtype) for each in dy]
        if self.way == "autograd":
            found = by_autograd(pair, self.wrt, weights)
        elif self.way == "backward":
            found = by_backward(pair, self.wrt, weights)
        else:
            found = _by_complex_step(pair, self.wrt, weights, dtype)
        zeros = [np.zeros(np.shape(inputs[index]), dtype) for index in self.wrt]
        return [zero if each is None else as_array(each) for zero, each in zip(zeros, found, strict=True)]

    def rough(self, inputs: Sequence[Any], dy: Sequence[Array] | None) -> list[Array] | None:
        """The same computed in float32: what its own formula loses there. None where it does not compute in that, or
        leaves the range of the type on its way. torch does not tell of that; there it is for the caller to doubt."""
        if self.itself:
            return None
        if dy is not None and self.way == "complex step" and not all(map(_moderate, [*inputs, *dy])):
            return None
        try:
            with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
                warnings.simplefilter("ignore")
                found = self.outputs(inputs, np.float32)[0] if dy is None else self.gradients(inputs, dy, np.float32)
        except Exception:  # it was written for float64, and need not take anything else
            return None
        return found if all(each.dtype == np.float32 for each in found) else None


def defined(pair: Pair, wrt: tuple[int, ...], seed: int, gradients: bool) -> tuple[Definition, Report | None]:
    """The definition, and the proof of its backward where it has one. RefusalError where nothing can be held to it."""
    if pair.backward is not missing:
        report = prove(pair, wrt, None, seed, None)
        return Definition(pair, wrt, "backward"), report
    here = first_outputs(pair)
    if not gradients:
        return Definition(pair, wrt, "none"), None
    if pair.tensors:
        return Definition(pair, wrt, "autograd"), None
    subject = Subject(pair, here, [np.ones_like(each) for each in here], wrt)
    for index in wrt:
        doubt = not_analytic(subject, index, np.random.default_rng(seed))
        if doubt:
            raise RefusalError(
                f"there is no backward, and the complex step cannot take its place for {pair.names[index]}: {doubt}. "
                f"Give the definition a backward, or write it in torch."
            )
    return Definition(pair, wrt, "complex step"), None


def missing(*arguments: Any) -> Any:
    """Stands for a backward that nobody gave."""
    raise TapelessError("this definition has no backward.")


def flattened(saved: Any) -> list[Array]:
    """The arrays among what a forward keeps for its backward, in order."""
    if saved is None:
        return []
    each = saved.values() if isinstance(saved, dict) else saved if isinstance(saved, tuple | list) else (saved,)
    return [as_array(value) for value in each if hasattr(value, "shape") and hasattr(value, "dtype")]


def by_backward(pair: Pair, wrt: tuple[int, ...], dy: Sequence[Array]) -> list[Any]:
    """The gradients that the pair's own backward says, whatever they are."""
    returned = pair.forward(*_handed(pair))
    _, saved = outputs_of(pair, returned)
    device = next((each for each in pair.devices if each is not None), None)
    incoming = tuple(handed(each, device) for each in dy)
    single = not isinstance(returned[0] if pair.saved else returned, tuple | list)
    first = [incoming[0] if single else incoming, *([saved] if pair.saved else [])]
    return gradients_of(pair, wrt, pair.backward(*first, *_handed(pair)))


def by_autograd(pair: Pair, wrt: tuple[int, ...], dy: Sequence[Array]) -> list[Any]:
    """torch's gradients of Σ dy·y; None where an output does not depend on an input."""
    torch = sys.modules["torch"]
    given = _handed(pair)
    for index in wrt:
        given[index].requires_grad_()
    with torch.enable_grad():
        outputs, _ = outputs_of(pair, pair.forward(*given))
    kept = [(y, d) for y, d in zip(outputs, dy, strict=True) if getattr(y, "requires_grad", False)]
    if not kept:
        raise RefusalError(
            "autograd finds no way from the definition's output to its inputs: does it leave torch, or detach?"
        )
    weights = [torch.from_numpy(d.copy()).to(y.device) for y, d in kept]
    try:
        found = torch.autograd.grad([y for y, _ in kept], [given[i] for i in wrt], weights, allow_unused=True)
    except RuntimeError as error:
        raise TapelessError(f"torch's autograd raised {type(error).__name__}: {first_line(error)}") from error
    return list(found)


def _by_complex_step(pair: Pair, wrt: tuple[int, ...], dy: Sequence[Array], dtype: Any) -> list[Array]:
    step, wide = (STEP, np.complex128) if dtype == np.float64 else (ROUGH_STEP, np.complex64)
    found = []
    for index in wrt:
        value = pair.inputs[index]
        gradient = np.zeros(value.size, dtype)
        for element in range(value.size):
            moved = value.astype(wide)
            moved.reshape(-1)[element] += 1j * step
            outputs = complex_outputs(pair, index, moved)
            if isinstance(outputs, str):
                raise RefusalError(f"the definition took complex input at first, and then did not: {outputs}.")
            gradient[element] = sum((d * y.imag).sum() for d, y in zip(dy, outputs, strict=True)) / step
        found.append(gradient.reshape(value.shape))
    return found


def _handed(pair: Pair) -> list[Any]:
    return [
        handed(value, device) if isinstance(value, np.ndarray) else value
        for value, device in zip(pair.inputs, pair.devices, strict=True)
    ]


def _in(dtype: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value.astype(dtype) if is_float(value) else value for value in inputs)


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _moderate(value: Any) -> bool:
    if not is_float(value):
        return True
    size = np.abs(value[value != 0])
    return not size.size or (size.min() > 1 / ROUGH_RANGE and size.max() < ROUGH_RANGE)
