"""What takes the lessons seconds: the loss around a training's path, gradients that go wrong, planted bugs.

`python -m tapeless.explorer.laboratory NAME [ARGUMENT]` prints one as JSON. It runs in a process of its own
(`apart`): a planted bug is in every model of its process, and products on one thread are not slowed by what else runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.check.complex_step import relative_error
from tapeless.check.planted import PLANTED
from tapeless.explorer.keys import fallen, path_keys
from tapeless.explorer.pupil import Pupil
from tapeless.model import Model
from tapeless.models.presets import preset
from tapeless.ops.contract import Array
from tapeless.program.listing import describe
from tapeless.tasks.operations import LENGTH, Expressions, split, targets_for

ACROSS, ALONG = 15, 21  # points of the landscape's grid
EXAMPLES = 32  # expressions whose mean loss a point is
MARGIN = 0.25  # of the path's length, beyond its ends
DEEP: dict[str, Any] = {"layers": 24, "channels": 32, "heads": 4}
UPDATES = 8


def landscape(folder: str) -> dict[str, Any]:
    """The mean loss over a plane through the path of a run's weights: along it from the first snapshot to the last, and
    across it in the direction in which the path bends the most."""
    pupil = Pupil.of(Path(folder))
    rows = _rows(pupil)
    start, along = rows[0], rows[-1] - rows[0]
    length = float(np.linalg.norm(along)) or 1.0
    along = along / length
    beside = rows - start
    beside -= np.outer(beside @ along, along)
    _, vectors = np.linalg.eigh(beside @ beside.T)
    across = vectors[:, -1] @ beside
    across /= float(np.linalg.norm(across)) or 1.0
    path = np.stack([(rows - start) @ along, (rows - start) @ across], axis=1)
    low, high = path.min(axis=0) - MARGIN * length, path.max(axis=0) + MARGIN * length
    xs, ys = np.linspace(low[0], high[0], ALONG), np.linspace(low[1], high[1], ACROSS)
    loss = _loss_of(pupil)
    on_path = [loss(row) for row in rows]
    losses = [[loss(start + x * along + y * across) for x in xs] for y in ys]
    return {
        "x": xs.tolist(),
        "y": ys.tolist(),
        "losses": losses,
        "path": path.tolist(),
        "steps": pupil.steps,
        "on_path": on_path,
        "fallen": fallen(pupil.steps, on_path),
        "keys": path_keys(pupil.steps, on_path),
        "examples": EXAMPLES,
        "parameters": pupil.model.parameters,
    }


def path_losses(pupil: Pupil) -> list[float]:
    """At every snapshot."""
    loss = _loss_of(pupil)
    return [loss(row) for row in _rows(pupil)]


def _rows(pupil: Pupil) -> Array:
    """All weights of every snapshot, one after the other."""
    kept = pupil.kept.weights.values()
    rows: Array = np.stack([np.concatenate([each[name].ravel() for name in pupil.model.params]) for each in kept])
    return rows.astype(np.float64)


def _loss_of(pupil: Pupil) -> Callable[[Array], float]:
    """The mean loss over validation examples, of weights that stand one after the other."""
    model = Model(
        pupil.model.preset, batch=EXAMPLES, time=LENGTH, backend="reference", precision="float32", optimizer=None
    )
    held = split(pupil.seed)[1]
    tokens, targets = held.tokens[:EXAMPLES], targets_for(model.config, held.answers[:EXAMPLES])

    def loss(weights: Array) -> float:
        at = 0
        for name, each in pupil.model.params.items():
            model.write(name, weights[at : at + each.size].reshape(each.shape))
            at += each.size
        return float(min(model.loss(tokens, targets), 1e30))

    return loss


def pathologies() -> dict[str, Any]:
    """Gradients that vanish, explode or die, each beside a model in which they do not: their size by block."""
    training = split(0)[0]
    post, pre = (_after_updates(placement, training) for placement in ("post", "pre"))
    healthy, large = (_at_first(factor, training) for factor in (1.0, 8.0))
    return {
        "vanishing": {"post-norm, after 8 updates without warm-up": post, "pre-norm, after the same": pre},
        "exploding": {"weights as they should begin": healthy, "weights eight times as large": large},
        "dead": _dead(training),
    }


def _after_updates(placement: str, training: Expressions) -> list[float]:
    model = Model("ops-102k", batch=16, backend="reference", precision="float32", placement=placement, **DEEP)
    for number in range(UPDATES):
        chosen = slice(16 * number, 16 * number + 16)
        model.step(training.tokens[chosen], training.answers[chosen], lr=1e-3)
    return _by_block(model)


def _at_first(factor: float, training: Expressions) -> list[float]:
    fields = {**DEEP, "layers": 12}
    model = Model(
        "ops-102k", batch=16, backend="reference", precision="float32", placement="pre", optimizer=None, **fields
    )
    for name, values in model.params.items():
        if values.ndim == 2:
            model.write(name, values * factor)
    model.forward_backward(training.tokens[:16], training.answers[:16])
    return _by_block(model)


def _by_block(model: Model) -> list[float]:
    return [norm for section, norm in model.gradient_norms.items() if section.startswith("blocks.")]


def _dead(training: Expressions) -> dict[str, Any]:
    """Units of the first block whose bias is so low that no example wakes them."""
    model = Model("ops-102k", batch=16, backend="reference", optimizer=None)
    bias = model.params["blocks.0.mlp.up.bias"].copy()
    bias[:64] = -100.0
    model.write("blocks.0.mlp.up.bias", bias)
    model.forward_backward(training.tokens[:16], training.answers[:16])
    gradient = np.sqrt(np.mean(np.square(model.grads["blocks.0.mlp.up.weight"]), axis=0))
    return {"units": gradient.tolist(), "dead": 64}


def planted(number: str) -> dict[str, Any]:
    """One of the bugs in the teaching model: what every backward call writes, and how far it is from what is right."""
    bug = PLANTED[int(number) % len(PLANTED)]
    right = _right()
    with bug.plant(), np.errstate(all="ignore"):
        wrong = _walked()
    others = [other.what for other in PLANTED if other.where != bug.where]
    chosen = np.random.default_rng(int(number)).permutation(len(others))[:3]
    choices = [bug.what, *(others[index] for index in chosen)]
    order = np.random.default_rng(int(number) + 1).permutation(len(choices)).tolist()
    calls = [
        {
            **{name: value for name, value in after.items() if name != "values"},
            "usual": before["size"],
            "error": _error(before["values"], after["values"]),
        }
        for before, after in zip(right, wrong, strict=True)
    ]
    begins = next(call["call"] for call in calls if call["error"] > 1e-9)
    return {
        "number": int(number) % len(PLANTED),
        "count": len(PLANTED),
        "calls": calls,
        "begins": begins,
        "choices": [choices[index] for index in order],
        "right": order.index(0),
        "name": bug.name,
        "seen": bug.seen,
        "public": bug.public,
    }


@cache
def _right() -> list[dict[str, Any]]:
    return _walked()


def _walked() -> list[dict[str, Any]]:
    model = Model(preset("ops-102k"), batch=8, backend="reference", optimizer=None)
    training, found = split(0)[0], []
    for number, (call, values) in enumerate(model.trace(training.tokens[:8], training.answers[:8])):
        if call.phase != "backward":
            continue
        said = describe(model.program, number)["results"]
        kept = {each["argument"]: values[each["argument"]].copy() for each in said if each["argument"][0] == "d"}
        size = float(np.sqrt(np.mean(np.square(next(iter(kept.values()))))))
        found.append({"call": number, "op": call.op, "section": call.section, "size": size, "values": kept})
    return found


def _error(right: dict[str, Array], wrong: dict[str, Array]) -> float:
    return float(max(relative_error(wrong[name], values) for name, values in right.items()))


TOPICS: dict[str, Callable[..., dict[str, Any]]] = {
    "landscape": landscape,
    "pathologies": pathologies,
    "planted": planted,
}

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    json.dump(TOPICS[name](*given), sys.stdout)
