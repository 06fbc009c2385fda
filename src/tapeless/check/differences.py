"""A derivative from function values alone, and how far it can be trusted.

For a step h, c(h) = (f(h) − f(−h)) / 2h is the derivative up to even powers of h. With shrinking steps, neighbours are
combined so that the power p goes, ρ being the ratio of their steps:

(1)  (ρᵖ · small − large) / (ρᵖ − 1)          p = 2, then 4: what is left, C, is off by h⁶

A kink is invisible to C: |x| at 0 gives 0 for every h. But the slopes ahead and behind then differ by a jump, while
for a smooth function a(h) = (f(h) − 2 f(0) + f(−h)) / h holds odd powers of h only. (1) with p = 1, then 3, leaves

(2)  J = the jump of the slope, or about 0

The bound adds what neighbouring C disagree by (truncation, noise, a jump of f), |J| / 2, and the rounding of f over h;
the step with the smallest bound wins. ρ is no power of two: a function that is rounded inside agrees with itself over
such steps, and looks smooth. Over tiny steps it does not change at all: there the steps end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, nan, sqrt

import numpy as np

from tapeless.ops.contract import Array

STEPS, RATIO = 37, 1.87  # the last step is about 1e-10 of the first
SAFETY = 16.0  # the true value lies within so many times what neighbouring estimates disagree by
ROUNDINGS = 8.0  # of a function value, carried through the weights of (1) and (2)
SMALLEST = 2.0**-1074
FLAT = 14  # after so many steps, a function that stops changing is rounded, not constant

KINK = "the forward has a kink here: its slope jumps by {:.2g}"
ROUGH = "the forward is too rough here: it jumps, or is noisy, as when something inside is rounded to float32"
ROUNDING = "the forward rounds off too much beside what its output changes by"
UNDERFLOW = "the forward underflows here, where float64 ends at 5e-324: choose larger inputs"
NOT_FINITE = "the forward is not finite around this point"

Outputs = Sequence[Array]
Line = Callable[[float], Outputs]  # the outputs at x + t·direction, by t


@dataclass(frozen=True)
class Slope:
    """The derivative is `value` ± `bound`; `trouble` says what keeps the bound from being smaller."""

    value: float
    bound: float
    trouble: str = ""

    @property
    def smooth(self) -> bool:
        """Nothing but the rounding of float64 is in the way."""
        return self.trouble in ("", ROUNDING, UNDERFLOW)


def slope(line: Line, weights: Outputs, reach: float, wanted: float) -> Slope:
    """The derivative of Σ weights·outputs along a line, from steps of `reach` down, until the bound is `wanted`."""
    here = line(0.0)
    central: list[float] = []
    bends: list[float] = []
    combined: list[float] = []
    best, moved = Slope(nan, inf, NOT_FINITE), False
    for count in range(STEPS):
        step = reach * RATIO**-count
        ahead, behind = line(step), line(-step)
        moves = any((one != other).any() for one, other in zip(ahead, behind, strict=True))
        if moved and not moves and count > FLAT:
            break
        moved = moved or moves
        central.append(_total(weights, ahead, behind) / (2 * step))
        bends.append((_total(weights, ahead, here) - _total(weights, here, behind)) / step)
        if count >= 2:
            combined.append(_without((2, 4), central[-3:]))
        if count < 4:
            continue
        rounding = ROUNDINGS * _rounding(weights, ahead, behind) / step
        underflow = ROUNDINGS * smallest_sum(weights) / step
        estimate = _estimate(combined[-3:], _without((1, 3), bends[-3:]), rounding, underflow)
        best = min(best, estimate, key=lambda each: each.bound)
        if best.bound <= wanted:
            break
    return best


def _estimate(combined: list[float], jump: float, rounding: float, underflow: float) -> Slope:
    first, second, third = combined
    unrest = SAFETY * max(abs(third - second), abs(second - first))
    beside = UNDERFLOW if underflow > rounding else ROUNDING
    rounding += underflow
    bound = unrest + abs(jump) / 2 + rounding
    if not isfinite(bound):
        return Slope(nan, inf, NOT_FINITE)
    if abs(jump) / 2 > max(unrest, 100 * rounding):
        trouble = KINK.format(abs(jump))
    else:
        trouble = ROUGH if unrest > 100 * rounding else beside
    return Slope(third, bound, trouble)


def _without(powers: tuple[int, ...], values: list[float]) -> float:
    for power in powers:
        factor = RATIO**power
        values = [(factor * small - large) / (factor - 1) for large, small in pairwise(values)]  # (1)
    return values[0]


def _total(weights: Outputs, ahead: Outputs, behind: Outputs) -> float:
    """Differences first, sum later: what a step does not touch cancels exactly."""
    pairs = zip(weights, ahead, behind, strict=True)
    return float(sum((weight * (one - other)).sum() for weight, one, other in pairs))


def smallest_sum(weights: Outputs) -> float:
    """How far off Σ weights·outputs may be because no float64 is smaller than SMALLEST: outputs and products end there.
    Beside any output of ordinary size it is nothing."""
    return SMALLEST * float(sum((1 + 2 * np.abs(weight)).sum() for weight in weights))


def _rounding(weights: Outputs, ahead: Outputs, behind: Outputs) -> float:
    """How far off the difference may be if each output that changed is off by a rounding, up or down by chance."""
    total = 0.0
    for weight, one, other in zip(weights, ahead, behind, strict=True):
        terms = weight * np.where(one != other, np.abs(one) + np.abs(other), 0)
        total += float((terms * terms).sum())
    return 2.0**-53 * sqrt(total)
