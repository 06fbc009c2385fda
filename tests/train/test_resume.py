"""A training that is cut anywhere and resumed is, bit for bit, the training that was not."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.models.config import Optimizer
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.operations import LENGTH, Operations
from tapeless.tasks.text import Text
from tapeless.train import checkpoint
from tapeless.train.loop import Trainer, train
from tapeless.train.settings import Settings
from tests.check.steps import small_model
from tests.check.training import _Fixed
from tests.random_cases import SOAK

CUTS = 6 * SOAK  # per case; four cases on two backends


def fingerprint(trainer):
    """SHA-256 of everything that the rest of the training depends on."""
    digest = hashlib.sha256(json.dumps(trainer.state(), sort_keys=True).encode())
    for stem, arrays in sorted(trainer.tensors().items()):
        for name, array in sorted(arrays.items()):
            digest.update(f"{stem}/{name}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def operations(backend, accumulate):
    fields: dict[str, Any] = {"layers": 1, "channels": 8, "heads": 2, "dropout": 0.2 if accumulate > 1 else 0.0}
    settings = Settings(
        data="operations", accumulate=accumulate, epochs=2.0, lr=3e-3, schedule="cosine", eval_every=3, beta2=0.99
    )
    model = Model("ops-102k", batch=800, time=LENGTH, backend=backend, seed=1, **fields)
    return Trainer(model, Operations(model.config, 1), settings)


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prose")
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"the {number} quick brown foxes jump over {number + 1} lazy dogs. " * 3)
    prepare(str(folder / "*.txt"), folder / "tokens")
    return open_data(folder / "tokens")


def text(backend, accumulate, data):
    fields: dict[str, Any] = {
        "layers": 1,
        "channels": 8,
        "heads": 2,
        "vocab": 257,
        "context": 16,
        "dropout": 0.2 if accumulate > 1 else 0.0,
    }
    settings = Settings(data="prose", accumulate=accumulate, epochs=3.0, lr=1e-2, schedule="linear", clip=0.5)
    model = Model("gpt2-4x256", batch=4, time=16, backend=backend, seed=2, **fields)
    return Trainer(model, Text(data, 16, 5), settings)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("kind", "accumulate"), [("operations", 1), ("operations", 3), ("text", 1), ("text", 4)])
def test_cut_anywhere(tmp_path, prose, backend, kind, accumulate):
    def fresh():
        return operations(backend, accumulate) if kind == "operations" else text(backend, accumulate, prose)

    def pauses(trainer, most=None):
        """The state at every point where the training may be left, until it is left after so many."""
        found = []

        def note():
            found.append(fingerprint(trainer))
            return "enough" if len(found) == most else None

        train(trainer, stopping=note)
        return found

    whole = pauses(fresh())
    per_epoch = fresh().batches.steps_per_epoch
    rng = np.random.default_rng([accumulate, len(backend)])
    edges = [at for epoch in (1, 2) for at in (epoch * per_epoch - 1, epoch * per_epoch) if at < len(whole)]
    cuts = [*edges, *rng.integers(0, len(whole), CUTS - len(edges)).tolist()]
    assert accumulate == 1 or any((cut + 1) % accumulate for cut in cuts)  # some in the middle of an update
    for number, cut in enumerate(cuts):
        first = fresh()
        assert pauses(first, cut + 1) == whole[: cut + 1]
        folder = tmp_path / str(number)
        checkpoint.save(folder, first.step, first.tensors(), first.state())
        second = fresh()
        found, _ = checkpoint.newest(folder)
        assert found is not None
        second.restore(found)
        assert fingerprint(second) == whole[cut]
        assert pauses(second) == whole[cut + 1 :]


def test_a_state_that_is_not_whole_is_noticed(tmp_path):
    """The fingerprint sees each part: data position, step, moments, half an update."""
    trainer = operations("reference", 2)
    trainer.batch()
    seen = {fingerprint(trainer)}
    next(trainer.batches)
    trainer.added = 0
    seen.add(fingerprint(trainer))
    trainer.model.state["m"][3] += 1e-12
    seen.add(fingerprint(trainer))
    trainer.model.steps += 1
    seen.add(fingerprint(trainer))
    assert len(seen) == 4


def _trainer():
    settings = Settings(steps=5, accumulate=2, lr=0.03, clip=0.5)
    return Trainer(small_model(Optimizer("adamw", decay=0.1)), _Fixed(), settings)
