"""Broken tokenizers, shards, descriptions and texts: one sentence each, nothing left behind, little memory."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.tasks.data.tokens import open_data
from tests.tasks.data.test_tokens import llm_c, raw
from tests.tasks.data.texts import description, small_bpe, small_bpe_json

MOST_MEMORY = 16 << 20


def refused(action, *says: str) -> None:
    """One sentence that names what is wrong, in bounded memory."""
    tracemalloc.start()
    try:
        with pytest.raises(TapelessError) as caught:
            action()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 600
    for words in says:
        assert words in message
    assert peak < MOST_MEMORY


# --- tokenizer.json -------------------------------------------------------------------------------------------------

NOT_JSON = {
    "empty": b"",
    "space": b"  \n",
    "cut off": small_bpe_json().encode()[:500],
    "cut off at the end": small_bpe_json().encode()[:-1],
    "twice": small_bpe_json().encode() * 2,
    "text": b"this is no tokenizer",
    "binary": bytes(range(256)),
    "not UTF-8": b'{"model": "\xff"}',
    "UTF-16": small_bpe_json().encode("utf-16"),
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "list": b"[1, 2]",
    "number": b"17",
    "null": b"null",
    "string": b'"bytes"',
    "no model": b"{}",
    "model null": b'{"model": null}',
    "model list": b'{"model": []}',
    "model text": b'{"model": "BPE"}',
    "SentencePiece": b"\x0a\x0b\x0a\x05<unk>\x15\0\0\0\0\x18\x02",
    "a model's config.json": b'{"model_type": "gpt2", "vocab_size": 50257}',
    "vocab.json": b'{"!": 0, "a": 1, "<|endoftext|>": 2}',
}


@pytest.mark.parametrize("content", NOT_JSON.values(), ids=NOT_JSON)
def test_a_file_that_is_no_tokenizer(tmp_path, content, capfd):
    (tmp_path / "tokenizer.json").write_bytes(content)
    refused(lambda: load_tokenizer(tmp_path), "tokenizer.json")
    assert capfd.readouterr() == ("", "")


def set_in(*path_and_value):
    *path, value = path_and_value

    def change(content):
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


def without(*path):
    def change(content):
        for name in path[:-1]:
            content = content[name]
        del content[path[-1]]

    return change


def only_vocab(vocab, **more):
    def change(content):
        content["model"] = {"type": "BPE", "vocab": vocab, "merges": [], **more}
        content["added_tokens"] = []

    return change


WORD_LEVEL = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "[UNK]"}

DAMAGED = {
    "unknown model": set_in("model", "type", "Nonsense"),
    "model type a number": set_in("model", "type", 5),
    "no vocab": without("model", "vocab"),
    "vocab a list": set_in("model", "vocab", ["a", "b"]),
    "vocab a number": set_in("model", "vocab", 1e-05),
    "vocab null": set_in("model", "vocab", None),
    "vocab of texts": set_in("model", "vocab", {"a": "0"}),
    "id negative": set_in("model", "vocab", "foo", -1),
    "id a fraction": set_in("model", "vocab", "foo", 1.5),
    "id above 32 bits": set_in("model", "vocab", "foo", 2**32),
    "id huge": set_in("model", "vocab", "foo", 4_000_000_000),
    "id just too large": set_in("model", "vocab", "foo", 1 << 24),
    "id given twice": set_in("model", "vocab", "foo", 100),
    "vocab empty": only_vocab({}),
    "no end": only_vocab({"a": 0, "b": 1}),
    "no merges": without("model", "merges"),
    "merges a text": set_in("model", "merges", "a b"),
    "merge of unknown tokens": set_in("model", "merges", [["zz", "qq"]]),
    "merge of one": set_in("model", "merges", [["a"]]),
    "merge of three": set_in("model", "merges", ["a b c"]),
    "merge of numbers": set_in("model", "merges", [[1, 2]]),
    "merge into nothing": set_in("model", "merges", [["~", "~"]]),
    "version of tomorrow": set_in("version", "9.0"),
    "version a number": set_in("version", 1),
    "added tokens an object": set_in("added_tokens", {"id": 0}),
    "added token without id": set_in("added_tokens", [{"content": "x"}]),
    "added token of id −1": set_in("added_tokens", 0, "id", -1),
    "unknown pre-tokenizer": set_in("pre_tokenizer", {"type": "Nonsense"}),
    "pre-tokenizer a text": set_in("pre_tokenizer", "ByteLevel"),
    "a broken regular expression": set_in(
        "pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    ),
    "unknown decoder": set_in("decoder", {"type": "Nonsense"}),
    "unknown normalizer": set_in("normalizer", {"type": "Nonsense"}),
    "unknown post-processor": set_in("post_processor", {"type": "Nonsense"}),
    "a normalizer that panics": set_in("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "words without the unknown word": set_in("model", WORD_LEVEL),
    "unigram of nothing": set_in("model", {"type": "Unigram", "vocab": [], "unk_id": 0}),
    "unigram with an unknown id outside": set_in("model", {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}),
    "unigram without an unknown id": set_in("model", {"type": "Unigram", "vocab": [["</s>", 0.0]], "unk_id": None}),
    "pieces of words without the unknown": set_in(
        "model",
        {
            "type": "WordPiece",
            "vocab": {"a": 0, "</s>": 1},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 9,
        },
    ),
    "half a surrogate pair": set_in("model", "vocab", "\ud800", 999),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_tokenizer(tmp_path, damage, capfd):
    content = description()
    damage(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    refused(lambda: load_tokenizer(tmp_path / "tokenizer.json"), "tokenizer.json")
    assert capfd.readouterr() == ("", "")


def test_a_file_far_too_large_is_not_read(tmp_path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room
    refused(lambda: load_tokenizer(tmp_path), "too long")


TOKENIZER_PATHS = [
    "",
    "byte",
    "nowhere/tokenizer.json",
    "empty_folder",
    "a\0b",
    "x" * 300,
    "~nobody_here/x",
    "/dev/null",
]


@pytest.mark.parametrize("spec", TOKENIZER_PATHS, ids=lambda spec: repr(spec[:20]))
def test_a_path_that_leads_to_no_tokenizer(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty_folder").mkdir()
    refused(lambda: load_tokenizer(spec))


def test_a_text_that_is_none(tmp_path):
    undecoded = b"a\xffb".decode("utf-8", "surrogateescape")  # as a command line brings it
    for tokenizer in (small_bpe(), load_tokenizer("bytes")):
        refused(lambda tokenizer=tokenizer: tokenizer.encode("a\ud800b"), "surrogate")
        refused(lambda tokenizer=tokenizer: tokenizer.encode(undecoded), "byte 0xff at 1, which is not UTF-8")


# --- shards ---------------------------------------------------------------------------------------------------------

IDS = list(range(1, 101))


BINS = {
    "empty": (lambda path: path.write_bytes(b""), "holds no tokens"),
    "one byte": (lambda path: path.write_bytes(b"a"), "cut off"),
    "an odd number of bytes": (lambda path: path.write_bytes(b"abc" * 101), "cut off"),
    "one id": (lambda path: raw(path, [7]), "needs 2"),
    "two ids": (lambda path: raw(path, [7, 8]), "needs 2"),
    "32 bits": (lambda path: raw(path, IDS, "<u4"), "16-bit"),
    "64 bits": (lambda path: raw(path, IDS, "<i8"), "16-bit"),
    "npy": (lambda path: path.write_bytes(b"\x93NUMPY\x01" + bytes(99)), "NumPy"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b" + bytes(100)), "gzip"),
    "zip": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)), "zip"),
    "header alone": (lambda path: llm_c(path, []), "holds no tokens"),
    "header cut off after 4 bytes": (lambda path: path.write_bytes(np.int32(20240520).tobytes()), "1024"),
    "header cut off before its end": (lambda path: path.write_bytes(llm_c(path, IDS)[:1022]), "1024"),
    "version 0": (lambda path: llm_c(path, IDS, version=0), "version 0"),
    "version 2": (lambda path: llm_c(path, IDS, version=2), "version 2"),
    "version negative": (lambda path: llm_c(path, IDS, version=-1), "version -1"),
    "wide ids with the other version": (lambda path: llm_c(path, IDS, 20240801, 1, "<u4"), "version 1"),
    "one token fewer than said": (lambda path: llm_c(path, IDS, count=101), "header says 101"),
    "one token more than said": (lambda path: llm_c(path, IDS, count=99), "header says 99"),
    "no token said": (lambda path: llm_c(path, IDS, count=0), "header says 0"),
    "a negative count": (lambda path: llm_c(path, IDS, count=-5), "header says -5"),
    "a huge count": (lambda path: llm_c(path, IDS, count=2**31 - 1), "header says 2,147,483,647"),
    "ids of 32 bits under the header of 16": (lambda path: llm_c(path, IDS, dtype="<u4"), "header says 100"),
    "ids of 16 bits under the header of 32": (lambda path: llm_c(path, IDS, 20240801, 7), "header says 100"),
    "an odd number of bytes behind the header": (
        lambda path: path.write_bytes(llm_c(path, IDS) + b"x"),
        "cut off",
    ),
    "cut off in the middle": (lambda path: path.write_bytes(llm_c(path, IDS)[:1100]), "holds 38 tokens"),
    "an llm.c checkpoint": (lambda path: llm_c(path, IDS, 20240326, 3), "20240326"),
    "an llm.c evaluation": (lambda path: llm_c(path, IDS, 20240522), "20240522"),
    "a magic number of nothing": (lambda path: llm_c(path, IDS, 77), "begins with 77"),
    "a magic number that is negative": (lambda path: llm_c(path, IDS, -1), "begins with 4294967295"),
    "a magic number off by one": (lambda path: llm_c(path, IDS, 20240521), "20240521"),
    "a header of big-endian numbers": (
        lambda path: path.write_bytes(np.array([20240520, 1, 5] + [0] * 253, ">i4").tobytes() + bytes(10)),
        "big-endian",
    ),
    "ids beyond any vocabulary": (lambda path: llm_c(path, [*IDS, 2**31], 20240801, 7, "<u4"), "2147483648"),
    "ids of −1": (lambda path: llm_c(path, [*IDS, 2**32 - 1], 20240801, 7, "<u4"), "4294967295"),
    "a huge empty file of llm.c": (
        lambda path: os.truncate(path, len(llm_c(path, IDS)) + (1 << 40)),
        "header says 100",
    ),
}


@pytest.mark.parametrize("place", ["all.bin", "nanogpt/train.bin", "nanogpt/val.bin", "llmc/x_train_0.bin"])
@pytest.mark.parametrize("case", BINS)
def test_a_broken_shard(tmp_path, case, place):
    if case == "two ids" and place != "all.bin":
        case = "one id"  # two are enough where nothing has to be cut off
    write, says = BINS[case]
    if case in ("one id", "32 bits", "64 bits") and place.startswith("llmc"):
        says = "begins with"
    for folder, train, val in (("nanogpt", "train.bin", "val.bin"), ("llmc", "x_train_0.bin", "x_val_0.bin")):
        (tmp_path / folder).mkdir()
        llm_c(tmp_path / folder / train, IDS)
        llm_c(tmp_path / folder / val, IDS)
    write(tmp_path / place)
    refused(lambda: open_data(tmp_path / place if place == "all.bin" else (tmp_path / place).parent), says)


FOLDERS = {
    "empty": ([], "holds no tokens"),
    "text": (["a.txt"], "holds no tokens"),
    "train.bin alone": (["train.bin"], "no val.bin"),
    "val.bin alone": (["val.bin"], "no train.bin"),
    "llm.c without validation": (["x_train_0.bin"], "no *_val_*.bin"),
    "llm.c without training": (["x_val_0.bin"], "no *_train_*.bin"),
    "two data sets": (["x_train_0.bin", "x_val_0.bin", "y_train_0.bin"], "several sets of tokens (x, y)"),
    "a pickle alone": (["meta.pkl"], "holds no tokens"),
    "tokens of neither name": (["tokens.bin"], "holds no tokens"),
}


@pytest.mark.parametrize(("names", "says"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_without_tokens(tmp_path, names, says):
    for name in names:
        llm_c(tmp_path / name, IDS)
    refused(lambda: open_data(tmp_path), says)


def test_paths_that_lead_to_no_tokens(tmp_path):
    (tmp_path / "text.txt").write_text("text")
    refused(lambda: open_data(tmp_path / "nowhere"), "there is no")
    refused(lambda: open_data(tmp_path / "nowhere.bin"), "there is no")
    refused(lambda: open_data(tmp_path / "text.txt"), "tapeless tokenize")
    refused(lambda: open_data(tmp_path / ("x" * 300)), "cannot read")
    os.mkfifo(tmp_path / "pipe.bin")
    refused(lambda: open_data(tmp_path / "pipe.bin"), "no file")
    (tmp_path / "folder/train.bin").mkdir(parents=True)
    raw(tmp_path / "folder/val.bin", IDS)
    refused(lambda: open_data(tmp_path / "folder"), "no file")


# --- folders that `prepare` made ------------------------------------------------------------------------------------


@pytest.fixture(params=["bytes", "bpe"])
def prepared(tmp_path, request):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"a line of text {number}\n" * 50)
    prepare(str(tmp_path / "*.txt"), tmp_path / "out", tokenizer=request.param, vocab={"bpe": 270}.get(request.param))
    return tmp_path / "out"


META = {
    "format": (set_in("format", "other"), "does not describe"),
    "no format": (without("format"), "does not describe"),
    "version of tomorrow": (set_in("version", 2), "version 2"),
    "no version": (without("version"), "version None"),
    "no vocab": (without("vocab"), "vocab must be"),
    "vocab a text": (set_in("vocab", "257"), "vocab must be"),
    "vocab true": (set_in("vocab", True), "vocab must be"),
    "vocab 0": (set_in("vocab", 0), "vocab must be"),
    "vocab huge": (set_in("vocab", 1 << 40), "vocab must be"),
    "vocab another": (set_in("vocab", 300), "its tokenizer has vocab"),
    "end outside": (set_in("end", 5000), "end must be"),
    "end another": (set_in("end", 17), "its tokenizer has end 256, and meta.json says 17"),
    "dtype another": (set_in("dtype", "uint32"), "dtype must be"),
    "dtype unknown": (set_in("dtype", "float16"), "dtype must be"),
    "dtype a number": (set_in("dtype", 16), "dtype must be"),
    "seed negative": (set_in("seed", -1), "seed must be"),
    "source a number": (set_in("source", 1), "source must be"),
    "no tokenizer": (without("tokenizer"), "tokenizer must be"),
    "tokenizer of no file": (set_in("tokenizer", "bpe-270"), ""),
    "skipped a list": (set_in("skipped", []), "skipped must be"),
    "skipped minus one": (set_in("skipped", {"binary": -1}), "skipped.binary must be"),
    "no training": (without("training"), "training must be"),
    "training a list": (set_in("training", []), "training must be"),
    "no shards": (without("training", "shards"), "training.shards must be"),
    "shards empty": (set_in("training", "shards", []), "training.shards must be"),
    "shards of numbers": (set_in("training", "shards", [1]), "training.shards[0] must be"),
    "shards an object": (set_in("training", "shards", {}), "training.shards must be"),
    "shard without a name": (without("training", "shards", 0, "file"), "training.shards[0].file must be"),
    "shard elsewhere": (set_in("training", "shards", 0, "file", "../secret.bin"), "training.shards[0].file must be"),
    "shard absolute": (set_in("training", "shards", 0, "file", "/etc/passwd"), "training.shards[0].file must be"),
    "shard missing": (set_in("training", "shards", 0, "file", "training-0009.bin"), "training-0009.bin is missing"),
    "shard without a digest": (without("validation", "shards", 0, "sha256"), "validation.shards[0].sha256 must be"),
    "shard with half a digest": (set_in("validation", "shards", 0, "sha256", "ab"), "64 hexadecimal"),
    "shard with another digest": (set_in("validation", "shards", 0, "sha256", "0" * 64), "SHA-256 differs"),
    "shard of −1 tokens": (set_in("training", "shards", 0, "tokens", -1), "training.shards[0].tokens must be"),
    "tokens another sum": (set_in("training", "tokens", 5), "training.tokens must be the sum"),
    "documents 0": (set_in("training", "documents", 0), "training.documents must be"),
    "bytes a fraction": (set_in("training", "bytes", 1.5), "training.bytes must be"),
    "validation is training": (set_in("validation", "shards", 0, "file", "training-0000.bin"), "training-0000.bin"),
}


@pytest.mark.parametrize("prepared", ["bytes"], indirect=True)
@pytest.mark.parametrize(("damage", "says"), META.values(), ids=META)
def test_a_damaged_description(prepared, damage, says):
    content = json.loads((prepared / "meta.json").read_text())
    damage(content)
    (prepared / "meta.json").write_text(json.dumps(content))
    refused(lambda: open_data(prepared), says)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"nonsense"], ids=repr)
@pytest.mark.parametrize("prepared", ["bytes"], indirect=True)
def test_a_description_that_is_none(prepared, content):
    (prepared / "meta.json").write_bytes(content)
    refused(lambda: open_data(prepared), "meta.json")


def ids_in(path: Path):
    return np.memmap(path, "<u2", mode="r+")


def spoil(index: int, value: int):
    def damage(folder):
        ids_in(folder / "training-0000.bin")[index] = value

    return damage


SPOILED = {
    "an id outside the vocabulary": (spoil(5, 5000), "holds the id 5000, outside the vocabulary"),
    "the first id outside the vocabulary": (spoil(-1, 300), "holds the id 300, outside the vocabulary"),
    "another id": (spoil(7, 1), "SHA-256 differs"),
    "a shard cut off": (lambda folder: os.truncate(folder / "training-0000.bin", 100), "holds 50 tokens"),
    "a shard with an odd length": (lambda folder: os.truncate(folder / "training-0000.bin", 101), "cut off"),
    "a shard longer": (lambda folder: os.truncate(folder / "training-0000.bin", 1 << 40), "tokens, and meta.json says"),
    "a shard empty": (lambda folder: os.truncate(folder / "validation-0000.bin", 0), "holds no tokens"),
    "a shard gone": (lambda folder: (folder / "validation-0000.bin").unlink(), "is missing"),
    "a folder in place of a shard": (
        lambda folder: ((folder / "validation-0000.bin").unlink(), (folder / "validation-0000.bin").mkdir()),
        "is missing",
    ),
    "no description": (lambda folder: (folder / "meta.json").unlink(), "holds no tokens"),
}


@pytest.mark.parametrize(("damage", "says"), SPOILED.values(), ids=SPOILED)
def test_prepared_tokens_that_were_spoiled(prepared, damage, says):
    damage(prepared)
    refused(lambda: open_data(prepared), says)


@pytest.mark.parametrize("prepared", ["bpe"], indirect=True)
def test_prepared_tokens_with_another_tokenizer(prepared):
    small_bpe().save(prepared)
    refused(lambda: open_data(prepared), "its tokenizer has name 'bpe-320', and meta.json says")
    (prepared / "tokenizer.json").unlink()
    refused(lambda: open_data(prepared), "holds no tokenizer.json")


# --- text -----------------------------------------------------------------------------------------------------------

TEXTS = {
    "empty": (b"", "is empty"),
    "only a mark": (b"\xef\xbb\xbf", "is empty"),
    "one byte": (b"a", "single byte"),
    "one character": ("€".encode(), "single character"),
    "two characters": (b"ab", "needs 2"),
    "NUL": (b"text\0text", "NUL byte at offset 4"),
    "half a character of UTF-16": ("text\n".encode("utf-16")[:-1], "not utf-16: byte 0x0a at offset 10 "),
    "half a pair of UTF-16": (b"\xfe\xff\0t\xd8\0\0e", "not utf-16: byte 0xd8 at offset 4 "),
    "Latin-1": ("größe\n".encode("latin-1") * 9, "byte 0xf6 at offset 2 "),
    "a lone continuation": (b"line\n" * 9 + b"\x80", "byte 0x80 at offset 45 "),
    "a character cut off": (b"line\n" * 9 + b"\xe2\x82", "byte 0xe2 at offset 45 "),
    "an overlong form": (b"line\n" * 9 + b"\xc0\xaf", "byte 0xc0 at offset 45 "),
    "a surrogate": (b"line\n" * 9 + b"\xed\xa0\x80", "byte 0xed at offset 45 "),
    "beyond Unicode": (b"line\n" * 9 + b"\xf5\x80\x80\x80", "byte 0xf5 at offset 45 "),
    "a mark and a bad byte": (b"\xef\xbb\xbf" + b"line\n" * 9 + b"\xff", "byte 0xff at offset 48 "),
    "a bad byte in the second piece": (b"line\n" * 100_000 + b"\xff\n", "byte 0xff at offset 500,000 "),
    "continuations only": (b"\x80" * 300_000, "byte 0x80 at offset 0 "),
}


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
@pytest.mark.parametrize(("content", "says"), TEXTS.values(), ids=TEXTS)
def test_a_text_that_cannot_be_learned_from(tmp_path, content, says, tokenizer):
    (tmp_path / "text.txt").write_bytes(content)
    refused(lambda: prepare(str(tmp_path / "text.txt"), tmp_path / "out", tokenizer=tokenizer), says)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


SOURCES = {
    "nothing": ("", "names no text"),
    "NUL": ("a\0b", "names no text"),
    "no such file": ("nowhere.txt", "there is no nowhere.txt"),
    "a folder with nothing": ("nothing", "nothing is there"),
    "a folder without text": ("binary", "1 hidden, 2 binary, 1 empty"),
    "a glob that matches nothing": ("*.nothing", "nothing is there"),
    "a glob that matches a folder": ("nothi*", "nothing is there"),
    "a glob that is none": ("[", "nothing is there"),
    "a glob of binary files": ("binary/*.png", "2 binary"),
    "a device": ("/dev/zero", "neither a file nor a folder"),
    "a name far too long": ("x" * 300, "cannot read"),
    "an unknown user's folder": ("~nobody_here/text", "there is no"),
    "only text that is not UTF-8": ("latin", "latin holds no text (1 not UTF-8)"),
}


@pytest.mark.parametrize(("source", "says"), SOURCES.values(), ids=SOURCES)
def test_a_source_without_text(tmp_path, monkeypatch, source, says):
    monkeypatch.chdir(tmp_path)
    files = {
        "binary/a.png": b"\x89PNG\0",
        "binary/b.png": b"\0",
        "binary/.hidden": b"text",
        "binary/empty": b"",
        "latin/c.txt": b"bad\xff" * 9,
    }
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    Path("nothing").mkdir()
    refused(lambda: prepare(source, Path("out")), says)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "latin", "nothing"]


ARGUMENTS = {
    "validation 0": ({"validation": 0}, "validation"),
    "validation 1": ({"validation": 1}, "validation"),
    "validation negative": ({"validation": -0.1}, "validation"),
    "validation NaN": ({"validation": float("nan")}, "validation"),
    "validation a text": ({"validation": "0.1"}, "validation"),
    "validation true": ({"validation": True}, "validation"),
    "seed negative": ({"seed": -1}, "seed"),
    "seed a fraction": ({"seed": 0.5}, "seed"),
    "tokenizer unknown": ({"tokenizer": "byte"}, "there is no tokenizer byte"),
    "vocab with bytes": ({"vocab": 300}, "leave it out"),
    "vocab below the bytes": ({"tokenizer": "bpe", "vocab": 256}, "from 257"),
    "vocab huge": ({"tokenizer": "bpe", "vocab": 10**12}, "to 16,777,216"),
    "vocab a fraction": ({"tokenizer": "bpe", "vocab": 300.0}, "vocab"),
}


@pytest.mark.parametrize(("arguments", "says"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_make_no_sense(tmp_path, arguments, says):
    (tmp_path / "text.txt").write_text("line\n" * 50)
    refused(lambda: prepare(str(tmp_path / "text.txt"), tmp_path / "out", **arguments), says)
    assert not (tmp_path / "out").exists()


OUTS = {
    "below a file": ("text.txt/out", "cannot write"),
    "a file": ("text.txt", "exists already"),
    "a link to nowhere": ("link", "exists already"),
    "a name far too long": ("x" * 300, "cannot write"),
    "NUL": ("a\0b", "choose another"),
}


@pytest.mark.parametrize(("out", "says"), OUTS.values(), ids=OUTS)
def test_a_folder_that_cannot_be_made(tmp_path, out, says):
    (tmp_path / "text.txt").write_text("line\n" * 50)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(lambda: prepare(str(tmp_path / "text.txt"), tmp_path / out), says)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "text.txt"]
    assert (tmp_path / "text.txt").read_text() == "line\n" * 50
