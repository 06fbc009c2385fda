"""Bugs of the matrix products."""

from __future__ import annotations

from typing import Any

from tapeless.ops import OPS
from tapeless.ops.contract import NONE
from tests.bugs.planting import Bug, backward, forward, overwriting, replaced

_right = OPS["linear"].backward


def _scratch_in_x(*args: Any, add: frozenset[str] = NONE) -> None:
    _right(*args, **({"add": add} if add else {}))
    x = args[4]
    x *= 0.5


BUGS = (
    Bug(
        "bias-over-wrong-axis",
        "linear",
        "dbias sums along the features of the memory instead of over the rows.",
        "Of the right shape, and noise.",
        backward("linear", dbias=lambda a: a.dy.reshape(a.dy.shape[1], -1).sum(axis=1)),
    ),
    Bug(
        "bias-of-everything",
        "linear",
        "dbias is summed over rows and features.",
        "All biases move together.",
        backward("linear", dbias=lambda a: a.dy.sum()),
    ),
    Bug(
        "weight-gradient-of-one-row",
        "linear",
        "dweight takes the first row only.",
        "Noisy, slow learning; right in a test with one row.",
        backward("linear", dweight=lambda a: a.x[:1].T @ a.dy[:1]),
    ),
    Bug(
        "weight-averaged",
        "linear",
        "dweight is divided by the rows, although the loss is a mean already.",
        "Layers learn B·T times too slowly; Adam hides it.",
        backward("linear", dweight=lambda a: a.x.T @ a.dy / len(a.x)),
    ),
    Bug(
        "weight-not-transposed",
        "linear",
        "dx = dy @ W, with W's memory read as if it were Wᵀ.",
        "Square layers run without complaint and pass nonsense back.",
        backward("linear", dx=lambda a: a.dy @ a.weight.reshape(a.weight.shape[::-1])),
    ),
    Bug(
        "bias-not-added",
        "linear",
        "The forward forgets the bias, the backward does not.",
        "Biases get gradients and do nothing.",
        forward("linear", y=lambda a: a.x @ a.weight),
    ),
    Bug(
        "dweight-overwritten",
        "linear",
        "dweight is written instead of added to.",
        "With gradient accumulation only the last batch counts.",
        overwriting("linear", "dweight"),
    ),
    Bug(
        "dbias-overwritten",
        "linear",
        "dbias is written instead of added to.",
        "With gradient accumulation only the last batch counts.",
        overwriting("linear", "dbias"),
    ),
    Bug(
        "dx-overwritten",
        "linear",
        "dx is written where it should be added.",
        "In post-norm blocks the residual's gradient is lost.",
        overwriting("linear", "dx"),
    ),
    Bug(
        "saved-input-as-scratch",
        "linear",
        "The backward uses its saved input as scratch.",
        "Right the first time; wrong for whoever reads it next.",
        replaced(OPS["linear"], "backward", _scratch_in_x),
    ),
    Bug(
        "residual-halved",
        "residual",
        "y = x + branch/2, with the gradient of x + branch.",
        "Branches learn at twice their rate.",
        forward("residual", y=lambda a: a.x + 0.5 * a.branch),
    ),
)
