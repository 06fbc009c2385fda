"""Shares add up to the engine's gradient, and those of a sequence to what it alone would give, by complex step."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.check.complex_step import STEP
from tapeless.tracing.shares import RULES, contributions

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ops": ("ops-102k", {"batch": 3, "layers": 2, "channels": 8, "heads": 2}),
    "gpt": ("gpt2-4x256", {"layers": 2, "channels": 8, "heads": 2, "vocab": 11, "context": 6, "batch": 3, "time": 5}),
    "adapted": (
        "gpt2-4x256",
        {"layers": 1, "channels": 8, "heads": 2, "vocab": 11, "context": 6, "batch": 3, "time": 5, "lora": 2},
    ),
    "llama": (
        "smollm2-135m",
        {
            "layers": 2,
            "channels": 12,
            "heads": 3,
            "kv_heads": 1,
            "query_key_norm": True,
            "hidden": 10,
            "vocab": 11,
            "context": 6,
        }
        | {"batch": 2, "time": 6},
    ),
}


def built(which, **how):
    preset, fields = MODELS[which]
    model = Model(preset, backend="reference", seed=3, **fields, **how)
    rng = np.random.default_rng(1)
    for name in model.params:
        model.write(name, rng.normal(0, 0.4, model.params[name].shape))
    inputs = rng.integers(0, model.config.vocab, (model.batch, model.time))
    shape = (model.batch,) if model.config.readout == "last" else inputs.shape
    targets = rng.integers(0, model.config.vocab, shape)
    if targets.ndim == 2:
        targets[0, 1] = -1
    return model, inputs, targets


@pytest.mark.parametrize("which", MODELS)
def test_the_shares_of_every_weight_add_up_to_its_gradient(which):
    model, inputs, targets = built(which)
    model.forward_backward(inputs, targets)
    gradients = {name: np.array(array) for name, array in model.grads.items()}
    used = set()
    for name, gradient in gradients.items():
        place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        found = contributions(model, name, place, inputs, targets)
        assert found.gradient == gradient[place]
        assert found.total == pytest.approx(gradient[place], rel=1e-12, abs=1e-15), name
        for part in found.parts:
            assert np.all(part.sequence < model.batch)
            assert np.all(part.position < model.time)
            used.add(part.title)
    assert used


def test_a_share_is_what_is_left_when_no_other_token_speaks():
    """The loss of one sequence alone, by complex step, is the sum of the shares of its tokens."""
    model, inputs, targets = built("gpt")
    probe, _, _ = built("gpt", precision="complex128")
    count = model.weigh(targets)
    for name in ("blocks.0.mlp.up.weight", "blocks.1.norm1.weight", "tokens.weight", "positions.weight"):
        place = (1, 2) if len(model.params[name].shape) == 2 else (2,)
        if name == "tokens.weight":
            place = (int(inputs[1, 0]), 2)
        found = contributions(model, name, place, inputs, targets)
        kept = probe.params[name][place]
        probe.params[name][place] = kept + 1j * STEP
        for sequence in range(model.batch):
            alone = np.full_like(targets, -1)
            alone[sequence] = targets[sequence]
            slope = complex(probe.forward_backward(inputs, alone, count=count)).imag / STEP
            shares = sum(part.shares[part.sequence == sequence].sum() for part in found.parts)
            assert shares == pytest.approx(slope, rel=1e-10, abs=1e-14), (name, sequence)
        probe.params[name][place] = kept


def test_a_tied_embedding_has_two_parts_and_only_its_own_tokens_read_it():
    model, inputs, targets = built("gpt")
    token = int(inputs[0, 0])
    classifier, embedding = contributions(model, "tokens.weight", (token, 1), inputs, targets).parts
    assert (classifier.title, embedding.title) == ("classifier.backward", "embedding.backward")
    assert len(classifier.shares) == np.count_nonzero(targets >= 0)
    assert np.all(inputs[embedding.sequence, embedding.position] == token)
    assert len(embedding.shares) == np.count_nonzero(inputs == token)


def test_where_the_last_position_alone_goes_on_the_shares_are_its_own():
    model, inputs, targets = built("ops")
    (part,) = contributions(model, "blocks.1.mlp.up.weight", (1, 2), inputs, targets).parts
    assert part.position.tolist() == [model.time - 1] * model.batch
    (keys,) = contributions(model, "blocks.1.attn.qkv.weight", (1, 10), inputs, targets).parts
    assert sorted(set(keys.position.tolist())) == list(range(model.time))


def test_class_weights_and_counts_are_in_the_shares():
    preset, fields = MODELS["ops"]
    vocab = Model(preset, batch=1).config.vocab
    weights = tuple(1.0 + 0.1 * number for number in range(vocab))
    model = Model(preset, backend="reference", class_weights=weights, **fields)
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, vocab, (3, 8)), rng.integers(0, vocab, 3)
    found = contributions(model, "head.weight", (int(targets[0]), 3), inputs, targets, count=7.5)
    assert found.total == pytest.approx(found.gradient, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("nothing", (0,), "unknown weight"),
        ("blocks.0.norm1.weight", (99,), "no element"),
        ("blocks.0.norm1.weight", (0, 0), "no element"),
        ("tokens.weight", (-1, 0), "no element"),
    ],
)
def test_what_is_no_element_is_refused(name, place, said):
    model, inputs, targets = built("ops")
    with pytest.raises(TapelessError, match=said):
        contributions(model, name, place, inputs, targets)


def test_a_frozen_weight_has_no_gradient_to_trace():
    preset, fields = MODELS["ops"]
    model = Model(preset, frozen=("tokens.weight",), **fields)
    with pytest.raises(TapelessError, match="frozen"):
        contributions(model, "tokens.weight", (0, 0), np.zeros((3, 8), int), np.zeros(3, int))


def test_there_is_a_rule_for_every_gradient_of_every_preset():
    from tapeless import PRESETS
    from tapeless.models import transformer

    needed = set()
    for preset in PRESETS.values():
        program = transformer.training(preset.override(layers=1), 1, 4, None)
        for call in program.phase("backward"):
            needed |= {(call.op, each.name) for each in call.writes if each.view.buffer.kind == "gradient"}
    assert needed <= set(RULES)
