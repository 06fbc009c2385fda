"""The op of `paths.py` on the CPU: two passes over sorted segments, and the best path."""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

from tapeless.kernels.cpu import Kernel, inlined
from tapeless.kernels.native import Native, Scratch


def forward(loss: Any, alpha: Any, scores: Any, first: Any, last: Any, path: Any) -> list[Native]:
    return [LATTICE.bind(scores.size, loss, alpha, scores, first, last, path)]


def backward_scratch(call: Any) -> list[Scratch]:
    """β, in the precision that the recursion is computed in."""
    return [Scratch((call.dims["P"],), "float64")]


def backward(dscores: Any, alpha: Any, scores: Any, first: Any, last: Any, path: Any, scratch: Any) -> list[Native]:
    return [LATTICE_BACKWARD.bind(scores.size, dscores, *scratch, alpha, scores, first, last, path)]


def best_path(best: Any, before: Any, scores: Any, first: Any, last: Any) -> list[Native]:
    """Viterbi: `best` is (1) with the largest term in the place of the sum, `before` the segment that it came by."""
    return [BEST_PATH.bind(scores.size, best, before, scores, first, last)]


@inlined  # type: ignore[untyped-decorator]
def _plus(a: Any, b: Any) -> Any:
    high, low = max(a, b), min(a, b)
    if low == -inf:
        return high
    return high + log(1.0 + exp(low - high))


def lattice(loss: Any, alpha: Any, scores: Any, first: Any, last: Any, path: Any) -> None:
    for n in range(alpha.size):
        alpha[n] = -inf
    alpha[0] = 0
    true = 0.0
    for e in range(scores.size):
        alpha[last[e]] = _plus(alpha[last[e]], alpha[first[e]] + scores[e])  # (1)
        true += path[e] * scores[e]
    loss[0] = alpha[alpha.size - 1] - true  # (2)


def lattice_backward(dscores: Any, beta: Any, alpha: Any, scores: Any, first: Any, last: Any, path: Any) -> None:
    for n in range(beta.size):
        beta[n] = -inf
    beta[beta.size - 1] = 0
    for back in range(scores.size):
        e = scores.size - 1 - back
        beta[first[e]] = _plus(beta[first[e]], scores[e] + beta[last[e]])  # (3)
    whole = alpha[alpha.size - 1]
    for e in range(scores.size):
        dscores[e] = exp(alpha[first[e]] + scores[e] + beta[last[e]] - whole) - path[e]  # (4)


def viterbi(best: Any, before: Any, scores: Any, first: Any, last: Any) -> None:
    for n in range(best.size):
        best[n] = -inf
        before[n] = -1
    best[0] = 0
    for e in range(scores.size):
        value = best[first[e]] + scores[e]
        if value > best[last[e]]:
            best[last[e]] = value
            before[last[e]] = e


LATTICE, LATTICE_BACKWARD, BEST_PATH = Kernel(lattice), Kernel(lattice_backward), Kernel(viterbi)
