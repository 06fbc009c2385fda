"""Options and --set: what is refused, in one sentence, and what another project's name is taken for."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from tapeless.cli.app import app
from tapeless.cli.fields import model_fields, setting_fields
from tapeless.cli.manual import find_pages
from tapeless.errors import TapelessError
from tapeless.models.presets import preset
from tapeless.synonyms import OURS, SAID_AS
from tapeless.tasks.data.prepare import prepare
from tapeless.train import checkpoint
from tapeless.train.run import Run, write_configuration
from tapeless.train.settings import Request, Settings
from tests.cli.typed import typed
from tests.screens import document

TEXT = ("train", "gpt2-4x256", "--data", "text.txt")


def refusal(*words):
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, TapelessError), (result.output, result.exception)
    return str(result.exception)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Text, tokens, a run that read bytes, and one of bare tokens."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "text.txt").write_text("some words to learn from\n" * 40)
    (folder / "other.toml").write_text('preset = "gpt2-124m"\ndata = "text.txt"\n')
    prepare(str(folder / "text.txt"), folder / "tokens")
    (np.arange(500, dtype="<u2") % 90).tofile(folder / "ids.bin")
    config = preset("gpt2-4x256").override(layers=1, channels=8, heads=2, vocab=257)
    for name, kind in (("bytes", "bytes"), ("bare", "none")):
        made = Run(folder / name)
        made.folder.mkdir()
        model = {"layers": 1, "channels": 8, "heads": 2, "vocab": 257}
        settings = Settings(data="text.txt", tokenizer=kind).suited(config.architecture)
        write_configuration(made, Request("gpt2-4x256", model, settings), config)
        checkpoint.save(made.checkpoints, 0, {"weights": {"a": np.zeros(1)}}, {"step": 0})
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "gpt2-4x256"), "--data, or --data stdlib"),
        (("train", "cllm"), "--data, or --data stdlib"),
        (("train", "--init-from", "bytes"), "--data, or --data stdlib"),
        ((*TEXT, "--init-from", "bytes"), "--init-from brings the model of its run"),
        (("train", "other.toml", "--init-from", "bytes"), "names the preset gpt2-124m, and bytes brings the model of"),
        (("train", "ops-102k", "--resume", "bytes"), "--resume brings the model of its run"),
        (("train", "--precision", "complex128", "--backend", "reference"), "unknown precision 'complex128'"),
        (("bench", "ops-102k", "--precision", "float64"), "unknown precision 'float64'"),
        (("bench", "ops-102k", "--products", "blis"), "'blis'"),
        (("tokenize", "text.txt", "--vocab", "300"), "is for a vocabulary learned here"),
        (("tokenize", "text.txt", "--show"), "--show shows conversations, and text.txt holds none"),
        (("train", "--set", "layers"), "--set takes KEY=VALUE, such as --set layers=2, not 'layers'."),
        (("train", "--set", "=2"), "--set takes KEY=VALUE, such as --set layers=2, not '=2'."),
        (("train", "--set", "layers=two"), "layers must be a whole number, not 'two'."),
        (("train", "--set", "beta1=high"), "beta1 must be a number, not 'high'."),
        (("train", "--set", "tied=maybe"), "tied must be true or false, not 'maybe'."),
        (("train", "--set", "layer=2"), "unknown key 'layer': did you mean 'layers'?"),
        (("train", "--set", "xyzzy=2"), "unknown key 'xyzzy': `tapeless help settings` lists what there is."),
        (("train", "--set", "bf16=true"), "unknown key 'bf16': say precision=bfloat16."),
        (
            ("train", "--set", "layers=2", "--set", "layers=3"),
            "--set layers is given twice: once as 2, and again as '3'.",
        ),
        (("train", "--lr", "1", "--set", "lr=2"), "lr is given twice: by its option, and by --set lr=2.0."),
        (
            ("plan", "ops-102k", "--set", "learning_rate=2"),
            "lr is a setting of a training, of which there is none here.",
        ),
        (("plan", "ops-102k", "--set", "hidden_size=7"), "channels=7 cannot be split over heads=4"),
        (("check", "--set", "layers=2"), "--set is of some model: name a preset or a run before it."),
    ],
)
def test_refused(place, monkeypatch, words, said):
    monkeypatch.chdir(place)
    assert said in refusal(*words)
    assert not (place / "runs").exists()  # and nothing was begun


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--learning-rate", "1e-3"), "there is no option --learning-rate: it is --lr."),
        (("train", "--gradient_accumulation_steps", "8"), "there is no option --gradient_accumulation_steps: it is --"),
        (("train", "--output_dir", "x"), "there is no option --output_dir: it is --out."),
        (("train", "--device=cuda"), "there is no option --device: it is --backend."),
        (("train", "--bf16"), "there is no option --bf16: say --set precision=bfloat16."),
        (("train", "--hidden_size", "64"), "there is no option --hidden_size: say --set channels=…."),
        (("train", "--layers", "2"), "there is no option --layers: say --set layers=…."),
        (("train", "--no-tied"), "there is no option --no-tied: say --set tied=false."),
        (("plan", "ops-102k", "--recompute"), "there is no option --recompute: say --set recompute=true."),
        (("plan", "ops-102k", "--layer", "3"), "there is no option --layer: did you mean --set layers=…?"),
        (("plan", "ops-102k", "--memori", "3"), "there is no option --memori: did you mean --memory?"),
        (("plan", "ops-102k", "--qqq"), "there is no option --qqq: `tapeless plan --help` lists what there is."),
        (("train", "--steps", "many"), "--steps must be a whole number, not 'many'."),
        (("train", "--lr=fast"), "--lr must be a number, not 'fast'."),
        (("train", "--lr"), "option '--lr' requires an argument."),
        (("plan",), "missing argument 'PRESET|RUN'."),
        (("trian",), "no such command 'trian'. Did you mean 'train'?"),
        (("presets", "all"), "got unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_typed_wrongly_gets_one_sentence(words, said):
    done = typed(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_other_projects_names_are_taken_for_ours():
    ours = document("plan", "gpt2-4x256", "-T", "64", "--set", "layers=2", "--set", "channels=64", "--memory", "1MB")
    theirs = document("plan", "gpt2-4x256", "-T", "64", "--set", "n_layer=2", "--set", "n-embd=64", "--memory", "1MB")
    assert theirs == ours


def test_every_name_of_others_is_for_one_of_ours():
    ours = {*setting_fields(), *model_fields(), "out", "resume", "init_from"}
    assert set(OURS.values()) <= ours
    assert not OURS.keys() & ours
    for said in SAID_AS.values():
        assert re.findall(r"\w+", said)[0] in ours, said


def test_every_key_stands_on_the_page_of_settings():
    page = (find_pages()["settings"]).read_text("utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert listed == {*setting_fields(), *model_fields()}


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ("[model]\nfrozen_precision = 'int8'", (), "unknown frozen_precision 'int8': choose one of bfloat16, float32."),
        ("[model]\nfrozen = ['blocs.*']", (), "frozen='blocs.*' is the name of no weight"),
        ("[model]\nfrozen_precision = 'bfloat16'", (), "frozen_precision='bfloat16' is of matrices that are not"),
        ("[model]\nheads = 7", (), "channels=64 cannot be split over heads=7"),
        ("beta1 = 2", (), "beta1 must be at least 0 and below 1, not 2."),
        ("backend = 'cpp'", (), "unknown backend 'cpp'"),
        (
            "[model]\nlayers = 2",
            ("--init-from", "bytes", "--data", "text.txt"),
            "layers belongs to the model that bytes",
        ),
    ],
)
def test_a_value_of_a_file_is_refused_with_the_files_name(place, monkeypatch, tmp_path, content, words, said):
    monkeypatch.chdir(place)
    path = tmp_path / "mine.toml"
    path.write_text(content)
    assert refusal("train", str(path), *words).startswith(f"{path}: {said}")


def test_a_value_of_the_command_line_is_not_the_files(place, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    path = tmp_path / "mine.toml"
    path.write_text("beta1 = 0.8\n[model]\nlayers = 1\nheads = 2\n")
    assert refusal("train", str(path), "--set", "heads=7").startswith("channels=64 cannot be split over heads=7")
    assert refusal("train", str(path), "--set", "beta1=2").startswith("beta1 must be")
    assert refusal("train", str(path), "--set", "frozen_precision=int8").startswith("unknown frozen_precision 'int8'")


def test_unknown_names_on_the_command_line(place, monkeypatch):
    monkeypatch.chdir(place)
    assert "choose one of gpt2-4x256, gpt2-124m" in refusal("plan", "gpt2")
    said = refusal("plan", "gpt2-4x256", "--precision", "float16")
    assert said == "unknown precision 'float16': did you mean 'bfloat16'?"


def test_the_help_says_what_is_taken_where_nothing_is_said():
    shown = " ".join(CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output.split())
    for sentence in (
        "Default: 32 for operations, 4 for conversations, 8 for text.",
        "Default: 512 for conversations, 256 for text.",
        "Default: 1000 for text.",
        "Default: 10 for operations, 3 for conversations.",
        "The highest learning rate. Default: 0.002 for operations, 0.0001 for conversations, 0.001 for text.",
        "Default: linear for operations, cosine for conversations, cosine for text.",
        "Default: ops-102k, with --data gpt2-4x256.",
    ):
        assert sentence in shown


def test_the_help_of_label_train_says_it_too():
    shown = " ".join(CliRunner().invoke(app, ["label", "train", "--help"], env={"COLUMNS": "200"}).output.split())
    for told in (
        "Sequences per batch. Default: 16.",
        "Positions per sequence. Default: 256.",
        "Steps of the optimizer. Default: 1000.",
        "The highest learning rate. Default: 0.0015.",
        "becomes validation data. Default: 0.1.",
        "Seed of weights and data. Default: 0.",
        "auto takes a GPU if there is one. Default: cpu.",
        "Periods in samples. Default: 3,4,5,10,27,81,100.",
    ):
        assert told in shown, told


def test_text_in_the_place_of_a_preset_is_told_its_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    assert "--data notes.txt, and a run is continued with --resume" in refusal("train", "notes.txt")


def test_text_without_a_preset_is_learned_by_a_gpt(place, monkeypatch):
    """The default preset answers expressions, and would only be blamed."""
    monkeypatch.chdir(place)
    words = ("--data", "text.txt", "--steps", "1", "--backend", "reference", "--time", "8", "--out", "mine")
    small = ("--set", "layers=1", "--set", "channels=8", "--set", "heads=2")
    assert document("train", *words, *small)["preset"] == "gpt2-4x256"
    assert document("train", "--steps", "1", "--backend", "reference", "--out", "ops", *small)["preset"] == "ops-102k"


@pytest.mark.parametrize("words", [("import",), ("plan",), ("explain",)])
def test_a_model_of_the_hub_is_told_its_scheme(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert "did you mean hf:meta-llama/Llama-3.2-1B?" in refusal(*words, "meta-llama/Llama-3.2-1B")
    (tmp_path / "meta-llama").mkdir()  # then it is the path of a folder that is not there
    assert "did you mean hf:" not in refusal(*words, "meta-llama/Llama-3.2-1B")


@pytest.mark.parametrize("words", [(), ("train",), ("label", "train"), ("plan",)])
def test_help_has_a_short_option_and_no_types(words):
    shown, long = (
        CliRunner().invoke(app, [*words, option], env={"COLUMNS": "120"}).output for option in ("-h", "--help")
    )
    assert shown == long
    assert "--help" in shown
    assert not re.search(r"<(bool|str|int|float|Path|list)", shown)
