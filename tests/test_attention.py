"""What every head looks at, computed again from queries and keys."""

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.check.complex_step import relative_error
from tapeless.check.tolerances import TOLERANCES
from tests.test_model import SINGLE, SMALL, batch_for, scrambled, small

ALLOWED = {"reference": TOLERANCES["complex step"], "cpu": SINGLE}


def spread(model, seed=0):
    """Weights with which heads look at some positions more than at others, and at none alone."""
    rng = np.random.default_rng(seed)
    for name in model.params:
        if "norm" not in name:
            model.write(name, rng.normal(0, 0.4, model.params[name].shape))
    return model


def averaged(weights, v):
    """Σ_s p_ts v_s, head by head, the heads' channels side by side."""
    batch, heads, _, keys = weights.shape
    parts = v.reshape(batch, keys, heads, -1)
    return np.einsum("bhts,bshd->bthd", weights, parts).reshape(batch, weights.shape[2], -1)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("preset", ["gpt2-4x256", "ops-102k", "sunfish"])
@pytest.mark.parametrize("readout", ["all", "last"])
def test_these_weights_make_the_average_that_the_model_made(preset, backend, readout):
    model = spread(small(preset, backend=backend, readout=readout))
    inputs, targets = batch_for(model)
    weights = model.attention(inputs)
    assert list(weights) == ["blocks.0", "blocks.1"]
    made = {}
    for call, values in model.trace(inputs, targets):
        if (call.op, call.direction) == ("attention", "forward"):
            made[call.section] = {name: np.array(values[name]) for name in ("y", "v")}
    for section, p in weights.items():
        queries = 1 if readout == "last" and section == "blocks.1" else model.time
        assert p.shape == (model.batch, model.config.heads, queries, model.time)
        assert relative_error(averaged(p, made[section]["v"]), made[section]["y"]) < ALLOWED[backend]
        np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-6)
        assert (p >= 0).all()
        assert p.std(axis=-1)[..., -1].max() > 0.01  # heads that look everywhere alike would prove little


def test_no_position_looks_ahead_in_a_causal_model_and_every_one_may_elsewhere():
    inputs, _ = batch_for(small())
    causal = spread(small()).attention(inputs)["blocks.0"]
    free = spread(small(causal=False)).attention(inputs)["blocks.0"]
    ahead = np.triu(np.ones(causal.shape[-2:], bool), 1)
    assert (causal[..., ahead] == 0).all()
    assert (free[..., ahead] > 0).all()


def test_any_length_will_do_and_the_beginning_is_the_same():
    model = spread(small())
    inputs, _ = batch_for(model)
    whole, part = model.attention(inputs), model.attention(inputs[:1, :2])
    np.testing.assert_allclose(part["blocks.1"], whole["blocks.1"][:1, :, :2, :2], rtol=1e-12)


def test_it_leaves_the_model_as_it_is_and_is_the_users_own():
    model = scrambled(small())
    inputs, targets = batch_for(model)
    model.forward_backward(inputs, targets)
    gradients = {name: array.copy() for name, array in model.grads.items()}
    first = model.attention(inputs)
    kept = first["blocks.0"].copy()
    model.attention(inputs[::-1])
    assert (first["blocks.0"] == kept).all()
    assert all((model.grads[name] == array).all() for name, array in gradients.items())


def test_in_bfloat16_the_rows_still_add_up():
    model = Model("gpt2-4x256", **(SMALL | {"precision": "bfloat16"}))
    p = spread(model).attention(batch_for(model)[0])["blocks.0"]
    assert p.dtype != "bfloat16"
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-6)


def test_bad_inputs_are_refused_in_a_sentence():
    with pytest.raises(TapelessError, match=r"shape \(batch, time\), not \(3,\)"):
        small().attention([1, 2, 3])
    with pytest.raises(TapelessError, match="longer than the 6 positions"):
        small().attention([[1] * 7])
