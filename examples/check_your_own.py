"""Is your backward right? Ten lines prove one, and catch another that most checks let through.

python examples/check_your_own.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tapeless import check

Array = Any


def normalised(x: Array) -> tuple[Array, Array]:
    centred = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
    return centred * rstd, rstd


def forward(x: Array, weight: Array, bias: Array) -> Array:
    return normalised(x)[0] * weight + bias


def backward(dy: Array, x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
    xhat, rstd = normalised(x)
    g = dy * weight
    dx = rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dx, (dy * xhat).sum(axis=0), dy.sum(axis=0)


def forgetful_backward(dy: Array, x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
    """As above, but the eps is left out of the norm that the backward computes again: off by about 1e-5."""
    centred = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True))
    g, xhat = dy * weight, centred * rstd
    dx = rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dx, (dy * xhat).sum(axis=0), dy.sum(axis=0)


def main() -> int:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4, 5)), rng.normal(size=5), rng.normal(size=5)
    right = check.op(forward, backward, inputs)
    print(right)
    wrong = check.op(forward, forgetful_backward, inputs)
    print(wrong)
    return 0 if right.verdict == "right" and wrong.verdict == "wrong" else 1


if __name__ == "__main__":
    sys.exit(main())
