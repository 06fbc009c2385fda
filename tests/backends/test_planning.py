"""A model that has no room is refused before anything is allocated, with what would fit; a plan costs what its list of
calls costs, whatever the model weighs."""

import re
import tracemalloc
from dataclasses import replace

import pytest

from tapeless import Model
from tapeless.backends import memory
from tapeless.backends.backend import planner_named
from tapeless.backends.reference import Reference
from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.models.presets import preset
from tapeless.program.precision import PRECISIONS
from tapeless.step import StepSpec

SMALL = preset("gpt2-4x256").override(layers=2, channels=8, heads=2, hidden=16, vocab=11, context=16)


@pytest.fixture
def cramped(monkeypatch):
    """A machine with so many bytes, on which nothing may be allocated."""

    def backend(bytes_there: int) -> Reference:
        monkeypatch.setattr(memory, "free_for_arena", lambda name: bytes_there)
        return Unallocated()

    return backend


class Unallocated(Reference):
    def allocate(self, size: int):
        raise AssertionError("allocated")


def needed(made, batch: int) -> int:
    spec = StepSpec(made, batch, 16, Optimizer("adamw"), Reference(), PRECISIONS["float64"])
    return spec.plan().peak_bytes


def test_what_does_not_fit_is_refused_with_the_largest_batch_and_the_setting_that_helps(cramped):
    room = needed(SMALL, 5)
    assert needed(SMALL, 6) > room
    lean, again = (
        next(batch for batch in range(5, 99) if needed(SMALL.override(**{field: True}), batch + 1) > room)
        for field in ("lean", "recompute")
    )
    helps = rf"with lean=True batch {lean} fits, with recompute=True batch {again} fits"
    says = rf"^gpt2-4x256 at batch 8, time 16 needs {needed(SMALL, 8):,} bytes and the GPU has {room:,} to give: "
    with pytest.raises(TapelessError, match=says + rf"batch 5 fits, {helps}\.$"):
        Model(SMALL, batch=8, time=16, backend=cramped(room), optimizer="adamw")


@pytest.mark.parametrize(("backend", "optimizer"), [("cpu", "adamw"), ("cpu", "muon"), ("cuda", "adamw")])
def test_a_plan_costs_what_its_list_costs_and_not_what_the_model_weighs(backend, optimizer):
    """A model with 100,000 times the weights, of the same calls, is planned with as much memory for the plan, but for
    what is kept from plan to plan."""

    def peak(channels: int) -> int:
        wide = preset("gpt2-4x256").override(layers=1, channels=channels)
        spec = StepSpec(wide, 1, 1024, Optimizer(optimizer), planner_named(backend), PRECISIONS["float32"])
        tracemalloc.start()
        try:
            spec.plans()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(128)  # what is imported and kept
    assert peak(102_400) < peak(256) + 2**18


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw", "muon"])
def test_a_model_wider_than_any_machine_is_refused_in_a_sentence(optimizer):
    says = re.escape(" bytes in one block, which this machine cannot give: take a smaller batch, time or model, or ")
    with pytest.raises(TapelessError, match=rf"^this needs [\d,]{{17,}}{says}recompute=True\.$"):
        Model("gpt2-4x256", channels=100_000, optimizer=optimizer, backend="cpu")


def test_a_bound_from_below_is_asked_for_most_plans():
    """Most are gathered alone: one plan is made, and a second where the bound was too low."""
    planned, room = [], needed(SMALL, 40)

    class Seen(StepSpec):
        def plans(self, **how):
            planned.append(self.batch)
            return super().plans(**how)

    spec = Seen(SMALL, 1, 16, Optimizer("adamw"), Reference(), PRECISIONS["float64"])
    assert spec.largest_batch(room) == 40
    assert spec.largest_batch(room + 100, beside=101) == 39
    assert set(planned) <= {39, 40}


def test_where_no_batch_fits_it_says_so(cramped):
    with pytest.raises(TapelessError, match=r"no batch fits, so take a smaller model, or freeze most of it"):
        Model(SMALL, batch=2, time=16, backend=cramped(1000))


@pytest.mark.parametrize("chunk", [None, 7])
def test_rows_of_logits_are_the_backends_unless_somebody_says(chunk):
    class Wide(Reference):
        traits = replace(Reference.traits, logits_chunk=lambda words, precision: 40 if words == 11 else None)

    rows = {
        backend: Model(SMALL, batch=9, time=16, backend=backend, chunk=chunk).plan.placements["logits"].buffer.shape[0]
        for backend in (Reference(), Wide())
    }
    assert list(rows.values()) == [chunk or 9 * 16, chunk or 40]
    assert SMALL.layout.chunk is None


def test_narrow_models_have_more_rows_of_logits():
    for name, rows in (("gpt2-4x256", 512), ("gpt2-124m", 256), ("smollm2-135m", 256)):
        training = transformer.training(preset(name), 1, 1024, None)
        (logits,) = (each for each in training.buffers if each.name == "logits")
        assert logits.shape[0] == rows


def test_a_large_chunk_is_named_where_a_smaller_one_would_do(cramped):
    wide = SMALL.override(vocab=5000, chunk=4096)
    room = needed(wide.override(chunk=1024), 256)
    with pytest.raises(TapelessError, match=r"with chunk=1024 batch \d+ fits"):
        Model(wide, batch=256, time=16, backend=cramped(room), optimizer="adamw")
