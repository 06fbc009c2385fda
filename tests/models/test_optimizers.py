"""Our optimizers beside PyTorch's: both get our gradients, and must keep the same weights step after step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tapeless import Model, TapelessError
from tapeless.check.configurations import Configuration, small
from tapeless.models.config import Optimizer
from tapeless.ops.contract import Array
from tests.oracles import disagreements

STEPS = 50
LIMIT = 0.5
# Untied, so that there is a head to decay; positions beyond `time` get no gradient, so that a decay would show.
CONFIGURATION = Configuration("optimizers", "gpt2-4x256", small("gpt2-4x256", tied=False))
DECAYED = (
    "tokens.weight",
    "attn.qkv.weight",
    "attn.proj.weight",
    "mlp.up.weight",
    "mlp.down.weight",
    "head.weight",
)

# The presets' own constants, which are PyTorch's defaults, and others, of which none may be ignored.
PAIRS: dict[str, tuple[str | Optimizer, Any, dict[str, Any]]] = {
    "sgd": ("sgd", torch.optim.SGD, {}),
    "momentum": ("momentum", torch.optim.SGD, {"momentum": 0.9}),
    "adam": ("adam", torch.optim.Adam, {}),
    "adamw": ("adamw", torch.optim.AdamW, {"weight_decay": 0.01}),
    "momentum 0.5": (Optimizer("momentum", momentum=0.5), torch.optim.SGD, {"momentum": 0.5}),
    "adamw with other constants": (
        Optimizer("adamw", beta1=0.7, beta2=0.95, eps=1e-3, decay=0.2),
        torch.optim.AdamW,
        {"betas": (0.7, 0.95), "eps": 1e-3, "weight_decay": 0.2},
    ),
}


def made(optimizer: str | Optimizer | None, seed: int = 0, **fields: Any) -> Model:
    model = Model(
        CONFIGURATION.preset,
        batch=CONFIGURATION.batch,
        time=CONFIGURATION.time,
        backend="reference",
        precision="float64",
        optimizer=optimizer,
        seed=seed,
        **{**CONFIGURATION.fields, **fields},
    )
    CONFIGURATION.scramble(np.random.default_rng(seed), model)
    return model


def copied(arrays: Any) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def rate(step: int) -> float:
    return 0.02 * (1 + step % 7) / 7


def beside_torch(name: str, clip: float | None) -> list[float]:
    """Walk both, compare after every step, and return the norms of the gradients on the way."""
    ours, theirs, constants = PAIRS[name]
    model, rng, norms = made(ours), np.random.default_rng(1), []
    weights = {weight: torch.tensor(array) for weight, array in model.params.items()}
    groups = [
        {"params": [tensor for weight, tensor in weights.items() if weight.endswith(DECAYED)]},
        {
            "params": [tensor for weight, tensor in weights.items() if not weight.endswith(DECAYED)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = theirs(groups, **constants)
    for step in range(STEPS):
        model.forward_backward(*CONFIGURATION.batch_of(rng, model))
        if step % 3 == 2:  # small enough to need no clipping: an update takes the gradients as they are
            for array in model.grads.values():
                array *= 0.01
        gradients = {weight: torch.tensor(array) for weight, array in model.grads.items()}
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
        scale = clip / norm if clip is not None and norm > clip else 1.0
        for weight, tensor in weights.items():
            tensor.grad = scale * gradients[weight]
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        norms.append(norm)

        returned = model.update(rate(step), clip=clip)
        assert not disagreements("torch optimizers", {"norm": returned}, {"norm": norm}), f"step {step}"
        assert not disagreements("torch optimizers", model.params, weights), f"step {step}"
        assert all(np.array_equal(array, gradients[weight]) for weight, array in model.grads.items())  # only read
    return norms


@pytest.mark.parametrize("name", PAIRS)
def test_weights_follow_torch(name: str):
    beside_torch(name, clip=None)


@pytest.mark.parametrize("name", PAIRS)
def test_weights_follow_torch_with_clipping(name: str):
    norms = beside_torch(name, clip=LIMIT)
    assert min(norms) < LIMIT < max(norms)  # else one side of the choice was never taken


def test_accumulation_adds_exactly():
    # No token twice and all logits in one chunk: every gradient gets one sum per batch, and adding two is exact
    # to the bit, whatever their order.
    model = made(None, vocab=20, chunk=8)
    batches = [(np.arange(8).reshape(2, 4) + first, np.arange(8).reshape(2, 4) + 5) for first in (0, 3)]
    alone = []
    for batch in batches:
        model.forward_backward(*batch)
        alone.append(copied(model.grads))
    model.forward_backward(*batches[0])
    model.forward_backward(*batches[1], accumulate=True)
    for name, gradient in model.grads.items():
        assert np.array_equal(gradient, alone[0][name] + alone[1][name]), name


def test_accumulation_adds_where_a_gradient_has_many_parts():
    # A tied head, logits in chunks and repeated tokens: the same sum in another order, so equal but for rounding.
    model, rng = made(None, tied=True), np.random.default_rng(2)
    total = {name: np.zeros_like(gradient) for name, gradient in model.grads.items()}
    batches = [CONFIGURATION.batch_of(rng, model) for _ in range(3)]
    for batch in batches:
        model.forward_backward(*batch)
        for name, gradient in model.grads.items():
            total[name] += gradient
    for number, batch in enumerate(batches):
        model.forward_backward(*batch, accumulate=number > 0)
    assert not disagreements("torch autograd", model.grads, total)


def trained(seed: int) -> dict[str, Array]:
    """The weights after a few steps, from the model's own first values."""
    model = Model(
        "gpt2-4x256", batch=2, time=4, backend="reference", precision="float64", seed=seed, **CONFIGURATION.fields
    )
    rng = np.random.default_rng(3)
    for step in range(5):
        model.forward_backward(*CONFIGURATION.batch_of(rng, model))
        model.update(rate(step), clip=LIMIT)
    return copied(model.params)


def test_the_same_seed_gives_the_same_weights_to_the_bit():
    first, again, other = trained(seed=4), trained(seed=4), trained(seed=5)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)


def test_a_model_without_optimizer_refuses_to_update():
    model = made(None)
    model.forward_backward(*CONFIGURATION.batch_of(np.random.default_rng(0), model))
    before = copied(model.params)
    with pytest.raises(TapelessError, match="optimizer=None"):
        model.update(0.1)
    assert all(np.array_equal(before[name], weight) for name, weight in model.params.items())
    assert model.steps == 0


def test_what_an_update_tells_is_told_of_every_section() -> None:
    model = made("adamw")
    tokens = np.zeros((CONFIGURATION.batch, CONFIGURATION.time), int)
    model.step(tokens, tokens, lr=1e-3)
    layers = model.config.layers
    assert list(model.gradient_norms) == ["embedding", *(f"blocks.{n}" for n in range(layers)), "head"]
    np.testing.assert_allclose(model.read("gradient_norms"), list(model.gradient_norms.values()), rtol=1e-12)
