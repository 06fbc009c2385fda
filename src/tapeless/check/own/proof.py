"""Is this backward the derivative of this forward?

The gradient under test is compared with the derivative of Σ dy·y, taken from the forward alone: by complex step where
the forward is analytic (right to the last digits of float64), else by differences with a bound on their error. What
cannot be told is said to be so; it never passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.check.own.callables import (
    Pair,
    RefusalError,
    as_array,
    first_outputs,
    gradients_at,
    gradients_on_inputs,
)
from tapeless.check.own.gradient import RANK, InputReport, Subject, judge
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.ops.contract import Array
from tapeless.shown import Told

LINEAR = TOLERANCES["linear in dy"]

VERDICTS = {
    "right": "right: the backward is the derivative of the forward.",
    "wrong": "wrong: the backward is not the derivative of the forward.",
    "cannot tell": "cannot tell: the forward alone does not say what the derivative is.",
    "refused": "refused:",
}


@dataclass(frozen=True, repr=False)
class Report(Told):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    verdict: str  # "right", "wrong", "cannot tell", or "refused"
    reason: str  # of a refusal, or of what is wrong apart from single numbers; else empty
    inputs: tuple[InputReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the backward is right."""
        return self.verdict == "right"

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = f"{VERDICTS[self.verdict]} {self.reason}".rstrip()
        return "\n".join([head, *(f"  {each}" for each in self.inputs)])

    def raise_if_wrong(self) -> None:
        """Raise TapelessError, with the whole report, unless the backward is right."""
        if not self.ok:
            raise TapelessError(str(self))


def prove(pair: Pair, wrt: tuple[int, ...], dy: Any, seed: int, tolerance: float | None) -> Report:
    """The verdict on a pair at its inputs."""
    rng = np.random.default_rng(seed)
    try:
        here = first_outputs(pair)
        weights = _checked_dy(dy, here, rng)
        gradients = gradients_on_inputs(pair, wrt, weights)
        nonlinear = _not_linear(pair, wrt, weights, gradients, rng)
        subject = Subject(pair, here, weights, wrt)
        reports = tuple(judge(subject, place, found, tolerance, rng) for place, found in enumerate(gradients))
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
