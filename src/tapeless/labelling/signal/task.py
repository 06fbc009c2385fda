"""Labelling signals as a trainer sees it: windows of features, and the class of every position in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import check_seed, check_shape
from tapeless.labelling.signal.checks import check_fits, checked_labels, pieces
from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.store import IN_MEMORY, MOST_CLASSES, Recording, Store, checked_recording, make_store
from tapeless.labelling.signal.windows import Windows
from tapeless.model import Model
from tapeless.models.config import Architecture, check_size
from tapeless.ops.contract import Array
from tapeless.tasks.data.batches import IGNORED
from tapeless.tasks.data.shuffle import order, random_bits
from tapeless.tasks.epochs import Epochs
from tapeless.tasks.task import Ended, Farewell, Measured, Task

MOST_TIMES = 100.0  # no class weighs more than so many times another: a few odd labels must not drown the rest


def hold_out(recordings: Sequence[Recording], share: float) -> tuple[list[Recording], list[Recording]]:
    """The beginning of every recording to train on, its last `share` to validate.

    They are cut before features are computed, so no feature of one part has seen a sample of the other.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise TapelessError(f"the share that is held out must be a number between 0 and 1, not {share!r}.")
    training, validation = [], []
    for number, each in enumerate(recordings):
        recording = checked_recording(each, MOST_CLASSES, number)
        length = len(recording.signal)
        cut = length - max(1, round(share * length))
        if cut < 1:
            raise TapelessError(
                f"signal {number} has a length of {length}, of which nothing is left when {share:g} is held out: "
                f"give a longer one, or hold out less."
            )
        training.append(Recording(recording.signal[:cut], recording.labels[:cut]))
        validation.append(Recording(recording.signal[cut:], recording.labels[cut:]))
    return training, validation


def class_weights(labels: Any, classes: int | None = None) -> tuple[float, ...]:
    """What a position of each class should count so that all classes count the same: inverse frequencies.

    No weight is more than 100 times the smallest, and the mean over all positions with a label is 1. `classes`: how
    many there are, where not all of them occur.
    """
    if classes is not None:
        check_size("classes", classes)
    most = MOST_CLASSES if classes is None else classes
    counts = np.zeros(classes or 1, np.int64)
    labels = checked_labels(labels, len(labels) if hasattr(labels, "__len__") else 0, most)
    for _, piece in pieces(labels):
        here = np.bincount(piece[piece >= 0].astype(np.int64), minlength=len(counts))
        counts = np.pad(counts, (0, len(here) - len(counts))) + here
    if not counts.any():
        raise TapelessError("all labels are −1, so no class has a frequency: give at least one label.")
    frequency = counts / counts.sum()
    inverse = frequency.max() / np.maximum(frequency, frequency.max() / MOST_TIMES)
    weights = inverse / (frequency * inverse).sum()
    return tuple(weights.tolist())


class Labelled(Task):
    """The task as a trainer sees it. Windows lie `step` apart (by default half a window) and inside one recording."""

    def __init__(
        self,
        config: Architecture,
        training: Sequence[Recording],
        validation: Sequence[Recording],
        *,
        time: int,
        seed: int,
        step: int | None = None,
        features: Features | None = None,
        budget: int = IN_MEMORY,
    ) -> None:
        features = features or Features()
        check_fits(config, features.width, features.described())
        check_shape(config, 1, time)
        check_seed(seed)
        self.time, self.seed = int(time), int(seed)
        self.step = max(1, time // 2) if step is None else step
        Windows(1, self.time, self.step)  # refuses a step that leaves gaps, before anything is computed
        self.training = make_store(training, features, config.vocab, budget)
        self.validation = make_store(validation, features, config.vocab, budget)
        self._spans = spans(self.training, self.time, self.step)
        self._held_out = spans(self.validation, self.time, self.time, once=True)

    def batches(self, batch: int) -> LabelledBatches:
        """Windows to train on, without end, shuffled by the seed."""
        return LabelledBatches(self.training, self._spans, batch, self.time, self.step, self.seed)

    def evaluate(self, model: Model, batches: int) -> Measured:
        """Loss and accuracy over the same held-out positions every time, each once; at most so many batches, of
        windows spread evenly. The loss is the model's own, averaged over batches by their number of labels."""
        check_size("batches", batches)
        chosen = min(len(self._held_out), batches * model.batch)
        rows = self._held_out[np.arange(chosen) * len(self._held_out) // chosen]
        losses, right, counted = 0.0, 0, 0
        for first in range(0, chosen, model.batch):
            inputs, targets = cut(self.validation, rows[first : first + model.batch], model.batch, self.time)
            known = targets >= 0
            here = int(np.count_nonzero(known))
            losses += model.loss(inputs, targets) * here
            right += int((model.logits(inputs).argmax(axis=2)[known] == targets[known]).sum())
            counted += here
        return Measured(losses / counted, right / counted)

    def summary(self) -> str:
        return f"{len(self.training.labels):,} positions to train, {len(self.validation.labels):,} held out"

    def farewell(self, ended: Ended) -> Farewell:
        """What to do next."""
        return Farewell(next=((f"{ended.command} label predict {ended.spelled} …", "label something with it"),))


class LabelledBatches(Epochs):
    """Features (B, T, F) and targets (B, T) without end; each epoch has the windows in an order of its own."""

    def __init__(self, store: Store, rows: Array, batch: int, time: int, step: int, seed: int) -> None:
        check_size("batch", batch)
        if len(rows) < batch:
            raise TapelessError(
                f"a batch of {batch} windows is more than the {len(rows):,} windows with labels there are: "
                f"make batch, time or the step between windows smaller, or give more signal."
            )
        self._store, self._rows, self._time, self._seed = store, rows, time, seed
        identity = {"samples": len(store.labels), "windows": len(rows), "time": time, "step": step, "seed": seed}
        super().__init__(len(rows) // batch, batch=int(batch), **identity)

    def draw(self, epoch: int) -> Array:
        return order(random_bits(self._seed, epoch), len(self._rows))

    def make(self, chosen: Array) -> tuple[Array, Array]:
        return cut(self._store, self._rows[chosen], self._batch, self._time)


def spans(store: Store, window: int, step: int, once: bool = False) -> Array:
    """Windows as rows (start, stop, first position with a target); none without a target, none across recordings.

    `once`: what an earlier window of the recording holds is no target again.
    """
    found = []
    for begin, end in pairwise(store.bounds):
        windows = Windows(end - begin, window, step)
        seen = begin
        for offset in windows:
            start, stop = begin + offset, begin + offset + windows.size
            first = seen if once else start
            if (store.labels[first:stop] >= 0).any():
                found.append((start, stop, first))
            seen = stop
    if not found:
        raise TapelessError("all labels are −1, so there is nothing to learn from; give at least one.")
    return np.array(found, np.int64)


def cut(store: Store, rows: Array, batch: int, time: int) -> tuple[Array, Array]:
    """The batch of these windows. Where a recording is shorter than a window, or rows are fewer than the batch,
    features are zero and targets −1."""
    inputs = np.zeros((batch, time, store.features.shape[1]), np.float32)
    targets = np.full((batch, time), IGNORED, np.int64)
    for row, (start, stop, first) in enumerate(rows.tolist()):
        inputs[row, : stop - start] = store.features[start:stop]
        targets[row, first - start : stop - start] = store.labels[first:stop]
    return inputs, targets
