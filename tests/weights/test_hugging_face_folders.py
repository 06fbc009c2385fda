"""Folders in the Hugging Face layout, made and read by transformers itself; and some that nobody should have made."""

import errno
import json
import logging
import os
import resource
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tapeless import Model
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.config import Architecture, Preset
from tapeless.weights.hugging_face import read_config, read_weights, tokenizer_of, write_folder

TINY = {"n_layer": 2, "n_embd": 24, "n_head": 3, "vocab_size": 61, "n_positions": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "inner": {"n_inner": 40, "n_layer": 1, "layer_norm_epsilon": 1e-3},
    "untied": {"tie_word_embeddings": False, "n_head": 1},
    "relu": {"activation_function": "relu", "n_head": 6},
    "tanh": {"activation_function": "tanh", "n_inner": 10},
    "other tanh gelu": {"activation_function": "gelu_pytorch_tanh", "reorder_and_upcast_attn": True},
    "one of everything": {"n_layer": 1, "n_embd": 1, "n_head": 1, "n_inner": 1, "vocab_size": 2},
    "no epsilon to speak of": {"layer_norm_epsilon": 1e-12, "n_layer": 3},
}
SAVES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16},
    "float64": {"dtype": torch.float64},
    "shards": {"max_shard_size": "6KB"},
    "shards of an untied one": {"max_shard_size": "6KB", "tie_word_embeddings": False},
}


def their_gpt2(**fields):
    """No weight is left at a value, like a norm's 1 or a bias's 0, that could hide a mistake."""
    fields = {**TINY, "bos_token_id": None, "eos_token_id": None, **fields}
    gpt2 = GPT2LMHeadModel(GPT2Config(**fields)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in gpt2.named_parameters():
            centre = 1.1 if ".ln_" in name and name.endswith("weight") else 0.0
            weight.normal_(centre, 0.2, generator=generator)
    return gpt2


def imported(folder, backend="cpu", **options):
    model = Model(Preset("theirs", read_config(folder)), time=8, backend=backend, **options)
    read_weights(folder, model.config, model.params)
    return model


def some_tokens(vocab, time=40, seed=0):
    return np.random.default_rng(seed).integers(0, vocab, (2, time))


@torch.no_grad()
def their_logits(gpt2, tokens):
    return gpt2(torch.from_numpy(tokens)).logits


class Complaints(logging.Handler):
    """transformers complains in its log: as a rule about a folder that does not fit."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@contextmanager
def no_complaints():
    complaints = Complaints()
    logging.getLogger("transformers").addHandler(complaints)
    try:
        yield
    finally:
        logging.getLogger("transformers").removeHandler(complaints)
    assert complaints.messages == []


def loaded_by_transformers(folder):
    with no_complaints():
        gpt2, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert {weight.dtype for weight in gpt2.parameters()} == {torch.float32}
    return gpt2.eval()


def check_there_and_back(gpt2, folder, out):
    """`gpt2` in float32 is what `folder` holds."""
    tokens = some_tokens(gpt2.config.vocab_size)
    true = their_logits(gpt2, tokens)
    ours, reference = imported(folder), imported(folder, "reference")
    exact = their_logits(gpt2.double(), tokens).numpy()
    gpt2.float()
    size = np.abs(exact).max()
    assert np.abs(reference.logits(tokens) - exact).max() <= TOLERANCES["hugging face"] * size
    assert np.abs(reference.logits(tokens) - true.numpy()).max() <= 1e-6 * max(1, size)
    assert np.abs(ours.logits(tokens) - true.numpy()).max() <= 1e-4
    for model, name in ((ours, "float32"), (reference, "float64")):
        write_folder(out / name, model.config, model.params, None)
        again = loaded_by_transformers(out / name)
        assert all(torch.equal(weight, again.get_parameter(key)) for key, weight in gpt2.named_parameters())
        if again.config.activation_function == gpt2.config.activation_function:  # else it rounds in other places
            assert torch.equal(their_logits(again, tokens), true)
        assert read_config(out / name) == model.config


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_goes_in_and_out(shape, tmp_path):
    gpt2 = their_gpt2(**SHAPES[shape])
    gpt2.save_pretrained(tmp_path / "in")
    check_there_and_back(gpt2, tmp_path / "in", tmp_path)


@pytest.mark.parametrize("save", SAVES)
def test_every_way_of_saving_is_read(save, tmp_path):
    options = dict(SAVES[save])
    dtype, most = options.pop("dtype", torch.float32), options.pop("max_shard_size", "50GB")
    gpt2 = their_gpt2(**options).to(dtype)
    gpt2.save_pretrained(tmp_path / "in", max_shard_size=most)
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 1 or "shards" not in save
    check_there_and_back(gpt2.float(), tmp_path / "in", tmp_path)


def test_the_greedy_continuation_is_the_same(tmp_path):
    gpt2 = their_gpt2()
    gpt2.save_pretrained(tmp_path / "in")
    model = imported(tmp_path / "in")
    write_folder(tmp_path / "out", model.config, model.params, None)
    prompt = some_tokens(61, time=5)[:1]
    start = torch.from_numpy(prompt)
    choices = {"max_new_tokens": 50, "do_sample": False, "pad_token_id": 0}
    theirs = [
        network.generate(start, attention_mask=torch.ones_like(start), **choices)[0].tolist()
        for network in (gpt2, loaded_by_transformers(tmp_path / "out"))
    ]
    tokens = np.zeros((1, 64), dtype=int)  # what comes later is not seen: one length serves all steps
    tokens[:, :5] = prompt
    for time in range(5, 55):
        tokens[0, time] = model.logits(tokens)[0, time - 1].argmax()
    assert theirs == [tokens[0, :55].tolist()] * 2
    assert len(set(theirs[0])) > 10


def test_fine_tuning_goes_on_from_what_was_read(tmp_path):
    their_gpt2().save_pretrained(tmp_path / "in")
    model = imported(tmp_path / "in", batch=2)
    tokens = some_tokens(61, time=9)
    losses = []
    for _ in range(5):
        losses.append(model.forward_backward(tokens[:, :-1], tokens[:, 1:]))
        model.update(lr=1e-2)
    assert losses[-1] < losses[0] - 1


def bpe(path, vocab=300, end=True, normalizer=None):
    """A byte-level tokenizer trained on this very file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>"] if end else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(path))
    return tokenizer


WITH_WORDS = Architecture(layers=1, channels=4, heads=2, vocab=300, context=16)


def some_params(config, dtype=np.float32):
    rng = np.random.default_rng(0)
    weights = transformer.evaluation(Preset("any", config), batch=1, time=1).weights
    return {weight.name: rng.normal(size=weight.shape).astype(dtype) for weight in weights}


@pytest.mark.parametrize("normalizer", [None, normalizers.Lowercase()], ids=["as it is", "lower"])
def test_the_tokenizer_goes_along(normalizer, tmp_path):
    tokenizer = bpe(tmp_path / "words.json", normalizer=normalizer)
    write_folder(tmp_path / "out", WITH_WORDS, some_params(WITH_WORDS), tmp_path / "words.json")
    assert tokenizer_of(tmp_path / "out") == tmp_path / "out" / "tokenizer.json"
    with no_complaints():
        theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Import tokens , the same ! \n\tünïcode 🦊 don't"
    ids = tokenizer.encode(text).ids
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == tokenizer.decode(ids) == (text.lower() if normalizer else text)
    assert theirs.eos_token_id == tokenizer.token_to_id("<|endoftext|>")
    assert loaded_by_transformers(tmp_path / "out").config.eos_token_id == theirs.eos_token_id
    assert theirs.model_max_length == 16
    assert theirs.clean_up_tokenization_spaces is False  # older versions would, and change the text


UNFIT = {
    None: "cannot read",
    "": "is not JSON",
    "{": "is not JSON",
    "{}": "describes no model",
    "[]": "must hold a JSON object",
    '{"model": {"type": "BPE"}}': "no tokenizer that can be read",
    "too many": "token id 300",
    "no end": "no token that is known to end a text",
}


@pytest.mark.parametrize("content", UNFIT)
def test_a_tokenizer_that_does_not_fit_is_refused(content, tmp_path):
    if content == "too many":
        bpe(tmp_path / "words.json", vocab=301)
    elif content == "no end":
        bpe(tmp_path / "words.json", end=False)
    elif content is not None:
        (tmp_path / "words.json").write_text(content)
    with pytest.raises(TapelessError, match=UNFIT[content]):
        write_folder(tmp_path / "out", WITH_WORDS, some_params(WITH_WORDS), tmp_path / "words.json")
    assert not (tmp_path / "out").exists()


def test_the_file_is_what_transformers_would_save(tmp_path):
    their_gpt2(tie_word_embeddings=False).save_pretrained(tmp_path / "in")
    model = imported(tmp_path / "in", "reference")
    write_folder(tmp_path / "out", model.config, model.params, None)
    files = [safe_open(tmp_path / side / "model.safetensors", "numpy") for side in ("in", "out")]
    assert files[0].metadata() == files[1].metadata() == {"format": "pt"}
    assert sorted(files[0].keys()) == sorted(files[1].keys())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert (tmp_path / "out" / "model.safetensors").stat().st_size % 8 == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["resid_pdrop"] == config["embd_pdrop"] == config["attn_pdrop"] == 0


NOT_GPT2 = [
    {"placement": "post"},
    {"positions": "sinusoidal"},
    {"causal": False},
    {"attention_bias": False},
    {"features": 3, "tied": False},
    {"readout": "last"},
    {"loss": "squared_error"},
]


@pytest.mark.parametrize("fields", NOT_GPT2)
def test_what_is_no_gpt2_is_not_written(fields, tmp_path):
    config = replace(WITH_WORDS, **fields)
    with pytest.raises(TapelessError, match=f"this model has {next(iter(fields))}="):
        write_folder(tmp_path / "out", config, some_params(config), None)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_are_not_written(tmp_path):
    params = some_params(WITH_WORDS, np.float64)
    wrong = [
        ({name: array for name, array in params.items() if name != "norm.bias"}, "lack norm.bias"),
        (params | {"head.weight": params["tokens.weight"]}, "hold head.weight"),
        (params | {"norm.bias": np.zeros(5)}, r"norm.bias has shape \(5,\)"),
        (params | {"norm.bias": np.array([0, 1, np.nan, 2])}, "norm.bias with nan"),
        (params | {"norm.bias": np.array([0, 1, 1e39, 2])}, "too large for float32"),
    ]
    for these, fragment in wrong:
        with pytest.raises(TapelessError, match=fragment):
            write_folder(tmp_path / "out", WITH_WORDS, these, None)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path):
    params = some_params(WITH_WORDS)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused = {"file": "exists already", "full": "exists already"}
    for name in ("file", "full", "loop", "file/below", "x" * 5000):
        with pytest.raises(TapelessError, match=refused.get(name, "cannot write")):
            write_folder(tmp_path / name, WITH_WORDS, params, None)
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "file").read_text() == "mine"
    assert len(list(tmp_path.rglob("*"))) == 4

    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("link", "new/below"):
        write_folder(tmp_path / name, WITH_WORDS, params, None)
        assert read_config(tmp_path / name).layers == 1
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("fatal", [1, 2, 3])  # the two files and the folder
def test_a_disk_that_fails_leaves_nothing_behind(fatal, tmp_path, monkeypatch):
    sync, calls = os.fsync, []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == fatal:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(TapelessError, match="out: No space left on device"):
        write_folder(tmp_path / "out", WITH_WORDS, some_params(WITH_WORDS), None)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_leaves_nothing_behind(tmp_path):
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, most[1]))
    try:
        with pytest.raises(TapelessError, match="out: File too large"):
            write_folder(tmp_path / "out", WITH_WORDS, some_params(WITH_WORDS), None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert list(tmp_path.iterdir()) == []


def test_neither_way_holds_a_second_model(tmp_path):
    """80 MB of weights, converted a few at a time."""
    config = Architecture(layers=1, channels=64, heads=1, vocab=150_000, context=4)
    params = some_params(config, np.float64)
    wanted = {name: array.astype(np.float32) for name, array in params.items()}
    tracemalloc.start()
    try:
        write_folder(tmp_path / "out", config, params, None)
        read_config(tmp_path / "out")
        read_weights(tmp_path / "out", config, params)
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    assert all(np.array_equal(params[name], wanted[name]) for name in wanted)
