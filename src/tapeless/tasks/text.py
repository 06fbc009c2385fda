"""Text as a trainer sees it: windows of tokens, each to be continued by the token after it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.data.batches import Batches, evaluation_batches
from tapeless.tasks.data.tokens import Data
from tapeless.tasks.operations import score_totals
from tapeless.tasks.task import Measured


class Text:
    def __init__(self, data: Data, time: int, seed: int) -> None:
        self.data, self.time, self.seed = data, time, seed
        self.tokenizer = data.tokenizer

    def batches(self, batch: int) -> Batches:
        return Batches(self.data.training, batch, self.time, self.seed)

    def evaluate(self, model: Model, batches: int) -> Measured:
        """The same held-out windows every time, so that two evaluations can be compared."""
        held_out = evaluation_batches(self.data.validation, model.batch, self.time, batches)
        if model.config.loss == "squared_error":
            return _by_distance(model, held_out)
        total, counted = 0.0, 0
        for inputs, targets in held_out:
            here = int(np.count_nonzero(targets >= 0))
            total += model.loss(inputs, targets) * here
            counted += here
        return Measured(total / counted)


def _by_distance(model: Model, batches: Iterable[tuple[Array, Array]]) -> Measured:
    """A distance says little by itself, so also how often the nearest embedding is the right one. The scores of one
    batch exist at a time, and they are worked on sequence by sequence."""
    totals, counted = np.zeros(3), 0
    for inputs, targets in batches:
        for scores, wanted in zip(model.logits(inputs), targets, strict=True):
            known = wanted >= 0
            if known.any():
                totals += score_totals(model.config, scores[known], wanted[known])
                counted += int(known.sum())
    loss, accuracy, cross_entropy = (float(mean) for mean in totals / counted)
    return Measured(loss, accuracy, cross_entropy=cross_entropy)
