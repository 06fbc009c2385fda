"""Moments: the weights of a run at a few steps, that they are the run's own, and what a reader believes."""

import json

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.train.moments import FILE, Moments, over_training, read_moments
from tapeless.train.run import open_run
from tapeless.train.session import resume
from tests.train.test_records import FIELDS, finish, trained


def test_moments_are_the_weights_of_the_run(tmp_path):
    session = trained(tmp_path / "run", steps=40)
    found = read_moments(tmp_path / "run" / FILE)
    assert found.steps == [0, 1, 2, 3, 5, 8, 12, 17, 25, 36, 40]
    first = Model("ops-102k", batch=200, seed=0, **FIELDS)
    for name, values in found.weights(0).items():
        assert np.array_equal(values, first.params[name]), name
    for name, values in found.weights(len(found.steps) - 1).items():
        assert np.array_equal(values, session.model.params[name]), name
    assert [step for step, _ in over_training(open_run(tmp_path / "run"))] == found.steps


def test_where_none_are_kept_checkpoints_are_what_there_is(tmp_path):
    session = trained(tmp_path / "run", steps=8, record=0)
    assert not (tmp_path / "run" / FILE).exists()
    found = dict(over_training(open_run(tmp_path / "run")))
    assert sorted(found) == [4, 8]
    assert np.array_equal(found[8]["head.weight"], session.model.params["head.weight"])


def test_a_full_file_is_thinned_and_a_large_model_keeps_none(tmp_path):
    model = Model("ops-102k", batch=4, **FIELDS)
    most = 9 * 4 * (2 + model.parameters)
    moments = Moments(tmp_path, model, most)
    for step in range(3000):
        moments.take(step)
        moments.write()
        assert (tmp_path / FILE).stat().st_size <= most
    steps = read_moments(tmp_path / FILE).steps
    assert steps[0] == 0
    assert steps[-1] >= 750
    assert 4 <= len(steps) <= 8
    large = Moments(tmp_path / "none", model, most // 2)
    large.take(0)
    large.write()
    assert not (tmp_path / "none").exists()


def test_a_resumed_run_goes_on_with_its_moments(tmp_path):
    trained(tmp_path / "whole", steps=12)
    trained(tmp_path / "cut", steps=12, stop=6)
    with (tmp_path / "cut" / FILE).open("ab") as file:
        file.write(b"\x01" * 333)
    finish(resume(tmp_path / "cut", {}, {}))
    whole, cut = (read_moments(tmp_path / name / FILE) for name in ("whole", "cut"))
    assert cut.steps == whole.steps
    assert np.array_equal(cut.rows, whole.rows)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x00" * 50 + b"\n", b'{"format": 1, "weights": {"a": [-3]}}\n'])
def test_what_is_no_such_file_is_refused_and_begun_again(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(TapelessError, match=r"does not hold the weights"):
        read_moments(tmp_path / FILE)
    moments = Moments(tmp_path, Model("ops-102k", batch=4, **FIELDS))
    moments.cut_after(5)
    moments.take(0)
    moments.write()
    assert read_moments(tmp_path / FILE).steps == [0]


def test_moments_of_another_model_are_not_gone_on_with(tmp_path):
    (tmp_path / FILE).write_bytes(json.dumps({"format": 1, "weights": {"a": [1]}}).encode() + b"\n" + b"\0" * 12)
    assert read_moments(tmp_path / FILE).steps == [0]
    moments = Moments(tmp_path, Model("ops-102k", batch=4, **FIELDS))
    moments.cut_after(5)
    assert not (tmp_path / FILE).exists()
