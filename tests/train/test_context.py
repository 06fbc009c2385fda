"""A model reads as far as it was trained: its context is its time, sampling slides there, fine-tuning keeps it."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.generate import generate
from tapeless.models.presets import preset
from tapeless.train import checkpoint
from tapeless.train.run import Run, open_run, write_configuration
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tapeless.weights.hugging_face import read_config
from tests.cli.test_train import tapeless

LINE = "the quick brown fox jumps over the lazy dog and is gone\n"
TINY: dict[str, Any] = {"layers": 1, "channels": 32, "heads": 2}
TIME = 24
QUICK = Settings(batch=16, time=TIME, steps=600, lr=1e-2, warmup=10, eval_every=600, eval_batches=2)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "fox.txt"
    path.write_text(LINE * 120)
    return path


def assembled(folder, text, base=None, settings=QUICK, **model):
    asked = replace(settings, data=str(text))
    return start(Request("gpt2-4x256", model if base else {**TINY, **model}, asked), folder, base=base)


def trained(folder, text, **model):
    session = assembled(folder, text, **model)
    session.train()
    return session


@pytest.fixture(scope="module")
def short(tmp_path_factory, text):
    return trained(tmp_path_factory.mktemp("runs") / "short", text)


@pytest.fixture(scope="module")
def older(tmp_path_factory, text):
    """A run as they were made before, and as one can still ask for: it can read far more than it was trained on."""
    return trained(tmp_path_factory.mktemp("runs") / "older", text, context=200)


def losses(model, text, length):
    """The mean loss at each position, of windows of the text."""
    ids = np.frombuffer(text.read_bytes(), np.uint8).astype(np.int64)
    starts = range(0, 40 * 17, 17)
    scores = model.logits(np.stack([ids[at : at + length] for at in starts])).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    wanted = np.stack([ids[at + 1 : at + length + 1] for at in starts])
    return -np.take_along_axis(logs, wanted[..., None], axis=-1)[..., 0].mean(axis=0)


def share_of_text(model, **options):
    """How much of what is written stands in the text: of all stretches of six letters."""
    prompt = list(LINE[:10].encode())
    written = bytes(
        token for token in [*prompt, *generate(model, prompt, 150, temperature=0, **options)] if token < 256
    )
    stretches = [written[at : at + 6] for at in range(len(written) - 6)]
    return np.mean([stretch in (LINE * 3).encode() for stretch in stretches])


def test_the_context_of_a_new_model_is_what_it_is_trained_on(short, text):
    config = short.model.config
    assert config.context == TIME
    assert short.model.params["positions.weight"].shape[0] == TIME
    assert open_run(short.run.folder).preset() == short.model.preset
    assert losses(short.model, text, TIME)[8:].max() < 0.2


def test_it_can_be_asked_for_more_and_is_told(older, text):
    assert older.model.config.context == 200
    assert any("of its 200 positions it learns the first 24" in message for message in older.messages)
    found = losses(older.model, text, 60)
    assert found[8:TIME].max() < 0.5
    assert found[TIME:].mean() > 2  # why sampling must not go there


@pytest.mark.parametrize("made", ["short", "older"])
def test_what_is_written_past_the_time_is_as_good(made, request):
    session = request.getfixturevalue(made)
    assert share_of_text(session.model) > 0.9
    opened = open_run(session.run.folder)
    assert opened.window() == TIME
    model, _, _ = opened.model("newest")
    assert share_of_text(model, window=opened.window()) > 0.9


def test_the_whole_context_is_one_option_away(older):
    assert share_of_text(older.model, window=200) < 0.7
    with pytest.raises(TapelessError, match="window=201 is longer than the 200 positions"):
        generate(older.model, [1], 1, window=201)
    with pytest.raises(TapelessError, match="window must be a whole number"):
        generate(older.model, [1], 1, window=0)


def test_a_model_that_was_never_updated_has_its_whole_context():
    """Its weights come from elsewhere; a time of one saves memory and says nothing of them."""
    model = Model("gpt2-4x256", time=1, backend="reference", vocab=11, context=6, **TINY)
    slid: list[int] = []
    assert len(list(generate(model, [1], 6, on_slide=lambda: slid.append(1)))) == 6
    assert not slid
    model.forward_backward([[1]], [[2]])
    model.update(1e-3)
    assert len(list(generate(model, [1], 6, on_slide=lambda: slid.append(1)))) == 6
    assert len(slid) == 5


def test_sample_slides_where_the_training_ended(older):
    done = tapeless("sample", older.run.folder.name, "-n", "60", folder=older.run.folder.parent)
    assert done.returncode == 0, done.stderr
    assert "past its 24 positions the window slid" in done.stdout


@pytest.mark.parametrize(
    ("model", "time", "expected"),
    [
        ({}, None, (256, 256)),
        ({}, 1500, (1500, 1500)),  # more than the preset has
        ({"context": 40}, None, (40, 40)),
        ({"context": 40}, 12, (40, 12)),
    ],
)
def test_context_and_time(tmp_path, text, model, time, expected):
    settings = Settings(steps=1, batch=1, time=time, backend="reference")
    session = assembled(tmp_path / "run", text, settings=settings, **model)
    assert (session.model.config.context, session.model.time) == expected
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (written["model"]["context"], written["time"]) == expected


def test_more_time_than_the_context_that_was_asked_for(tmp_path, text):
    with pytest.raises(TapelessError, match="time=64 is longer than the 32 positions"):
        assembled(tmp_path / "run", text, settings=replace(QUICK, time=64), context=32)
    assert not (tmp_path / "run").exists()


def test_operations_have_eight_positions(tmp_path):
    session = start(Request("cllm", TINY, Settings(data="operations", backend="reference")), tmp_path / "run")
    assert session.model.config.context == session.model.time == 8


def test_a_base_brings_its_time(tmp_path, short, older, text):
    for base, context in ((short, TIME), (older, 200)):
        folder = tmp_path / base.run.folder.name
        session = assembled(folder, text, base=open_run(base.run.folder), settings=Settings(steps=1, batch=2))
        assert (session.model.config.context, session.model.time) == (context, TIME)
        assert open_run(folder).window() == TIME


def test_a_base_trained_further_on_another_time(tmp_path, older, text):
    base = open_run(older.run.folder)
    session = assembled(tmp_path / "less", text, base=base, settings=replace(QUICK, time=10))
    assert (session.model.config.context, session.model.time) == (200, 10)
    session = assembled(tmp_path / "more", text, base=base, settings=replace(QUICK, time=100))
    assert (session.model.config.context, session.model.time) == (200, 100)
    with pytest.raises(TapelessError, match=r"time=201 is longer than the 200 positions that .*older brings"):
        assembled(tmp_path / "most", text, base=base, settings=replace(QUICK, time=201))
    assert not (tmp_path / "most").exists()


def test_what_is_imported_keeps_its_positions(tmp_path, text):
    """As `import` makes a run: no training, so no time but the context."""
    config = preset("gpt2-124m").override(layers=1, channels=8, heads=2, vocab=257)
    model = Model(config, time=1, backend="reference", precision="float32", optimizer=None)
    made = Run(tmp_path / "imported")
    made.folder.mkdir()
    write_configuration(made, Request("gpt2-124m", {}, Settings(tokenizer="none")), config)
    checkpoint.save(made.checkpoints, 0, {"weights": dict(model.params)}, {"step": 0}, best=True)
    assert made.window() == 1024
    settings = Settings(steps=1, batch=1, backend="reference", precision="float32")
    session = assembled(tmp_path / "tuned", text, base=made, settings=settings)
    assert (session.model.config.context, session.model.time) == (1024, 1024)


@pytest.mark.parametrize("made", ["short", "older"])
def test_an_export_claims_what_was_trained(made, request, tmp_path):
    done = tapeless("export", str(request.getfixturevalue(made).run.folder), "gpt", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "gpt" / "config.json").read_text())["n_positions"] == TIME
    assert read_config(Path(tmp_path / "gpt")).context == TIME
