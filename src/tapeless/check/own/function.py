"""A `torch.autograd.Function` as it is: its forward and backward as plain functions, and what is asked of no other
kernel, since autograd calls it in ways that its caller does not see.

Gradients for some of the inputs only; a dy that has no memory of its own, as from `y.sum()`, or gaps in it, as from a
transposition; one output used and the others not; one tensor in two places.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from tapeless.check.lockstep import farthest
from tapeless.check.own.bench import Bench, Claims, moved_by_a_rounding
from tapeless.check.own.callables import Pair, as_array, first_line
from tapeless.check.own.float32 import Extra, prove_kernel
from tapeless.check.own.report import Float32Report, Wrong
from tapeless.check.own.sizes import summed
from tapeless.errors import TapelessError
from tapeless.ops.contract import Array

DRAWS = 4  # of inputs that are off by a rounding


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
    wide = [
        torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
        for value, device in zip(pair.inputs, pair.devices, strict=True)
    ]
    elsewhere = f"Give it a definition: op(forward, inputs, kernel={function.__name__})."
    try:
        narrow = {str(each.dtype) for each in _outputs(function, wide) if each.dtype != torch.float64}
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


def in_autograd(function: Any) -> Extra:
    """What autograd may ask of a Function, tried at one set of inputs in float32."""

    def extra(bench: Bench, case: str, inputs: list[Any]) -> Iterator[Wrong]:
        torch = sys.modules["torch"]
        definition, rng = bench.definition, bench.rng(f"autograd {case}")
        names = definition.names
        devices = definition.pair.devices
        tensors = [
            torch.from_numpy(value.astype(np.float32) if value.dtype.kind == "f" else value.copy()).to(device)
            if isinstance(value, np.ndarray)
            else value
            for value, device in zip(inputs, devices, strict=True)
        ]
        shapes = [each.shape for each in definition.outputs(inputs)[0]]
        usual = [np.asarray(rng.normal(size=shape).astype(np.float32), np.float64) for shape in shapes]
        ones = [np.ones(shape) for shape in shapes]
        where = next(device for device in devices if device is not None)

        def held(
            what: str,
            wanted: Sequence[int],
            dy: list[Array],
            handed: Sequence[Any],
            same: tuple[int, int] | None = None,
        ) -> Iterator[Wrong]:
            try:
                found = _asked(function, tensors, wanted, handed, same)
            except Exception as raised:  # the user's own code
                sentence = f"the backward raises {type(raised).__name__} {what}: {first_line(raised)}"
                yield Wrong("autograd", case, sentence, tuple(inputs), tuple(dy))
                return
            taken = [inputs[same[0]] if same and index == same[1] else value for index, value in enumerate(inputs)]
            true, *moved = [
                _summed_up(definition.gradients(*each), definition.wrt, wanted, same)
                for each in ((taken, dy), *(moved_by_a_rounding(taken, dy, rng) for _ in range(DRAWS)))
            ]
            for place, index in enumerate(wanted):
                gradient = np.zeros(true[place].shape) if found[place] is None else as_array(found[place])
                length = summed(true[place], [*inputs, *dy])
                others = [each[place] for each in moved]
                error, allowed, at = farthest(gradient, true[place], others, "float32", length)
                if not error <= allowed:
                    yield Wrong(
                        "autograd",
                        case,
                        f"d{names[index]} is {float(gradient[at])!r} at {at} {what}, the definition says "
                        f"{float(true[place][at])!r} (off by {error:.1e} of its largest, allowed {allowed:.1e})",
                        tuple(inputs),
                        tuple(dy),
                    )

        def narrow(values: list[Array]) -> list[Any]:
            return [torch.from_numpy(each.astype(np.float32)).to(where) for each in values]

        wrt = definition.wrt
        for index in wrt if len(wrt) > 1 else ():
            yield from held(f"where only {names[index]} asks for a gradient", [index], usual, narrow(usual))
        expanded = [torch.ones((), device=where).expand(shape) for shape in shapes]
        yield from held("where dy is y.sum()'s, one number seen everywhere", wrt, ones, expanded)
        gaps = [each.repeat_interleave(2, -1)[..., ::2] if each.ndim else each for each in narrow(usual)]
        yield from held("where dy is not contiguous", wrt, usual, gaps)
        for output in range(len(shapes)) if len(shapes) > 1 else ():
            alone = [each if number == output else 0 * each for number, each in enumerate(usual)]
            handed = [each if number == output else None for number, each in enumerate(narrow(usual))]
            yield from held(f"where only output {output} is used", wrt, alone, handed)
        for first, second in combinations(wrt, 2):
            if np.shape(inputs[first]) == np.shape(inputs[second]):
                what = f"where one tensor is both {names[first]} and {names[second]}"
                yield from held(what, [first], usual, narrow(usual), (first, second))

    return extra


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
        return pair_of(kernel), [in_autograd(kernel)]
    if isinstance(kernel, tuple | list) and len(kernel) == 2 and any(each is not None for each in kernel):
        return kernel, []
    raise TapelessError(
        f"kernel must be (forward, backward), one of which may be None, or a torch.autograd.Function, not {kernel!r}."
    )
