"""`tapeless tokenize` as a user types it: in a process of its own, for people and for machines."""

import gzip
import json

import pytest

from tapeless.tasks.data.tokens import open_data
from tests.cli.typed import typed
from tests.tasks.data.texts import small_bpe, text


def tokenize(*words: str, folder):
    return typed("tokenize", *words, folder=folder)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(10):
        (tmp_path / f"texts/{number}.txt").write_text(text(50, seed=number), encoding="utf-8")
    (tmp_path / "texts/picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path


def test_for_people_a_table_and_what_to_type_next(folder):
    done = tokenize("texts", folder=folder)
    assert done.returncode == 0, done.stderr
    data = open_data(folder / "data/texts-bytes")
    for words in ("documents", "tokens per byte", "bytes, vocabulary 257", "left out: 1 binary"):
        assert words in done.stdout, words
    for tokens in (data.training, data.validation):
        assert f"{len(tokens):,}" in done.stdout
    assert "train gpt2-4x256 --data data/texts-bytes" in done.stdout


def test_for_machines_one_document(folder):
    done = tokenize(
        *("texts/*.txt", "--tokenizer", "bpe", "--vocab", "300", "--validation", "0.2", "--seed", "3"),
        *("-o", "out", "--json"),
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert (told["folder"], told["tokenizer"], told["vocab"], told["seed"]) == ("out", "bpe-300", 300, 3)
    data = open_data(folder / "out")
    for name, tokens in (("training", data.training), ("validation", data.validation)):
        assert told[name]["tokens"] == len(tokens)
        assert told[name]["tokens_per_byte"] == len(tokens) / told[name]["bytes"]
    assert told["training"]["documents"] + told["validation"]["documents"] == 10
    assert 0.05 < told["validation"]["bytes"] / (told["training"]["bytes"] + told["validation"]["bytes"]) <= 0.2


def test_a_tokenizer_from_a_file(folder):
    small_bpe().save(folder)
    done = tokenize("texts/1.txt", "--tokenizer", "tokenizer.json", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["vocab"] == small_bpe().vocab
    assert told["folder"] == "data/1-tokenizer"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "there is no nowhere"),
        (["texts", "--tokenizer", "nonsense"], "there is no tokenizer nonsense"),
        (["texts", "--vocab", "300"], "leave it out"),
        (["texts", "--validation", "2"], "between 0 and 1"),
        (["texts", "--seed", "-1"], "seed"),
        (["texts", "-o", "texts"], "exists already"),
        (["texts/picture.png"], "NUL byte"),
        (["loop"], "there is no loop"),
        (["texts", "--field", "body"], "the field 'body' is for JSON (.jsonl, .json), and there is none"),
        (["texts", "--encoding", "latin1x"], "unknown encoding 'latin1x'"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_leaves_nothing(folder, words, says):
    before = sorted(folder.rglob("*"))
    done = tokenize(*words, folder=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert sorted(folder.rglob("*")) == before


def test_rows_of_a_packed_table_with_what_was_left_out(folder):
    rows = "id,body\n" + "".join(f'{number},"row {number % 30}, with a comma"\n' for number in range(40))
    (folder / "rows.csv.gz").write_bytes(gzip.compress(rows.encode()))
    done = tokenize("rows.csv.gz", "--column", "body", "--drop-duplicates", "--seed", "1", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "left out: 10 duplicate" in done.stdout
    assert "The tokens are in data/rows-bytes." in done.stdout
