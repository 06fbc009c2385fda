"""RoPE: queries and keys are turned by their place, pair by pair, so that their product knows how far apart they are.

A head's D channels are A = D/2 pairs. The two of a pair stand half a head apart, (a, a + A), not side by side: that is
the layout of the weights that are published. Pair a at place t is turned by the angle whose cosine and sine come in:

(1)  y_a = x_a cos_a − x_(a+A) sin_a,   y_(a+A) = x_(a+A) cos_a + x_a sin_a

The T places of x are the *last* T of the S that there are angles for. A turn is undone by the turn the other way, and
its transpose is its inverse:

(2)  dx_a = dy_a cos_a + dy_(a+A) sin_a,   dx_(a+A) = dy_(a+A) cos_a − dy_a sin_a
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec


def _refuse(dims: Dims, scalars: Scalars) -> str | None:
    if dims["C"] % (2 * dims["A"]):
        return f"C={dims['C']} channels are no whole number of heads of A={dims['A']} pairs"
    if dims["T"] > dims["S"]:
        return f"T={dims['T']} places have only S={dims['S']} angles"
    return None


SPEC = Spec(
    name="rope",
    shapes={"y": "B T C", "x": "B T C", "cos": "B S A", "sin": "B S A"},
    roles={"cos": "statistic", "sin": "statistic"},
    constants=("cos", "sin"),
    meanings={"cos": "cosines", "sin": "sines"},
    forward=Signature(writes={"y": "x turned by its place"}, reads=("x", "cos", "sin")),
    backward=Signature(writes={"dx": "dy turned back"}, reads=("dy", "cos", "sin")),
    refuse=_refuse,
)


def _pairs(x: Array, cos: Array, sin: Array) -> tuple[Array, Array, Array, Array]:
    """The first and the second of each pair, B T H A, and cosine and sine, which are constants, for them, B T 1 A."""
    batch, time, _ = x.shape
    halves = x.reshape(batch, time, -1, 2, cos.shape[2])
    own = slice(cos.shape[1] - time, None)
    return halves[..., 0, :], halves[..., 1, :], cos.real[:, own, None], sin.real[:, own, None]


def _joined(first: Array, second: Array) -> Array:
    return np.stack([first, second], axis=3).reshape(*first.shape[:2], -1)


def forward(y: Array, x: Array, cos: Array, sin: Array) -> None:
    first, second, c, s = _pairs(x, cos, sin)
    y[...] = _joined(first * c - second * s, second * c + first * s)  # (1)


def backward(dx: Array, dy: Array, cos: Array, sin: Array) -> None:
    first, second, c, s = _pairs(dy, cos, sin)
    dx[...] = _joined(first * c + second * s, second * c - first * s)  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 3 * dims["B"] * dims["T"] * dims["C"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    batch, time, angles, heads, pairs = 2, 3, 5, 2, 3
    turned = rng.uniform(0.3, 1.2, (batch, angles, pairs))
    return {
        "x": rng.normal(size=(batch, time, heads * 2 * pairs)),
        "cos": np.cos(turned),
        "sin": np.sin(turned),
    }
