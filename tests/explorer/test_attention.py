"""Maps for a page: of the weights of each step, of examples from the run's own folder."""

import shutil

import numpy as np
import pytest

from tapeless import TapelessError, load
from tapeless.explorer.attention import Attending
from tapeless.files.safetensors import write_safetensors
from tapeless.train.history.files import files_in
from tapeless.train.history.snapshots import FOLDER as SNAPSHOTS
from tests.explorer.serving import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


def test_maps_are_those_of_the_steps_weights(run):
    attending = Attending(run)
    found = attending.examples()
    assert set(found["steps"]) >= {0, 1, 2, 4, 8, 12}
    assert len(found["examples"]) == 12
    before = None
    for step in (12, 4, 2, 0):
        head, values = attending.maps(step, 3, "")
        assert head["words"] == found["examples"][3]
        assert [(each["queries"], each["keys"]) for each in head["blocks"]] == [(8, 8), (1, 8)]
        assert values.size == 2 * 2 * (64 + 8)
        assert before is None or not np.array_equal(before, values)
        before = values
        if step in (4, 12):
            model = load(run, step).model
            tokens = load(run, step).encode("".join(head["words"]))
            said = model.attention(np.array([tokens]))
            np.testing.assert_allclose(values[:128].reshape(2, 8, 8), said["blocks.0"][0], rtol=1e-4)


def test_the_snapshots_are_not_believed(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    write_safetensors(files_in(copy / SNAPSHOTS)[0], {"head.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(TapelessError, match="not those of its model"):
        Attending(copy).maps(0, 0, "")
    assert Attending(copy).maps(8, 0, "")[0]["step"] == 8
    shutil.rmtree(copy / SNAPSHOTS)
    assert Attending(copy).examples()["steps"] == [0, 4, 8, 12]
    first, again = (Attending(each).maps(0, 0, "")[1] for each in (run, copy))
    np.testing.assert_array_equal(first, again)
    (copy / SNAPSHOTS).symlink_to(run / SNAPSHOTS)
    with pytest.raises(TapelessError, match="links in a run folder"):
        Attending(copy).examples()


def test_an_example_of_ones_own_is_answered(run):
    head, _ = Attending(run).maps(12, 0, "Max(1,6,2)")
    assert "".join(head["words"]) == "Max(1,6,2)"
    assert head["target"] == "6"
    assert len(head["answers"]) == 3
    assert head["cut"] == 0
    assert Attending(run).maps(12, 0, "Max(1,6,2)Min(1,6,2)")[0]["cut"] == 8


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((12, 99, ""), "no example 99"),
        ((99, 0, ""), "keeps no weights of step 99"),
        ((12, 0, "hello"), "no word of the operations task"),
        ((12, 0, "Max(1,6,"), "no whole expression"),
        ((12, 0, "1" * 500), "too long"),
        ((12, 0, "   "), "empty"),
    ],
)
def test_what_cannot_be_looked_at_is_a_sentence(run, asked, said):
    with pytest.raises(TapelessError, match=said):
        Attending(run).maps(*asked)
