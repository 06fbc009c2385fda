"""Three ways to one gradient, and words that go where the probe says."""

import numpy as np
import pytest

from tapeless import Model
from tapeless.tracing.probe import Probe
from tapeless.tracing.update import Update


def made(backend="cpu", batches=1, lr=1e-2, **fields):
    sizes = {"batch": 3, "layers": 1, "channels": 8, "heads": 2, **fields}
    model = Model("ops-102k", optimizer="sgd", backend=backend, seed=4, **sizes)
    rng = np.random.default_rng(0)
    data = [
        (rng.integers(0, model.config.vocab, (3, 8)), rng.integers(0, model.config.vocab, 3)) for _ in range(batches)
    ]
    return Update(model, data, lr), data


@pytest.mark.parametrize("fields", [{}, {"batches": 2}, {"dropout": 0.3}])
def test_the_complex_step_the_backward_and_the_engine_agree(fields):
    update, _ = made(**fields)
    probe = Probe(update)
    for weight in ("tokens.weight", "blocks.0.norm2.weight", "blocks.0.attn.qkv.weight", "head.weight"):
        place = update.largest("gradient", weight)[1]
        digits = probe.digits(weight, place)
        assert digits.backward == pytest.approx(digits.complex_step, rel=1e-12)
        assert digits.engine == pytest.approx(digits.complex_step, rel=1e-4)
        assert digits.engine == update.gradients[weight][place]


def test_words_are_pushed_as_the_weight_alone_pushes_them():
    update, data = made(backend="reference", lr=1e-4)
    probe, model = Probe(update), update.model
    name, place = update.largest()
    sequence = data[0][0][1]
    push = probe.push(name, place, sequence)
    assert push.position == 7
    before = _likely(model, sequence)
    assert np.allclose(push.before, before, rtol=1e-12)
    assert push.before.sum() == pytest.approx(1)
    assert abs((push.before * push.alone).sum()) < 1e-15
    moved = model.read(name).copy()
    moved[place] = update.after[name][place]
    model.write(name, moved)
    alone = np.log(_likely(model, sequence)) - np.log(before)
    assert np.allclose(alone, push.alone, rtol=1e-2, atol=1e-3 * np.abs(alone).max())
    for each, array in update.after.items():
        model.write(each, array)
    assert np.allclose(_likely(model, sequence), push.update, rtol=1e-10)


def test_a_push_leaves_the_probe_as_it_was():
    update, data = made(backend="reference")
    probe = Probe(update)
    name, place = update.largest()
    first = probe.push(name, place, data[0][0][0])
    again = probe.push(name, place, data[0][0][0])
    assert np.array_equal(first.alone, again.alone)
    assert np.array_equal(first.update, again.update)


def _likely(model, sequence):
    scores = model.logits(sequence[None]).reshape(-1)
    found = np.exp(scores - scores.max())
    return found / found.sum()
