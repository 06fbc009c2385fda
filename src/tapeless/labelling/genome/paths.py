"""The negative log-likelihood of one path among all paths of a lattice: a semi-Markov conditional random field.

A lattice has nodes 0 … P−1 and segments. Segment e leads from node a_e to node b_e > a_e and has a score s_e; a path
leads from the first node to the last, and its probability is exp(Σ s_e along it) / Z. Segments are sorted by b_e.

(1)  α_0 = 0;  α_n = log Σ_{e: b_e = n} exp(α_{a_e} + s_e)            all that leads to node n;  log Z = α_{P−1}
(2)  loss = log Z − Σ_e path_e·s_e                                     path_e: 1 where e lies on the true path, else 0
(3)  β_{P−1} = 0;  β_n = log Σ_{e: a_e = n} exp(s_e + β_{b_e})         all that leads on from node n
(4)  ds_e = exp(α_{a_e} + s_e + β_{b_e} − log Z) − path_e              the probability of e, less what is true

Lafferty, McCallum, Pereira, "Conditional random fields", ICML 2001; Sarawagi, Cohen, "Semi-Markov conditional random
fields for information extraction", NIPS 2004. A node that nothing leads to has α = −∞, and its segments have none of
the probability.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec

SPEC = Spec(
    name="lattice",
    shapes={"loss": "1", "alpha": "P", "scores": "N", "first": "N", "last": "N", "path": "N"},
    roles={"loss": "statistic", "alpha": "statistic", "first": "index", "last": "index"},
    forward=Signature(
        writes={"loss": "log Z − Σ path·scores", "alpha": "log Σ exp(alpha[first] + scores) over segments to a node"},
        reads=("scores", "first", "last", "path"),
    ),
    backward=Signature(
        writes={"dscores": "exp(alpha[first] + scores + β[last] − log Z) − path"},
        reads=("alpha", "scores", "first", "last", "path"),
    ),
    constants=("path",),
)


def _add(total: Array, node: int, term: Any) -> None:
    """total[node] = log(exp total[node] + exp term), by the larger real part, so that nothing overflows."""
    low, high = sorted((total[node], term), key=lambda value: value.real)
    total[node] = high if low.real == -np.inf else high + np.log(1 + np.exp(low - high))


def forward(loss: Array, alpha: Array, scores: Array, first: Array, last: Array, path: Array) -> None:
    alpha[...] = -np.inf
    alpha[0] = 0
    for e in range(len(scores)):
        _add(alpha, last[e], alpha[first[e]] + scores[e])  # (1)
    loss[...] = alpha[-1] - (path.real * scores).sum()  # (2)


def backward(dscores: Array, alpha: Array, scores: Array, first: Array, last: Array, path: Array) -> None:
    beta = np.full_like(alpha, -np.inf)
    beta[-1] = 0
    for e in reversed(range(len(scores))):
        _add(beta, first[e], scores[e] + beta[last[e]])  # (3)
    dscores[...] = np.exp(alpha[first] + scores + beta[last] - alpha[-1]) - path.real  # (4)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return (7 if direction == "forward" else 12) * dims["N"]


def example(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "scores": rng.normal(size=8),
        "first": np.array([0, 0, 1, 0, 2, 1, 3, 2]),
        "last": np.array([1, 2, 2, 3, 3, 4, 4, 4]),
        "path": np.array([1.0, 0, 1, 0, 1, 0, 1, 0]),
        "alpha": (5,),
    }
