"""Folders that nobody should have made, and those of older versions: one sentence each, or the right weights."""

import json
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from tapeless.errors import TapelessError
from tapeless.models import transformer
from tapeless.models.config import Architecture, Preset
from tapeless.weights.hugging_face import read_config, read_weights, tokenizer_of

SMALL = Architecture(layers=2, channels=6, heads=3, vocab=11, context=7)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hugging-face") / "good"
    config = GPT2Config(n_layer=2, n_embd=6, n_head=3, vocab_size=11, n_positions=7)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "gpt2"))


def blank():
    """Arrays to read into, filled with a value that is in no file."""
    program = transformer.evaluation(Preset("small", SMALL), batch=1, time=1)
    return {weight.name: np.full(weight.shape, 77.0) for weight in program.weights}


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def edit_tensors(folder, edit):
    tensors = tensors_of(folder)
    changed = edit(tensors)
    save_file(tensors if changed is None else changed, folder / "model.safetensors")


def edit_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config |= fields
    kept = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))


def shard(folder, moved=None):
    """The same weights in two files."""
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {FIRST: names[::2], SECOND: names[1::2]}
    for place, half in halves.items():
        save_file({name: tensors[name] for name in half}, folder / place)
    places = {name: place for place, half in halves.items() for name in half}
    content = {"metadata": {}, "weight_map": places | (moved or {})}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def without_prefix(tensors):
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def with_masks(tensors):
    for block in range(2):
        tensors[f"transformer.h.{block}.attn.bias"] = np.ones((1, 1, 7, 7), np.uint8)
        tensors[f"transformer.h.{block}.attn.masked_bias"] = np.array(-1e4, np.float32)


def with_head(tensors):
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()


@pytest.mark.parametrize("edit", [without_prefix, with_masks, with_head])
def test_what_older_versions_saved_is_read(edit, folder, good):
    edit_tensors(folder, edit)
    read_config(folder)
    found, true = blank(), blank()
    read_weights(folder, SMALL, found)
    read_weights(good, SMALL, true)
    assert all(np.array_equal(found[name], true[name]) for name in true)


def test_shards_and_their_index_are_read(folder, good):
    shard(folder)
    read_config(folder)
    found, true = blank(), blank()
    read_weights(folder, SMALL, found)
    read_weights(good, SMALL, true)
    assert all(np.array_equal(found[name], true[name]) for name in true)


def test_what_a_config_may_leave_out(folder, good):
    edit_config(
        folder,
        n_positions=...,
        n_ctx=7,
        activation_function=...,
        layer_norm_epsilon=...,
        n_inner=...,
        tie_word_embeddings=...,
        scale_attn_weights=...,
        add_cross_attention=...,
    )
    assert read_config(folder) == read_config(good)


def says_one_sentence(error, folder, fragment):
    message = str(error.value)
    assert fragment in message
    assert str(folder) in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 400 + 2 * len(str(folder))


def config_text(text):
    return lambda folder: (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())


def config_with(**fields):
    return lambda folder: edit_config(folder, **fields)


def as_folder(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def as_pipe(name):
    """Reading it would wait for ever."""

    def change(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def as_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("{}")


def removed(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


SIZES = ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions", "n_inner")
NOT_SIZES: tuple[object, ...] = (0, -1, 2**31, 2**62, 2.0, float("nan"), "2", True, [2], {})
BAD_CONFIGS = [
    (removed("config.json"), "there is no file"),
    (as_folder("config.json"), "there is no file"),
    (as_pipe("config.json"), "there is no file"),
    (shutil.rmtree, "there is no file"),
    (as_a_file, "there is no file"),
    (config_text(""), "not JSON"),
    (config_text("{"), "not JSON"),
    (config_text("{'model_type': 'gpt2'}"), "not JSON"),
    (config_text(b"\xff\xfe\xfd{}"), "not JSON"),
    (config_text(b'{"n_layer": "\x80"}'), "not JSON"),
    (config_text("[" * 200_000), "nested too deeply"),
    (config_text('{"model_type": "gpt2", "n_layer": ' + "9" * 5000 + "}"), "n_layer=inf"),
    (config_text(" " * (2**22 + 1)), "longer than"),
    (config_text("[]"), "must hold a JSON object"),
    (config_text("null"), "must hold a JSON object"),
    (config_text('"gpt2"'), "must hold a JSON object"),
    (config_text("{}"), "model_type None"),
    (config_with(model_type="bert"), "model_type 'bert'"),
    (config_with(model_type=["gpt2"]), "model_type ['gpt2']"),
    (config_with(model_type="x" * 10**6), "model_type 'xxx"),
    *[(config_with(**{name: value}), f"{name}=") for name in SIZES for value in NOT_SIZES],
    *[(config_with(**{name: ...}), f"has no {name}") for name in SIZES[:-1]],
    (config_with(n_head=4), "n_head=4 does not divide"),
    (config_with(n_head=7), "n_head=7 does not divide"),
    (config_with(activation_function="gelu"), "tanh form only"),
    (config_with(activation_function="silu"), "activation_function='silu'"),
    (config_with(activation_function=None), "activation_function=None"),
    (config_with(activation_function=["relu"]), "activation_function=['relu']"),
    (config_with(layer_norm_epsilon=0), "layer_norm_epsilon=0"),
    (config_with(layer_norm_epsilon=-1e-5), "layer_norm_epsilon=-1e-05"),
    (config_with(layer_norm_epsilon=float("nan")), "layer_norm_epsilon=nan"),
    (config_with(layer_norm_epsilon="1e-5"), "layer_norm_epsilon='1e-5'"),
    (config_with(tie_word_embeddings="yes"), "tie_word_embeddings='yes'"),
    (config_with(tie_word_embeddings=1), "tie_word_embeddings=1"),
    (config_with(scale_attn_weights=False), "scale_attn_weights=False"),
    (config_with(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx=True"),
    (config_with(add_cross_attention=True), "add_cross_attention=True"),
    (config_with(add_cross_attention="\ud800"), "'add_cross_attention' holds half a surrogate pair"),
    (config_with(n_layer=10**30), "n_layer=1000000000000000000000000000000: it must be a whole number from 1 to"),
    (config_with(n_layer=10**4000), "n_layer=inf: it must be a whole number from 1 to"),
    # Sizes that could be, but not with the tensors that are there.
    (config_with(n_layer=10**9), "layers=1000000000"),
    (config_with(n_layer=3), "n_layer=3"),
    (config_with(n_layer=1), "has no place for"),
    (config_with(n_embd=3 * 10**8), "shape"),
    (config_with(vocab_size=10**9), "(1000000000, 6)"),
    (config_with(n_positions=8), "(8, 6)"),
    (config_with(n_inner=25), "25"),
    (config_with(tie_word_embeddings=False), "lacks the tensor 'lm_head.weight'"),
]


@pytest.mark.parametrize(("change", "fragment"), BAD_CONFIGS)
def test_a_malformed_config_is_one_sentence(change, fragment, folder):
    change(folder)
    with pytest.raises(TapelessError) as error:
        read_config(folder)
    says_one_sentence(error, folder, fragment)


def tensors_with(**changes):
    """Tensors changed, added or, with None, removed; `.` is written `__`."""

    def edit(tensors):
        for name, change in changes.items():
            name = name.replace("__", ".")
            if change is None:
                del tensors[name]
            else:
                tensors[name] = np.array(change(tensors[name]) if callable(change) else change, order="C")

    return lambda folder: edit_tensors(folder, edit)


def file_of(content):
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def header(entries, data=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return file_of((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def cut(folder, keep):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:keep] if keep else whole + b"1234")


def one(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def placed(place, name="transformer.wte.weight"):
    return lambda folder: shard(folder, {name: place})


def shard_and(change):
    return lambda folder: (shard(folder), change(folder))


def index_of(text):
    return shard_and(lambda folder: (folder / "model.safetensors.index.json").write_text(text))


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def twice(tensors):
    tensors["wte.weight"] = tensors["transformer.wte.weight"].copy()


UNSOUND = "is not a sound safetensors file"
BAD_FILES = [
    (removed("model.safetensors"), "there is no file"),
    (as_folder("model.safetensors"), "there is no file"),
    (as_pipe("model.safetensors"), "there is no file"),
    (pickled, "pickle only"),
    (file_of(b""), UNSOUND),
    (file_of(b"1234567"), UNSOUND),
    (file_of(bytes(8)), UNSOUND),
    (file_of(b"PK\x03\x04" + bytes(100)), UNSOUND),
    (header({}, length=2**60), UNSOUND),
    (header({}, length=2**22), UNSOUND),
    (header({}, length=3), UNSOUND),
    (header(b"{{"), UNSOUND),
    (header(b'{"\xff": 1}'), UNSOUND),
    (header([]), UNSOUND),
    (header(b'{"a":' + b"[" * 10_000), UNSOUND),
    (header({"a": 1}), UNSOUND),
    (header({"a": {"dtype": "F32"}}), UNSOUND),
    (header({"a": one("F33")}, bytes(4)), UNSOUND),
    (header({"x" * 10**6: one(offsets=(0, 5))}, bytes(5)), UNSOUND),
    (header({"a": one(shape=(-1,))}, bytes(4)), UNSOUND),
    (header({"a": one(shape=(2**62, 2**62))}, bytes(4)), UNSOUND),
    (header({"a": one(shape=(2,))}, bytes(4)), UNSOUND),
    (header({"a": one(offsets=(4, 0))}, bytes(4)), UNSOUND),
    (header({"a": one(offsets=(0, 2**40))}, bytes(4)), UNSOUND),
    (header({"a": one(), "b": one()}, bytes(4)), UNSOUND),
    (header({}), "tensor"),
    (header({"__metadata__": {"format": "pt"}}), "tensor"),
    *[(lambda folder, keep=keep: cut(folder, keep), UNSOUND) for keep in (9, 1000, -4, 0)],
    (tensors_with(transformer__wte__weight=None), "lacks the tensor 'wte.weight'"),
    (tensors_with(transformer__h__1__mlp__c_fc__bias=None), "lacks the tensor 'h.1.mlp.c_fc.bias'"),
    (tensors_with(transformer__ln_f__bias=None, transformer__ln_f__weight=None), "'ln_f.bias' and 1 more"),
    (tensors_with(score__weight=np.zeros(3)), "holds the tensor 'score.weight'"),
    (tensors_with(transformer__h__2__attn__c_attn__bias=np.zeros(18)), "'h.2.attn.c_attn.bias'"),
    (tensors_with(**{"x" * 10**5: np.zeros(1)}), "holds the tensor 'xxx"),
    (lambda folder: edit_tensors(folder, twice), "twice"),
    (tensors_with(transformer__h__0__mlp__c_fc__weight=np.transpose), "shape (24, 6)"),
    (tensors_with(transformer__wpe__weight=lambda array: array[:-1]), "shape (6, 6)"),
    (tensors_with(transformer__ln_f__weight=np.array(1.0)), "shape ()"),
    (tensors_with(transformer__ln_f__weight=lambda array: array[None]), "shape (1, 6)"),
    (tensors_with(transformer__ln_f__weight=np.zeros(0)), "shape (0,)"),
    (tensors_with(lm_head__weight=np.zeros((11, 5))), "shape (11, 5)"),
    (tensors_with(transformer__ln_f__weight=lambda array: array.astype(np.int64)), "as int64"),
    (tensors_with(transformer__ln_f__weight=lambda array: array > 0), "as bool"),
    (tensors_with(lm_head__weight=np.zeros((11, 6), np.int8)), "as int8"),
    (index_of("{"), "not JSON"),
    (index_of("[1]"), "JSON object"),
    (index_of("{}"), "weight_map"),
    (index_of('{"weight_map": {}}'), "weight_map"),
    (index_of('{"weight_map": 3}'), "weight_map"),
    (shard_and(removed(FIRST)), "no such file"),
    (shard_and(as_folder(SECOND)), "no such file"),
    (placed(SECOND, "transformer.h.9.mlp.c_fc.bias"), "but it is not"),
    (placed("model-00003-of-00002.safetensors"), "no such file"),
    (placed("../gpt2/" + FIRST), "not the name"),
    (placed("../x.safetensors"), "not the name"),
    (placed("/etc/passwd"), "not the name"),
    (placed("/tmp/x.safetensors"), "not the name"),
    (placed("..\\x.safetensors"), "not the name"),
    (placed("a\0.safetensors"), "not the name"),
    (placed("a" * 5000 + ".safetensors"), "not the name"),
    (placed("config.json"), "not the name"),
    (placed(""), "not the name"),
    (placed(7), "not the name"),
    (placed([FIRST]), "not the name"),
]


@pytest.mark.parametrize(("change", "fragment"), BAD_FILES)
def test_malformed_files_are_one_sentence_and_change_nothing(change, fragment, folder):
    change(folder)
    arrays = blank()
    with pytest.raises(TapelessError, match=re.escape(fragment)):
        read_config(folder)  # before memory is taken for such a model
    with pytest.raises(TapelessError) as error:
        read_weights(folder, SMALL, arrays)
    says_one_sentence(error, folder, fragment)
    assert all((array == 77).all() for array in arrays.values())


def value_inside(value):
    def change(array):
        array[-1] = value
        return array

    return change


def another_head(tensors):
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()
    tensors["lm_head.weight"][-1, -1] += 1


def as_float64(array):
    return value_inside(1e300)(array.astype(np.float64))


BAD_VALUES = [
    (tensors_with(transformer__wte__weight=value_inside(np.nan)), "'transformer.wte.weight' with nan inside"),
    (tensors_with(transformer__ln_f__bias=value_inside(np.inf)), "'transformer.ln_f.bias' with inf inside"),
    (tensors_with(transformer__wpe__weight=value_inside(-np.inf)), "with -inf inside"),
    (tensors_with(transformer__h__1__mlp__c_fc__bias=as_float64), "too large for float32"),
    (lambda folder: edit_tensors(folder, another_head), "tie_word_embeddings to false"),
]


@pytest.mark.parametrize(("change", "fragment"), BAD_VALUES)
def test_malformed_values_are_one_sentence_and_change_nothing(change, fragment, folder):
    change(folder)
    read_config(folder)
    arrays = {name: array.astype(np.float32) for name, array in blank().items()}
    with pytest.raises(TapelessError) as error:
        read_weights(folder, SMALL, arrays)
    says_one_sentence(error, folder, fragment)
    assert all((array == 77).all() for array in arrays.values())


def test_weights_of_another_model_are_not_read(good):
    for changed in ({"layers": 1}, {"layers": 3}, {"channels": 3}, {"tied": False}, {"hidden": 6}):
        preset = Preset("small", SMALL).override(**changed)
        program = transformer.evaluation(preset, batch=1, time=1)
        arrays = {weight.name: np.full(weight.shape, 77.0) for weight in program.weights}
        with pytest.raises(TapelessError):
            read_weights(good, preset.architecture, arrays)
        assert all((array == 77).all() for array in arrays.values())


def test_a_damaged_header_is_read_or_refused(folder):
    """Whatever a flipped bit makes of the header: the weights, or one sentence and nothing changed."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200 * int(os.environ.get("TAPELESS_SOAK", "1"))):
        damaged = bytearray(whole)
        length = 8 + int.from_bytes(whole[:8], "little")
        damaged[rng.integers(length)] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        arrays = blank()
        try:
            read_config(folder)
            read_weights(folder, SMALL, arrays)
        except TapelessError:
            refused += 1
            assert all((array == 77).all() for array in arrays.values())
        else:
            assert not any((array == 77).any() for array in arrays.values())
    assert refused > 100


@contextmanager
def nobody():
    """Root may read everything: step back from it for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "."])
def test_what_may_not_be_read_is_one_sentence(name, good):
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others as a whole
        Path(place).chmod(0o755)
        folder = Path(shutil.copytree(good, Path(place) / "gpt2"))
        arrays = blank()
        read_config(folder)
        (folder / name).chmod(0)
        with nobody(), pytest.raises(TapelessError) as error:
            read_config(folder)
        says_one_sentence(error, folder, "Permission denied")
        if name != "config.json":
            with nobody(), pytest.raises(TapelessError, match="Permission denied"):
                read_weights(folder, SMALL, arrays)
        (folder / name).chmod(0o755)
        assert all((array == 77).all() for array in arrays.values())


def test_the_tokenizer_of_a_folder(folder):
    assert tokenizer_of(folder) is None
    (folder / "tokenizer.json").write_text("{}")
    assert tokenizer_of(folder) == folder / "tokenizer.json"
    assert tokenizer_of(folder / "config.json") is None
    with pytest.raises(TapelessError, match="cannot read"):
        tokenizer_of(folder / ("x" * 5000))
