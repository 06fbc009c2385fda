"""Linear: every row times the same matrix, plus a bias.

(1)  y[r, f] = Σ_c x[r, c] · weight[c, f] + bias[f]

For a loss L with dy = ∂L/∂y, the chain rule sums over every y that an input reaches:

     ∂L/∂x[r, c]      = Σ_f dy[r, f] · weight[c, f]        x[r, c] reaches row r of y, all f
     ∂L/∂weight[c, f] = Σ_r x[r, c] · dy[r, f]             weight[c, f] reaches column f, all r
     ∂L/∂bias[f]      = Σ_r dy[r, f]

(2)  dx      = dy @ weightᵀ
(3)  dweight = xᵀ @ dy
(4)  dbias   = Σ_r dy[r]                                   over rows only: it has shape F
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import NONE, Array, Dims, Scalars, Signature, Spec, given, product_flops, store

SPEC = Spec(
    name="linear",
    shapes={"y": "R F", "x": "R C", "weight": "C F", "bias": "F"},
    meanings={"weight": "matrix", "bias": "bias"},
    forward=Signature(writes={"y": "x @ weight + bias"}, reads=("x", "weight", "bias"), optional=("bias",)),
    backward=Signature(
        writes={"dx": "dy @ weightᵀ", "dweight": "xᵀ @ dy", "dbias": "Σ_R dy"},
        reads=("dy", "x", "weight"),
        adds=("dx", "dweight", "dbias"),
        optional=("dx", "dweight", "dbias", "x"),
        needed_by={"x": ("dweight",)},  # so where the weight is frozen, x need not be kept
    ),
)


def forward(y: Array, x: Array, weight: Array, bias: Array | None) -> None:
    np.matmul(x, weight, out=y)  # (1)
    if bias is not None:
        y += bias


def backward(
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    dy: Array,
    x: Array | None,
    weight: Array,
    add: frozenset[str] = NONE,
) -> None:
    if dx is not None:
        store(dx, dy @ weight.T, "dx" in add)  # (2)
    if dweight is not None and x is not None:
        store(dweight, x.T @ dy, "dweight" in add)  # (3)
    if dbias is not None:
        store(dbias, dy.sum(axis=0), "dbias" in add)  # (4)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    if direction == "forward":
        return product_flops(dims, "RCF") + dims["R"] * dims["F"]
    return product_flops(dims, "RCF", given(writes, "dx", "dweight")) + given(writes, "dbias") * dims["R"] * dims["F"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(5, 3)), "weight": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
