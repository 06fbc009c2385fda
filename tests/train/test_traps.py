"""What people do to a run's folder: edit it, link it, put something odd in it, kill it before it has begun."""

import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.labelling.genome.found import Finder
from tapeless.labelling.source import read_source
from tapeless.train import checkpoint
from tapeless.train.metrics import read_metrics
from tapeless.train.run import open_run
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.train import crash
from tests.train.following import kill

TINY = {"layers": 1, "channels": 8, "heads": 2}
SETTINGS = Settings(data="operations", steps=40, save_every=10, eval_every=20, backend="reference", batch=8)
SMALL = {"weights": 30}


def assembled(folder, base=None, **changes):
    return start(Request("ops-102k", {} if base else TINY, replace(SETTINGS, **changes)), folder, base=base)


def stopped_at(session, step):
    session.train(stopping=lambda: "enough" if session.trainer.step == step else None)
    return session


@pytest.fixture
def half(tmp_path):
    """A run that was stopped in its middle."""
    stopped_at(assembled(tmp_path / "run"), 20)
    return tmp_path / "run"


def edited(folder, before, after):
    path = folder / "config.toml"
    text = path.read_text()
    assert before in text, text
    path.write_text(text.replace(before, after))


# A configuration that was edited


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("heads = 2", "heads = 4", "heads is 4 by .*trained with 2"),
        ('activation = "relu"', 'activation = "gelu"', "activation is 'gelu' by .*trained with 'relu'"),
        ("norm_eps = 1e-05", "norm_eps = 1e-03", "norm_eps is 0.001 by .*trained with 1e-05"),
        ("accumulate = 1", "accumulate = 3", "accumulate is 3 by .*trained with 1"),
        ('optimizer = "adamw"', 'optimizer = "sgd"', "optimizer is 'sgd' by .*trained with 'adamw'"),
        ('placement = "post"', 'placement = "pre"', "placement is 'pre' by .*trained with 'post'"),
        ("causal = false", "causal = true", "causal is True by .*trained with False"),
        ('backend = "reference"', 'backend = "cpu"', "backend is 'cpu' by .*trained with 'reference'"),
        ("batch = 8", "batch = 16", "batch is 16 by .*trained with 8"),
        ("seed = 0", "seed = 1", "seed is 1 by .*trained with 0"),
        ("[model]", "[loss]\nclass_weights = [" + "2.0, " * 20 + "]\n[model]", "trained without class_weights"),
    ],
)
def test_what_would_make_it_another_run_is_refused(half, before, after, named):
    edited(half, before, after)
    kept = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    with pytest.raises(TapelessError, match=named + ".*put that back, or start a new run with --init-from"):
        resume(half, {}, {})
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == kept


def test_what_may_change_may_be_edited(half):
    edited(half, "steps = 40", "steps = 44")
    edited(half, "lr = 0.002", "lr = 0.002")
    session = resume(half, {}, {})
    assert (session.trainer.step, session.trainer.steps, session.trainer.schedule.lr) == (20, 44, 0.002)


@pytest.mark.parametrize("lacking", ["all of it", "seed"])
def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(half, lacking):
    found, _ = checkpoint.newest(half / "checkpoints")
    assert found is not None
    said = {name: value for name, value in found.state["run"].items() if name != lacking}
    state = {**found.state, "run": None if lacking == "all of it" else said}
    tensors = {stem: found.tensors(stem) for stem in found.stems}
    checkpoint.save(half / "checkpoints", 20, tensors, state)
    with pytest.raises(TapelessError, match="does not say what run it is of"):
        resume(half, {}, {})


def test_data_may_move_but_not_change(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50, 4000).astype("<u2")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tokens.bin").write_bytes(tokens.tobytes())
    settings = replace(SETTINGS, data=str(tmp_path / "a" / "tokens.bin"), time=8)
    stopped_at(start(Request("gpt2-4x256", {**TINY, "vocab": 50}, settings), tmp_path / "run"), 20)
    (tmp_path / "a").rename(tmp_path / "b")
    edited(tmp_path / "run", str(tmp_path / "a"), str(tmp_path / "b"))
    resume(tmp_path / "run", {}, {}).run.release()
    tokens[1234] ^= 1
    (tmp_path / "b" / "tokens.bin").write_bytes(tokens.tobytes())
    with pytest.raises(TapelessError, match="what data names has the SHA-256"):
        resume(tmp_path / "run", {}, {})


# A run that was killed before its first checkpoint


def test_it_starts_from_the_beginning_and_says_so(tmp_path):
    """As if it had never been killed, bit for bit."""
    whole = stopped_at(assembled(tmp_path / "whole", save_every=40, eval_every=40), None)
    killed = assembled(tmp_path / "killed", save_every=40, eval_every=40)
    kill(killed, lambda event: killed.trainer.step == 15)
    assert not list((tmp_path / "killed").glob("checkpoints/*"))
    again = resume(tmp_path / "killed", {}, {})
    assert any("starts from the beginning" in message for message in again.messages)
    assert again.last_saved is None
    again.train()
    for name, weight in whole.model.params.items():
        np.testing.assert_array_equal(again.model.params[name], weight)
    steps = [line["step"] for line in read_metrics(tmp_path / "killed") if line["kind"] == "step"]
    assert steps == [1, 10, 20, 30, 40]


def test_one_that_began_with_others_weights_begins_with_them_again(tmp_path, half):
    assembled(tmp_path / "tuned", base=open_run(half)).run.release()
    again = resume(tmp_path / "tuned", {}, {})
    assert again.trainer.step == 0
    best, _ = checkpoint.best(half / "checkpoints")
    assert best is not None
    for name, weight in best.tensors("weights").items():
        np.testing.assert_array_equal(again.model.params[name], weight)


def test_damaged_checkpoints_are_not_trained_over(half):
    for path in (half / "checkpoints").glob("step-*/state.json"):
        path.write_text("{")
    with pytest.raises(TapelessError, match="holds no whole checkpoint yet"):
        resume(half, {}, {})


# Links, pipes and other oddities


def test_pruning_leaves_alone_what_a_link_leads_to(tmp_path):
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    crash.save(elsewhere, 1, 0, SMALL)
    folder.mkdir()
    (folder / "step-00000001").symlink_to(elsewhere / "step-00000001")
    (folder / ".partial-abc").symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    for step in (2, 3, 4):
        crash.save(folder, step, 0, SMALL, keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000004"]
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_a_link_inside_what_is_pruned_is_removed_alone(tmp_path):
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    (crash.save(folder, 1, 0, SMALL) / "link").symlink_to(elsewhere)
    for step in (2, 3):
        crash.save(folder, step, 0, SMALL, keep=1)
    assert [path.name for path in folder.iterdir()] == ["step-00000003"]
    assert (elsewhere / "mine.txt").read_text() == "mine"


def test_a_link_that_leads_nowhere_is_replaced(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-00000001").symlink_to(tmp_path / "nowhere")
    crash.save(folder, 1, 0, SMALL)
    found, messages = checkpoint.newest(folder)
    assert found is not None
    assert not messages
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]


def readings(folder):
    return [
        lambda: read_metrics(folder),
        lambda: read_source(folder),
        lambda: Finder.read(folder),
        lambda: open_run(folder).model("best", backend="reference"),
        lambda: checkpoint.newest(folder / "checkpoints"),
        lambda: resume(folder, {}, {}).run.release(),
    ]


def test_no_file_of_a_run_is_waited_for(half):
    """Each is a pipe that nobody writes to, one after the other; then a device without an end."""
    (half / "source.json").touch()
    (half / "decoder.json").touch()
    files = {path: path.read_bytes() for path in sorted(half.rglob("*")) if path.is_file()}
    assert len(files) >= 10
    for path, content in files.items():
        for odd in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
            path.unlink(missing_ok=True)  # a snapshot of after an earlier checkpoint that was gone on from
            odd(path)
            for read in readings(half):
                with suppress(TapelessError):
                    read()
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)  # an odd record is laid aside
            path.write_bytes(content)
    assert resume(half, {}, {}).trainer.step == 20


def test_odd_names_among_the_checkpoints(half):
    """None of them is a checkpoint, and none is in the way or removed."""
    odd = [
        "step-" + "9" * 200,
        "step-00000007.new.new",
        "step-0000000٣",
        "step-99999999",
        ".partial-",
        ".partial-x",
        "ü",
    ]
    for name in odd:
        (half / "checkpoints" / name).mkdir()
    (half / "checkpoints" / "step-88888888").write_text("a file")
    os.mkfifo(half / "checkpoints" / "step-77777777")
    session = resume(half, {}, {})
    assert session.trainer.step == 20
    assert len(session.messages) == 4  # for each that looks newer than the one that is taken
    stopped_at(session, None)
    left = {path.name for path in (half / "checkpoints").iterdir()}
    assert {"step-88888888", "step-77777777", *odd} - {".partial-", ".partial-x"} <= left
