"""Bugs of the losses: the classifier's cross-entropy and the squared error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tapeless.ops import OPS
from tapeless.ops.contract import NONE, Array
from tapeless.ops.squared_error import reference as squared_error
from tests.bugs.planting import Bug, Plant, backward, forward, helper, overwriting, replaced, together


def _softmax(a: Any) -> Any:
    z = a.x @ a.weight.T
    p = np.exp(z - z.real.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _dz(a: Any) -> Any:
    """(p − onehot) / count, and 0 in ignored rows: as it should be."""
    dz, valid = _softmax(a), np.flatnonzero(a.targets >= 0)
    dz[valid, a.targets[valid]] -= 1
    dz[a.targets < 0] = 0
    return dz / a.count


def _weighted_by_guess(a: Any) -> Any:
    guess = _softmax(a).real.argmax(axis=1)
    return _dz(a) if a.class_weights is None else _dz(a) * a.class_weights[guess][:, None]


def _from(dz: Callable[[Any], Any]) -> Plant:
    """dx and dweight from another dz."""
    return backward("classifier", dx=lambda a: dz(a) @ a.weight, dweight=lambda a: dz(a).T @ a.x)


def _loss(loss: Callable[[Any], Any]) -> Plant:
    """Another loss in both directions; the gradient stays."""
    return together(forward("classifier", loss=loss), backward("classifier", loss=loss))


def _losses(a: Any) -> Any:
    """Per row that counts."""
    valid = np.flatnonzero(a.targets >= 0)
    return -np.log(_softmax(a)[valid, a.targets[valid]])


def _biased(a: Any) -> Any:
    valid = np.flatnonzero(a.targets >= 0)
    return -np.log(_softmax(a)[valid, a.targets[valid]] + 1e-10).sum() / a.count


def _unshifted(a: Any) -> Any:
    z, valid = a.x @ a.weight.T, np.flatnonzero(a.targets >= 0)
    return (np.log(np.exp(z).sum(axis=1))[valid] - z[valid, a.targets[valid]]).sum() / a.count


def _last_word_for_ignored(a: Any) -> Any:
    return -np.log(_softmax(a)[np.arange(len(a.targets)), a.targets]).sum() / a.count


def _ignored_rows_kept(a: Any) -> Any:
    dz, valid = _softmax(a), np.flatnonzero(a.targets >= 0)
    dz[valid, a.targets[valid]] -= 1
    return dz / a.count


def _mean_of_own_rows(a: Any) -> Any:
    return _dz(a) * a.count / np.count_nonzero(a.targets >= 0)


def _next_target(a: Any) -> Any:
    dz, valid = _softmax(a), np.flatnonzero(a.targets >= 0)
    dz[valid, (a.targets[valid] + 1) % len(a.weight)] -= 1
    dz[a.targets < 0] = 0
    return dz / a.count


def _whole_chunks(
    logits: Array, x: Array, weight: Array, targets: Array
) -> Iterator[tuple[slice, Array, Array, Array]]:
    """As the op's own, but only as many chunks as fit: what is left over is forgotten."""
    for start in range(0, len(x) - len(logits) + 1, len(logits)):
        rows = slice(start, start + len(logits))
        np.matmul(x[rows], weight.T, out=logits)
        largest = logits.real.max(axis=1)
        lse = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        yield rows, logits, lse, np.flatnonzero(targets[rows] >= 0)


def _last_chunk(a: Any) -> Any:
    dz, start = _dz(a), (len(a.x) - 1) // len(a.logits) * len(a.logits)
    return dz[start:].T @ a.x[start:]


def _chunk_count(a: Any) -> Any:
    dz = _dz(a) * a.count
    for start in range(0, len(dz), len(a.logits)):
        rows = slice(start, start + len(a.logits))
        dz[rows] /= max(1, np.count_nonzero(a.targets[rows] >= 0))
    return dz


def _first_chunk_targets(a: Any) -> Any:
    loss, p = 0.0, _softmax(a)
    for row, target in enumerate(a.targets):
        if target >= 0:
            loss = loss - np.log(p[row, a.targets[row % len(a.logits)]])
    return loss / a.count


def _target_side_trained() -> Plant:
    """The embedding's backward, which adds to the same table, also adds −dx where the targets stand."""
    right, right_embedding = OPS["squared_error"].backward, OPS["embedding"].backward
    pending: list[tuple[Array, Array]] = []

    def remembering(loss: Array, dx: Array, x: Array, table: Array, targets: Array, count: Array) -> None:
        right(loss, dx, x, table, targets, count)
        pending[:] = [(targets.copy(), dx.copy())]

    def adding(dweight: Array, dy: Array, tokens: Array, add: frozenset[str] = NONE) -> None:
        right_embedding(dweight, dy, tokens, add=add)
        for targets, dx in pending:
            if dx.shape == dy.shape:
                np.subtract.at(dweight, targets, dx)
        pending.clear()

    return together(
        replaced(OPS["squared_error"], "backward", remembering), replaced(OPS["embedding"], "backward", adding)
    )


def _last_for_ignored(x: Array, table: Array, targets: Array) -> Any:
    return x - table.real[targets]


def _error(a: Any) -> Any:
    return squared_error._difference(a.x, a.table, a.targets)


BUGS = (
    Bug(
        "loss-epsilon",
        "classifier",
        "The loss is −log(p + 1e-10).",
        "It never exceeds 23, however wrong the model is, and can go below zero; the gradient belongs to another loss.",
        _loss(_biased),
        public="A founding document of this project (002) has it so.",
    ),
    Bug(
        "softmax-overflows",
        "classifier",
        "exp without subtracting the largest score.",
        "NaN, once scores pass 709 (88 in float32).",
        _loss(_unshifted),
    ),
    Bug(
        "onehot-missing",
        "classifier",
        "dz = p, without the target's −1.",
        "Every score falls and nothing is learned.",
        _from(lambda a: np.where(a.targets[:, None] >= 0, _softmax(a), 0) / a.count),
    ),
    Bug(
        "target-next-in-gradient",
        "classifier",
        "The gradient pulls towards the word after the target.",
        "The loss rises while training.",
        _from(_next_target),
    ),
    Bug(
        "class-weights-missing-in-gradient",
        "classifier",
        "The loss weighs the classes, its gradient does not.",
        "Rare classes are learned no better, though the loss says that they count for more.",
        _from(_dz),
    ),
    Bug(
        "class-weights-of-the-wrong-class",
        "classifier",
        "A row is weighted by the class that the model finds likeliest instead of by its target's.",
        "Rare classes are weighted only once they are recognised.",
        _from(_weighted_by_guess),
    ),
    Bug(
        "count-missing-in-gradient",
        "classifier",
        "The gradient is of the sum, the loss is the mean.",
        "The right learning rate depends on the batch; clipping hides it.",
        _from(lambda a: _dz(a) * a.count),
    ),
    Bug(
        "ignored-rows-get-gradient",
        "classifier",
        "Rows with target −1 pass their softmax back.",
        "Padding trains the model: the more of it, the worse.",
        _from(_ignored_rows_kept),
    ),
    Bug(
        "padding-counted",
        "classifier",
        "A target of −1 is read as an index: the last word of the vocabulary.",
        "The loss depends on how much padding there is.",
        _loss(_last_word_for_ignored),
    ),
    Bug(
        "mean-of-own-rows",
        "classifier",
        "The gradient is divided by this batch's targets instead of the step's count.",
        "Wrong weights between batches of one update; NaN where a batch has no target.",
        _from(_mean_of_own_rows),
        public="transformers' Trainer until October 2024; torchtune until its pull request 1875.",
    ),
    Bug(
        "all-ignored-is-nan",
        "classifier",
        "The loss is a mean over its own rows, and of none it is 0/0.",
        "One batch of padding turns all weights into NaN.",
        _loss(lambda a: _losses(a).sum() / np.count_nonzero(a.targets >= 0)),
        public="torch's cross_entropy since 1.11 answers NaN there: pytorch, issue 70348.",
    ),
    Bug(
        "mean-per-chunk",
        "classifier",
        "Each chunk of rows is divided by its own number of targets.",
        "The gradient depends on the chunk size.",
        _from(_chunk_count),
    ),
    Bug(
        "chunk-left-over",
        "classifier",
        "Rows that fill no whole chunk are dropped.",
        "Nothing where the chunk divides the rows, which is the case in every test with powers of two.",
        helper("classifier", "_chunks", _whole_chunks),
    ),
    Bug(
        "chunk-overwrites-dweight",
        "classifier",
        "dweight of a chunk replaces that of the one before.",
        "Only the last rows train the vocabulary.",
        backward("classifier", dweight=_last_chunk),
    ),
    Bug(
        "chunk-targets-from-the-start",
        "classifier",
        "Every chunk reads the targets of the first.",
        "The loss is right for the first rows and noise for the rest.",
        _loss(_first_chunk_targets),
    ),
    Bug(
        "head-gradient-overwritten",
        "classifier",
        "dweight is written instead of added to.",
        "A head tied to the embedding loses one of its two gradients; accumulation keeps the last batch.",
        overwriting("classifier", "dweight"),
    ),
    Bug(
        "target-side-trained",
        "embedding in transformer",
        "The squared error is to the target's embedding, and that embedding is trained too.",
        "All embeddings collapse to one point and the loss to zero, with nothing learned.",
        _target_side_trained(),
        public="A founding document of this project (003) leaves it open.",
    ),
    Bug(
        "squared-error-factor-two",
        "squared_error",
        "dx lacks the 2 of the square.",
        "Learns at half the rate.",
        backward("squared_error", dx=lambda a: _error(a) / (a.count * a.x.shape[1])),
    ),
    Bug(
        "squared-error-channels-forgotten",
        "squared_error",
        "The loss is a mean over channels, its gradient is not.",
        "Learns C times too fast, or explodes.",
        backward("squared_error", dx=lambda a: 2 * _error(a) / a.count),
    ),
    Bug(
        "squared-error-counts-ignored",
        "squared_error",
        "A target of −1 is read as the last embedding.",
        "Padding pulls every state towards one word.",
        helper("squared_error", "_difference", _last_for_ignored),
    ),
)
