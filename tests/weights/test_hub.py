"""`hf:OWNER/NAME`, from a hub of our own: what a model is made of is fetched, and nothing else."""

import json
import sys
from functools import partial

import pytest

import tapeless
from tapeless.errors import TapelessError
from tapeless.tasks.chat.template import Chat
from tapeless.weights.hub import fetch
from tapeless.weights.hugging_face import write_folder
from tests.screens import refusal, screen
from tests.tasks.chat.spoken import CHATML, TOKENS, tokenizer_json
from tests.weights.small_hub import COMMIT, Hub, served


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    model = tapeless.Model(
        "llama-4x256",
        layers=1,
        channels=16,
        heads=2,
        kv_heads=1,
        hidden=24,
        vocab=400,
        context=64,
        backend="reference",
        precision="float32",
        time=1,
        optimizer=None,
    )
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    whole = tmp_path / "models" / "whole"
    write_folder(whole, model.config, model.weights(), tmp_path / "tokenizer.json", chat=Chat(CHATML, TOKENS, (0, 3)))
    for name in ("README.md", "pytorch_model.bin", "training_args.bin", "evil.py", "onnx/model.onnx", "tf_model.h5"):
        (whole / name).parent.mkdir(exist_ok=True)
        (whole / name).write_bytes(b"never fetched")
    pickled = tmp_path / "models" / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"never fetched")
    empty = tmp_path / "models" / "empty"
    empty.mkdir()
    (empty / "README.md").write_text("nothing")
    listed = {"us/whole": whole, "us/pickled": pickled, "us/empty": empty}
    with served(Hub(listed, gated=("us/gated",))) as made:
        yield made


def test_a_model_comes_with_its_tokenizer_and_template_and_nothing_else(models):
    found = fetch("hf:us/whole", endpoint=models.address, quiet=True)
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert set(models.asked) == wanted
    assert {path.name for path in found.folder.iterdir()} == wanted
    assert (found.name, found.origin) == ("whole", f"hf:us/whole@{COMMIT}")
    assert fetch(f"hf:us/whole@{COMMIT}", endpoint=models.address, quiet=True).folder == found.folder
    assert len(models.asked) == len(wanted), "the second time it is in the cache"


def test_the_command_makes_a_run_that_can_be_talked_with(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tapeless.cli.weights.fetch", partial(fetch, endpoint=models.address))
    assert "parameters in runs/whole-001, with its tokenizer" in screen("import", "hf:us/whole", width=120)
    run = tapeless.load("runs/whole-001", backend="reference")
    assert run.chat().speech.chat == Chat(CHATML, TOKENS, (0, 3))
    state = json.loads(next((tmp_path / "runs/whole-001/checkpoints").glob("*/state.json")).read_text())
    assert state["from"] == f"hf:us/whole@{COMMIT}"


REFUSED = {
    "hf:us/missing": "there is no model us/missing on the hub, or it is private",
    "hf:us/gated": "us/gated is gated: accept its terms",
    "hf:us/pickled": r"as pickle only \(pytorch_model.bin\), which can run code and is not fetched",
    "hf:us/empty": "us/empty holds no model.safetensors",
    "hf:us/whole@other": "has no revision 'other'",
    "hf:whole": "names no model: say hf:OWNER/NAME",
    "hf:us/../whole": "names no model",
    "hf:us/whole/more": "names no model",
    "hf:": "names no model",
    "hf:us/who le": "names no model",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fetched_is_one_sentence(models, name):
    with pytest.raises(TapelessError, match=REFUSED[name]) as caught:
        fetch(name, endpoint=models.address, quiet=True)
    assert "\n" not in str(caught.value)
    assert not any(asked.endswith(".bin") for asked in models.asked)


def test_without_a_network_it_is_one_sentence(models, monkeypatch):
    with pytest.raises(TapelessError, match=r"the hub could not be reached for us/whole .*is there a network\?"):
        fetch("hf:us/whole", endpoint="http://127.0.0.1:9", quiet=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TapelessError, match="HF_HUB_OFFLINE is set"):
        fetch("hf:us/whole", endpoint=models.address, quiet=True)


def test_without_the_package_the_extra_is_named(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TapelessError, match=r"pip install 'tapeless\[hub\]'"):
        fetch("hf:us/whole", endpoint=models.address)
    assert "needs huggingface_hub" in refusal("import", "hf:us/whole")


def test_a_model_that_is_cut_short_on_its_way_is_refused(models):
    (models.models["us/whole"] / "model.safetensors").write_bytes(b"short")
    found = fetch("hf:us/whole", endpoint=models.address, quiet=True)
    assert "not a sound safetensors file" in refusal("import", found.folder)
