"""First values for the weights, seeded: the same seed gives the same model, whatever the backend or type."""

from __future__ import annotations

from math import sqrt

import numpy as np

from tapeless.models.config import Config
from tapeless.ops.contract import Array
from tapeless.program.call import Buffer

PREDICTED = 0.2  # spread of embeddings that are predicted: wide enough for a softmax over distances to be sure


def initial_value(c: Config, weight: Buffer, rng: np.random.Generator) -> Array:
    """Norm weights 1, biases 0, matrices random. Each call takes from `rng`, so the order matters."""
    predicted = c.loss == "squared_error" and c.initialisation == "gpt2"
    if predicted and weight.name == "norm.weight":
        # States start at the size of the embeddings they are compared with: from 1 down, Adam would need a thousand
        # updates.
        return np.full(weight.shape, PREDICTED)
    if len(weight.shape) == 1:
        return np.full(weight.shape, 1.0 if weight.name.endswith("weight") else 0.0)
    if c.initialisation == "xavier":
        limit = sqrt(6 / sum(weight.shape))
        return rng.uniform(-limit, limit, weight.shape)
    # GPT-2: the two products that add to the residual stream are scaled down, so that the stream's variance
    # does not grow with depth.
    spread = 0.01 if weight.name == "positions.weight" else 0.02
    if predicted and weight.name == "positions.weight":
        spread = PREDICTED / 2
    if predicted and weight.name == "tokens.weight":
        # All of one length: a state that is unsure lies in the middle, where the shortest would always be the nearest.
        directions = rng.normal(size=weight.shape)
        directions *= PREDICTED * sqrt(c.channels) / np.linalg.norm(directions, axis=1, keepdims=True)
        return directions
    if weight.name.endswith(("attn.proj.weight", "mlp.down.weight")):
        spread /= sqrt(2 * c.layers)
    return rng.normal(0.0, spread, weight.shape)
