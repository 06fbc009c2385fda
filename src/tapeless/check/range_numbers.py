"""The numbers at which kernels have been wrong: zeros of both signs, denormals, 1e-30 … 1e30, scores of ±1e4, rows of
one huge value, of equal values, of mixed magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tapeless.ops.contract import Array, Shape

Kind = Callable[[np.random.Generator, Shape], Array]


def _scaled(size: float, rng: np.random.Generator, shape: Shape) -> Array:
    return size * rng.normal(size=shape)


def _zeros(rng: np.random.Generator, shape: Shape) -> Array:
    return np.copysign(0.0, rng.normal(size=shape))


def _denormal(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.integers(-(2**23), 2**23, shape) * 2.0**-149


def _mixed(decades: float, rng: np.random.Generator, shape: Shape) -> Array:
    return rng.choice([-1.0, 1.0], shape) * 10 ** rng.uniform(-decades, decades, shape)


def _ramp(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(-110, 110, shape)


def _one_huge(size: float, rng: np.random.Generator, shape: Shape) -> Array:
    values = rng.normal(size=shape)
    rows = values.reshape(-1, shape[-1])
    rows[np.arange(len(rows)), rng.integers(0, shape[-1], len(rows))] *= size
    return values


def _equal(size: float, rng: np.random.Generator, shape: Shape) -> Array:
    return np.broadcast_to(size * rng.normal(size=(*shape[:-1], 1)), shape)


def _neighbours(rng: np.random.Generator, shape: Shape) -> Array:
    """A few roundings apart: differences hold nothing but the last bits."""
    return 1e4 * (1 + 2.0**-23 * rng.integers(-4, 5, shape))


KINDS: dict[str, Kind] = {
    "zeros": _zeros,
    "denormals": _denormal,
    **{f"{size:g}": partial(_scaled, size) for size in (1e-30, 1e-20, 1e-10, 1e-4, 30, 1e4, 1e10, 1e18, 3e19, 1e30)},
    "mixed magnitudes": partial(_mixed, 30),
    "-110 … 110": _ramp,
    "one huge value a row": partial(_one_huge, 1e4),
    "one value of 1e30 a row": partial(_one_huge, 1e30),
    "equal rows": partial(_equal, 1),
    "equal rows of 1e8": partial(_equal, 1e8),
    "neighbours": _neighbours,
}
TOGETHER: dict[str, Kind] = {
    "zeros": _zeros,
    "denormals": _denormal,
    **{f"{size:g}": partial(_scaled, size) for size in (1e-15, 1e-4, 30, 1e4, 1e9)},
    "mixed magnitudes": partial(_mixed, 6),
    "equal rows": partial(_equal, 1e3),
    "one huge value a row": partial(_one_huge, 1e4),
}
