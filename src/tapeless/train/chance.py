"""What a model would get that had learned nothing but how often each answer comes: the mark every loss is held against.

A constant answer does best when it says each answer as often as it comes. Its cross-entropy is the entropy of the
answers, at most ln V; always the commonest gets the commonest's share right. A class that counts more in the loss
counts more in the entropy. Where the loss is a distance, the best constant is the answers' mean, and its loss their
variance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.task import Task

ENOUGH = 50_000  # answers, which give the entropy of text to about a hundredth
MOST_BATCHES = 500


def chance(model: Model, task: Task, spread: float | None) -> dict[str, Any]:
    """As a line of metrics keeps it. `spread` is that of the embeddings where the loss is a distance to them."""
    stream = task.batches(model.batch)  # one of its own: the training's stays where it is
    counts = np.zeros(model.config.vocab, np.int64)
    for _ in range(min(MOST_BATCHES, stream.steps_per_epoch)):
        _, targets = next(stream)
        counts += np.bincount(targets[targets >= 0], minlength=len(counts))
        if counts.sum() >= ENOUGH:
            break
    loss = entropy(counts, model.class_weights) if spread is None else spread**2
    return {
        "chance_loss": loss,
        "chance_accuracy": float(counts.max() / counts.sum()),
        "answers": int(np.count_nonzero(counts)),
        "examples": stream.steps_per_epoch * model.batch,
    }


def entropy(counts: Array, weights: tuple[float, ...] | None = None) -> float:
    """In nats, of answers that came so often, each counting as much as its class weighs. A sample knows too few rare
    answers and seems too certain: (K − 1)/2N puts that right (Miller and Madow)."""
    total, kinds = counts.sum(), np.count_nonzero(counts)
    weighed = counts if weights is None else counts * np.asarray(weights)
    shares = weighed[counts > 0] / weighed.sum()
    return float(-(shares * np.log(shares)).sum() + (kinds - 1) / (2 * total))
