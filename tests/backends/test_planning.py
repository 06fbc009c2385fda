"""A model that has no room is refused before anything is allocated, with what would fit."""

import pytest

from tapeless import Model
from tapeless.backends.planning import Wanted
from tapeless.backends.reference import Reference
from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.models.presets import preset
from tapeless.program.precision import PRECISIONS

SMALL = preset("gpt2-4x256").override(layers=2, channels=8, heads=2, hidden=16, vocab=11, context=16)


class Cramped(Reference):
    """A machine with so many bytes, on which nothing may be allocated."""

    def __init__(self, bytes_there: int) -> None:
        self.bytes_there = bytes_there

    def room(self) -> int:
        return self.bytes_there

    def allocate(self, size: int):
        raise AssertionError("allocated")


def needed(made, batch: int) -> int:
    wanted = Wanted(made, batch, 16, Optimizer("adamw"), PRECISIONS["float64"], Reference())
    return wanted.plans()[0].peak_bytes


def test_what_does_not_fit_is_refused_with_the_largest_batch_and_the_setting_that_helps():
    room = needed(SMALL, 5)
    assert needed(SMALL, 6) > room
    lean, again = (
        next(batch for batch in range(5, 99) if needed(SMALL.override(**{field: True}), batch + 1) > room)
        for field in ("lean", "recompute")
    )
    helps = rf"with lean=True batch {lean} fits, with recompute=True batch {again} fits"
    says = rf"^gpt2-4x256 at batch 8, time 16 needs {needed(SMALL, 8):,} bytes and the GPU has {room:,} to give: "
    with pytest.raises(TapelessError, match=says + rf"batch 5 fits, {helps}\.$"):
        Model(SMALL, batch=8, time=16, backend=Cramped(room), optimizer="adamw")


def test_where_no_batch_fits_it_says_so():
    with pytest.raises(TapelessError, match=r"no batch fits, so take a smaller model, or freeze most of it"):
        Model(SMALL, batch=2, time=16, backend=Cramped(1000))


@pytest.mark.parametrize("chunk", [None, 7])
def test_rows_of_logits_are_the_backends_unless_somebody_says(chunk):
    class Wide(Reference):
        def rows_of_logits(self, words, precision):
            assert words == 11
            return 40

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


def test_a_large_chunk_is_named_where_a_smaller_one_would_do():
    wide = SMALL.override(vocab=5000, chunk=4096)
    room = needed(wide.override(chunk=1024), 256)
    with pytest.raises(TapelessError, match=r"with chunk=1024 batch \d+ fits"):
        Model(wide, batch=256, time=16, backend=Cramped(room), optimizer="adamw")
