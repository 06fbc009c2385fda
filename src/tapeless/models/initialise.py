"""First values for the weights, seeded: the same seed gives the same model, whatever the backend or type."""

from __future__ import annotations

from math import sqrt

import numpy as np

from tapeless.models.config import Config
from tapeless.ops.contract import Array
from tapeless.program.call import Buffer


def initial_value(c: Config, weight: Buffer, rng: np.random.Generator) -> Array:
    """Norm weights 1, biases 0, matrices random. Each call takes from `rng`, so the order matters."""
    if len(weight.shape) == 1:
        return np.full(weight.shape, 1.0 if weight.name.endswith("weight") else 0.0)
    if c.initialisation == "xavier":
        limit = sqrt(6 / sum(weight.shape))
        return rng.uniform(-limit, limit, weight.shape)
    # GPT-2: the two products that add to the residual stream are scaled down, so that the stream's variance
    # does not grow with depth.
    spread = 0.01 if weight.name == "positions.weight" else 0.02
    if weight.name.endswith(("attn.proj.weight", "mlp.down.weight")):
        spread /= sqrt(2 * c.layers)
    return rng.normal(0.0, spread, weight.shape)
