import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.tasks.data import corpus
from tapeless.tasks.data.corpus import cut_once, find_documents, pieces
from tapeless.tasks.data.documents import Document
from tests.random_cases import cases
from tests.tasks.data.texts import small_bpe, text


def names(found, folder):
    return [document.path.relative_to(folder).as_posix() for document in found.documents]


def whole(path) -> Document:
    return Document(path, 0, path.stat().st_size)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "text"


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
    assert found.size == sum(len(b"".join(pieces(document))) for document in found.documents)


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
    [document] = find_documents(str(folder / "marked.txt")).documents
    assert b"".join(pieces(document)) == b"with mark\n"


def test_a_glob_gives_what_it_matches(folder, monkeypatch):
    assert names(find_documents(str(folder / "*.txt")), folder) == ["b.txt", "marked.txt"]
    assert names(find_documents(str(folder / "**/*.py")), folder) == ["deep/er/c.py"]
    monkeypatch.chdir(folder)
    assert [document.path.name for document in find_documents("[ab].*").documents] == ["a.md", "b.txt"]


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
    assert any(document.path.name == "argparse.py" for document in found.documents)
    assert not any("site-packages" in document.path.parts for document in found.documents)
    places = [document.place() for document in found.documents]
    assert [place["file"] for place in places] == sorted(place["file"] for place in places)
    assert places == [document.place() for document in find_documents("stdlib").documents]


@given(content=st.text(alphabet="ab \n\t€🎉", max_size=300), size=st.integers(8, 40))
@cases(150)
def test_pieces_joined_are_the_document_and_none_is_large(scratch, content, size):
    scratch.write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PIECE", size)
        parts = list(pieces(whole(scratch)))
    assert b"".join(parts) == content.encode()
    assert all(0 < len(part) <= 2 * size for part in parts)
    for part in parts:
        part.decode()  # no character is cut


def test_pieces_end_at_line_ends(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_text(text(2000), encoding="utf-8")
    monkeypatch.setattr(corpus, "PIECE", 1024)
    parts = list(pieces(whole(path)))
    assert len(parts) > 30
    assert all(part.endswith(b"\n") for part in parts)


def test_bpe_ids_do_not_depend_on_the_pieces(tmp_path, monkeypatch):
    path = tmp_path / "text"
    rng = random.Random(1)
    path.write_text("".join(rng.choice(["x = 1\n", "\n", "    y\n", "def f():\n", "}\n\n\n"]) for _ in range(3000)))
    tokenizer = small_bpe()
    at_once = tokenizer.encode(path.read_text())
    for size in (256, 700, 1024):
        monkeypatch.setattr(corpus, "PIECE", size)
        parts = list(pieces(whole(path)))
        assert len(parts) > 10
        assert [token for ids in tokenizer.encode_pieces(parts) for token in ids] == at_once


@pytest.mark.parametrize("place", [0, 1, 99, 100, 101, 5000])
def test_an_invalid_byte_is_named_with_file_and_offset(tmp_path, monkeypatch, place):
    monkeypatch.setattr(corpus, "PIECE", 64)
    content = bytearray(b"some text\n" * 501)
    content[place] = 0xFF
    path = tmp_path / "latin.txt"
    path.write_bytes(content)
    with pytest.raises(TapelessError, match=rf"latin\.txt is not UTF-8: byte 0xff at offset {place:,} "):
        list(pieces(whole(path)))


def test_a_character_cut_off_at_the_end_is_invalid(tmp_path):
    path = tmp_path / "cut.txt"
    path.write_bytes("abc€".encode()[:-1])
    with pytest.raises(TapelessError, match="at offset 3 "):
        list(pieces(whole(path)))


@given(content=st.text(alphabet="ab \n€🎉", min_size=2, max_size=200), share=st.floats(0.01, 0.99))
@cases(200)
def test_a_document_cut_once_is_two_that_join_to_it(scratch, content, share):
    scratch.write_bytes(content.encode())
    first, second = (b"".join(pieces(part)) for part in cut_once(whole(scratch), share))
    assert first
    assert second
    assert first + second == content.encode()
    if "\n" in content[:-1]:
        assert first.endswith(b"\n")


def test_the_cut_is_the_line_end_nearest_to_the_share(tmp_path):
    path = tmp_path / "text"
    path.write_text("123456789\n" * 100)
    before, after = cut_once(whole(path), 0.9)
    assert (before.stop, after.start, after.stop) == (900, 900, 1000)
    assert (before.complete, after.complete) == (False, True)
    assert cut_once(whole(path), 0.904)[0].stop == 900
    assert cut_once(whole(path), 0.906)[0].stop == 910


def test_a_document_cut_where_there_is_no_line_end_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE", 64)
    path = tmp_path / "text"
    path.write_text("€" * 2000, encoding="utf-8")
    before, _ = cut_once(whole(path), 0.5)
    assert before.stop % 3 == 0
    assert abs(before.stop - 3000) < 3


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(TapelessError, match=r"cannot read .*folder: it is a folder"):
        list(pieces(Document(tmp_path / "folder", 0, 10)))
    with pytest.raises(TapelessError, match=r"cannot read .*gone: No such file"):
        list(pieces(Document(tmp_path / "gone", 0, 10)))


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("abc")
    document = Document(path, 0, 10)
    with pytest.raises(TapelessError, match="became shorter"):
        list(pieces(document))
