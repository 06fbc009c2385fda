"""Muon beside a plain statement of it, and beside PyTorch's, step after step, in float64; on the cpu beside the
reference; and what is planned for it."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from tapeless import Model
from tapeless.backends.cpu import CPU
from tapeless.check.configurations import Configuration, small
from tapeless.check.lockstep import lockstep, pair
from tapeless.check.tolerances import TOLERANCES
from tapeless.models.config import Optimizer
from tapeless.ops.contract import Array
from tapeless.program.precision import numpy_type
from tests.oracles import disagreements

STEPS = 50
DECAY = 0.1
# Untied, so that there is a head; and a Llama whose keys are fewer than its queries, with gate and up in one weight.
CONFIGURATIONS = {
    "gpt": Configuration("muon", "gpt2-4x256", small("gpt2-4x256", tied=False)),
    "llama": Configuration("muon", "llama-4x256", small("llama-4x256", heads=4, kv_heads=2, hidden=7)),
}
fast_here = pytest.mark.skipif("bfloat16" not in CPU.traits.precisions, reason="this processor multiplies no bfloat16")
MATRICES = ("attn.qkv.weight", "attn.proj.weight", "mlp.up.weight", "mlp.gate_up.weight", "mlp.down.weight")


def made(configuration: Configuration, optimizer: Optimizer, **fields: Any) -> Model:
    model = Model(
        configuration.preset,
        batch=configuration.batch,
        time=configuration.time,
        optimizer=optimizer,
        **{"backend": "reference", **configuration.fields, **fields},
    )
    configuration.scramble(np.random.default_rng(0), model)
    return model


def taken_apart(model: Model, name: str, weight: Any) -> list[Any]:
    """The matrices of a weight, as views."""
    c = model.config
    if name.endswith("attn.qkv.weight"):
        queries, keys = c.heads * c.head_channels, c.key_heads * c.head_channels
        return [weight[:, :queries], weight[:, queries : queries + keys], weight[:, queries + keys :]]
    if name.endswith("mlp.gate_up.weight"):
        return [weight[:, : c.width], weight[:, c.width :]]
    return [weight]


def rate(step: int) -> float:
    return 0.01 * (1 + step % 7) / 7


def walk(model: Model, configuration: Configuration) -> Iterator[tuple[float, dict[str, Array]]]:
    """The rate and the gradients of each step, which is made when the next is asked for."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        model.forward_backward(*configuration.batch_of(rng, model))
        yield rate(step), {name: gradient.copy() for name, gradient in model.grads.items()}
        model.update(rate(step))


class Plain:
    """Muon and AdamW, one tensor at a time, with nothing of ours."""

    def __init__(self, model: Model, momentum: float) -> None:
        self.model, self.momentum = model, momentum
        self.weights = {name: weight.copy() for name, weight in model.params.items()}
        self.m, self.v = ({name: np.zeros_like(weight) for name, weight in self.weights.items()} for _ in range(2))
        self.number = 0

    def step(self, lr: float, gradients: dict[str, Array]) -> None:
        self.number += 1
        for name, gradient in gradients.items():
            weight, m, v = self.weights[name], self.m[name], self.v[name]
            if weight.ndim == 2 and name != "positions.weight":
                weight *= 1 - lr * DECAY
            if not name.endswith(MATRICES):
                m[...] = 0.9 * m + 0.1 * gradient
                v[...] = 0.999 * v + 0.001 * gradient**2
                corrected = m / (1 - 0.9**self.number), v / (1 - 0.999**self.number)
                weight -= lr * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
                continue
            m[...] = self.momentum * m + (1 - self.momentum) * gradient
            ahead = self.momentum * m + (1 - self.momentum) * gradient
            parts = (taken_apart(self.model, name, each) for each in (weight, ahead))
            for matrix, x in zip(*parts, strict=True):
                x = x.T / np.linalg.norm(x)  # (out, in), as others have it
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                matrix -= lr * 0.2 * sqrt(max(x.shape)) * x.T


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("momentum", [None, 0.6])
def test_fifty_steps_are_those_of_a_plain_statement(name: str, momentum: float | None) -> None:
    configuration = CONFIGURATIONS[name]
    model = made(configuration, Optimizer("muon", momentum=momentum, decay=DECAY))
    plain = Plain(model, 0.95 if momentum is None else momentum)
    for lr, gradients in walk(model, configuration):
        assert not disagreements("muon", model.params, plain.weights)
        plain.step(lr, gradients)
    assert not disagreements("muon", model.params, plain.weights)


def beside_torch(name: str) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array], dict[str, float]]:
    """The matrices of ours, of theirs, of the start, and the lengths of the ways that they went."""
    configuration = CONFIGURATIONS[name]
    model = made(configuration, Optimizer("muon", decay=DECAY))
    theirs = {
        f"{weight}/{number}": torch.tensor(np.ascontiguousarray(part.T))  # (out, in)
        for weight, array in model.params.items()
        if weight.endswith(MATRICES)
        for number, part in enumerate(taken_apart(model, weight, array))
    }
    start = {key: tensor.numpy().copy() for key, tensor in theirs.items()}
    ways = dict.fromkeys(theirs, 0.0)
    peer = torch.optim.Muon(theirs.values(), weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for lr, gradients in walk(model, configuration):
        peer.param_groups[0]["lr"] = lr
        before = {key: tensor.numpy().copy() for key, tensor in theirs.items()}
        for key, tensor in theirs.items():
            weight, _, number = key.partition("/")
            tensor.grad = torch.tensor(taken_apart(model, weight, gradients[weight])[int(number)].T.copy())
        peer.step()
        for key, tensor in theirs.items():
            ways[key] += float(np.linalg.norm(tensor.numpy() - before[key]))
    ours = {
        f"{weight}/{number}": part.T
        for weight, array in model.params.items()
        if weight.endswith(MATRICES)
        for number, part in enumerate(taken_apart(model, weight, array))
    }
    return ours, {key: tensor.numpy() for key, tensor in theirs.items()}, start, ways


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_fifty_steps_are_torch_s_but_for_its_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is kept from rounding what it multiplies, they are the same."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    ours, theirs, _, _ = beside_torch(name)
    assert not disagreements("muon", ours, theirs)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_fifty_steps_are_torch_s_within_its_rounding(name: str) -> None:
    ours, theirs, start, ways = beside_torch(name)
    for key, way in ways.items():
        assert np.linalg.norm(ours[key] - start[key]) > 0.1 * way  # they went somewhere
        assert 0 < np.linalg.norm(ours[key] - theirs[key]) < TOLERANCES["muon in bfloat16"] * way, key


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=fast_here)])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_cpu_is_in_lockstep_with_the_reference(name: str, precision: str) -> None:
    configuration = CONFIGURATIONS[name]
    fields = {**configuration.fields, "optimizer": "muon"}
    model, reference, inputs, targets = pair(Configuration("muon", configuration.preset, fields), "cpu", precision)
    for _ in range(2):  # the second time there are moments
        assert [str(found) for found in lockstep(model, reference, inputs, targets) if not found.ok] == []
    assert (model.steps, reference.steps) == (2, 2)


@fast_here
def test_in_bfloat16_the_master_copy_goes_the_way_of_float32() -> None:
    """The same gradients: the same steps of the master copy, and the weights are its rounding."""
    configuration = CONFIGURATIONS["llama"]
    wide, narrow = (
        made(configuration, Optimizer("muon", decay=DECAY), backend="cpu", precision=precision)
        for precision in ("float32", "bfloat16")
    )
    for (lr, gradients), step in zip(walk(wide, configuration), range(5), strict=False):
        for name, gradient in gradients.items():
            narrow.grads[name][...] = gradient
        narrow.update(lr)
        assert narrow.steps == step + 1
    for name, weight in wide.params.items():
        assert np.array_equal(narrow.read(name), weight), name
        assert np.array_equal(weight.astype(numpy_type("bfloat16")), narrow.params[name]), name


def test_what_adamw_alone_needs_is_kept_for_its_own_weights() -> None:
    configuration = CONFIGURATIONS["gpt"]
    model, plain = (made(configuration, Optimizer(name)) for name in ("muon", "adamw"))
    matrices = sum(weight.size for name, weight in model.params.items() if name.endswith(MATRICES))
    assert model.state["m"].size == plain.state["m"].size == plain.state["v"].size
    assert model.state["v"].size == plain.state["v"].size - matrices
    assert model.plan.bytes_by_kind()["state"] == plain.plan.bytes_by_kind()["state"] - 8 * matrices


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("trained", ["blocks.0.mlp.down.weight", "norm.weight"])
def test_one_side_of_it_may_have_nothing_to_do(backend: str, trained: str) -> None:
    """All weights but one frozen: a matrix, or a vector."""
    configuration = CONFIGURATIONS["gpt"]
    everything = made(configuration, Optimizer("sgd")).params
    frozen = tuple(name for name in everything if name != trained)
    model = Model(
        configuration.preset,
        batch=configuration.batch,
        time=configuration.time,
        optimizer="muon",
        backend=backend,
        **{**configuration.fields, "frozen": frozen, "channels": 16, "hidden": 16},
    )
    before = model.read(trained).copy()
    model.step(*configuration.batch_of(np.random.default_rng(1), model), lr=0.1)
    assert model.steps == 1
    assert not np.array_equal(model.read(trained), before)
    assert model.state["v"].size == (16 if trained == "norm.weight" else 1)
