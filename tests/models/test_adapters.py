"""Adapters of low rank, and training what is named alone: what that trains, what it saves, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.adapters import merged
from tapeless.models.config import Optimizer
from tapeless.models.presets import PRESETS
from tapeless.program.arena import Plan, make_plan
from tapeless.program.precision import PRECISIONS

SMALL: dict[str, Any] = {"layers": 2, "channels": 12, "heads": 2, "vocab": 11, "context": 80, "hidden": 10}
LLAMA = SMALL | {"kv_heads": 1}


def model(name: str = "llama-4x256", **fields: Any) -> Model:
    return Model(name, batch=2, time=6, backend="reference", **LLAMA | fields)


def batch() -> Any:
    return np.random.default_rng(0).integers(0, 11, (2, 2, 6))


def plan(**fields: Any) -> Plan:
    preset = PRESETS["smollm2-135m"].override(layers=3, vocab=1000, context=128, **fields)
    return make_plan(transformer.training(preset, 1, 128, Optimizer("adamw")), PRECISIONS["float32"])


def test_an_adapted_model_begins_as_its_base_and_moves_its_adapters_alone() -> None:
    base, adapted = model(), model(lora=2)
    for name, weight in base.params.items():
        adapted.params[name][...] = weight
    inputs, targets = batch()
    assert np.array_equal(base.logits(inputs), adapted.logits(inputs))
    before = {name: weight.copy() for name, weight in adapted.params.items()}
    first = adapted.step(inputs, targets, lr=1e-2).loss
    for _ in range(20):
        last = adapted.step(inputs, targets, lr=1e-2).loss
    assert last < first
    moved = {name for name, weight in adapted.weights().items() if not np.array_equal(weight, before[name])}
    assert moved == {name for name in adapted.params if name.endswith(("lora_a", "lora_b"))}
    assert all(np.array_equal(adapted.params[name], weight) for name, weight in base.params.items())


def test_where_nobody_says_alpha_is_twice_the_rank() -> None:
    usual, said = model(lora=3), model(lora=3, lora_alpha=6.0)
    inputs, _ = batch()
    for each in (usual, said):
        for weight in each.params.values():
            weight[...] = np.random.default_rng(weight.size).normal(size=weight.shape)
    assert np.array_equal(usual.logits(inputs), said.logits(inputs))
    other = model(lora=3, lora_alpha=9.0)
    for name, weight in usual.params.items():
        other.params[name][...] = weight
    assert not np.allclose(usual.logits(inputs), other.logits(inputs))


@pytest.mark.parametrize("name", ["gpt2-4x256", "llama-4x256", "qwen3-0.6b"])
@pytest.mark.parametrize("targets", [(), ("proj",)])
def test_the_merged_model_computes_the_same(name: str, targets: tuple[str, ...]) -> None:
    fields = SMALL if name == "gpt2-4x256" else LLAMA | ({"head_width": 6} if name == "qwen3-0.6b" else {})
    adapters: dict[str, Any] = {"lora": 3, "lora_alpha": 4.0, "lora_targets": targets}
    adapted = Model(name, time=6, backend="reference", **fields, **adapters)
    whole = Model(name, time=6, backend="reference", **fields)
    rng = np.random.default_rng(1)
    for weight in adapted.params.values():
        weight[...] = rng.normal(0.2, 0.4, weight.shape)
    folded = merged(adapted.preset, adapted.params)
    assert folded.keys() == whole.params.keys()
    assert any(not np.array_equal(weight, adapted.params[key]) for key, weight in folded.items())
    for key, weight in folded.items():
        whole.params[key][...] = weight
    tokens = rng.integers(0, 11, (1, 6))
    assert np.allclose(whole.logits(tokens), adapted.logits(tokens), rtol=1e-10, atol=1e-10)
    assert whole.generate([3, 1, 4], 30, temperature=0) == adapted.generate([3, 1, 4], 30, temperature=0)


def test_what_is_named_alone_is_trained() -> None:
    def trained(**fields: Any) -> set[str]:
        return set(model(**fields).grads)

    everything = trained()
    assert trained(train=("norms",)) == {name for name in everything if "norm" in name}
    assert trained(train=("blocks.1,head",)) == {*_of(everything, "blocks.1."), "tokens.weight"}
    assert trained(train=("blocks.1", "head"), tied=False) == {*_of(everything, "blocks.1."), "head.weight"}
    assert trained(train=("*.down.weight",)) == {f"blocks.{n}.mlp.down.weight" for n in (0, 1)}
    assert trained(train=("blocks.0",), frozen=("*.norm1.*",)) == _of(everything, "blocks.0.") - {
        "blocks.0.norm1.weight"
    }
    assert trained(lora=2, train=("norm",)) == {"norm.weight", *(n for n in trained(lora=2))}
    assert trained(lora=2, lora_targets=("q,v",)) == {f"blocks.{n}.attn.qkv.lora_{m}" for n in (0, 1) for m in "ab"}
    assert trained(lora=2, lora_targets=("blocks.1.mlp",)) == {
        f"blocks.1.mlp.{part}.lora_{m}" for part in ("gate_up", "down") for m in "ab"
    }


def _of(names: set[str], start: str) -> set[str]:
    return {name for name in names if name.startswith(start)}


def test_frozen_weights_have_neither_gradient_nor_state_and_the_step_is_cheaper() -> None:
    whole, adapted, last = plan(), plan(lora=8), plan(train=("blocks.2", "norm"))
    for part in (adapted, last):
        kinds, all_kinds = part.bytes_by_kind(), whole.bytes_by_kind()
        assert kinds["gradient"] < 0.35 * all_kinds["gradient"]
        assert kinds["state"] < 0.35 * all_kinds["state"]
        assert part.peak_bytes < 0.75 * whole.peak_bytes
        assert part.flops < 0.8 * whole.flops
    frozen = [call for call in adapted.program.calls if call.title == "linear.backward" and not call.has("dweight")]
    assert len(frozen) == 4 * 3 - 1  # below the first block nothing goes back
    assert not any(call.op == "embedding" and call.direction == "backward" for call in last.program.calls)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lora": 0}, "lora must be a whole number of at least 1, not 0"),
        ({"lora": 2.5}, "lora must be a whole number"),
        ({"lora": 11}, r"lora=11 is more than attn.k has: its matrix is 12 × 6, so its rank is 6 at most"),
        (
            {"lora": 2, "lora_targets": ("c_attn",)},
            r"unknown target of LoRA 'c_attn': this model has q, k, v, proj, gate, up, down\.$",
        ),
        ({"lora": 2, "lora_targets": ("k_proj",)}, r"'k_proj': this model has q, k, v, proj, gate, up, down\.$"),
        ({"lora": 2, "lora_targets": ("q,,v",)}, "lora_targets must be a tuple or list of names of projections"),
        ({"lora": 2, "lora_alpha": 0.0}, "lora_alpha must be a finite number above 0, not 0.0"),
        ({"lora": 2, "lora_alpha": float("nan")}, "lora_alpha must be a finite number"),
        ({"lora_alpha": 8.0}, "lora_alpha=8.0 is of adapters, and lora says no rank"),
        ({"lora_targets": ("q",)}, "is of adapters, and lora says no rank"),
        ({"train": ("blocks.2",)}, "train='blocks.2' is the name of no weight: name blocks.0 to blocks.1, head, norms"),
        ({"train": "norms"}, "train must be a tuple or list of names"),
        ({"train": ("norms",), "frozen": ("*norm*",)}, "every weight is frozen"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TapelessError, match=words) as caught:
        model(**fields)
    assert str(caught.value).endswith(("?", "."))
