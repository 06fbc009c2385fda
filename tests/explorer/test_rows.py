"""The rows that an update of a text run learned from: its own, the costliest first."""

import json

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.explorer.batch import batch_of
from tapeless.explorer.remembered import Remembered
from tapeless.inputs import rows_of, unpacked
from tapeless.train.run import open_run
from tapeless.train.upcoming import drawn_for, standing_at


@pytest.mark.parametrize("kind", ["gpt2", "llama", "chat"])
def test_the_rows_are_those_that_the_training_drew(kinds, kind):
    run = open_run(kinds[kind])
    upcoming = standing_at(run, 4).upcoming.batches if kind != "chat" else standing_at(run, 0).upcoming.batches
    step = 5 if kind != "chat" else 1
    drawn = drawn_for(run, step)
    for (ours, aims), (theirs, targets) in zip(drawn, upcoming, strict=True):
        assert np.array_equal(unpacked(ours)[0], unpacked(theirs)[0])
        assert np.array_equal(aims, targets)


@pytest.mark.parametrize("kind", ["gpt2", "chat"])
def test_the_costliest_row_and_its_strongest_token_are_named(kinds, kind):
    run = open_run(kinds[kind])
    found = batch_of(kinds[kind], 3)
    json.dumps(found, allow_nan=False)
    (inputs, targets), *_ = drawn_for(run, 3)
    model = Remembered(kinds[kind]).at(run, found["weights_of"], targets.shape[1])
    losses = [model.loss(rows_of(inputs, slice(n, n + 1)), targets[n : n + 1]) for n in range(len(targets))]
    assert found["rows"][0]["row"] == int(np.argmax(losses))
    assert [each["loss"] for each in found["rows"]] == sorted(losses, reverse=True)
    assert found["weights_of"] < 3
    blamed = found["rows"][0]
    assert blamed["sizes"][blamed["strongest"]] == max(blamed["sizes"])
    assert found["where"] == ("its embedding" if kind == "gpt2" else "the stream in blocks.0")
    assert blamed["said"] != blamed["answer"]


def test_what_is_too_large_or_has_no_rows_is_a_sentence(kinds):
    with pytest.raises(TapelessError, match="did not learn from text"):
        batch_of(kinds["labels"], 2)
