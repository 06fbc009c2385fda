"""Dropout: while a model learns, each number is left out with probability `rate`, and the others make up for it.

(1)  m[i] = 1 / (1 − rate) where w[i] ≥ rate · 2³², else 0;   y = m · x
(2)  dx = m · dy

w[i] are 32 random bits, and nothing is kept of them: they are a function of where they stand, so that the backward, a
recomputation, a resumed run and any backend have the same ones. They are word i mod 4 of Philox4x32-10 (Salmon, Moraes,
Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) of a counter of four words under a key of two:

(3)  a, b, c, d = i div 4, site, draws mod 2³², draws div 2³²;   k, l = seed mod 2³², seed div 2³²

`site` is another number wherever a model drops, and `draws` another each time it learns from a batch. Ten times:

(4)  a, b, c, d ← high(M₁ · c) ⊕ b ⊕ k, low(M₁ · c), high(M₀ · a) ⊕ d ⊕ l, low(M₀ · a);   k, l ← k + W₀, l + W₁

with products of 64 bits, of which high and low are the halves, and sums mod 2³².
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

ROUNDS = 10
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF
MOST = 1 << 34  # numbers that a counter of 32 bits reaches


def _refuse(dims: Dims, scalars: Scalars) -> str | None:
    if not 0 <= scalars["rate"] < 1:
        return f"rate must be at least 0 and below 1, not {scalars['rate']!r}"
    if not 0 <= scalars["site"] <= WORD:
        return f"site must be at least 0 and fit 32 bits, not {scalars['site']!r}"
    if dims["R"] * dims["C"] > MOST:
        return f"R·C={dims['R'] * dims['C']:,} numbers are more than the {MOST:,} that can be drawn at once"
    return None


SPEC = Spec(
    name="dropout",
    shapes={"y": "R C", "x": "R C", "seed": "1", "draws": "1"},
    roles={"seed": "index", "draws": "index"},
    meanings={"seed": "seed", "draws": "random counter", "rate": "dropout rate"},
    forward=Signature(
        writes={"y": "x·m,  m = 1/(1 − rate) or, with probability rate, 0"},
        reads=("x", "seed", "draws"),
        scalars=("rate", "site"),
    ),
    backward=Signature(writes={"dx": "dy·m"}, reads=("dy", "seed", "draws"), scalars=("rate", "site")),
    refuse=_refuse,
    random=True,
)


def forward(y: Array, x: Array, seed: Array, draws: Array, rate: float, site: int) -> None:
    y[...] = factors(x.size, seed, draws, rate, site).reshape(x.shape) * x  # (1)


def backward(dx: Array, dy: Array, seed: Array, draws: Array, rate: float, site: int) -> None:
    dx[...] = factors(dy.size, seed, draws, rate, site).reshape(dy.shape) * dy  # (2)


def factors(size: int, seed: Array, draws: Array, rate: float, site: int) -> Array:
    """m, of the first `size` numbers."""
    return np.where(bits(size, int(seed[0]), int(draws[0]), site) >= threshold(rate), 1 / (1 - rate), 0.0)


def threshold(rate: float) -> int:
    """rate · 2³² as a whole number of 32 bits, which it is for every rate below 1."""
    return int(rate * 2**32)


def bits(size: int, seed: int, draws: int, site: int) -> Array:
    """w[0], …, w[size − 1]."""
    a: Array = np.arange(-(-size // 4), dtype=np.uint64)
    b, c, d = (np.full_like(a, word) for word in (site, draws & WORD, draws >> 32))  # (3)
    k, l = seed & WORD, seed >> 32  # noqa: E741
    for _ in range(ROUNDS):  # (4)
        one, other = a * np.uint64(M0), c * np.uint64(M1)
        a, b, c, d = (other >> 32) ^ b ^ k, other & WORD, (one >> 32) ^ d ^ l, one & WORD
        k, l = (k + W0) & WORD, (l + W1) & WORD  # noqa: E741
    return np.stack((a, b, c, d), axis=1).reshape(-1)[:size]


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return dims["R"] * dims["C"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    seed, draws = np.array([(7 << 32) + 3]), np.array([(2 << 32) + 5])
    return {"x": rng.normal(size=(5, 3)), "seed": seed, "draws": draws, "rate": 0.4, "site": 9}
