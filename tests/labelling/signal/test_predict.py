"""Prediction in a stream is what the plain definition gives over the whole signal at once."""

import tracemalloc
from typing import Any, cast

import numpy as np
import pytest

from tapeless import Model
from tapeless.labelling.signal import SCALES, Features, features, predict
from tapeless.labelling.signal.predict import softmax
from tapeless.models.presets import preset
from tests.labelling.signal.made import Endless, noise

TWO = (3.0, 10.0)


def small_model(**more: Any) -> Model:
    fields = {"layers": 1, "channels": 16, "heads": 2, "features": 4, "context": 32, "vocab": 3} | more
    return Model("sunfish", time=32, backend="reference", **fields)


def plainly(model: Model, signal, window: int, step: int):
    """One window after the other, weights 1, 2, … 2, 1, sums over sums."""
    values = features(signal, TWO)
    window = min(window, len(signal))
    above, below = np.zeros((len(signal), 3)), np.zeros((len(signal), 1))
    start = 0
    while True:
        start = min(start, len(signal) - window)
        scores = model.logits(values[None, start : start + window])[0]
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        for offset in range(window):
            weight = min(offset + 1, window - offset)
            above[start + offset] += weight * shares[offset]
            below[start + offset] += weight
        if start == len(signal) - window:
            return above / below
        start += step


@pytest.mark.parametrize(
    ("length", "window", "step", "batch"),
    [
        (200, 32, 16, 16),
        (200, 32, 7, 3),
        (203, 20, 20, 1),
        (33, 32, 32, 5),
        (32, 32, 1, 2),
        (9, 32, 16, 4),
        (1, 8, 8, 4),
    ],
)
def test_a_stream_gives_what_the_whole_gives(length, window, step, batch):
    model, signal = small_model(), noise(length, length, complex_values=True)
    found = list(predict(model, signal, features=Features(scales=TWO), window=window, step=step, batch=batch))
    assert [start for start, _ in found] == np.cumsum([0] + [len(part) for _, part in found])[:-1].tolist()
    everything = np.concatenate([part for _, part in found])
    np.testing.assert_allclose(everything, plainly(model, signal, window, step), rtol=1e-11)
    np.testing.assert_allclose(everything.sum(axis=1), 1, rtol=1e-12)


def test_windows_are_the_models_own_unless_told():
    model, signal = small_model(), noise(150, 3)
    plain = np.concatenate([part for _, part in predict(model, signal, features=Features(scales=TWO))])
    told = np.concatenate(
        [part for _, part in predict(model, signal, features=Features(scales=TWO), window=32, step=16)]
    )
    np.testing.assert_array_equal(plain, told)


def test_progress_reaches_the_end():
    seen: list[tuple[int, int]] = []
    for _ in predict(
        small_model(),
        noise(150, 4),
        features=Features(scales=TWO),
        progress=lambda done, total: seen.append((done, total)),
    ):
        pass
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen) > 3
    assert {total for _, total in seen} == {150}
    assert seen[-1][0] == 150


def test_softmax_of_large_scores():
    np.testing.assert_array_equal(softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]])), [[1, 0], [0.5, 0.5]])


class Cheap:
    """What `predict` needs of a model, without the work: features in, two scores out."""

    config, time = preset("sunfish").architecture, 512

    def logits(self, inputs):
        return inputs[:, :, :2]


def test_memory_does_not_grow_with_the_signal():
    signal, done = Endless(1_000_000), 0
    tracemalloc.start()
    try:
        for start, part in predict(cast(Model, Cheap()), signal, features=Features(scales=SCALES)):
            assert start == done
            done += len(part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done == len(signal)
    assert peak < 20 << 20  # the features alone are 56 MB
