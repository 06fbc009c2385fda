"""An update taken apart: the lines come to what the engine has, and the model is as it was."""

import numpy as np
import pytest

from tapeless import Model, Optimizer, TapelessError
from tapeless.tracing.update import Update

SMALL = {"batch": 4, "layers": 1, "channels": 8, "heads": 2}


def made(optimizer, backend="reference", batches=1, **fields):
    model = Model("ops-102k", optimizer=optimizer, backend=backend, seed=2, **{**SMALL, **fields})
    rng = np.random.default_rng(5)
    data = [
        (rng.integers(0, model.config.vocab, (4, 8)), rng.integers(0, model.config.vocab, 4)) for _ in range(batches)
    ]
    return model, data


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_lines_come_to_the_engines_number(name, clip):
    model, data = made(Optimizer(name, decay=0.1) if name == "adamw" else name)
    for _ in range(3):
        model.step(*data[0], lr=1e-2)
    update = Update(model, data, 1e-2, clip)
    assert (update.scale < 1) == (clip is not None)
    for weight in ("blocks.0.mlp.up.weight", "blocks.0.norm1.bias", "head.weight"):
        place = update.largest("gradient", weight)[1]
        lines = update.arithmetic(weight, place)
        assert lines.before != lines.after
        assert lines.computed == pytest.approx(lines.after, rel=1e-12)
        assert lines.lines[0].value == pytest.approx(update.scale * update.gradients[weight][place])
    decays = [line.name for line in update.arithmetic("head.weight", (0, 0)).lines]
    assert ("decay" in decays) == (name == "adamw")
    assert "decay" not in [line.name for line in update.arithmetic("blocks.0.norm1.bias", (0,)).lines]


def test_the_model_is_as_it_was_and_the_update_is_the_one_that_it_makes():
    model, data = made("adamw", backend="cpu", dropout=0.2)
    model.step(*data[0], lr=1e-2)
    kept = {name: model.read(name).copy() for name in (*model.params, *model.state)}
    steps, draws = model.steps, model.draws
    update = Update(model, data, 1e-2, 1.0)
    update.contributions("head.weight", (0, 0))
    assert (model.steps, model.draws) == (steps, draws)
    assert all(np.array_equal(model.read(name), array) for name, array in kept.items())
    model.step(*data[0], lr=1e-2, clip=1.0)
    for name, after in update.after.items():
        assert np.array_equal(model.read(name), after), name
    assert update.number == model.steps


def test_several_batches_make_one_update():
    model, data = made("adam", batches=3)
    update = Update(model, data, 1e-2)
    name, place = update.largest()
    assert abs(update.change(name)[place]) == max(np.abs(update.change(each)).max() for each in update.after)
    found = update.contributions(name, place)
    assert len(found) == 3
    assert sum(each.total for each in found) == pytest.approx(update.gradients[name][place], rel=1e-12)
    name, place = update.largest("gradient")
    assert abs(update.gradients[name][place]) == max(np.abs(each).max() for each in update.gradients.values())


def test_an_update_that_is_none_is_refused():
    model, data = made("adam")
    with pytest.raises(TapelessError, match="at least one batch"):
        Update(model, [], 1e-2)
    model.write("head.weight", np.full(model.params["head.weight"].shape, np.nan))
    with pytest.raises(TapelessError, match="was not made"):
        Update(model, data, 1e-2)
