"""Three ways to one gradient, and words that go where the probe says."""

from contextlib import suppress

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


def test_a_probe_that_was_interrupted_is_as_it_was(monkeypatch):
    """Ctrl-C, or a model that is refused, in the middle: the twins are kept, and asked again."""
    update, data = made(backend="reference")
    name, place = update.largest()
    sequence = data[0][0][0]
    fresh = Probe(update)
    digits, push = fresh.digits(name, place), fresh.push(name, place, sequence)
    probe = Probe(update)
    both = ((lambda: probe.digits(name, place), "loss"), (lambda: probe.push(name, place, sequence), "logits"))
    for asked, method in both:
        for after in (0, 1, 2):
            with monkeypatch.context() as interrupted:
                interrupted.setattr(Model, method, _fails(getattr(Model, method), after))
                with suppress(KeyboardInterrupt):
                    asked()
            assert probe.digits(name, place) == digits
            again = probe.push(name, place, sequence)
            assert np.array_equal(again.alone, push.alone)
            assert np.array_equal(again.update, push.update)


def _fails(right, after):
    left = [after]

    def failing(*arguments, **named):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return right(*arguments, **named)

    return failing


def test_an_update_that_is_interrupted_is_taken_back(monkeypatch):
    model = made()[0].model
    rng = np.random.default_rng(1)
    batch = rng.integers(0, model.config.vocab, (3, 8)), rng.integers(0, model.config.vocab, 3)
    before, steps, draws = {name: each.copy() for name, each in model.weights().items()}, model.steps, model.draws
    right = Model.update

    def failing(self, *arguments, **named):
        right(self, *arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "update", failing)
    with pytest.raises(KeyboardInterrupt):
        Update(model, [batch], 0.1)
    assert (model.steps, model.draws) == (steps, draws)
    for name, values in before.items():
        assert np.array_equal(model.params[name], values), name
