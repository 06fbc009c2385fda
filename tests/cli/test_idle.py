"""Options that would have no effect are refused, and what is asked for without saying on what."""

import numpy as np
import pytest
from typer.testing import CliRunner

from tapeless.backends import gpu
from tapeless.cli.app import app
from tapeless.errors import TapelessError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.models.presets import preset
from tapeless.tasks.data.prepare import prepare
from tapeless.train import checkpoint
from tapeless.train.run import Run, write_configuration
from tapeless.train.settings import Request, Settings

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
        (("train", "--from", "bytes"), "--data, or --data stdlib"),
        (("train", "gpt2-4x256", "--from", "bytes", "--data", "text.txt"), "--from brings the model of its run"),
        (("train", "other.toml", "--from", "bytes"), "names the preset gpt2-124m, which would have no effect"),
        (("train", "ops-102k", "--resume", "bytes"), "--resume brings the model of its run"),
        (("train", "--from", "bytes", "--data", "text.txt", "--tokenizer", "bpe"), "reads the tokens that it learned"),
        (("train", "gpt2-4x256", "--data", "tokens", "--tokenizer", "bpe"), "tokens holds tokens already"),
        (("train", "gpt2-4x256", "--data", "ids.bin", "--tokenizer", "bpe"), "ids.bin holds tokens already"),
        (("train", "gpt2-4x256", "--data", "tokens", "--validation", "0.2"), "says itself what is held out"),
        (("train", "--tokenizer", "bpe"), "--tokenizer would have no effect"),
        (("train", "--time", "16"), "--time would have no effect"),
        (("train", "--validation", "0.2"), "--validation would have no effect"),
        (("train", "--eval-batches", "3"), "--eval-batches would have no effect"),
        (("train", "--sample", "Max("), "--sample would have no effect"),
        (("train", "--schedule", "constant", "--floor", "0.2"), "part of the schedules cosine and linear"),
        (("train", "--rate", "0.2"), "part of the schedules step and exponential"),
        ((*TEXT, "--every", "9"), "part of the schedules step and exponential"),
        ((*TEXT, "--schedule", "step", "--floor", "0.2"), "part of the schedules cosine and linear"),
        (("train", "--optimizer", "adam", "--decay", "0.1"), "part of adamw"),
        ((*TEXT, "--precision", "bfloat16", "--products", "own"), "part of the cpu backend in float32, and of Muon"),
        (("train", "--backend", "reference", "--products", "own"), "part of the cpu backend in float32, and of Muon"),
        (("train", "--backend", "reference", "--threads", "1"), "part of the cpu backend"),
        (("train", "--precision", "complex128", "--backend", "reference"), "unknown precision 'complex128'"),
        (("bench", "ops-102k", "--precision", "bfloat16", "--products", "own"), "those of the cpu backend in float32"),
        (("bench", "ops-102k", "--precision", "float64"), "unknown precision 'float64'"),
        (("bench", "ops-102k", "--products", "blis"), "'blis'"),
        (("train", "--momentum", "0.8"), "part of the optimizers momentum and muon"),
        ((*TEXT, "--optimizer", "sgd", "--beta1", "0.8"), "part of adam, adamw and muon"),
        ((*TEXT, "--backend", "reference", "--threads", "1"), "part of the cpu backend"),
        (("train", "cllm", "--data", "text.txt", "--chunk", "9"), "a squared error has no logits"),
        (("sample", "bytes", "--temperature", "0", "--seed", "3"), "at temperature 0 nothing is drawn"),
        (("sample", "bytes", "--temperature", "0", "--top-k", "3"), "at temperature 0 nothing is drawn"),
        (("sample", "bytes", "--backend", "reference", "--threads", "1"), "--threads would have no effect"),
        (("tokenize", "text.txt", "--seed", "3"), "text.txt is one document"),
        (("tokenize", "text.txt", "--vocab", "300"), "is for a vocabulary learned here"),
        (("label", "train", "--held-out", "chr1", "--validation", "0.2"), "--held-out names what is held out"),
        (("plan", "ops-102k", "--initialisation", "gpt2"), "no weight is made here"),
        (("plan", "ops-102k", "--norm-eps", "1e-3"), "it takes no memory"),
        (("plan", "cllm", "--chunk", "3"), "a squared error has no logits"),
        (("explain", "ops-102k", "--initialisation", "gpt2"), "without --values"),
        (("bench", "ops-102k", "--optimizer", "sgd"), "everyone takes a step of adamw"),
    ],
)
def test_refused(place, monkeypatch, words, said):
    monkeypatch.chdir(place)
    assert said in refusal(*words)
    assert not (place / "runs").exists()  # and nothing was begun


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ("[model]\nfrozen_precision = 'int8'", (), "unknown frozen_precision 'int8': choose one of bfloat16, float32."),
        ("[model]\nfrozen = ['blocs.*']", (), "frozen='blocs.*' is the name of no weight"),
        ("[model]\nfrozen_precision = 'bfloat16'", (), "frozen_precision='bfloat16' is of matrices that are not"),
        ("[model]\nheads = 7", (), "channels=64 cannot be split over heads=7"),
        ("beta1 = 2", (), "beta1 must be at least 0 and below 1, not 2."),
        ("backend = 'cpp'", (), "unknown backend 'cpp'"),
        ("[model]\nlayers = 2", ("--from", "bytes", "--data", "text.txt"), "layers belongs to the model that bytes"),
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
    assert refusal("train", str(path), "--heads", "7").startswith("channels=64 cannot be split over heads=7")
    assert refusal("train", str(path), "--beta1", "2").startswith("beta1 must be")
    assert refusal("train", str(path), "--frozen-precision", "int8").startswith("unknown frozen_precision 'int8'")


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
        "Its highest value. Default: 0.002 for operations, 0.0001 for conversations, 0.001 for text.",
        "Default: linear for operations, cosine for conversations, cosine for text.",
        "Default: ops-102k.",
    ):
        assert sentence in shown


def test_the_help_of_label_train_says_it_too():
    shown = " ".join(CliRunner().invoke(app, ["label", "train", "--help"], env={"COLUMNS": "200"}).output.split())
    for told in (
        "Windows at a time. Default: 16.",
        "Positions per window. Default: 256.",
        "Updates. Default: 1000.",
        "The highest learning rate. Default: 0.0015.",
        "Share at the end that is held out. Default: 0.1.",
        "Blocks. Default: 4.",
        "Seed of weights and data. Default: 0.",
        "auto takes a GPU where there is one. Default: cpu.",
        "Periods in samples. Default: 3,4,5,10,27,81,100.",
    ):
        assert told in shown, told


@pytest.mark.parametrize("option", [("--threads", "1"), ("--products", "own")])
def test_where_auto_is_the_cpu_it_has_the_options_of_the_cpu(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "is_there", lambda: False)
    done = CliRunner().invoke(app, ["train", "--backend", "auto", "--steps", "2", "--json", *option])
    cpu_kernels.set_gemm_library(None)
    cpu_kernels.set_threads(None)
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(gpu, "is_there", lambda: True)
    refused = CliRunner().invoke(app, ["train", "--backend", "auto", "--steps", "2", *option])
    assert "part of the cpu backend" in str(refused.exception)
