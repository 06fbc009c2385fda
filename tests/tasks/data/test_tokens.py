import os
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.tasks.data import tokens as module
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokens import Tokens, holds_tokens, open_data
from tests.random_cases import cases


def raw(path, ids, dtype="<u2"):
    path.write_bytes(np.asarray(ids, dtype).tobytes())


def llm_c(path, ids, magic=20240520, version=1, dtype="<u2", count=None):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    content = header.tobytes() + np.asarray(ids, dtype).tobytes()
    path.write_bytes(content)
    return content


def everything(tokens: Tokens):
    return tokens.window(0, len(tokens)).tolist()


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data())
@cases(200)
def test_a_window_is_what_one_long_array_would_give(lengths, data):
    whole = np.arange(sum(lengths), dtype="<u2") * 7
    tokens = Tokens(np.split(whole, np.cumsum(lengths)[:-1]))
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - start))
    window = tokens.window(start, length)
    assert window.dtype == np.int64
    assert window.tolist() == whole[start : start + length].tolist()
    place = data.draw(st.integers(0, len(whole)))
    before, after = tokens.cut(place)
    assert everything(before) + everything(after) == whole.tolist()
    assert len(before) == place


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 6), (5, 1), (3, 3), (0, -1)])
def test_a_window_outside_is_refused(start, length):
    with pytest.raises(TapelessError, match="there are 5 tokens"):
        Tokens([np.arange(5)]).window(start, length)


def test_nanogpt_folder_is_read_as_it_is_and_its_pickle_is_not(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    raw(tmp_path / "train.bin", [5, 1, 2, 65535, 3])
    raw(tmp_path / "val.bin", [7, 8])
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": Bomb()}))
    data = open_data(tmp_path)
    assert everything(data.training) == [5, 1, 2, 65535, 3]
    assert everything(data.validation) == [7, 8]
    assert (data.vocab, data.tokenizer) == (65536, None)
    assert not (tmp_path / "exploded").exists()


def test_llm_c_folder_joins_its_shards_in_order(tmp_path):
    llm_c(tmp_path / "fineweb_train_000002.bin", [4, 5, 6])
    llm_c(tmp_path / "fineweb_train_000001.bin", [1, 2, 3])
    llm_c(tmp_path / "fineweb_val_000000.bin", [9, 8, 50256])
    data = open_data(tmp_path)
    assert everything(data.training) == [1, 2, 3, 4, 5, 6]
    assert everything(data.validation) == [9, 8, 50256]
    assert data.vocab == 50257


def test_llm_c_files_without_number_and_with_wide_ids(tmp_path):
    llm_c(tmp_path / "tiny_train.bin", [1, 2, 70000], magic=20240801, version=7, dtype="<u4")
    llm_c(tmp_path / "tiny_val.bin", [4, 5], magic=20240801, version=7, dtype="<u4")
    data = open_data(tmp_path)
    assert everything(data.training) == [1, 2, 70000]
    assert data.vocab == 70001


@pytest.mark.parametrize("write", [raw, llm_c])
def test_of_a_single_bin_the_last_share_is_held_out(tmp_path, write):
    write(tmp_path / "all.bin", range(1, 101))
    data = open_data(tmp_path / "all.bin", validation=0.2)
    assert everything(data.training) == list(range(1, 81))
    assert everything(data.validation) == list(range(81, 101))
    assert len(open_data(tmp_path / "all.bin").validation) == 10
    assert data.vocab == 101


def test_prepared_tokens_are_opened_with_their_tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text("a line\n" * 100)
    prepare(str(tmp_path / "text.txt"), tmp_path / "out")
    data = open_data(tmp_path / "out")
    assert data.tokenizer is not None
    assert data.vocab == data.tokenizer.vocab == 257
    assert data.tokenizer.decode(everything(data.training)) == "a line\n" * 90


def test_the_digest_tells_data_sets_apart(tmp_path):
    raw(tmp_path / "a.bin", range(1, 101))
    raw(tmp_path / "b.bin", range(1, 101))
    raw(tmp_path / "c.bin", [*range(1, 100), 7])
    first, same, other = (open_data(tmp_path / name).sha256 for name in ("a.bin", "b.bin", "c.bin"))
    assert first == same
    assert first != other


def test_which_paths_hold_tokens(tmp_path):
    (tmp_path / "text.txt").write_text("a line\n" * 100)
    prepare(str(tmp_path / "text.txt"), tmp_path / "prepared")
    for name in ("nanogpt", "llmc", "plain"):
        (tmp_path / name).mkdir()
    raw(tmp_path / "nanogpt/train.bin", [1, 2])
    llm_c(tmp_path / "llmc/x_train_0.bin", [1, 2])
    raw(tmp_path / "one.bin", [1, 2])
    assert all(holds_tokens(tmp_path / name) for name in ("prepared", "nanogpt", "llmc", "one.bin"))
    assert not any(holds_tokens(tmp_path / name) for name in ("plain", "text.txt", "nowhere", "*.txt", "x" * 300))


def test_the_survey_reads_every_stretch_in_bounded_memory(tmp_path, monkeypatch):
    ids = np.ones(4_000_000, "<u2")
    ids[3_999_999] = 4242
    raw(tmp_path / "large.bin", ids)
    monkeypatch.setattr(module, "AT_ONCE", 1 << 16)
    tracemalloc.start()
    try:
        data = open_data(tmp_path / "large.bin")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data.vocab == 4243
    assert peak < 1_000_000  # of 8
