import json
import os
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.tasks.data import tokenizer as tokenizer_module
from tapeless.tasks.data.tokenizer import ByteTokenizer, load_tokenizer, train_bpe
from tests.random_cases import cases
from tests.tasks.data.texts import description, small_bpe, text

TOKENIZERS = {"bytes": ByteTokenizer, "bpe": small_bpe}
both = pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)


def test_bytes_are_utf8_and_the_end_is_256():
    tokenizer = load_tokenizer("bytes")
    assert (tokenizer.name, tokenizer.vocab, tokenizer.end) == ("bytes", 257, 256)
    assert tokenizer.encode("aé") == [97, 0xC3, 0xA9]
    assert tokenizer.decode([97, 256, 0xC3, 0xA9]) == "aé"


@both
@given(sample=st.text())
@cases(60)
def test_what_is_encoded_decodes_to_itself(make, sample):
    tokenizer = make()
    ids = tokenizer.encode(sample)
    assert tokenizer.decode(ids) == sample
    assert all(0 <= token < tokenizer.vocab and token != tokenizer.end for token in ids)
    [pieces] = tokenizer.encode_pieces([sample.encode()])
    assert pieces.tolist() == ids


@both
def test_a_character_cut_off_does_not_fail(make):
    tokenizer = make()
    ids = tokenizer.encode("ab🦜")
    assert tokenizer.decode(ids[:-1]) == "ab\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode(np.array(ids)) == "ab🦜"


@both
def test_ids_that_stand_for_no_text_give_none(make):
    tokenizer = make()
    ids = tokenizer.encode("ab")
    assert tokenizer.decode([-1, ids[0], tokenizer.end, 10**6, *ids[1:], 2**40]) == "ab"


@both
@given(data=st.data())
@cases(60)
def test_a_stream_gives_the_text_and_never_half_a_character(make, data):
    tokenizer = make()
    complete = st.characters(exclude_categories=["Cs"], exclude_characters="\N{REPLACEMENT CHARACTER}")
    ids = tokenizer.encode(data.draw(st.text(complete, max_size=40)))
    stream = tokenizer.stream()
    shown = [stream.push(token) for token in ids]
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in shown)
    assert "".join(shown) + stream.finish() == tokenizer.decode(ids)


@both
@given(data=st.data())
@cases(100)
def test_a_stream_of_any_ids_gives_what_decoding_them_gives(make, data):
    tokenizer = make()
    # Mostly single bytes: sequences that are no UTF-8, longer than what the stream keeps.
    ids = data.draw(st.lists(st.integers(0, 260) | st.integers(120, 256), max_size=120))
    stream = tokenizer.stream()
    assert "".join([stream.push(token) for token in ids]) + stream.finish() == tokenizer.decode(ids)


def test_a_stream_shows_text_as_soon_as_it_is_complete():
    stream = ByteTokenizer().stream()
    assert [stream.push(token) for token in "a€b".encode()] == ["a", "", "", "€", "b"]


def test_a_long_stream_decodes_little_at_a_time():
    decoded = []

    class Counting(ByteTokenizer):
        def decode(self, ids):
            decoded.append(len(ids))
            return super().decode(ids)

    stream = Counting().stream()
    assert "".join(stream.push(0x80) for _ in range(5000)) + stream.finish() == "\N{REPLACEMENT CHARACTER}" * 5000
    assert max(decoded) < 50


def test_the_end_spelled_out_in_a_text_is_text():
    tokenizer = small_bpe()
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.end not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"


def test_bpe_has_the_bytes_the_end_and_what_it_learned():
    tokenizer = train_bpe(iter([text(200)]), 300)
    assert (tokenizer.vocab, tokenizer.name) == (300, "bpe-300")
    assert len(tokenizer.encode(text(200))) < len(text(200).encode()) / 2
    assert train_bpe(iter(["ab"]), 5000).vocab < 300  # there is no more to learn


def test_bpe_learns_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        train_bpe(iter([text(300), text(300, seed=1)]), 400).save(tmp_path / name)
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()


@both
def test_saved_and_loaded_it_is_the_same(make, tmp_path):
    tokenizer = make()
    tokenizer.save(tmp_path)
    written = {"tokenizer.json", "tokenizer_config.json"} if make is small_bpe else set()
    assert {each.name for each in tmp_path.iterdir()} == written
    for spec in (tmp_path, str(tmp_path / "tokenizer.json")) if make is small_bpe else ("bytes",):
        loaded = load_tokenizer(spec)
        assert (loaded.name, loaded.vocab, loaded.end) == (tokenizer.name, tokenizer.vocab, tokenizer.end)
        assert not loaded.guessed
        assert loaded.encode(text(20)) == tokenizer.encode(text(20))


def test_settings_that_change_what_a_text_becomes_are_left_out(tmp_path):
    changed = description()
    changed["truncation"] = {"direction": "Right", "max_length": 10**30, "strategy": "LongestFirst", "stride": 0}
    changed["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    changed["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    assert load_tokenizer(tmp_path).encode(text(20)) == small_bpe().encode(text(20))


@pytest.mark.parametrize("end", ["</s>", "<|end_of_text|>", "[SEP]"])
def test_other_names_of_the_end_are_known(tmp_path, end):
    changed = json.dumps(description()).replace("<|endoftext|>", end)
    (tmp_path / "tokenizer.json").write_text(changed)
    loaded = load_tokenizer(tmp_path)
    assert loaded.end == small_bpe().end
    assert loaded.encode(end) != [loaded.end]


def test_ids_with_gaps_count_to_the_largest(tmp_path):
    changed = description()
    changed["model"]["vocab"]["rare"] = 999
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    assert load_tokenizer(tmp_path).vocab == 1000


def test_a_word_level_tokenizer_is_read_too(tmp_path):
    vocab = {"[UNK]": 0, "</s>": 1, "line": 2, "number": 3}
    whitespace = {"type": "Whitespace"}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": whitespace, "model": model})
    )
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode("line other number") == [2, 0, 3]
    assert (loaded.end, loaded.name) == (1, "wordlevel-4")


def test_two_that_close_standard_error_do_not_cross(capfd):
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def first():
        with tokenizer_module._standard_error_closed():
            entered.set()
            leave.wait(5)
        left.set()

    def second():
        with tokenizer_module._standard_error_closed():
            left.wait(5)  # the last to leave: had it come in meanwhile, it would restore what the first had closed

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait(5)
    threads[1].start()
    time.sleep(0.1)  # time to come in, if nothing kept it from that
    leave.set()
    for thread in threads:
        thread.join()
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_standard_error_works_after_a_tokenizer_panicked_in_several_threads(tmp_path, capfd):
    changed = description()
    changed["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    refused = []

    def load():
        try:
            load_tokenizer(tmp_path)
        except TapelessError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 4
    assert capfd.readouterr().err == ""
    print("still here", file=sys.stderr)
    assert capfd.readouterr().err == "still here\n"


def test_without_the_package_bytes_work_and_bpe_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert load_tokenizer("bytes").encode("a") == [97]
    with pytest.raises(TapelessError, match="pip install tokenizers"):
        train_bpe(iter(["a"]), 300)
