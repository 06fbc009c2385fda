"""Classifier: the vocabulary product and the cross-entropy in one op, a chunk of rows at a time.

(1)  z_r = x_r @ weightᵀ                         V scores for row r
(2)  lse_r = log Σ_v exp z_rv,   loss = (1/count) Σ_r w_r (lse_r − z_r[target_r])    over rows with target ≥ 0

`count` is the number of such rows in the whole step; targets of −1 are ignored. w_r is 1, or the weight of the
target's class where rare classes are to count for more, and `count` is then the sum of the w_r. There is no
log(p + ε): that would be biased, and its gradient would not be (3). From ∂lse_r/∂z_rv = exp(z_rv − lse_r) = p_rv:

(3)  dz_rv = w_r (p_rv − [v = target_r]) / count     and 0 in the ignored rows
(4)  dx = dz @ weight
(5)  dweight = dzᵀ @ x

R×V scores can be larger than the whole model (1024 × 50257 against 16 million weights), so they never exist
at once: `logits` holds one chunk of K rows, and (3) replaces it in place. The backward needs (1) again, which
is a quarter of all its work; it therefore yields the loss as well, and a training step calls it alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tapeless.ops.contract import (
    NONE,
    Array,
    Dims,
    Scalars,
    Signature,
    Spec,
    given,
    product_flops,
    store,
)

SPEC = Spec(
    name="classifier",
    shapes={
        "loss": "1",
        "logits": "K V",
        "x": "R C",
        "weight": "V C",
        "targets": "R",
        "count": "1",
        "class_weights": "V",
    },
    roles={"loss": "statistic", "targets": "index", "count": "scalar", "class_weights": "statistic"},
    meanings={
        "weight": "vocabulary",
        "targets": "targets",
        "count": "loss denominator",
        "class_weights": "class weights",
    },
    forward=Signature(
        writes={
            "loss": "Σ_R (log Σ_V exp z − z[target]) / count, z = x @ weightᵀ",
            "logits": "z, K rows at a time",
        },
        reads=("x", "weight", "targets", "count", "class_weights"),
        optional=("class_weights",),
    ),
    backward=Signature(
        writes={
            "loss": "Σ_R (log Σ_V exp z − z[target]) / count, z = x @ weightᵀ",
            "dx": "dz @ weight, dz = (softmax z − onehot target) / count",
            "dweight": "dzᵀ @ x",
            "logits": "z, then dz, K rows at a time",
        },
        reads=("x", "weight", "targets", "count", "class_weights"),
        adds=("dweight",),
        optional=("dx", "dweight", "class_weights"),
    ),
    constants=("class_weights",),
    fused=True,
)


def _chunks(logits: Array, x: Array, weight: Array, targets: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Row chunks: where, their scores (in `logits`) less the row's largest, their log-sum-exp, and which rows count."""
    for start in range(0, len(x), len(logits)):
        rows = slice(start, min(start + len(logits), len(x)))
        z = logits[: rows.stop - start]
        np.matmul(x[rows], weight.T, out=z)  # (1)
        # Nothing depends on a shift of a row, and without one lse would lose its digits beside a large score. The
        # largest is taken on the real parts: it may be any constant.
        z -= z.real.max(axis=1)[:, None]
        lse = np.log(np.exp(z).sum(axis=1))  # (2)
        yield rows, z, lse, np.flatnonzero(targets[rows] >= 0)


def _row_weights(targets: Array, class_weights: Array | None) -> Array:
    """w_r, a constant: no gradient goes there. That of an ignored row is never used."""
    return np.ones(len(targets)) if class_weights is None else class_weights.real[targets]


def forward(
    loss: Array,
    logits: Array,
    x: Array,
    weight: Array,
    targets: Array,
    count: Array,
    class_weights: Array | None = None,
) -> None:
    loss[...] = 0
    for rows, z, lse, valid in _chunks(logits, x, weight, targets):
        picked = targets[rows][valid]
        loss += (_row_weights(picked, class_weights) * (lse[valid] - z[valid, picked])).sum() / count  # (2)


def backward(
    loss: Array,
    dx: Array | None,
    dweight: Array | None,
    logits: Array,
    x: Array,
    weight: Array,
    targets: Array,
    count: Array,
    class_weights: Array | None = None,
    add: frozenset[str] = NONE,
) -> None:
    loss[...] = 0
    if dweight is not None and "dweight" not in add:
        store(dweight, 0, add=False)
    for rows, z, lse, valid in _chunks(logits, x, weight, targets):
        picked = targets[rows][valid]
        loss += (_row_weights(picked, class_weights) * (lse[valid] - z[valid, picked])).sum() / count  # (2)
        z -= lse[:, None]
        np.exp(z, out=z)  # p
        z[valid, picked] -= 1
        z[targets[rows] < 0] = 0
        z *= _row_weights(targets[rows], class_weights)[:, None] / count  # (3)
        if dx is not None:
            np.matmul(z, weight, out=dx[rows])  # (4)
        if dweight is not None:
            dweight += z.T @ x[rows]  # (5)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return product_flops(dims, "RCV", 1 + given(writes, "dx", "dweight")) + 4 * dims["R"] * dims["V"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "x": rng.normal(size=(7, 3)),
        "weight": rng.normal(size=(5, 3)),
        "targets": np.array([4, -1, 0, 2, 2, -1, 1]),
        "count": np.array([5.0]),
        "logits": (3, 5),  # chunks of 3 do not divide 7 rows
    }
