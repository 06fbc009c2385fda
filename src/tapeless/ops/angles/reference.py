"""Angles: how far each pair of a head's channels is turned at each place, as cosine and sine.

(1)  cos[b, t, a] = cos(places[b, t] · rates[a]),   sin[b, t, a] = sin(places[b, t] · rates[a])

`places` counts from the beginning of each token's own document and is an input: documents that share a row each begin
at 0, and what reads on from a cache begins where it stopped. They are made once a step and serve every block. The rates
of A pairs fall from 1 to nearly 1/base, and a model that reads further than it was trained to slows them down:

(2)  rate_a = base^(−a/A)
(3)  linear:  rate / factor                                   every place counts for less
(4)  llama3:  what turns often within the old context stays, what turns less than once is divided by the factor, and in
     between m = (old · rate / 2π − low) / (high − low) of the one and 1 − m of the other

Angles are products of float64 numbers whatever the rest is: at place 100,000 a float32 has lost the second digit.
"""

from math import pi
from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="angles",
    shapes={"cos": "B S A", "sin": "B S A", "places": "B S", "rates": "A"},
    roles={"cos": "statistic", "sin": "statistic", "places": "index", "rates": "scalar"},
    meanings={"places": "position ids", "rates": "inverse frequencies", "cos": "cosines", "sin": "sines"},
    forward=Signature(
        writes={"cos": "cos(places·rates)", "sin": "sin(places·rates)"},
        reads=("places", "rates"),
    ),
)


def rates(pairs: int, base: float) -> Array:
    return base ** (-np.arange(pairs) / pairs)  # (2)


def linear(plain: Array, factor: float) -> Array:
    return plain / factor  # (3)


def llama3(plain: Array, factor: float, low: float, high: float, old: int) -> Array:
    turns = old * plain / (2 * pi)  # within the context it was first trained with
    share = np.clip((turns - low) / (high - low), 0, 1)
    return share * plain + (1 - share) * plain / factor  # (4)


def forward(cos: Array, sin: Array, places: Array, rates: Array) -> None:
    angles = places[..., None] * rates
    cos[...], sin[...] = np.cos(angles), np.sin(angles)  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 3 * dims["B"] * dims["S"] * dims["A"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {"places": rng.integers(0, 9, (2, 5)), "rates": rates(3, 100.0)}
