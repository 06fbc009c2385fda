"""A trained model over a signal of any length, from left to right: features, windows, scores, one blended answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from tapeless.inputs import check_shape
from tapeless.labelling.signal.checks import check_fits
from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.windows import Windows, blend
from tapeless.model import Model
from tapeless.models.config import check_size
from tapeless.ops.contract import Array

Passed = Callable[[int, int], None]  # positions that are done, positions in all


def predict(
    model: Model,
    signal: Any,
    *,
    features: Features | None = None,
    window: int | None = None,
    step: int | None = None,
    batch: int = 16,
    progress: Passed | None = None,
) -> Iterator[tuple[int, Array]]:
    """The probability of each class at every position, as (first position, probabilities (n, classes)), in order.

    `features`: what the model was trained on; by default wavelets at the scales that are the default.
    `window`: by default as many positions as the model was made for; `step`: by default half of that. Nothing is kept
    but a block of features, a batch of windows, and one window of answers. All is checked before the first answer.
    """
    features = features or Features()
    check_fits(model.config, features.width, features.described())
    check_size("batch", batch)
    window = model.time if window is None else window
    check_shape(model.config, batch, window)
    blocks = features.blocks(signal)
    windows = Windows(len(signal), window, max(1, window // 2) if step is None else step)
    return _predict(model, blocks, windows, batch, progress)


def _predict(
    model: Model, blocks: Iterator[tuple[int, Array]], windows: Windows, batch: int, progress: Passed | None
) -> Iterator[tuple[int, Array]]:
    predictions = (
        probabilities
        for inputs in _stacked(windows_of(_ahead(blocks), windows), batch)
        for probabilities in softmax(model.logits(inputs))
    )
    for start, values in blend(predictions, windows):
        yield start, values
        if progress is not None:
            progress(start + len(values), windows.length)


def _ahead(blocks: Iterator[tuple[int, Array]]) -> Iterator[tuple[int, Array]]:
    """The next block is computed by a thread of its own while the model reads this one."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = worker.submit(next, blocks, None)
            yield block


def windows_of(blocks: Iterator[tuple[int, Array]], windows: Windows) -> Iterator[Array]:
    """The features of each window, from blocks that know nothing of windows."""
    first, held = next(blocks)
    for start in windows:
        while first + len(held) < start + windows.size:
            held = np.concatenate([held[start - first :], next(blocks)[1]])
            first = start
        yield held[start - first : start - first + windows.size]


def _stacked(arrays: Iterator[Array], batch: int) -> Iterator[Array]:
    while chosen := list(islice(arrays, batch)):
        yield np.stack(chosen)


def softmax(scores: Array) -> Array:
    """Over the last axis, in double precision."""
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares
