"""How a run that learned text would have gone on, at every moment that is kept."""

import json
import shutil

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.explorer.pupil import story
from tapeless.explorer.remembered import Remembered
from tapeless.explorer.snippet import MOST_TOKENS, MOST_WORDS
from tapeless.train.history.files import files_in
from tapeless.train.history.snapshots import FOLDER as SNAPSHOTS
from tapeless.train.run import open_run
from tests.train.histories import change_snapshot


@pytest.mark.parametrize("kind", ["gpt2", "llama", "chat"])
def test_a_held_out_snippet_is_gone_on_with_at_every_moment(kinds, kind):
    found = story(kinds[kind])
    json.dumps(found, allow_nan=False)
    run = open_run(kinds[kind])
    kept = Remembered(kinds[kind])
    assert [each["step"] for each in found["moments"]] == kept.steps(run)
    assert found["moments"][0]["step"] == 0
    assert found["kind"] == "text"
    assert found["held_out"]
    assert len(found["words"]) == MOST_WORDS
    assert found["answer"] in found["words"]
    last = found["moments"][-1]
    tokens = np.array([_tokens(run, found)])
    scores = np.asarray(kept.at(run, last["step"], 1).logits(tokens), np.float64)[0, -1]
    likely = np.exp(scores - scores.max())
    likely /= likely.sum()
    assert max(last["likely"]) == pytest.approx(likely.max(), abs=2e-6)
    right = last["likely"][found["words"].index(found["answer"])]
    assert last["loss"] == pytest.approx(-np.log(right), rel=1e-3)
    for heads in last["attention"].values():
        assert np.sum(heads, axis=-1) == pytest.approx(1, abs=0.01)
        assert np.shape(heads)[1:] == (1, len(found["shown"]))


def _tokens(run, found):
    from tapeless.tasks.data.tokenizer import load_tokenizer

    return load_tokenizer(run.tokenizer_spec()).encode(found["question"])


def test_anything_can_be_gone_on_with(kinds):
    found = story(kinds["gpt2"], "A run is a ")
    assert found["question"] == "A run is a "
    assert found["answer"] is None
    assert not found["held_out"]
    assert all(each["right"] is None and each["loss"] is None for each in found["moments"])
    assert found["cut"] == 0
    long = story(kinds["gpt2"], "A run is a " * 3)
    assert (len(long["shown"]), long["cut"]) == (MOST_TOKENS, 33 - MOST_TOKENS)
    assert ("A run is a " * 3).endswith(long["question"])
    with pytest.raises(TapelessError, match="401 characters is too long"):
        story(kinds["gpt2"], "x" * 401)


@pytest.mark.parametrize("damage", ["weights", "files"])
def test_damaged_snapshots_are_told(kinds, tmp_path, damage):
    run = tmp_path / "run"
    shutil.copytree(kinds["gpt2"], run)
    if damage == "weights":
        change_snapshot(run, -1, np.nan)
        with pytest.raises(TapelessError, match="nothing can be computed: it diverged, or they are damaged"):
            story(run)
    else:
        files_in(run / SNAPSHOTS)[1].write_bytes(b"not what was written")
        assert story(run)["lost"] == 1
        assert story(kinds["gpt2"])["lost"] == 0


def test_who_reads_no_words_is_not_asked(kinds):
    with pytest.raises(TapelessError, match="did not learn from text"):
        story(kinds["labels"])
