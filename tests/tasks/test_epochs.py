"""One stream of epochs, whatever its numbers mean: the orders that runs were begun with, and a position that is checked
before anything moves."""

import hashlib

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.labelling.signal import Features, Labelled, Recording
from tapeless.models.presets import preset
from tapeless.tasks.data.batches import Batches
from tapeless.tasks.data.tokens import Tokens
from tapeless.tasks.operations import Operations


def text_stream():
    return Batches(Tokens([np.arange(500, dtype="<u2")]), 3, 8, seed=5)


def operations_stream():
    return Operations(preset("ops-102k").architecture, 3).batches(32)


def labelled_stream():
    labels = np.arange(3000) % 7 - 1
    whole = Recording(np.sin(np.arange(3000.0)), labels)
    config = preset("sunfish").override(vocab=7, features=2, context=32).architecture
    return Labelled(config, [whole], [whole], time=32, seed=4, features=Features(scales=(3,))).batches(4)


STREAMS = {"text": text_stream, "operations": operations_stream, "labels": labelled_stream}


@pytest.mark.parametrize(
    ("name", "batches", "digest"),
    [("text", 50, "29a44c5c805ea128"), ("operations", 130, "c3f93ee810c70cc1"), ("labels", 100, "1b184298d0b6a47d")],
)
def test_the_order_is_the_one_that_runs_were_begun_with(name, batches, digest):
    """The targets of more than an epoch: the same with any NumPy, or no run can go on."""
    stream, found = STREAMS[name](), hashlib.sha256()
    for _ in range(batches):
        found.update(np.ascontiguousarray(next(stream)[1], np.int64).tobytes())
    assert found.hexdigest()[:16] == digest


@pytest.mark.parametrize("name", STREAMS)
def test_a_position_comes_back(name):
    stream, again = STREAMS[name](), STREAMS[name]()
    for _ in range(stream.steps_per_epoch + 2):
        next(stream)
    again.restore(stream.state())
    assert (again.epoch, again.state()) == (stream.epoch, stream.state())
    for _ in range(3):
        for ours, theirs in zip(next(stream), next(again), strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", -1),
        ("epoch", "0"),
        ("epoch", True),
        ("epoch", None),
        ("position", -1),
        ("position", 10**9),
        ("position", 1.0),
        ("position", None),
        ("seed", 99),
        ("seed", None),
        ("batch", 5),
        ("batch", "32"),
    ],
)
def test_a_damaged_position_is_one_sentence_and_nothing_moves(name, field, value):
    stream = STREAMS[name]()
    next(stream)
    before = stream.state()
    with pytest.raises(TapelessError, match=field) as caught:
        stream.restore({**before, field: value})
    assert str(caught.value).endswith(".")
    assert stream.state() == before


@pytest.mark.parametrize("name", STREAMS)
def test_a_position_that_lacks_something(name):
    stream = STREAMS[name]()
    state = stream.state()
    for field in state:
        with pytest.raises(TapelessError, match=f"damaged: {field} is"):
            stream.restore({other: value for other, value in state.items() if other != field})
