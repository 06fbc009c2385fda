"""What holds for every model of every family: pre-norm GPT, post-norm encoder, CLLM, and the reader of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.check.configurations import Configuration
from tapeless.check.tolerances import TOLERANCES
from tapeless.ops.contract import Array
from tests.check.directions import check_directions
from tests.oracles import disagreements, leaves, torch_gradients, torch_loss_and_logits
from tests.properties.random_models import FAMILIES, configurations, copied, made, partly_frozen, zeroed
from tests.random_cases import cases

every_family = pytest.mark.parametrize("family", FAMILIES)
some = cases(10)


def agree(found: Mapping[str, Any], true: Mapping[str, Any], bound: float = TOLERANCES["torch autograd"]) -> None:
    """Of the same names and shapes, and equal but for rounding, relative to the largest number of all."""
    assert found.keys() == true.keys()
    scale = max(float(np.abs(each).max()) for each in true.values())
    for name, array in found.items():
        assert np.shape(array) == np.shape(true[name])
        assert np.abs(array - true[name]).max() <= bound * scale, name


@every_family
@some
@given(data=st.data())
def test_complex_step_along_random_directions(family: str, data: st.DataObject) -> None:
    """⟨gradient, v⟩ = the slope of the loss along v, for every weight of any model."""
    for error in check_directions(data.draw(configurations(family))):
        assert error.ok, error


@every_family
@some
@given(data=st.data())
def test_whatever_is_frozen_the_rest_has_its_gradient(family: str, data: st.DataObject) -> None:
    """The verifier has found that nothing is missing and nothing unneeded; the numbers are those of the whole model."""
    configuration = data.draw(partly_frozen(family))
    whole = replace(configuration, fields={**configuration.fields, "frozen": ()})
    (part, inputs, targets), (all_of_it, _, _) = made(configuration), made(whole)
    assert part.forward_backward(inputs, targets) == all_of_it.forward_backward(inputs, targets)
    for name, gradient in part.grads.items():
        assert np.array_equal(gradient, all_of_it.grads[name]), name


@every_family
@some
@given(data=st.data())
def test_loss_scores_and_gradients_are_those_of_torch(family: str, data: st.DataObject) -> None:
    model, inputs, targets = made(data.draw(configurations(family)))
    params = leaves(model.params)
    loss, logits = torch_loss_and_logits(model.config, params, inputs, targets)
    gradients = torch_gradients(loss, params)
    found = {"loss": model.forward_backward(inputs, targets), "alone": model.loss(inputs, targets)}
    assert not disagreements("torch autograd", found, {"loss": loss.item(), "alone": loss.item()})
    agree({"logits": model.logits(inputs)}, {"logits": logits.detach().numpy()})
    agree(model.grads, {name: gradient.numpy() for name, gradient in gradients.items()})


@every_family
@some
@given(data=st.data())
def test_the_backward_is_linear_in_what_the_targets_ask(family: str, data: st.DataObject) -> None:
    """The gradients of two halves of the targets, each a share of the whole count, add up to those of all of them."""
    model, inputs, targets = made(data.draw(configurations(family)))
    whole = model.forward_backward(inputs, targets)
    together = copied(model)
    first = np.random.default_rng(0).random(targets.shape) < 0.5
    count = int((targets >= 0).sum())
    parts, sums = 0.0, {name: np.zeros_like(gradient) for name, gradient in together.items()}
    halves = [np.where(half, targets, -1) for half in (first, ~first)]
    for half in halves:
        parts += model.forward_backward(inputs, half, count=count)
        for name, gradient in model.grads.items():
            sums[name] += gradient
    assert parts == pytest.approx(whole, rel=1e-13)
    agree(sums, together)
    for number, half in enumerate(halves):  # and where the model itself adds: no call overwrites what was there
        model.forward_backward(inputs, half, count=count, accumulate=number > 0)
    agree(model.grads, together)


@every_family
@some
@given(data=st.data())
def test_sequences_know_nothing_of_each_other(family: str, data: st.DataObject) -> None:
    """In another order: the same loss, the same gradients, and the scores in that order."""
    model, inputs, targets = made(data.draw(configurations(family)))
    order = np.random.default_rng(1).permutation(model.batch)
    loss, gradients, scores = model.forward_backward(inputs, targets), copied(model), model.logits(inputs)
    assert model.forward_backward(inputs[order], targets[order]) == pytest.approx(loss, rel=1e-13)
    agree(model.grads, gradients)
    agree({"logits": model.logits(inputs[order])}, {"logits": scores[order]})


def with_another_future(model: Any, inputs: Array, seen: int) -> Array:
    """Every position from `seen` on holds something else."""
    future = inputs.copy()
    if model.config.features:
        future[:, seen:] += 1
    else:
        future[:, seen:] = (future[:, seen:] + 1) % model.config.vocab
    return future


@every_family
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@cases(6)
@given(data=st.data())
def test_a_later_token_changes_no_earlier_score(family: str, backend: str, data: st.DataObject) -> None:
    """To the bit. Without the mask it changes them all."""
    configuration = data.draw(configurations(family, causal=True, readout="all"))
    model, inputs, _ = made(configuration, backend=backend)
    seen = data.draw(st.integers(1, model.time - 1))
    future = with_another_future(model, inputs, seen)
    assert np.array_equal(model.logits(inputs)[:, :seen], model.logits(future)[:, :seen])
    open_eyed, *_ = made(Configuration(**{**vars(configuration), "fields": {**configuration.fields, "causal": False}}))
    assert (open_eyed.logits(inputs) != open_eyed.logits(future))[:, :seen].any(axis=(1, 2)).all()


@every_family
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@cases(6)
@given(data=st.data())
def test_a_later_token_gets_no_gradient_from_an_earlier_target(family: str, backend: str, data: st.DataObject) -> None:
    fixed = {"causal": True, "readout": "all", "positions": "learned"}
    untied = {} if family in ("cllm", "sunfish") else {"tied": False}  # a tied head gives every token a gradient
    model, inputs, targets = made(data.draw(configurations(family, **fixed, **untied)), backend=backend)
    seen = data.draw(st.integers(1, model.time - 1))
    targets[:, :seen] = np.maximum(targets[:, :seen], 0)
    targets[:, seen:] = -1
    if not model.config.features:
        inputs[:, :seen] = np.minimum(inputs[:, :seen], model.config.vocab - 2)
        inputs[:, seen:] = model.config.vocab - 1  # this token stands in the future alone
    model.forward_backward(inputs, targets)
    assert not model.grads["positions.weight"][seen:].any()
    assert model.grads["positions.weight"][:seen].any(axis=1).all()
    if not model.config.features:
        assert not model.grads["tokens.weight"][-1].any()
        assert model.grads["tokens.weight"][inputs[0, 0]].any()


@every_family
@some
@given(data=st.data())
def test_softmax_sees_no_shift_of_the_keys(family: str, data: st.DataObject) -> None:
    """A bias of all keys moves all scores of a query alike: loss and scores stay, and its gradient is nothing."""
    model, inputs, targets = made(data.draw(configurations(family, attention_bias=True)))
    channels = model.config.channels
    loss, scores = model.forward_backward(inputs, targets), model.logits(inputs)
    biases = [name for name in model.params if name.endswith("qkv.bias")]
    largest = max(float(np.abs(gradient).max()) for gradient in model.grads.values())
    for name in biases:
        keys = slice(channels, 2 * channels)
        assert np.abs(model.grads[name][keys]).max() <= 1e-12 * largest
        model.params[name][keys] += 0.7
    assert model.loss(inputs, targets) == pytest.approx(loss, rel=1e-12)
    agree({"logits": model.logits(inputs)}, {"logits": scores})


@pytest.mark.parametrize("family", ["gpt2-4x256", "ops-102k", "sunfish"])
@some
@given(data=st.data())
def test_cross_entropy_sees_no_shift_of_the_words(family: str, data: st.DataObject) -> None:
    """The same vector added to every word's row of the head: the loss stays, so the rows' gradients sum to nothing."""
    model, inputs, targets = made(data.draw(configurations(family, tied=False)))
    loss = model.forward_backward(inputs, targets)
    gradient = model.grads["head.weight"]
    assert np.abs(gradient.sum(axis=0)).max() <= 1e-13 * max(1.0, float(np.abs(gradient).max()))
    model.params["head.weight"][...] += np.linspace(-1, 2, model.config.channels)
    assert model.loss(inputs, targets) == pytest.approx(loss, rel=1e-12)


@some
@given(data=st.data())
def test_a_pre_norm_stream_conserves_its_gradient(data: st.DataObject) -> None:
    """Branches that do nothing leave the stream alone: what comes to its end comes to its start, and every bias on
    the way gets all of it."""
    fixed = {"placement": "pre", "attention_bias": True, "positions": "learned", "tied": False}
    model, inputs, targets = made(data.draw(configurations("gpt2-4x256", **fixed)))
    zeroed(model, lambda name: name.endswith(("proj.weight", "down.weight")))
    model.forward_backward(inputs, targets)
    start = model.grads["positions.weight"].sum(axis=0)
    assert start.any()
    assert np.abs(model.grads["tokens.weight"].sum(axis=0) - start).max() <= 1e-12 * np.abs(start).max()
    for name, gradient in model.grads.items():
        if name.endswith(("proj.bias", "down.bias")):
            assert np.abs(gradient - start).max() <= 1e-12 * np.abs(start).max(), name


@some
@given(data=st.data())
def test_a_post_norm_stream_conserves_its_gradient(data: st.DataObject) -> None:
    """Between two norms the stream passes one residual: with a branch that does nothing, the bias of the norm before
    it and the bias of the branch get the same."""
    fixed = {"placement": "post", "attention_bias": True, "layers": 3}
    model, inputs, targets = made(data.draw(configurations("ops-102k", **fixed)))
    zeroed(model, lambda name: name.endswith(("qkv.weight", "up.weight")))
    model.forward_backward(inputs, targets)
    largest = max(float(np.abs(gradient).max()) for gradient in model.grads.values())
    for layer in range(model.config.layers):
        pairs = [(f"blocks.{layer}.norm1.bias", f"blocks.{layer}.mlp.down.bias")]
        if layer:
            pairs.append((f"blocks.{layer - 1}.norm2.bias", f"blocks.{layer}.attn.proj.bias"))
        for before, branch in pairs:
            assert model.grads[before].any()
            assert np.abs(model.grads[before] - model.grads[branch]).max() <= 1e-12 * largest


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_first_moment_is_m_and_the_second_is_v(optimizer: str, backend: str) -> None:
    """From nothing m = (1 − β₁)·g and v = (1 − β₂)·g²: a checkpoint that names them otherwise trains on nonsense."""
    configuration = Configuration("random", "ops-102k", {"channels": 12, "heads": 2, "vocab": 7})
    model, inputs, targets = made(configuration, backend=backend, optimizer=optimizer)
    model.forward_backward(inputs, targets)
    model.update(1e-3)
    m, v = model.state["m"].astype(np.float64), model.state["v"].astype(np.float64)
    assert m.min() < 0 < m.max()
    assert np.abs(0.1**2 * v - 0.001 * m**2).max() <= 1e-5 * np.abs(0.001 * m**2).max()
