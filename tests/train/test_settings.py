"""What was asked for: presets, TOML files, overrides, and the configuration that a run keeps."""

import tomllib
from dataclasses import fields, replace

import pytest

from tapeless import TapelessError
from tapeless.models.presets import preset
from tapeless.train.settings import Request, Settings, as_toml, read_request, request_from


def test_a_file_and_what_the_command_line_changes(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'preset = "gpt2-124m"\ndata = "stdlib"\nbatch = 4\nlr = 3e-4\nepochs = 2\n[model]\nlayers = 6\ntied = false\n'
    )
    request = read_request(str(path)).override({"layers": 3}, {"lr": 1e-4, "steps": 2000})
    assert request.preset == "gpt2-124m"
    assert request.model == {"layers": 3, "tied": False}
    settings = request.settings
    assert (settings.data, settings.batch, settings.lr) == ("stdlib", 4, 1e-4)
    assert (settings.steps, settings.epochs) == (2000, None)  # what was said last counts


def test_a_preset_by_name():
    assert read_request("cllm") == Request("cllm", {}, Settings())


def test_what_a_run_keeps_says_it_all():
    """Written and read again, it is the same request, with every field of the model."""
    settings = Settings(
        data='a "quoted" \\ path\twith ünïcode \x7f', lr=1e-30, eps=1e-8, clip=0.0, sample="", tensorboard=True, steps=7
    )
    config = preset("gpt2-4x256").override(layers=2, norm_eps=1e-6)
    text = as_toml(Request("gpt2-4x256", {"layers": 2, "norm_eps": 1e-6}, settings), config)
    again = request_from(tomllib.loads(text), "there")
    assert again.settings == settings
    assert preset(again.preset).override(**again.model) == config


def test_every_field_has_a_help_text():
    for each in fields(Settings):
        assert each.metadata["help"].endswith("."), each.name
        assert each.metadata["panel"] or each.metadata["panel"] is None


def test_what_suits_the_data():
    gpt = preset("gpt2-4x256").architecture
    text = Settings(data="stdlib").suited(gpt)
    assert (text.steps, text.epochs, text.time, text.clip, text.schedule) == (1000, None, 256, 1.0, "cosine")
    assert Settings(data="stdlib", epochs=2.0).suited(gpt).steps is None
    assert Settings(data="stdlib").suited(replace(gpt, context=64)).time == 64
    assert Settings(data="stdlib", clip=0.0).suited(gpt).clip == 0.0  # 0 says: no clipping
    task = Settings(data="operations").suited(preset("ops-102k").architecture)
    assert (task.epochs, task.batch, task.clip) == (10.0, 32, None)
    assert (task.schedule, task.decay, task.learning_rate(1250).at(62)) == ("linear", 0.1, 2e-3)
    founding = replace(task, lr=1e-3, schedule="constant", warmup=0).learning_rate(1250)
    assert {founding.at(step) for step in range(1250)} == {1e-3}


MALFORMED = {
    "lr = ": "not valid TOML",
    "\x00": "not valid TOML",
    "lr = 1\nlr = 2": "not valid TOML",
    "learning_rate = 1": "unknown key 'learning_rate': here it is called 'lr'",
    "layers = 3": "layers is a field of the model: write it below [model].",
    "frozen_precision = 'bfloat16'": "frozen_precision is a field of the model: write it below [model].",
    "[model]\nlr = 3": "lr is no field of the model: write it above [model].",
    "[model]\nprecision = 'bfloat16'": "precision is no field of the model: write it above [model].",
    "loss = 'squared_error'": "what a model has as its loss stands below [model]",
    "model = 3": "model must be a table",
    "model = [1]": "model must be a table",
    "[model]\nlayer = 3": "did you mean 'layers'",
    "[model]\nname = 'x'": "unknown field 'name'",
    "preset = 'gpt3'": "unknown preset",
    "preset = 3": "unknown preset 3",
    "preset = ['gpt2-124m']": "unknown preset",
    "batch = 0": "batch must be",
    "batch = 1.5": "batch must be a whole number",
    "batch = '8'": "batch must be a whole number",
    "batch = true": "batch must be a whole number",
    "batch = [8]": "batch must be a whole number",
    "lr = 'fast'": "lr must be a number",
    "lr = nan": "lr must be",
    "lr = inf": "lr must be",
    "lr = -1": "lr must be",
    "lr = true": "lr must be a number",
    "tensorboard = 1": "tensorboard must be true or false",
    "data = 3": "data must be text",
    "schedule = 'warm'": "unknown schedule",
    "steps = 5\nepochs = 1": "choose one",
    "steps = 5\nwarmup = 5": "warmup=5",
    "warmup = -1": "warmup must be",
    "floor = 2": "floor must be",
    "every = 0": "every must be",
    "rate = 0": "rate must be",
    "clip = -0.1": "clip must be",
    "clip = nan": "clip must be",
    "epochs = 0": "epochs must be",
    "epochs = inf": "epochs must be",
    "validation = 0": "validation must be",
    "validation = 1.0": "validation must be",
    "seed = -1": "seed must be",
    "keep = 0": "keep must be",
    "patience = 0": "patience must be",
    "accumulate = 0": "accumulate must be",
    "eval_every = 0": "eval_every must be",
    "save_every = -5": "save_every must be",
    "log_every = 0": "log_every must be",
    "time = 0": "time must be",
    "lr = 1979-05-27": "lr must be a number",
}


@pytest.mark.parametrize("content", MALFORMED)
def test_a_file_that_is_wrong_gets_one_sentence(content, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(content)
    with pytest.raises(TapelessError) as error:
        read_request(str(path))
    assert MALFORMED[content] in str(error.value)
    assert "wrong.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_bytes(b"lr = 1 # \xff\xfe")
    with pytest.raises(TapelessError, match="not valid TOML"):
        read_request(str(path))
    with pytest.raises(TapelessError, match="cannot read"):
        read_request(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(TapelessError, match="is a folder, not a plain file"):
        read_request(str(tmp_path / "folder.toml"))
    with pytest.raises(TapelessError, match="--resume"):
        read_request(str(tmp_path))
