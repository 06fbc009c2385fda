import os
import random
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.tasks.data import documents, gather
from tapeless.tasks.data.corpus import find_documents
from tapeless.tasks.data.documents import Documents
from tests.random_cases import cases
from tests.tasks.data.texts import small_bpe, text


def names(found, folder):
    return [Path(place["file"]).relative_to(folder).as_posix() for place in places(found)]


def places(found):
    return [found.documents.place(number) for number in range(len(found.documents))]


@contextmanager
def written(folder, content: bytes):
    """One document."""
    found = Documents(folder)
    found.write(content)
    found.end(folder / "text")
    found.flush()
    try:
        yield found
    finally:
        found.close()


def parts_of(folder, content: bytes) -> list[bytes]:
    with written(folder, content) as found:
        return list(found.pieces(0))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def folder(tmp_path):
    files = {
        "b.txt": b"second\n",
        "a.md": b"first\n",
        "no_suffix": b"third\n",
        "deep/er/c.py": b"fourth\n",
        ".hidden": b"secret\n",
        ".git/config": b"secret\n",
        "image.png": b"\x89PNG\0\0\xff",
        "empty.txt": b"",
        "only_mark.txt": b"\xef\xbb\xbf",
        "marked.txt": b"\xef\xbb\xbfwith mark\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    return tmp_path


def test_a_folder_gives_its_text_files_sorted_and_counts_the_rest(folder):
    found = find_documents(str(folder))
    assert names(found, folder) == ["a.md", "b.txt", "deep/er/c.py", "marked.txt", "no_suffix"]
    assert found.skipped == {"hidden": 2, "binary": 1, "empty": 2, "not a file": 1}
    assert found.size == sum(len(b"".join(found.documents.pieces(number))) for number in range(5))


@pytest.mark.parametrize("beside", ["checkpoints", "data"])
def test_a_run_is_no_text(folder, beside):
    """Its configuration and its metrics would be learned: of a folder with runs in it they are left out."""
    run = folder / "deep" / "run-001"
    (run / beside).mkdir(parents=True)
    (run / "config.toml").write_text('preset = "gpt2-4x256"\n')
    (run / "metrics.jsonl").write_text("{}\n")
    tokens = rf", or {run}/data, the tokens that it learned from" if beside == "data" else ""
    told = rf"{run} is a run, not text: give the text itself{tokens}; --init-from {run} trains on from its weights\."
    with pytest.raises(TapelessError, match=f"^{told}$"):
        find_documents(str(run))
    found = find_documents(str(folder))
    assert names(found, folder) == ["a.md", "b.txt", "deep/er/c.py", "marked.txt", "no_suffix"]
    assert found.skipped["a run"] == 1


def test_a_byte_order_mark_is_no_text(folder):
    assert b"".join(find_documents(str(folder / "marked.txt")).documents.pieces(0)) == b"with mark\n"


def test_a_glob_gives_what_it_matches(folder, monkeypatch):
    assert names(find_documents(str(folder / "*.txt")), folder) == ["b.txt", "marked.txt"]
    assert names(find_documents(str(folder / "**/*.py")), folder) == ["deep/er/c.py"]
    monkeypatch.chdir(folder)
    assert [place["file"] for place in places(find_documents("[ab].*"))] == ["a.md", "b.txt"]


def test_a_file_with_a_bracket_in_its_name_is_a_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("x")
    assert len(find_documents(str(tmp_path / "a[1].txt")).documents) == 1


def test_a_link_to_a_folder_is_not_followed(folder):
    (folder / "again").symlink_to(folder)
    assert len(find_documents(str(folder)).documents) == 5


def test_a_glob_meets_every_file_once_whatever_links_there_are(folder):
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "loop").symlink_to(folder / "loop")
    found = find_documents(str(folder / "**" / "*"))
    assert names(found, folder) == ["a.md", "b.txt", "deep/er/c.py", "marked.txt", "no_suffix"]


def test_the_standard_library_is_text_on_every_machine():
    found = find_documents("stdlib")
    assert found.size > 1_000_000
    files = [Path(place["file"]) for place in places(found)]
    assert any(file.name == "argparse.py" for file in files)
    assert not any("site-packages" in file.parts for file in files)
    assert files == sorted(files)
    assert places(found) == places(find_documents("stdlib"))


@given(content=st.text(alphabet="ab \n\t€🎉", max_size=300), size=st.integers(8, 40))
@cases(150)
def test_pieces_joined_are_the_document_and_none_is_large(scratch, content, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", size)
        parts = parts_of(scratch, content.encode()) if content else []
    assert b"".join(parts) == content.encode()
    assert all(0 < len(part) <= 2 * size for part in parts)
    for part in parts:
        part.decode()  # no character is cut


def test_pieces_end_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 1024)
    parts = parts_of(tmp_path, text(2000).encode())
    assert len(parts) > 30
    assert all(part.endswith(b"\n") for part in parts)


def test_bpe_ids_do_not_depend_on_the_pieces(tmp_path, monkeypatch):
    rng = random.Random(1)
    content = "".join(rng.choice(["x = 1\n", "\n", "    y\n", "def f():\n", "}\n\n\n"]) for _ in range(3000))
    tokenizer = small_bpe()
    at_once = tokenizer.encode(content)
    for size in (256, 700, 1024):
        monkeypatch.setattr(documents, "PIECE", size)
        parts = parts_of(tmp_path, content.encode())
        assert len(parts) > 10
        assert [token for ids in tokenizer.encode_pieces(parts) for token in ids] == at_once


@pytest.mark.parametrize("place", [0, 1, 99, 100, 101, 5000])
def test_an_invalid_byte_is_named_with_file_and_offset(tmp_path, monkeypatch, place):
    monkeypatch.setattr(gather, "PIECE", 64)
    content = bytearray(b"some text\n" * 501)
    content[place] = 0xFF
    path = tmp_path / "latin.txt"
    path.write_bytes(content)
    with pytest.raises(TapelessError, match=rf"latin\.txt is not UTF-8: byte 0xff at offset {place:,} "):
        find_documents(str(path))


def test_a_character_cut_off_at_the_end_is_invalid(tmp_path):
    path = tmp_path / "cut.txt"
    path.write_bytes("abc€".encode()[:-1])
    with pytest.raises(TapelessError, match="at offset 3 "):
        find_documents(str(path))


@given(content=st.text(alphabet="ab \n€🎉", min_size=2, max_size=200), share=st.floats(0.01, 0.99))
@cases(200)
def test_a_document_cut_once_is_two_that_join_to_it(scratch, content, share):
    with written(scratch, content.encode()) as found:
        found.cut_in_two(share)
        first, second = (b"".join(found.pieces(number)) for number in range(2))
    assert first
    assert second
    assert first + second == content.encode()
    if "\n" in content[:-1]:
        assert first.endswith(b"\n")


@pytest.mark.parametrize(("share", "cut"), [(0.9, 900), (0.904, 900), (0.906, 910)])
def test_the_cut_is_the_line_end_nearest_to_the_share(tmp_path, share, cut):
    with written(tmp_path, b"123456789\n" * 100) as found:
        found.cut_in_two(share)
        file = str(tmp_path / "text")
        assert found.place(0) == {"file": file, "start": 0, "stop": cut}
        assert found.place(1) == {"file": file, "start": cut, "stop": 1000}
        assert [found.is_cut_off(number) for number in range(2)] == [True, False]


def test_a_document_cut_where_there_is_no_line_end_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)
    with written(tmp_path, "€".encode() * 2000) as found:
        found.cut_in_two(0.5)
        stop = found.place(0)["stop"]
    assert stop % 3 == 0
    assert abs(stop - 3000) < 3


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TapelessError, match=r"pipe is neither a file nor a folder"):
        find_documents(str(tmp_path / "pipe"))
    with pytest.raises(TapelessError, match=r"there is no .*gone"):
        find_documents(str(tmp_path / "gone"))
