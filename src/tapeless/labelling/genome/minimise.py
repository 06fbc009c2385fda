"""The minimum of a smooth convex function of a few numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tapeless.ops.contract import Array


def minimise(objective: Callable[[Array], tuple[float, Array]], start: Array, rounds: int = 200) -> Array:
    """BFGS with backtracking, for a convex function with its gradient."""
    at, inverse = start.astype(np.float64), np.eye(len(start))
    value, gradient = objective(at)
    for number in range(rounds):
        if np.abs(gradient).max() < 1e-5 * max(1.0, abs(value)):
            break
        step = -inverse @ gradient
        scale = 1.0 if number else min(1.0, 1 / np.abs(step).sum())
        while True:
            there, found = at + scale * step, objective(at + scale * step)
            if found[0] <= value + 1e-4 * scale * float(step @ gradient) or scale < 1e-10:
                break
            scale /= 2
        moved, turned = there - at, found[1] - gradient
        at, (value, gradient) = there, found
        curve = float(moved @ turned)
        if curve > 1e-12:
            left = np.eye(len(at)) - np.outer(moved, turned) / curve
            inverse = left @ inverse @ left.T + np.outer(moved, moved) / curve
    return at
