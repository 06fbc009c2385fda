"""Labelling signals as a trainer sees it: windows of features, and the class of every position in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from tapeless.tasks.data.shuffle import order, random_bits
from tapeless.tasks.task import Measured

IGNORED = -1  # the target that counts for nothing
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


class Labelled:
    """The task as a trainer sees it. Windows lie `step` apart (by default half a window) and inside one recording."""

    tokenizer = None

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


class LabelledBatches:
    """Features (B, T, F) and targets (B, T) without end; each epoch has the windows in an order of its own.

    As many as fill whole batches, that is: the shuffle sees to it that no window is left out for good.
    """

    def __init__(self, store: Store, rows: Array, batch: int, time: int, step: int, seed: int) -> None:
        check_size("batch", batch)
        self._spans = rows
        self.steps_per_epoch = len(self._spans) // batch
        if self.steps_per_epoch < 1:
            raise TapelessError(
                f"a batch of {batch} windows is more than the {len(self._spans):,} windows with labels there are: "
                f"make batch, time or the step between windows smaller, or give more signal."
            )
        self._store, self._batch, self._time, self._step, self._seed = store, int(batch), time, step, seed
        self._begin(epoch=0, position=0)

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self._epoch + self._position // self.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        return self

    def __next__(self) -> tuple[Array, Array]:
        if self._position == self.steps_per_epoch:
            self._begin(self._epoch + 1, position=0)
        chosen = self._order[self._position * self._batch :][: self._batch]
        self._position += 1
        return cut(self._store, self._spans[chosen], self._batch, self._time)

    def state(self) -> dict[str, int]:
        """The position, and what it is a position in: plain numbers, for a checkpoint."""
        return {**self._identity(), "epoch": self._epoch, "position": self._position}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        for name, here in self._identity().items():
            if state.get(name) != here:
                raise TapelessError(
                    f"the position is one in data with {name}={repr(state.get(name))[:40]}, and here {name}={here}: "
                    f"resume with the same signals, batch, time, step and seed."
                )
        for name, most in (("epoch", None), ("position", self.steps_per_epoch)):
            value = state.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (most and value > most):
                raise TapelessError(f"the position in the data is damaged: {name} is {repr(value)[:40]}.")
        self._begin(state["epoch"], state["position"])

    def _identity(self) -> dict[str, int]:
        return {
            "samples": len(self._store.labels),
            "windows": len(self._spans),
            "batch": self._batch,
            "time": self._time,
            "step": self._step,
            "seed": self._seed,
        }

    def _begin(self, epoch: int, position: int) -> None:
        self._order = order(random_bits(self._seed, epoch), len(self._spans))
        self._epoch, self._position = epoch, position


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
