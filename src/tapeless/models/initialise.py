"""First values for the weights, seeded: the same seed gives the same model, whatever the backend or type.

Each weight is declared with one of these, and they are drawn in the order of declaration from one generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from tapeless.models.config import Architecture
from tapeless.ops.contract import Array, Shape
from tapeless.program.call import Initial

PREDICTED = 0.2  # spread of embeddings that are predicted: wide enough for a softmax over distances to be sure


@dataclass(frozen=True)
class Constant:
    value: float

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        return np.full(shape, self.value)


@dataclass(frozen=True)
class Normal:
    spread: float

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        return rng.normal(0.0, self.spread, shape)


@dataclass(frozen=True)
class Xavier:
    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        limit = sqrt(6 / sum(shape))
        return rng.uniform(-limit, limit, shape)


@dataclass(frozen=True)
class Uniform:
    """Between −limit and limit."""

    limit: float

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        return rng.uniform(-self.limit, self.limit, shape)


@dataclass(frozen=True)
class Directions:
    """All of one length: a state that is unsure lies in the middle, where the shortest would always be the nearest."""

    spread: float

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        directions = rng.normal(size=shape)
        directions *= self.spread * sqrt(shape[1]) / np.linalg.norm(directions, axis=1, keepdims=True)
        return directions


ONE, ZERO = Constant(1.0), Constant(0.0)


@dataclass(frozen=True)
class Scheme:
    """What matrices start as, by what they are for. Norms' weights are 1 and biases 0 in any scheme."""

    tokens: Initial
    positions: Initial
    matrix: Initial
    into_stream: Initial  # the two products of a block that add to the residual stream
    final_norm: Initial


def scheme_of(c: Architecture, initialisation: str) -> Scheme:
    if initialisation == "xavier":
        return Scheme(Xavier(), Xavier(), Xavier(), Xavier(), ONE)
    # GPT-2: what adds to the residual stream is scaled down, so that its variance does not grow with depth.
    matrix, into_stream = Normal(0.02), Normal(0.02 / sqrt(2 * c.layers))
    if c.loss == "squared_error":
        # States start at the size of the embeddings they are compared with: from 1 down, Adam would need a thousand
        # updates.
        return Scheme(Directions(PREDICTED), Normal(PREDICTED / 2), matrix, into_stream, Constant(PREDICTED))
    return Scheme(matrix, Normal(0.01), matrix, into_stream, ONE)
