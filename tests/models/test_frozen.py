"""Frozen weights: what is trained is trained as if nothing were frozen, and for the rest there is nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.models.presets import PRESETS
from tapeless.program.arena import Plan, make_plan
from tapeless.program.call import Program
from tapeless.program.precision import PRECISIONS

SMALL: dict[str, Any] = {"layers": 3, "channels": 8, "heads": 2, "vocab": 11, "context": 6, "chunk": 4}
FRONT = ("tokens.*", "positions.*")
LAST_BLOCK = (*FRONT, "blocks.[01].*", "norm.*")
NORMS = (*FRONT, "blocks.*.attn.*", "blocks.*.mlp.*")


def program(*frozen: str, **fields: Any) -> Program:
    config = PRESETS["gpt2-4x256"].override(**SMALL | fields, frozen=frozen)
    return transformer.training(config, 2, 5, Optimizer("adamw"))


def plan(*frozen: str, **fields: Any) -> Plan:
    return make_plan(program(*frozen, **fields), PRECISIONS["float32"])


def saved(planned: Plan, section: str) -> set[str]:
    return {name for name, each in planned.placements.items() if each.kind == "saved" and name.startswith(section)}


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs, targets = (rng.integers(0, SMALL["vocab"], (2, 5)) for _ in range(2))
    return inputs, targets


@pytest.mark.parametrize("recompute", [False, True])
def test_below_the_lowest_trained_weight_nothing_goes_back_and_nothing_is_kept(recompute: bool) -> None:
    whole, part = plan(recompute=recompute), plan(*LAST_BLOCK, recompute=recompute)
    assert saved(whole, "blocks.1")
    assert not saved(part, "blocks.0")
    assert saved(part, "blocks.1") == {"blocks.1.sum2"}  # which block 2 reads
    assert saved(part, "blocks.2")
    backward = [call for call in part.program.calls if call.phase in ("recompute", "backward")]
    assert {call.section for call in backward} == {"head", "blocks.2"}
    trained = sum(weight.elements for weight in part.program.trained) * 4
    kinds, all_kinds = part.bytes_by_kind(), whole.bytes_by_kind()
    assert kinds["weight"] == kinds["gradient"] == trained
    assert kinds["weight"] + kinds["frozen"] == all_kinds["weight"]
    assert kinds["state"] < all_kinds["state"] / 2
    assert kinds["workspace"] < all_kinds["workspace"] or recompute
    assert part.peak_bytes < 0.6 * whole.peak_bytes
    assert part.flops < whole.flops


def test_what_only_the_gradient_of_a_frozen_weight_needs_is_not_computed_again() -> None:
    """The results of norms and activations are recomputed for the sake of the matrices that read them."""
    again = [call for call in program().calls if call.phase == "recompute"]
    assert {call.op for call in again} == {"layernorm", "gelu"}
    norms = program(*NORMS)
    assert not [call for call in norms.calls if call.phase == "recompute"]
    products = [call for call in norms.calls if call.title == "linear.backward"]
    assert {tuple(argument.name for argument in call.writes) for call in products} == {("dx",)}
    assert all(argument.name != "x" for call in products for argument in call.arguments)
    assert {weight.name.rpartition(".")[0] for weight in norms.trained} == {
        "norm",
        *(f"blocks.{n}.norm{k}" for n in range(3) for k in (1, 2)),
    }


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("frozen", [LAST_BLOCK, NORMS, ("*.bias",), ("tokens.weight", "blocks.1.*")])
def test_what_is_trained_has_the_gradient_it_would_have_anyway(backend: str, frozen: tuple[str, ...]) -> None:
    whole = Model("gpt2-4x256", batch=2, time=5, backend=backend, **SMALL)
    part = Model("gpt2-4x256", batch=2, time=5, backend=backend, frozen=frozen, **SMALL)
    assert all(np.array_equal(whole.params[name], weight) for name, weight in part.params.items())
    assert part.forward_backward(*batch()) == whole.forward_backward(*batch())
    assert 0 < len(part.grads) < len(whole.grads)
    for name, gradient in part.grads.items():
        assert np.array_equal(gradient, whole.grads[name]), name


def test_an_update_moves_what_is_trained_alone() -> None:
    model = Model("gpt2-4x256", batch=2, time=5, frozen=LAST_BLOCK, **SMALL)
    before = {name: weight.copy() for name, weight in model.params.items()}
    model.forward_backward(*batch())
    norm = model.update(0.1, clip=1.0)
    squares = sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in model.grads.values())
    assert norm == pytest.approx(np.sqrt(squares), rel=1e-6)
    moved = {name for name, weight in model.params.items() if not np.array_equal(weight, before[name])}
    assert moved == set(model.grads) == {name for name in model.params if name.startswith("blocks.2.")}
    assert model.state["m"].size < sum(weight.size for weight in model.params.values()) / 2


def test_a_frozen_model_is_read_out_evaluated_and_sampled_with_all_its_weights() -> None:
    whole, part = (Model("gpt2-4x256", batch=2, time=5, frozen=frozen, **SMALL) for frozen in ((), LAST_BLOCK))
    inputs, targets = batch()
    assert part.loss(inputs, targets) == whole.loss(inputs, targets)
    assert np.array_equal(part.logits(inputs), whole.logits(inputs))
    assert part.generate([1, 2], 8) == whole.generate([1, 2], 8)


@pytest.mark.parametrize(
    ("frozen", "words"),
    [
        (("tokns.*",), "tokns.*"),
        (("blocks.0.*", "blocks.9.*"), "blocks.9.*"),
        (("*",), "every weight is frozen"),
        ((3,), "patterns"),
        ("tokens.*", "patterns"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_refused(frozen: Any, words: str) -> None:
    with pytest.raises(TapelessError) as refused:
        Model("gpt2-4x256", time=5, frozen=frozen, **SMALL)
    assert words in str(refused.value)
    assert str(refused.value).count(". ") == 0
