"""Is this backward the derivative of this forward?

The gradient under test is compared with the derivative of Σ dy·y, taken from the forward alone: by complex step where
the forward is analytic (right to the last digits of float64), else by differences with a bound on their error. What
cannot be told is said to be so; it never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan
from typing import Any

import numpy as np

from tapeless.check.complex_step import STEP
from tapeless.check.differences import NOT_FINITE, UNDERFLOW, Slope, slope, smallest_sum
from tapeless.check.finding import Judgement
from tapeless.check.own.harness import (
    Pair,
    RefusalError,
    as_array,
    complex_outputs,
    first_outputs,
    gradients_at,
    gradients_on_inputs,
    outputs_near,
)
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.ops.contract import Array
from tapeless.shown import Told

DIFFERENCES, CONFIRMED = TOLERANCES["differences"], TOLERANCES["confirmed analytic"]
UNCHANGED, VANISHING = TOLERANCES["complex input unchanged"], TOLERANCES["vanishing gradient"]
EVERY = {"complex step": 4096, "differences": 512}  # inputs of at most so many elements are gone through one by one
SAMPLED = {"complex step": (8, 64), "differences": (4, 24)}  # else so many random directions, and single elements
REACH = 0.1234  # the first step of the differences, as a share of the input's typical size
MOVES = 3  # draws of inputs that are off by a rounding
INHERENT = 4.0  # times how far the gradient then moves: no closer agreement can be asked for
RANK = ("right", "cannot tell", "wrong", "refused")
LINEAR = TOLERANCES["linear in dy"]
VERDICTS = {
    "right": "right: the backward is the derivative of the forward.",
    "wrong": "wrong: the backward is not the derivative of the forward.",
    "cannot tell": "cannot tell: the forward alone does not say what the derivative is.",
    "refused": "refused:",
}
Along = Callable[[Array], Slope]  # the derivative along a direction of one input


@dataclass(frozen=True, repr=False)
class InputReport(Told):
    """The gradient of one input: where it is farthest from the truth, and how the truth was found."""

    name: str
    verdict: str  # "right", "wrong" or "cannot tell"
    method: str  # "complex step" or "differences"
    checked: str  # which elements or directions
    error: float  # relative to the largest element
    bound: float  # of the error of the truth itself, in the same measure
    tolerance: float
    position: tuple[int, ...] | None  # None: along a random direction
    found: float  # what the backward says there
    true: float
    notes: tuple[str, ...]  # why not the complex step, why it cannot tell

    def __str__(self) -> str:
        line = f"d{self.name}: {self.verdict}, relative error {self.error:.1e} (allowed {self.tolerance:.0e}), "
        lines = [line + f"{self.method}, bound {self.bound:.0e}, {self.checked}"]
        if self.verdict != "right":
            where = "along a random direction" if self.position is None else f"at {self.position}"
            lines.append(f"{where} the backward says {self.found!r}, the {self.method} {self.true!r}")
        return "\n    ".join([*lines, *self.notes])


@dataclass(frozen=True, repr=False)
class Report(Judgement):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    verdict: str  # "right", "wrong", "cannot tell", or "refused"
    reason: str  # of a refusal, or of what is wrong apart from single numbers; else empty
    inputs: tuple[InputReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the backward is right."""
        return self.verdict == "right"

    def __str__(self) -> str:
        head = f"{VERDICTS[self.verdict]} {self.reason}".rstrip()
        return "\n".join([head, *(f"  {each}" for each in self.inputs)])


@dataclass(frozen=True)
class WeightedSum:
    """What is differentiated: Σ weights·outputs, around the outputs on the inputs as given."""

    pair: Pair
    outputs: list[Array]
    weights: list[Array]
    wrt: tuple[int, ...]


@dataclass(frozen=True)
class _Compared:
    verdict: str
    error: float
    bound: float
    position: tuple[int, ...] | None
    found: float
    true: float
    trouble: str


def prove(pair: Pair, wrt: tuple[int, ...], dy: Any, seed: int, tolerance: float | None) -> Report:
    """The verdict on a pair at its inputs."""
    rng = np.random.default_rng(seed)
    try:
        here = first_outputs(pair)
        weights = _checked_dy(dy, here, rng)
        gradients = gradients_on_inputs(pair, wrt, weights)
        nonlinear = _not_linear(pair, wrt, weights, gradients, rng)
        total = WeightedSum(pair, here, weights, wrt)
        reports = tuple(judge(total, place, found, tolerance, rng) for place, found in enumerate(gradients))
    except RefusalError as refusal:
        return Report("refused", str(refusal))
    verdicts = [each.verdict for each in reports] + (["wrong"] if nonlinear else [])
    return Report(max(verdicts, key=RANK.index), nonlinear, reports)


def _checked_dy(dy: Any, here: list[Array], rng: np.random.Generator) -> list[Array]:
    """Random by default: a mistake that depends on dy, or hides behind ones, then shows."""
    if dy is None:
        return [np.asarray(rng.normal(size=output.shape)) for output in here]
    given = [as_array(each) for each in (dy if isinstance(dy, tuple | list) else (dy,))]
    if [each.shape for each in given] != [output.shape for output in here]:
        wanted, found = (" ".join(spelled(each.shape) for each in some) for some in (here, given))
        raise TapelessError(f"dy must have the shape of the output, {wanted}, not {found}.")
    if any(each.dtype.kind not in "fi" or not np.isfinite(each).all() or not each.any() for each in given):
        raise TapelessError("dy must be finite real numbers, not all of them 0.")
    return [each.astype(np.float64) for each in given]


def _not_linear(
    pair: Pair, wrt: tuple[int, ...], dy: list[Array], gradients: list[Any], rng: np.random.Generator
) -> str:
    """Every backward is linear in dy, whatever its forward; one that clips or looks at signs is not."""
    other = [np.asarray(rng.normal(size=each.shape) * np.abs(each).max(initial=0)) for each in dy]
    mixed = [2.5 * one - 1000.0 * two for one, two in zip(dy, other, strict=True)]
    of_other, of_mixed = gradients_at(pair, wrt, other, {}), gradients_at(pair, wrt, mixed, {})
    for index, one, two, both in zip(wrt, gradients, of_other, of_mixed, strict=True):
        if any(each is None for each in (one, two, both)):
            continue
        scale = 2.5 * np.abs(one).max() + 1000.0 * np.abs(two).max()
        error = float(np.abs(both - (2.5 * one - 1000.0 * two)).max())
        if error > LINEAR * scale:
            return (
                f"The gradient of {pair.names[index]} is not linear in dy, as every derivative is: "
                f"backward(2.5·a − 1000·b) is off from 2.5·backward(a) − 1000·backward(b) by {error / scale:.1e} of it."
            )
    return ""


def judge(
    total: WeightedSum, place: int, gradient: Array | None, tolerance: float | None, rng: np.random.Generator
) -> InputReport:
    """The verdict on the gradient of input `wrt[place]`; None stands for a gradient of 0."""
    index = total.wrt[place]
    value = total.pair.inputs[index]
    found = np.zeros_like(value) if gradient is None else gradient
    doubt = not_analytic(total, index, rng)
    underflow = smallest_sum(total.weights) / STEP  # as the complex step sees it
    if doubt:
        method = "differences"
        allowed = tolerance or DIFFERENCES
        wanted = 0.05 * allowed * float(np.abs(found).max())

        def along(direction: Array) -> Slope:
            return _by_differences(total, index, direction, wanted)

    else:
        method = "complex step"
        allowed = tolerance or TOLERANCES["complex step"]
        inherent = underflow + (0.0 if gradient is None else _inherent(total, place, gradient, rng))

        def along(direction: Array) -> Slope:
            true = _by_complex_step(total, index, direction)
            return Slope(true, inherent) if isfinite(true) else Slope(nan, inf, NOT_FINITE)

    worst, checked = _worst(found, along, method, allowed, _natural(total, value), rng)
    notes = [f"No complex step: {doubt}."] if doubt else []
    if worst.verdict == "cannot tell":
        moved = "the inputs, rounded differently, would change the gradient by as much"
        trouble = worst.trouble or (UNDERFLOW if abs(worst.found) <= underflow else moved)
        notes.append(f"{trouble[0].upper()}{trouble[1:]}.")
    if gradient is None:
        notes.append("The backward returned None for it, which stands for 0.")
    return InputReport(
        total.pair.names[index],
        worst.verdict,
        method,
        checked,
        worst.error,
        worst.bound,
        allowed,
        worst.position,
        worst.found,
        worst.true,
        tuple(notes),
    )


def _natural(total: WeightedSum, value: Array) -> float:
    """The size of a derivative in which nothing cancels."""
    terms = sum(float(np.abs(w * y).sum()) for w, y in zip(total.weights, total.outputs, strict=True))
    return terms / _typical(value)


def _typical(value: Array) -> float:
    largest = float(np.abs(value).max()) or 1.0
    return largest * float(np.sqrt(np.mean(np.square(value / largest)))) or 1.0  # the squares of 1e-170 would be 0


# The derivative.


def _by_differences(total: WeightedSum, index: int, direction: Array, wanted: float) -> Slope:
    value = total.pair.inputs[index]

    def line(t: float) -> list[Array]:
        return outputs_near(total.pair, {index: value + t * direction}, total.outputs)

    with np.errstate(all="ignore"):  # infinities on the way are part of the verdict
        return slope(line, total.weights, REACH * _typical(value), wanted)


def _by_complex_step(total: WeightedSum, index: int, direction: Array) -> float:
    outputs = complex_outputs(total.pair, index, total.pair.inputs[index] + 1j * STEP * direction)
    if isinstance(outputs, str):
        raise RefusalError(f"the forward took complex input at first, and then did not: {outputs}.")
    pairs = zip(total.weights, outputs, strict=True)
    return float(sum((weight * output.imag).sum() for weight, output in pairs)) / STEP


def not_analytic(total: WeightedSum, index: int, rng: np.random.Generator) -> str:
    """Empty if the complex step can be trusted: the slopes along the real and the imaginary axis agree."""
    value = total.pair.inputs[index]
    outputs = complex_outputs(total.pair, index, value.astype(complex))
    if isinstance(outputs, str):
        return outputs
    if [each.shape for each in outputs] != [each.shape for each in total.outputs]:
        return "the forward returns other shapes for complex input"
    for real, found in zip(total.outputs, outputs, strict=True):
        off = float(np.abs(found - real).max(initial=0))
        if not off <= UNCHANGED * float(np.abs(real).max(initial=0)):
            return f"the forward gives another result for complex input with imaginary part 0, off by {off:.1e}"
    for _ in range(2):
        direction = np.asarray(rng.normal(size=value.shape))
        imaginary = _by_complex_step(total, index, direction)
        real_slope = _by_differences(total, index, direction, 0.0)
        difference, size = abs(imaginary - real_slope.value), max(abs(imaginary), abs(real_slope.value))
        if not isfinite(real_slope.bound) or not isfinite(imaginary):
            return NOT_FINITE
        if difference > real_slope.bound + UNCHANGED * size:
            return (
                f"the forward is not analytic (an absolute value, a real part, a conjugate …): its slope is "
                f"{real_slope.value:.6g} along the real axis, but {imaginary:.6g} along the imaginary one"
            )
        # A slope of 0 up to rounding is confirmed as well as it can be.
        if real_slope.bound > CONFIRMED * size and not (real_slope.smooth and size <= real_slope.bound):
            return f"differences cannot confirm that the forward is analytic; {real_slope.trouble}"
    return ""


def _inherent(total: WeightedSum, place: int, gradient: Array, rng: np.random.Generator) -> float:
    """How far the gradient moves when the inputs are off by a rounding, up or down."""
    farthest = 0.0
    for _ in range(MOVES):
        moved = {}
        for index in total.wrt:
            value = total.pair.inputs[index]
            moved[index] = np.asarray(value * (1 + 2.0**-52 * rng.choice((-1.0, 1.0), value.shape)))
        other = gradients_at(total.pair, total.wrt, total.weights, moved)[place]
        if other is not None:
            farthest = max(farthest, float(np.abs(other - gradient).max()))
    return INHERENT * farthest


# The verdict.


def _worst(
    found: Array, along: Along, method: str, tolerance: float, natural: float, rng: np.random.Generator
) -> tuple[_Compared, str]:
    """The element, or direction, that speaks most against the gradient; and what was looked at."""
    flat = found.reshape(-1)
    if flat.size <= EVERY[method]:
        chosen, directions = np.arange(flat.size), 0
        checked = f"all {flat.size:,} elements" if flat.size > 1 else "its one element"
    else:
        directions, count = SAMPLED[method]
        known = [0, flat.size - 1, int(np.abs(flat).argmax())]
        chosen = np.unique([*known, *rng.integers(0, flat.size, count - len(known))])
        checked = f"{directions} random directions and {len(chosen)} of {flat.size:,} elements"
    slopes = {element: along(_single(found.shape, element)) for element in chosen.tolist()}
    scale = _scale(float(np.abs(flat).max()), slopes.values(), natural, tolerance)
    compared = [
        _compared(float(flat[element]), each, scale, tolerance, _position(element, found.shape))
        for element, each in slopes.items()
    ]
    compared += [_direction(found, along, tolerance, natural, rng) for _ in range(directions)]
    return max(compared, key=_against), checked


def _against(compared: _Compared) -> tuple[int, float, float]:
    return RANK.index(compared.verdict), inf if isnan(compared.error) else compared.error, compared.bound


def _direction(found: Array, along: Along, tolerance: float, natural: float, rng: np.random.Generator) -> _Compared:
    """The verdict along a random direction; if it is wrong, with the element to blame, found by halving."""
    flat, direction = found.reshape(-1), rng.normal(size=found.size)
    norm = float(np.linalg.norm(flat))  # what a random direction sees of a gradient on average

    def over(first: int, last: int) -> _Compared:
        part = np.zeros(found.size)
        part[first:last] = direction[first:last]
        true = along(part.reshape(found.shape))
        return _compared(float(flat @ part), true, _scale(norm, [true], natural, tolerance), tolerance, None)

    whole = over(0, found.size)
    if whole.verdict != "wrong":
        return whole
    first, last = 0, found.size
    while last - first > 1:
        middle = (first + last) // 2
        halves = ((first, middle), (middle, last))
        first, last = max(halves, key=lambda half: _against(over(*half))[1])
    element = along(_single(found.shape, first))
    return replace(whole, position=_position(first, found.shape), found=float(flat[first]), true=element.value)


def _scale(size: float, slopes: Collection[Slope], natural: float, tolerance: float) -> float:
    """The largest element; where all vanish, one beside which what vanishes is within the tolerance."""
    vanishing = VANISHING * natural
    if size <= vanishing and all(abs(each.value) + each.bound <= vanishing for each in slopes):
        return vanishing / tolerance or 1.0
    return max([size, *(abs(each.value) for each in slopes if isfinite(each.value))]) or 1.0


def _compared(found: float, true: Slope, scale: float, tolerance: float, position: tuple[int, ...] | None) -> _Compared:
    """Right and wrong only where the bound leaves no doubt. The complex step has none of its own: what it says is the
    derivative of what the forward computes, and agreement beyond what rounding asks for is agreement."""
    error, bound = abs(found - true.value) / scale, true.bound / scale
    exact = not true.trouble
    if error > tolerance + bound:
        verdict = "wrong"
    elif error <= tolerance and (exact or error + bound <= tolerance):
        verdict = "right"
    else:
        verdict = "cannot tell"
    return _Compared(verdict, error, bound, position, found, true.value, true.trouble)


def _position(element: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.unravel_index(element, shape))


def _single(shape: tuple[int, ...], element: int) -> Array:
    direction = np.zeros(shape)
    direction.reshape(-1)[element] = 1.0
    return direction
