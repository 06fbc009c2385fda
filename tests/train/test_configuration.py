"""A run's configuration: what no version wrote is refused, and what a run says of its model is the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tapeless import Model, TapelessError
from tapeless.cli.app import app
from tapeless.models.config import Preset
from tapeless.train.run import Run, open_run, write_configuration
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tapeless.weights.hugging_face import write_folder
from tests.train.following import kill

TINY = {"layers": 1, "channels": 4, "heads": 2, "hidden": 4}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("format = 1", "format = 2", "format 2"),
        ("format = 1", 'format = "1"', "format '1'"),
        ("format = 1\n", "", "unknown preset"),
        ("layers = 1\n", "", "layers is missing"),
        ("[model]", "[loss]\nclass_weights = 3\n[model]", "loss must be a table"),
        ("[model]", "[loss]\nclass_weights = [1.0]\n[model]", "class_weights must be 257 numbers"),
    ],
)
def test_what_no_version_wrote_is_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    preset = Preset.of("somebody's", vocab=257, context=8, **TINY)
    write_configuration(Run(tmp_path), Request("somebody's", {}, Settings(tokenizer="bytes")), preset)
    path = tmp_path / "config.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(TapelessError, match=says) as refused:
        open_run(tmp_path)
    assert str(refused.value).endswith(".")


def test_what_is_imported_is_called_so(tmp_path: Path) -> None:
    preset = Preset.of("tiny", vocab=11, context=5, **TINY)
    model = Model(preset, backend="reference", precision="float32", time=1, optimizer=None)
    write_folder(tmp_path / "gpt2", preset.architecture, model.params, None)
    assert CliRunner().invoke(app, ["import", str(tmp_path / "gpt2"), "--out", str(tmp_path / "run")]).exit_code == 0
    assert "gpt2-124m" not in (tmp_path / "run" / "config.toml").read_text()
    opened = open_run(tmp_path / "run")
    assert (opened.preset().name, opened.preset().architecture) == ("imported", preset.architecture)
    again, _, _ = opened.model("best", backend="reference", time=1)
    assert all(np.array_equal(again.params[name], weight) for name, weight in model.params.items())
    np.arange(200, dtype="<u2").__mod__(11).tofile(tmp_path / "ids.bin")
    settings = Settings(data=str(tmp_path / "ids.bin"), steps=2, batch=2, backend="reference")
    further = start(Request("ops-102k", {"frozen": ("tokens.*",)}, settings), tmp_path / "further", base=opened)
    further.train()
    assert open_run(tmp_path / "further").preset().frozen == ("tokens.*",)
    assert np.array_equal(further.model.params["tokens.weight"], model.params["tokens.weight"])
    assert not np.array_equal(further.model.params["norm.bias"], model.params["norm.bias"])


def test_a_run_keeps_what_is_frozen(tmp_path: Path) -> None:
    """Stopped and resumed it ends where it ends without a stop, and its checkpoints hold what is frozen, too."""
    model = {**TINY, "channels": 8, "frozen": ("tokens.*", "blocks.0.attn.*")}
    settings = Settings(data="operations", steps=6, batch=8, backend="reference", save_every=3)
    whole = start(Request("ops-102k", model, settings), tmp_path / "whole")
    first = {name: weight.copy() for name, weight in whole.model.params.items()}
    whole.train()
    half = start(Request("ops-102k", model, settings), tmp_path / "half")
    kill(half, lambda event: half.last_saved == 3)
    again = resume(tmp_path / "half", {}, {})
    assert again.model.preset.frozen == model["frozen"]
    assert again.trainer.step == 3
    again.train()
    assert all(np.array_equal(again.model.params[name], weight) for name, weight in whole.model.params.items())
    moved = {name for name, weight in first.items() if not np.array_equal(weight, whole.model.params[name])}
    assert moved == set(whole.model.grads)
    read, _, _ = open_run(tmp_path / "half").model("newest", backend="reference")
    assert all(np.array_equal(read.params[name], weight) for name, weight in whole.model.params.items())


def test_a_run_that_names_no_preset_of_ours_needs_all_its_fields(tmp_path: Path) -> None:
    made = Run(tmp_path / "run")
    made.folder.mkdir()
    preset = Preset.of("mine", vocab=9, context=5, optimizer="sgd", recompute=True, frozen=("norm.*",), **TINY)
    write_configuration(made, Request(preset.name, {}, Settings(tokenizer="none")), preset)
    assert open_run(made.folder).preset() == preset
