"""Text as a trainer sees it: windows of tokens, each to be continued by the token after it."""

from __future__ import annotations

import numpy as np

from tapeless.model import Model
from tapeless.train.data.batches import Batches, evaluation_batches
from tapeless.train.data.tokens import Data
from tapeless.train.task import Measured


class Text:
    def __init__(self, data: Data, time: int, seed: int) -> None:
        self.data, self.time, self.seed = data, time, seed
        self.tokenizer = data.tokenizer

    def batches(self, batch: int) -> Batches:
        return Batches(self.data.training, batch, self.time, self.seed)

    def evaluate(self, model: Model, batches: int) -> Measured:
        """The same held-out windows every time, so that two evaluations can be compared."""
        total, counted = 0.0, 0
        for inputs, targets in evaluation_batches(self.data.validation, model.batch, self.time, batches):
            here = int(np.count_nonzero(targets >= 0))
            total += model.loss(inputs, targets) * here
            counted += here
        return Measured(total / counted)
