"""Muon: a matrix steps along its gradient's running mean, made nearly orthogonal by products; AdamW steps the rest.

Each matrix by itself, with g = scale · its gradient and μ = momentum:

(1)  m ← μ m + (1 − μ) g,   x = μ m + (1 − μ) g         Nesterov: one mean further than m
(2)  x ← x / max(‖x‖, 1e-7)                             by all its elements, so that no singular value is above 1
(3)  x ← a x + (b A + c A²) x,   A = x xᵀ               five times; of a tall x from the right, with A = xᵀ x

(3) leaves singular vectors alone and takes a singular value s to a s + b s³ + c s⁵: five rounds bring all but tiny
ones to 0.7 … 1.2, so what the gradient says faintly moves the weights as far as what it shouts.

(4)  weights ← weights − lr · decay · weights − lr · 0.2 · √max(rows, columns) · x      decay on `decayed` only

An orthogonal matrix has elements of root mean square 1/√max(rows, columns), and AdamW's steps are about 0.2 · lr: one
rate suits both. (3) of a transpose is the transpose, so it does not matter that weights are (in, out).

`matrices` has (first element, rows, widths) of weights in which matrices lie side by side, as queries, keys and values
do; each steps by itself. All other weights step as in `adamw`; v is of these alone, one after the other. A master copy,
`finite`, and what is told of each section are as there:

(5)  moved[l] = √(Σ change²),   norms[l] = √(Σ weights²)   over section l
"""

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np

from tapeless.ops.adamw.reference import adam
from tapeless.ops.contract import Array, Dims, Scalars
from tapeless.ops.update import norms_by_section, refuse_sections, update_example, update_spec

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SMALLEST = 1e-7
SHARE = 0.2
Matrices = tuple[tuple[int, int, tuple[int, ...]], ...]


def rest_of(matrices: Matrices, size: int) -> list[tuple[int, int]]:
    """The spans that AdamW steps: (first element, one past the last)."""
    ends = [(start, start + rows * sum(widths)) for start, rows, widths in sorted(matrices)]
    starts, stops = (0, *(stop for _, stop in ends)), (*(start for start, _ in ends), size)
    return [(start, stop) for start, stop in zip(starts, stops, strict=True) if start != stop]


def each(matrices: Matrices) -> Iterator[tuple[int, int, int, slice]]:
    """Of each matrix: the first element, rows and row length of the weight that it lies in, and its columns there."""
    for start, rows, widths in matrices:
        at = 0
        for width in widths:
            yield start, rows, sum(widths), slice(at, at + width)
            at += width


def refuse(dims: Dims, scalars: Scalars) -> str | None:
    spans = rest_of(scalars["matrices"], dims["N"])
    left = max(1, sum(stop - start for start, stop in spans))  # no array is empty
    if any(start > stop for start, stop in spans) or left != dims["U"]:
        return (
            f"matrices must not overlap nor reach beyond the {dims['N']} elements, and leave {dims['U']} to AdamW, not "
            f"{scalars['matrices']}"
        )
    for start, rows, widths in scalars["matrices"]:
        for section in scalars["sections"]:
            if start < section < start + rows * sum(widths):
                return f"a section begins at {section}, inside the matrices that begin at {start}"
        stop = start + rows * sum(widths)
        for first, last in scalars["decayed"]:
            if first < stop and start < last and not first <= start < stop <= last:
                return f"elements {first} to {last} decay, which is only a part of the matrices that begin at {start}"
    return refuse_sections(dims, scalars)


SPEC = update_spec(
    "muon",
    {
        "weights": "weights·(1 − lr·decay) − lr·0.2·√max(rows, columns)·orthogonal(μ·m + (1 − μ)·scale·gradients)",
        "m": "μ·m + (1 − μ)·scale·gradients",
        "v": "β₂·v + (1 − β₂)·(scale·gradients)², of what AdamW steps",
    },
    "change",
    scalars=("momentum", "beta1", "beta2", "eps", "decay", "decayed", "matrices"),
    second_moments="U",
    refuse=refuse,
)


def forward(
    weights: Array,
    m: Array,
    v: Array,
    master: Array | None,
    step: Array,
    moved: Array,
    norms: Array,
    gradients: Array,
    scale: Array,
    finite: Array,
    lr: Array,
    momentum: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    decayed: tuple[tuple[int, int], ...],
    matrices: Matrices,
    sections: tuple[int, ...],
) -> None:
    full = weights if master is None else master
    norms[...] = norms_by_section(full, sections)  # (5)
    moved[...] = 0
    if not finite[0]:
        return
    step += 1
    change = np.zeros_like(full)
    for start, stop in decayed:
        change[start:stop] = lr[0] * decay * full[start:stop]
    g = scale[0] * gradients
    for start, rows, length, columns in each(matrices):
        mean, new, out = (of[start : start + rows * length].reshape(rows, length)[:, columns] for of in (m, g, change))
        mean += (1 - momentum) * (new - mean)  # (1)
        x = orthogonal(momentum * mean + (1 - momentum) * new)
        out += lr[0] * SHARE * sqrt(max(x.shape)) * x  # (4)
    at = 0
    for start, stop in rest_of(matrices, full.size):
        part = v[at : at + stop - start]
        change[start:stop] += adam(m[start:stop], part, g[start:stop], step, lr, beta1, beta2, eps)
        at += stop - start
    full -= change
    moved[...] = norms_by_section(change, sections)
    if master is not None:
        weights[...] = master


def orthogonal(x: Array) -> Array:
    a, b, c = COEFFICIENTS
    size = np.sqrt((x * x).sum())
    x = x / (size if size.real > SMALLEST else SMALLEST)  # (2)
    tall = x.shape[0] > x.shape[1]
    for _ in range(ROUNDS):
        products = x.T @ x if tall else x @ x.T
        mixed = b * products + c * products @ products
        x = a * x + (x @ mixed if tall else mixed @ x)  # (3)
    return x


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    total = 20 * dims["U"]
    for _, rows, _, columns in each(scalars["matrices"]):
        width = columns.stop - columns.start
        side = min(rows, width)
        total += 12 * rows * width + ROUNDS * (4 * rows * width * side + 2 * side**3 + 4 * side**2)
    return total


def example(rng: np.random.Generator) -> dict[str, Any]:
    """Two matrices side by side, one of them wide, and a tall one."""
    return update_example(
        rng,
        {"m": 34, "v": 7},
        size=34,
        momentum=0.9,
        beta1=0.8,
        beta2=0.99,
        eps=1e-8,
        decay=0.1,
        decayed=((1, 20),),
        matrices=((2, 3, (2, 4)), (22, 3, (1,)), (25, 3, (2,))),
        sections=(0, 2, 22),
    )
