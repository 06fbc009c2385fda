"""SwiGLU: one half of a product decides, channel by channel, how much of the other half goes on.

(1)  s = 1 / (1 + exp(−gate)),   y = gate · s · up               gate · s is SiLU, or swish

With ds/dgate = s · (1 − s):

(2)  dgate = dy · up · s · (1 + gate · (1 − s))
(3)  dup = dy · gate · s

gate and up are kept, s is made again. 1 − s is the sigmoid of −gate: taken as that, it keeps its digits where s is
nearly 1.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="swiglu",
    shapes={"y": "R F", "gate": "R F", "up": "R F"},
    forward=Signature(writes={"y": "gate·σ(gate)·up"}, reads=("gate", "up")),
    backward=Signature(
        writes={"dgate": "dy·up·σ(gate)·(1 + gate·σ(−gate))", "dup": "dy·gate·σ(gate)"},
        reads=("dy", "gate", "up"),
    ),
)


def _sigmoid(x: Array) -> Array:
    """Of whichever sign, by the exponential that cannot overflow: the choice is by the real part, so it is analytic."""
    negative = x.real < 0
    small = np.exp(np.where(negative, x, -x))
    sigmoid: Array = np.where(negative, small, 1) / (1 + small)
    return sigmoid


def forward(y: Array, gate: Array, up: Array) -> None:
    y[...] = gate * _sigmoid(gate) * up  # (1)


def backward(dgate: Array, dup: Array, dy: Array, gate: Array, up: Array) -> None:
    s = _sigmoid(gate)
    dgate[...] = dy * up * (s * (1 + gate * _sigmoid(-gate)))  # (2)
    dup[...] = dy * (gate * s)  # (3)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return (5 if direction == "forward" else 11) * dims["R"] * dims["F"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"gate": 1.5 * rng.normal(size=(4, 5)), "up": rng.normal(size=(4, 5))}
