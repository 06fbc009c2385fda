import errno
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.files import disk
from tapeless.tasks.data import documents, prepare
from tapeless.tasks.data.corpus import Corpus, find_documents
from tapeless.tasks.data.documents import Documents
from tapeless.tasks.data.meta import read_meta
from tapeless.tasks.data.prepare import split_documents
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.tasks.data.tokens import open_data
from tests.random_cases import SOAK, cases
from tests.tasks.data.texts import small_bpe, text


@pytest.fixture
def folder(tmp_path):
    """Twenty documents, each with a word of its own in every line."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number:02}.txt").write_text("".join(f"doc{number:02} {line}" for line in text(10).splitlines(True)))
    return texts


def everything(tokens) -> list:
    return list(tokens.window(0, len(tokens)))


def documents_of(tokens, tokenizer) -> list[str]:
    """The texts between the ends."""
    found: list[list[int]] = [[]]
    for token in everything(tokens):
        if token == tokenizer.end:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []  # an end stands behind the last document too
    return [tokenizer.decode(ids) for ids in found]


@pytest.mark.parametrize("kind", ["bytes", "bpe", "json"])
def test_every_document_is_whole_on_one_side(folder, tmp_path, kind):
    small_bpe().save(tmp_path)
    spec = str(tmp_path / "tokenizer.json") if kind == "json" else kind
    made = prepare.prepare(str(folder), tmp_path / "out", tokenizer=spec, vocab=300 if kind == "bpe" else None)
    data = open_data(tmp_path / "out")
    training, validation = (documents_of(tokens, data.tokenizer) for tokens in (data.training, data.validation))
    assert sorted(training + validation) == sorted(path.read_text() for path in folder.iterdir())
    assert (len(training), len(validation)) == (made.meta.training.documents, made.meta.validation.documents) == (18, 2)
    assert made.meta.tokenizer == {"bytes": "bytes", "bpe": "bpe-300", "json": small_bpe().name}[kind]
    assert data.vocab == made.meta.vocab
    assert (tmp_path / "out/tokenizer.json").exists() == (kind != "bytes")


def test_the_vocabulary_is_learned_from_what_is_trained_on_alone(folder, tmp_path):
    for path in folder.iterdir():
        path.write_text(f"{own_word(path)} " * 200)
    prepare.prepare(str(folder), tmp_path / "out", tokenizer="bpe", vocab=2000)
    vocabulary = json.loads((tmp_path / "out/tokenizer.json").read_text())["model"]["vocab"]
    sides: dict[str, list[str]] = {"training": [], "validation": []}
    for line in (tmp_path / "out/documents.jsonl").read_text().splitlines():
        entry = json.loads(line)
        sides[entry["split"]].append(own_word(Path(entry["file"])))
    assert len(sides["training"]) == 18
    assert all(f"Ġ{word}" in vocabulary for word in sides["training"])
    assert not any(word[-3:] in token for word in sides["validation"] for token in vocabulary)


def own_word(path: Path) -> str:
    return "word" + 5 * chr(ord("a") + int(path.stem))


def test_the_seed_chooses_and_the_same_seed_chooses_the_same(folder, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        prepare.prepare(str(folder), tmp_path / name, seed=seed)
    a, b, c = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert a["validation-0000.bin"] != c["validation-0000.bin"]
    assert {read_meta(tmp_path / name).seed for name in "abc"} == {0, 1}


@given(
    texts=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000) | st.just(40)), min_size=2, max_size=30),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
@cases(200)
def test_a_split_takes_nothing_twice_and_leaves_something_on_both_sides(tmp_path_factory, texts, share, seed):
    """Not the same text twice either: what a model was trained on says nothing of what it learned."""
    documents = Documents(tmp_path_factory.getbasetemp())
    for letter, size in texts:
        documents.write(letter.encode() * size)
        documents.end(Path("x"))
    documents.flush()
    found = Corpus("x", documents, {}, {})
    try:
        if len(set(texts)) == 1:
            with pytest.raises(TapelessError, match=f"x holds {len(texts)} times the same text"):
                split_documents(found, share, seed)
            return
        training, held_out = (side.tolist() for side in split_documents(found, share, seed).values())
    finally:
        documents.close()
    assert training
    assert held_out
    assert sorted(training + held_out) == list(range(len(texts)))
    assert training == sorted(training)
    trained, held = ({texts[each] for each in side} for side in (training, held_out))
    assert not trained & held
    size = sum(texts[each][1] for each in held_out)
    assert size <= share * found.size or len(held) == 1
    # Nothing that would still fit is left on the other side.
    smallest = min(length * texts.count((letter, length)) for letter, length in trained)
    assert size + smallest > share * found.size or size > share * found.size


def test_without_copies_the_split_is_the_one_that_it_was(tmp_path):
    """Documents of one size whose texts differ, and others."""
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(f"{number:02}" * (30 + 7 * (number % 4)))
    held_out = split_documents(find_documents(str(tmp_path)), 0.3, seed=1)["validation"]
    assert held_out.tolist() == [2, 4, 9, 16, 18, 19]


def test_a_single_document_is_cut_once_at_a_line_end(tmp_path):
    (tmp_path / "one.txt").write_text("".join(f"line {number:04}\n" for number in range(1000)))
    made = prepare.prepare(str(tmp_path / "one.txt"), tmp_path / "out", validation=0.2)
    data = open_data(tmp_path / "out")
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.decode(everything(data.training)).endswith("line 0799\n")
    assert tokenizer.decode(everything(data.validation)).startswith("line 0800\n")
    # The text goes on where it was cut, so no end stands there.
    assert 256 not in everything(data.training)
    assert everything(data.validation)[-1] == 256
    assert (made.meta.training.tokens, made.meta.validation.tokens) == (8000, 2001)


def test_meta_says_what_is_there(folder, tmp_path):
    (folder / ".hidden").write_text("x")
    made = prepare.prepare(str(folder), tmp_path / "out")
    assert read_meta(tmp_path / "out") == made.meta
    assert made.meta.source == str(folder)
    assert made.meta.skipped == {"hidden": 1}
    for split in (made.meta.training, made.meta.validation):
        for shard in split.shards:
            content = (tmp_path / "out" / shard.file).read_bytes()
            assert hashlib.sha256(content).hexdigest() == shard.sha256
            assert len(content) == 2 * shard.tokens
        assert split.tokens == split.bytes + split.documents
    total = sum(path.stat().st_size for path in folder.iterdir() if path.name != ".hidden")
    assert made.meta.training.bytes + made.meta.validation.bytes == total


@pytest.mark.parametrize("most", [1, 7, 1000, 10**9])
def test_shards_are_full_and_join_to_the_same_tokens(folder, tmp_path, monkeypatch, most):
    for path in sorted(folder.iterdir())[2:]:
        path.unlink()
    for path in folder.iterdir():
        path.write_text(path.read_text()[:150])
    prepare.prepare(str(folder), tmp_path / "one")
    monkeypatch.setattr(prepare, "SHARD_TOKENS", most)
    monkeypatch.setattr(prepare, "AT_ONCE", 64)
    monkeypatch.setattr(documents, "PIECE", 32)
    made = prepare.prepare(str(folder), tmp_path / "many")
    one, many = open_data(tmp_path / "one"), open_data(tmp_path / "many")
    assert everything(one.training) == everything(many.training)
    assert everything(one.validation) == everything(many.validation)
    sizes = [shard.tokens for shard in made.meta.training.shards]
    assert all(size == most for size in sizes[:-1])
    assert 0 < sizes[-1] <= most


def test_a_shard_that_is_just_full_is_followed_by_none(tmp_path, monkeypatch):
    (tmp_path / "one.txt").write_text("123456789\n" * 10)
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 45)
    made = prepare.prepare(str(tmp_path / "one.txt"), tmp_path / "out")
    assert [shard.tokens for shard in made.meta.training.shards] == [45, 45]


def test_a_large_vocabulary_takes_32_bits(folder, tmp_path):
    small_bpe().save(tmp_path)
    changed = json.loads((tmp_path / "tokenizer.json").read_text())
    changed["model"]["vocab"]["far"] = 70_000
    changed["added_tokens"] = []
    changed["model"]["vocab"]["</s>"] = 70_001
    del changed["model"]["vocab"]["<|endoftext|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    made = prepare.prepare(str(folder), tmp_path / "out", tokenizer=str(tmp_path))
    assert made.meta.dtype == "uint32"
    data = open_data(tmp_path / "out")
    assert everything(data.training)[-1] == 70_001


def test_progress_is_told_in_bytes_up_to_the_whole(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "AT_ONCE", 1000)
    told: list[tuple[str, int, int]] = []
    prepare.prepare(
        str(folder), tmp_path / "out", tokenizer="bpe", vocab=300, progress=lambda *report: told.append(report)
    )
    size = find_documents(str(folder)).size
    for stage, total in (("learning the vocabulary", read_meta(tmp_path / "out").training.bytes), ("tokenising", size)):
        done = [report[1] for report in told if report[0] == stage]
        assert len(done) > 5
        assert done == sorted(done)
        assert done[-1] == total
        assert {report[2] for report in told if report[0] == stage} == {total}


def test_very_much_text_is_sampled_for_the_vocabulary(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "LEARNED_FROM", 1000)
    sampled: list[str] = []

    def watched(texts, vocab):
        sampled.extend(texts)
        return small_bpe()

    monkeypatch.setattr(prepare, "train_bpe", watched)
    prepare.prepare(str(folder), tmp_path / "out", tokenizer="bpe")
    assert 300 < sum(len(piece.encode()) for piece in sampled) < 2000


def test_an_existing_folder_is_not_touched(folder, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(TapelessError, match="exists already"):
        prepare.prepare(str(folder), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_whatever_operation_fails_nothing_is_left(folder, tmp_path, monkeypatch):
    """A full disk at every single operation in turn."""
    (tmp_path / "place").mkdir()
    performed = 0
    real = disk.perform

    def failing_at(number):
        def perform(operation, *arguments, **named):
            nonlocal performed
            performed += 1
            if performed == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(operation, *arguments, **named)

        return perform

    small = str(sorted(folder.iterdir())[0])
    monkeypatch.setattr(disk, "perform", failing_at(-1))
    prepare.prepare(small, tmp_path / "place/whole")
    operations, finished = performed, 0
    assert operations > 10
    for number in (1, *range(3, operations - 1)):  # the second clears away what is not there, the last two the text
        performed = 0
        monkeypatch.setattr(disk, "perform", failing_at(number))
        out = tmp_path / f"place/out{number}"
        with pytest.raises(TapelessError, match="No space left"):
            prepare.prepare(small, out)
        if out.exists():  # only the folder above could not be flushed: what is there is whole
            assert number >= operations - 5
            open_data(out)
            finished += 1
        assert not list((tmp_path / "place").glob(".*"))
    assert finished <= 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing(folder, tmp_path, error, monkeypatch):
    monkeypatch.setattr(prepare, "AT_ONCE", 1000)

    def interrupt(stage, done, total):
        if stage == "tokenising" and done > total / 2:
            raise error

    with pytest.raises(error):
        prepare.prepare(str(folder), tmp_path / "place/out", progress=interrupt)
    assert list((tmp_path / "place").iterdir()) == []


def test_what_a_killed_process_of_the_same_number_left_is_not_mixed_in(folder, tmp_path):
    left = tmp_path / f".out.{os.getpid()}.part"
    left.mkdir()
    (left / "training-0007.bin").write_text("stale")
    prepare.prepare(str(folder), tmp_path / "out")
    assert not (tmp_path / "out/training-0007.bin").exists()


def test_killed_it_leaves_nothing_that_looks_whole(folder, tmp_path):
    code = f"""
        import os, signal
        from pathlib import Path
        from tapeless.tasks.data import prepare
        prepare.AT_ONCE = 1000
        def kill(stage, done, total):
            if stage == "tokenising" and done > total / 2:
                os.kill(os.getpid(), signal.SIGKILL)
        prepare.prepare({str(folder)!r}, Path({str(tmp_path / "place/out")!r}), progress=kill)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True)
    assert killed.returncode == -9, killed.stderr
    [left] = (tmp_path / "place").iterdir()
    assert left.name.startswith(".out.")
    with pytest.raises(TapelessError, match="holds no tokens"):
        open_data(left)
    prepare.prepare(str(folder), tmp_path / "place/out")  # and it is not in the way


MEGABYTE = 1 << 20


@pytest.mark.parametrize(("kind", "megabytes", "bound"), [("bytes", 60 * SOAK, 40), ("json", 6 * SOAK, 300)])
def test_memory_is_bounded_whatever_the_size(tmp_path, kind, megabytes, bound):
    """Peak memory of a process of its own, beyond what it had before: for bytes far below the 60 MB of text."""
    small_bpe().save(tmp_path)
    spec = "bytes" if kind == "bytes" else str(tmp_path / "tokenizer.json")
    block = text(20_000).encode()
    with (tmp_path / "large.txt").open("wb") as file:
        while file.tell() < megabytes * MEGABYTE:
            file.write(block)
    code = f"""
        import resource
        from pathlib import Path
        from tapeless.tasks.data.prepare import prepare
        from tapeless.tasks.data.tokenizer import load_tokenizer
        load_tokenizer({spec!r}).encode("warm")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        prepare({str(tmp_path / "large.txt")!r}, Path({str(tmp_path / "out")!r}), tokenizer={spec!r})
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    grown = int(done.stdout) / 1024
    assert grown < bound, f"{grown} MiB"
    assert (tmp_path / "out/training-0000.bin").stat().st_size > megabytes * MEGABYTE / 4


def test_bytes_are_tokenised_fast(tmp_path):
    """In processor time, at least twice as fast as the plainest loop over the same bytes that keeps them."""
    block = text(20_000).encode()
    (tmp_path / "large.txt").write_bytes(block * 20)

    def plain(sample: bytes) -> float:
        started = time.process_time()
        ids = []
        for byte in sample.decode().encode():
            ids.append(byte)
        np.array(ids, "<u2").tobytes()
        return (time.process_time() - started) / len(sample)

    slow = min(plain(block) for _ in range(3))
    seconds = []
    for number in range(3):
        started = time.process_time()
        prepare.prepare(str(tmp_path / "large.txt"), tmp_path / f"out{number}")
        seconds.append(time.process_time() - started)
    assert min(seconds) / (20 * len(block)) < slow / 2
