"""Rare classes that count for more: the loss, its gradient, accumulation, and what is refused."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError

FIELDS: dict[str, Any] = {"layers": 1, "channels": 8, "heads": 2, "vocab": 3, "features": 4, "context": 6}
WEIGHTS = (0.25, 4.0, 1.5)


def model(backend="reference", batch=2, **changes):
    return Model("sunfish", batch=batch, time=6, backend=backend, **(FIELDS | {"class_weights": WEIGHTS} | changes))


def batch_of(seed, batch=2):
    rng = np.random.default_rng(seed)
    targets = rng.integers(-1, 3, (batch, 6))
    targets[0, :3] = (0, 1, 2)
    return rng.normal(size=(batch, 6, 4)), targets


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_loss_is_the_weighted_mean(backend):
    inputs, targets = batch_of(0)
    made = model(backend)
    scores = made.logits(inputs).astype(np.float64)
    picked = np.take_along_axis(scores, np.maximum(targets, 0)[..., None], -1)[..., 0]
    losses = np.log(np.exp(scores).sum(axis=-1)) - picked
    weights = np.where(targets >= 0, np.array(WEIGHTS)[targets], 0)
    expected = (weights * losses).sum() / weights.sum()
    tolerance = 1e-12 if backend == "reference" else 1e-6
    assert made.forward_backward(inputs, targets) == pytest.approx(expected, rel=tolerance)
    assert made.loss(inputs, targets) == pytest.approx(expected, rel=tolerance)
    assert made.weigh(targets) == pytest.approx(weights.sum())


def test_equal_weights_are_no_weights():
    inputs, targets = batch_of(1)
    plain, weighted = model(class_weights=None), model(class_weights=(3.0, 3.0, 3.0))
    assert weighted.forward_backward(inputs, targets) == pytest.approx(
        plain.forward_backward(inputs, targets), rel=1e-14
    )
    for name, gradient in plain.grads.items():
        assert np.allclose(weighted.grads[name], gradient, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_batches_that_are_added_up_are_the_big_batch(backend):
    inputs, targets = batch_of(2, batch=4)
    whole, half = model(backend, batch=4), model(backend)
    loss = whole.forward_backward(inputs, targets)
    count = half.weigh(targets)
    parts = sum(
        half.forward_backward(inputs[at : at + 2], targets[at : at + 2], accumulate=at > 0, count=count)
        for at in (0, 2)
    )
    tolerance = 1e-12 if backend == "reference" else 1e-5
    assert parts == pytest.approx(loss, rel=tolerance)
    for name, gradient in whole.grads.items():
        assert np.abs(half.grads[name] - gradient).max() <= tolerance * np.abs(gradient).max(), name


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0, 2.0), "3 numbers"),
        ((1.0, 2.0, 0.0), "above 0, not 0.0"),
        ((1.0, 2.0, -1.0), "above 0, not -1.0"),
        ((1.0, 2.0, float("nan")), "above 0, not nan"),
        ((1.0, 2.0, float("inf")), "above 0, not inf"),
        ((1.0, 2.0, "3"), "above 0, not '3'"),
        ((1.0, 2.0, True), "above 0, not True"),
        ("abc", "3 numbers"),
        (2.0, "3 numbers"),
    ],
    ids=repr,
)
def test_weights_that_are_none(weights, message):
    with pytest.raises(TapelessError, match=message):
        model(class_weights=weights)


def test_a_squared_error_knows_no_classes():
    with pytest.raises(TapelessError, match="squared error knows no classes"):
        Model("cllm", time=8, class_weights=(1.0,) * 256)


def test_a_count_that_is_too_small():
    inputs, targets = batch_of(3)
    with pytest.raises(TapelessError, match="count must be"):
        model().forward_backward(inputs, targets, count=0.5)
