"""The gradients of scores are those that the engine's own gradients of queries and keys are made of."""

from math import sqrt

import numpy as np
import pytest

from tapeless.attention import attention_pulls
from tests.tracing.test_shares import built


@pytest.mark.parametrize("which", ["ops", "gpt"])
def test_queries_and_keys_get_what_their_scores_get(which):
    model, inputs, targets = built(which)
    found = attention_pulls(model, inputs, targets)
    assert list(found) == ["blocks.0", "blocks.1"]
    heads, checked = model.config.heads, 0
    for call, values in model.trace(inputs, targets):
        if (call.op, call.direction) != ("attention", "backward"):
            continue
        looked = found[call.section]
        q, k = (values[name].reshape(*values[name].shape[:2], heads, -1) for name in ("q", "k"))
        width = q.shape[-1]
        dq = np.einsum("bhts,bshd->bthd", looked.gradients, k).reshape(values["q"].shape) / sqrt(width)
        dk = np.einsum("bhts,bthd->bshd", looked.gradients, q).reshape(values["k"].shape) / sqrt(width)
        np.testing.assert_allclose(dq, values["dq"], rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(dk, values["dk"], rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(looked.weights.sum(axis=-1), 1, rtol=1e-12)
        np.testing.assert_allclose(looked.gradients.sum(axis=-1), 0, atol=1e-15)
        assert np.abs(looked.gradients).max() > 0
        checked += 1
    assert checked == 2


def test_the_weights_are_those_that_the_model_says_it_looks_with():
    model, inputs, targets = built("gpt")
    said = model.attention(inputs)
    for section, looked in attention_pulls(model, inputs, targets).items():
        np.testing.assert_allclose(looked.weights, said[section], rtol=1e-12)


def test_heads_that_share_keys_have_gradients_of_their_own():
    model, inputs, targets = built("llama")
    looked = attention_pulls(model, inputs, targets)["blocks.1"]
    assert looked.gradients.shape == (2, 3, 6, 6)
    assert not np.allclose(looked.gradients[:, 0], looked.gradients[:, 1])
