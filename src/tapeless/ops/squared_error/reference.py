"""Squared error between a state and the embedding of the token it should predict.

(1)  loss = (1/(count·C)) Σ_r ‖x_r − table[target_r]‖²       over rows with target ≥ 0
(2)  dx_r = 2 (x_r − table[target_r]) / (count·C)            and 0 in the ignored rows

The target side is a constant: table gets *no* gradient here. If it did, the cheapest way to lower the loss
would be to move all embeddings to one point. The same constant under the complex step: only the real part of
the table is read, so a perturbation of the embeddings does not enter through the target.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="squared_error",
    shapes={"loss": "1", "x": "R C", "table": "V C", "targets": "R", "count": "1"},
    roles={"loss": "statistic", "targets": "index", "count": "scalar"},
    meanings={"table": "vocabulary", "targets": "targets", "count": "loss denominator"},
    forward=Signature(writes={"loss": "Σ ‖x − table[target]‖² / (count·C)"}, reads=("x", "table", "targets", "count")),
    backward=Signature(
        writes={
            "loss": "Σ ‖x − table[target]‖² / (count·C)",
            "dx": "2·(x − table[target]) / (count·C)",
        },
        reads=("x", "table", "targets", "count"),
    ),
    constants=("table",),
    fused=True,
)


def _difference(x: Array, table: Array, targets: Array) -> Array:
    return np.where(targets[:, None] >= 0, x - table.real[targets], 0)


def forward(loss: Array, x: Array, table: Array, targets: Array, count: Array) -> None:
    difference = _difference(x, table, targets)
    loss[...] = (difference * difference).sum() / (count * x.shape[1])  # (1)


def backward(
    loss: Array,
    dx: Array,
    x: Array,
    table: Array,
    targets: Array,
    count: Array,
) -> None:
    difference = _difference(x, table, targets)
    loss[...] = (difference * difference).sum() / (count * x.shape[1])  # (1)
    dx[...] = 2 * difference / (count * x.shape[1])  # (2)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return (3 if direction == "forward" else 5) * dims["R"] * dims["C"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "x": rng.normal(size=(5, 3)),
        "table": rng.normal(size=(4, 3)),
        "targets": np.array([3, -1, 0, 3, 1]),
        "count": np.array([4.0]),
    }
