"""A model that reads bytes, for others: the tokenizer that goes with it is the same to the last byte."""

import random

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from tapeless.cli.app import app
from tapeless.model import Model
from tapeless.models.presets import preset
from tapeless.tasks.data.tokenizer import ByteTokenizer, load_tokenizer
from tapeless.train import checkpoint
from tapeless.train.run import Run, open_run, write_configuration
from tapeless.train.settings import Request, Settings
from tapeless.weights.hugging_face import read_config, write_folder

SMALL = {"layers": 1, "channels": 8, "heads": 2, "vocab": 257, "context": 16}
TEXTS = [
    "",
    " ",
    "  two  spaces ",
    "\n\n\t\r\n",
    "don't 123 ÄÖÜ",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "\0\x7f",
    "😀👩‍👩‍👧 é é",
    "\u2028\ufeff\U0010ffff",
    "".join(map(chr, range(256))),
    "x" * 3000,
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    config = preset("gpt2-4x256").override(**SMALL)
    model = Model(config, backend="reference", precision="float32", time=1, optimizer=None)
    made = Run(folder / "run")
    made.folder.mkdir()
    write_configuration(made, Request("gpt2-4x256", SMALL, Settings(data="x", tokenizer="bytes")), config)
    checkpoint.save(made.checkpoints, 0, {"weights": dict(model.params)}, {"step": 0}, best=True)
    result = CliRunner().invoke(app, ["export", str(made.folder), str(folder / "gpt")])
    assert result.exit_code == 0, result.exception
    assert "AutoTokenizer.from_pretrained" in result.output
    return folder


def random_texts():
    rng = random.Random(0)
    for _ in range(300):
        codes = (rng.choice((rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000))) for _ in range(20))
        yield "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def test_autotokenizer_reads_as_we_do(exported):
    theirs, ours = AutoTokenizer.from_pretrained(exported / "gpt"), ByteTokenizer()
    assert len(theirs) == ours.vocab
    assert theirs.eos_token_id == ours.end
    for text in (*TEXTS, *random_texts()):
        assert theirs(text)["input_ids"] == ours.encode(text), text
        assert theirs.decode(ours.encode(text)) == text


def test_autotokenizer_writes_as_we_do(exported):
    """Bytes that are no UTF-8, and the end among them."""
    theirs, ours = AutoTokenizer.from_pretrained(exported / "gpt"), ByteTokenizer()
    rng = random.Random(1)
    for _ in range(500):
        ids = [rng.choice((rng.randrange(257), rng.randrange(128, 256), 0xE2, 0x82, 0xF0, 0x9F)) for _ in range(12)]
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids), ids


def test_it_comes_back_as_it_was(exported, monkeypatch):
    monkeypatch.chdir(exported)
    result = CliRunner().invoke(app, ["import", "gpt", "--out", "again"])
    assert result.exit_code == 0, result.exception
    assert "sample again" in result.output
    spec = open_run(exported / "again").tokenizer_spec()
    assert spec is not None
    again, ours = load_tokenizer(spec), ByteTokenizer()
    assert (again.vocab, again.end) == (ours.vocab, ours.end)
    for text in (*TEXTS, *random_texts()):
        assert again.encode(text) == ours.encode(text)
        assert again.decode(ours.encode(text)) == text


def test_without_a_tokenizer_nothing_is_proposed_that_would_fail(exported, monkeypatch, tmp_path):
    config = preset("gpt2-4x256").override(**SMALL)
    model = Model(config, backend="reference", precision="float32", time=1, optimizer=None)
    write_folder(tmp_path / "plain", config.architecture, model.params, None)
    assert read_config(tmp_path / "plain").vocab == 257
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["import", "plain", "--out", "run"]).output
    assert "without a tokenizer" in said
    assert "sample" not in said
    assert "--data TOKENS.bin" in said
    again = CliRunner().invoke(app, ["export", "run", "out"]).output
    assert "without a tokenizer" in again
    assert "AutoTokenizer" not in again
