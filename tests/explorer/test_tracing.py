"""What a page is told of an update is what the run did, and a run folder is not believed."""

import json
import shutil

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.explorer.tracing import Tracer, agreeing, drawn_together
from tapeless.tracing.update import Update
from tapeless.train.metrics import read_metrics
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.explorer.serving import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def traced(run):
    return Tracer(run)


def test_the_update_is_the_one_that_the_run_made(run, traced):
    lines = {line["step"]: line for line in read_metrics(run) if line["kind"] == "step"}
    assert traced.overview(None)["steps"] == [0, 4, 8]
    for step in (0, 8):
        found = traced.overview(step)
        assert (found["step"], found["update"]) == (step, step + 1)
        assert found["loss"] == pytest.approx(lines[step + 1]["loss"], rel=1e-6)
        assert found["norm"] == pytest.approx(lines[step + 1]["gradient_norm"], rel=1e-6)
        assert len(found["words"]) == 200
        assert "".join(found["words"][0])[-1] == ")"


def test_an_update_that_the_run_did_not_make_is_not_shown(run, traced, tmp_path):
    with pytest.raises(TapelessError, match="did not make update 13: its last was 12"):
        traced.overview(12)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    with (copy / "metrics.jsonl").open("a") as file:  # it trains on
        file.write('{"kind": "step", "step": 13, "loss": 1.0, "lr": 0.003}\n')
    assert Tracer(copy).overview(12)["steps"] == [0, 4, 8, 12]
    (copy / "metrics.jsonl").write_text("[]\n")  # then nothing is known beyond what is kept
    assert Tracer(copy).overview(8)["steps"] == [0, 4, 8]
    for name in ("step-00000004", "step-00000008", "step-00000012"):
        (copy / "checkpoints" / name).rename(copy / name)
    (copy / "step-00000004").rename(copy / "checkpoints" / "step-00000000")
    with pytest.raises(TapelessError, match="has made no update"):
        Tracer(copy).overview(None)


def test_an_element_is_the_sum_of_its_terms(traced):
    overview = traced.overview(8)
    for at in overview["largest"].values():
        found = traced.element(8, **at)
        assert found["total"] == pytest.approx(found["gradient"], rel=1e-5)
        shown = sum(term["share"] for term in found["terms"]) + found["rest"]["share"]
        assert shown == pytest.approx(found["total"], rel=1e-9)
        assert np.sum(found["shares"]) == pytest.approx(found["total"], rel=1e-3)
        assert found["computed"] == pytest.approx(found["after"], rel=1e-5)
        sizes = [abs(term["share"]) for term in found["terms"]]
        assert sizes == sorted(sizes, reverse=True)
        json.dumps(found, allow_nan=False)
    for each in (*found["push"]["up"], *found["push"]["down"]):
        assert (each["alone"] > 0) == (each in found["push"]["up"])
    digits = traced.digits(8, **at)
    assert float(digits["backward"]) == pytest.approx(float(digits["complex_step"]), rel=1e-11)
    assert digits["agree"]["backward"] >= 11


def test_a_picture_shows_every_element_or_the_largest_of_those_drawn_together(traced):
    overview = traced.overview(8)
    number = next(n for n, each in enumerate(overview["weights"]) if each["name"] == "blocks.0.mlp.up.weight")
    head, values = traced.picture(8, number, "update")
    assert [head["lines"], head["columns"]] == overview["weights"][number]["shape"]
    assert np.abs(values).max() == pytest.approx(overview["weights"][number]["moved"])
    rng = np.random.default_rng(0)
    many = rng.normal(size=(333, 1001))
    small, (down, across) = drawn_together(many, 160, 320)
    assert small.shape[0] <= 160
    assert small.shape[1] <= 320
    assert np.abs(small).max() == np.abs(many).max()
    assert small[0, 0] == max(many[:down, :across].ravel(), key=abs)


@pytest.mark.parametrize("place", [(999, 0, 0), (0, 999, 0), (0, 0, 999), (1, 1, 0)])
def test_there_is_no_such_element(traced, place):
    with pytest.raises(TapelessError, match=r"no (weight|element|row)"):
        traced.element(8, *place)


def test_text_is_traced_in_its_own_words(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 60)
    settings = Settings(data=str(text), tokenizer="bytes", batch=2, time=16, steps=2, lr=1e-3, accumulate=2)
    model = {"layers": 1, "channels": 8, "heads": 2}
    start(Request("gpt2-4x256", model, settings), tmp_path / "run").train()
    text.unlink()
    tracer = Tracer(tmp_path / "run")
    overview = tracer.overview(0)
    assert len(overview["words"]) == 4
    assert "".join(overview["words"][0]).replace("␣", " ") in "the cat sat on the mat and the dog sat on the log. " * 60
    found = tracer.element(0, **overview["largest"]["gradient"])
    assert found["total"] == pytest.approx(found["gradient"], rel=1e-5)
    assert {term["sequence"] for term in found["terms"]} == {0, 1, 2, 3}
    shutil.rmtree(tmp_path / "run" / "data")
    with pytest.raises(TapelessError, match="not in its folder"):
        Tracer(tmp_path / "run").overview(0)


def test_a_task_whose_batches_are_not_known_here_is_refused(run, monkeypatch):
    from tapeless.tasks import conversations

    monkeypatch.setattr("tapeless.train.upcoming.kind_of", lambda data, folder: conversations.KIND)
    with pytest.raises(TapelessError, match="are not in its folder, and nothing else is read here"):
        Tracer(run).overview(8)


@pytest.mark.parametrize("what", ["checkpoints", "inside", "data"])
def test_links_are_not_followed(run, tmp_path, what):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    if what == "checkpoints":
        shutil.rmtree(copy / "checkpoints")
        (copy / "checkpoints").symlink_to(run / "checkpoints")
    elif what == "inside":
        weights = copy / "checkpoints" / "step-00000008" / "weights.safetensors"
        weights.unlink()
        weights.symlink_to(run / "checkpoints" / "step-00000008" / "weights.safetensors")
    else:
        (copy / "data").symlink_to(tmp_path)
    with pytest.raises(TapelessError, match="links in a run folder are not followed"):
        Tracer(copy).overview(8)


def test_a_run_that_began_with_other_weights_is_not_made_up(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["kind"] == "step")
    first["loss"] *= 1.1
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TapelessError, match="did not begin with the weights that its seed gives"):
        Tracer(copy).overview(0)
    assert Tracer(copy).overview(8)["update"] == 9


def test_what_is_too_large_for_a_page_is_said_before_it_is_allocated(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tapeless.explorer.tracing.MOST_TOKENS", 1000)
    with pytest.raises(TapelessError, match=r"1,600 tokens is too large"):
        Tracer(run).overview(8)
    monkeypatch.undo()
    monkeypatch.setattr("tapeless.explorer.tracing.MOST_BYTES", 1000)
    with pytest.raises(TapelessError, match="a page is given at most"):
        Tracer(run).overview(8)
    monkeypatch.undo()
    monkeypatch.setattr("tapeless.explorer.tracing.MOST_FLOPS", 1000)
    assert "takes too long" in Tracer(run).digits(8, 0, 2, 0)["error"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(TapelessError, match="is not a run"):
        Tracer(tmp_path / "empty").overview(None)


@pytest.mark.parametrize(("optimizer", "seed"), [("adamw", 0), ("adamw", 1), ("adam", 2), ("momentum", 3), ("sgd", 4)])
def test_a_move_is_told_apart_into_this_batch_earlier_steps_and_decay(tmp_path, optimizer, seed):
    """Each against the same update made by an optimizer that remembers nothing but the size of gradients."""
    settings = Settings(data="operations", batch=8, steps=6, lr=1e-2, eval_every=3, seed=seed, backend="reference")
    model = {"layers": 1, "channels": 8, "heads": 2, "optimizer": optimizer}
    start(Request("ops-102k", model, settings), tmp_path / "run").train()
    traced = Tracer(tmp_path / "run")._at(3)
    against, plain = 0, traced.update
    first_moments = {call["m"].buffer.name for call in traced.model.program.phase("update") if call.has("m")}
    kept = {name: traced.model.read(name).copy() for name in traced.model.state}
    for name, values in kept.items():
        if name in first_moments:
            traced.model.write(name, np.zeros_like(values))
    upcoming = traced.standing.upcoming
    alone = Update(traced.model, upcoming.batches, upcoming.lr, upcoming.clip, upcoming.count)
    for weight, name in enumerate(traced.names):
        for column in np.random.default_rng(seed).integers(plain.after[name].shape[-1], size=3).tolist():
            found = traced.element(weight, 0, column)
            place, moved = tuple(found["index"]), found["moved"]
            assert sum(moved.values()) == pytest.approx(found["computed"] - found["before"], abs=1e-12)
            batch = float(alone.change(name)[place]) - moved["decay"]
            assert moved["batch"] == pytest.approx(batch, rel=1e-4, abs=1e-7), name
            assert (found["earlier"] is None) == (optimizer == "sgd")
            against += moved["batch"] * moved["earlier"] < 0
    assert optimizer == "sgd" or against  # somewhere this batch went the other way, and is not credited with the move


def test_digits_that_agree_are_counted_by_the_difference():
    pairs = [(0.99996, 1.00001), (1.5, 1.5), (0.0, 1.0), (-1.0, 1.0), (3.00000001e-9, 3e-9), (1.0, 0.0), (1.19, 1.2)]
    assert [agreeing(*pair) for pair in pairs] == [4, 17, 0, 0, 8, 0, 2]
