"""Text as people have it: rows, encodings, compression, duplicates. What comes out is the text, whatever it came in."""

import csv
import gzip
import io
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.files import compressed
from tapeless.tasks.data import gather, reading
from tapeless.tasks.data.corpus import find_documents
from tapeless.tasks.data.prepare import prepare, split_documents
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.tokens import open_data
from tests.random_cases import cases

TEXTS = ["first", "zweite, größer\nund länger", 'with "quotes"; and\ttabs', "日本語 🎉", "last\n"]


def texts(source, **how) -> list[str]:
    corpus = find_documents(str(source), Reading(**how))
    try:
        return [b"".join(corpus.documents.pieces(number)).decode() for number in range(len(corpus.documents))]
    finally:
        corpus.close()


def said(source, **how) -> str:
    with pytest.raises(TapelessError) as caught:
        texts(source, **how)
    message = str(caught.value)
    assert message.endswith((".", "?"))
    assert "\n" not in message
    assert len(message) < 500
    return message


def json_lines(rows, field="text") -> bytes:
    return "".join(json.dumps({"id": 7, field: row}, ensure_ascii=False) + "\n" for row in rows).encode()


def table(rows, column="text", delimiter=",") -> bytes:
    made = io.StringIO()
    writer = csv.writer(made, delimiter=delimiter)
    writer.writerow(["id", column, "more"])
    writer.writerows([[number, row, "x"] for number, row in enumerate(rows)])
    return made.getvalue().encode()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", ["notes.txt", "rows.jsonl", "rows.ndjson", "rows.csv", "rows.tsv"])
def test_every_form_in_every_encoding_and_packing(tmp_path, form, encoding, packing):
    plain = {
        "txt": "".join(TEXTS).encode(),
        "csv": table(TEXTS),
        "tsv": table(TEXTS, delimiter="\t"),
    }.get(form.split(".")[1], json_lines(TEXTS))
    path = tmp_path / (form + packing)
    path.write_bytes(PACKINGS[packing](plain.decode().encode(encoding)))
    wanted = ["".join(TEXTS)] if form == "notes.txt" else TEXTS
    assert texts(path) == wanted
    assert texts(tmp_path) == wanted  # in a folder as well


@given(rows=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8))
@cases(100)
def test_random_rows_come_back_with_plain_line_ends(tmp_path_factory, rows):
    folder = tmp_path_factory.getbasetemp()
    wanted = [row.replace("\r\n", "\n").replace("\r", "\n") for row in rows if row]
    for name, content in (
        ("r.jsonl", json_lines(rows)),
        ("r.csv", table(rows)),
        ("r.tsv", table(rows, delimiter="\t")),
    ):
        if b"\0" in content:
            continue  # which is binary
        (folder / name).write_bytes(content)
        if wanted:
            assert texts(folder / name) == wanted
        else:
            assert "no text" in said(folder / name) or "is empty" in said(folder / name)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1 << 17])
def test_line_ends_are_plain_wherever_a_block_ends(tmp_path, monkeypatch, size):
    monkeypatch.setattr(gather, "PIECE", size)
    monkeypatch.setattr(reading, "PIECE", size)
    (tmp_path / "dos.txt").write_bytes("ä\r\nb\r\n\r\nc\rd\n".encode())
    (tmp_path / "wide.txt").write_bytes("ä🎉\r\nb".encode("utf-16"))
    assert texts(tmp_path) == ["ä\nb\n\nc\nd\n", "ä🎉\nb"]


def test_the_field_and_the_column_are_those_that_were_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(["a", "b"], "body"))
    (tmp_path / "b.csv").write_bytes(table(["c"], "body", delimiter=";"))
    assert texts(tmp_path, field="body", column="body") == ["a", "b", "c"]
    (tmp_path / "rows.json").write_bytes(json_lines(["d"], "body"))
    (tmp_path / "rows").write_bytes(json_lines(["e"], "body"))
    assert texts(tmp_path / "rows.json", field="body") == ["d"]
    assert texts(tmp_path / "rows", field="body") == ["e"]
    assert len(texts(tmp_path, field="body", column="body")) == 5  # in a folder `rows` is text, .json lines if asked


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_list_is_the_same_rows_as_json_lines(tmp_path, indent, encoding):
    path = tmp_path / "rows.json"
    listed = [{"id": 7, "text": text, "body": "other"} for text in TEXTS]
    path.write_bytes(json.dumps(listed, ensure_ascii=False, indent=indent).encode(encoding))
    assert texts(path) == texts(tmp_path) == TEXTS
    assert texts(path, field="body") == ["other"] * len(TEXTS)
    found = find_documents(str(path)).documents
    assert found.place(len(found) - 1)["line"] == (1 if indent is None else 2 + 5 * (len(TEXTS) - 1))
    path.write_bytes(json_lines(TEXTS).decode().encode(encoding))  # as some call their JSON lines
    assert texts(path) == TEXTS


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{\n  "name": "x"\n}', "neither a list of objects nor an object in each line"),
        ("12", "neither a list of objects nor an object in each line"),
        ("words", "neither a list of objects nor an object in each line"),
        ('["a", "b"]', "line 1 holds text, not an object"),
        ('[{"text": "a"},\n7]', "line 2 holds a number, not an object"),
        ('[{"text": "a"},\n{"text": ', "line 2 is not JSON"),
        ('[{"text": "a"},]', "line 1 is not JSON"),
        ('[{"text": "a"}', "its list is cut off or broken in line 1"),
        ('[{"text": "a"} {"text": "b"}]', "its list is cut off or broken in line 1"),
        ('[{"text": "a"}] more', "something follows its list in line 1"),
        ("[][]", "something follows its list in line 1"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_of_another_kind_is_refused_and_in_a_folder_left_out(tmp_path, content, why):
    (tmp_path / "odd.json").write_text(content)
    refusal = said(tmp_path / "odd.json")
    assert why in refusal
    assert refusal.endswith("give such, or call it .txt to read it as it is.")
    (tmp_path / "a.txt").write_text("good")
    found = find_documents(str(tmp_path))
    assert (len(found.documents), found.skipped) == (1, {"JSON without rows of text": 1})


def test_a_json_list_without_the_field_or_without_rows(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"body": "a"}]')
    assert "line 1 has no field 'text': it has 'body'; name one with --field" in said(path)
    path.write_text(" [ ] ")
    assert "is empty" in said(path)


def test_what_is_too_short_is_told_by_the_name_of_the_users_file(tmp_path):
    (tmp_path / "one.jsonl").write_bytes(json_lines(["b"]))
    with pytest.raises(TapelessError, match=r"one\.jsonl holds a single byte of text, so nothing can be held out"):
        prepare(str(tmp_path / "one.jsonl"), tmp_path / "made")


def test_in_a_folder_what_is_no_text_for_us_is_left_out_and_told(tmp_path):
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "latin.txt").write_bytes("größe".encode("latin-1"))
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.7\n\x01\x02\xe9\xff stream")
    (tmp_path / "picture.jpg").write_bytes(b"\xff\xd8\xff\xe1\x03binary")
    (tmp_path / "archive.zip").write_bytes(b"PK\x03\x04rest")
    (tmp_path / "other.jsonl").write_bytes(json_lines(["x"], "body"))
    (tmp_path / "other.csv").write_bytes(table(["x"], "body"))
    (tmp_path / "empty.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "nulls.jsonl").write_bytes(b'{"text": null}\n\n{"text": "real"}\n')
    found = find_documents(str(tmp_path))
    assert found.skipped == {
        "not UTF-8": 1,
        "binary": 3,
        "without a field 'text'": 1,
        "without a column 'text'": 1,
        "empty": 1,
        "rows without text": 1,
    }
    assert found.examples["not UTF-8"].endswith("latin.txt")
    assert found.documents.place(0) == {"file": str(tmp_path / "a.txt"), "start": 0, "stop": 4}
    assert found.documents.place(1) == {"file": str(tmp_path / "nulls.jsonl"), "line": 3, "start": 0, "stop": 4}
    assert texts(tmp_path, encoding="latin-1") == ["good", "größe", "real"]


def test_what_is_utf8_stays_that_beside_another_encoding(tmp_path):
    (tmp_path / "a.txt").write_text("größe", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("größe".encode("cp1252"))
    (tmp_path / "c.jsonl").write_bytes(json_lines(["größe"] * 400) + '{"text": "größer"}\n'.encode("cp1252"))
    assert texts(tmp_path, encoding="cp1252")[:2] == ["größe", "größe"]
    assert len(texts(tmp_path)) == 1  # nothing of the others, and nothing twice
    assert texts(tmp_path / "c.jsonl", encoding="cp1252")[-1] == "größer"


def test_utf16_without_a_mark_is_read_where_it_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("größe\r\n".encode("utf-16-le"))
    assert "NUL byte at offset 1" in said(tmp_path / "a.txt")
    assert texts(tmp_path / "a.txt", encoding="utf-16-le") == ["größe\n"]


ROWS = {
    "half a line": ("a.jsonl", b'{"text": "a"}\n{"text": "b', "a.jsonl, line 2 is not JSON: Unterminated string"),
    "cut off": ("a.jsonl", b'{"text": "a"}\n{"te', "is the file cut off?"),
    "no JSON": ("a.jsonl", b'{"text": "a"}\nplain\n', "line 2 is not JSON: Expecting value at column 1."),
    "ends too early": ("a.jsonl", b'{"text": [\n', "line 1 is not JSON: Expecting value at column 11."),
    "no object": ("a.jsonl", b"[1]\n", "line 1 holds a list, and JSON lines hold an object each."),
    "no field": ("a.jsonl", b'{"body": "a", "x": 1}\n', "line 1 has no field 'text': it has 'body', 'x'; name"),
    "no field later": ("a.jsonl", b'{"text": "a"}\n\n{"b": 1}\n', "line 3 has no field 'text': it has 'b'; name one"),
    "no field at all": ("a.jsonl", b"{}\n", "line 1 has no field 'text': it has no field at all."),
    "a number": ("a.jsonl", b'{"text": 3}\n', "line 1: the field 'text' holds a number, not text."),
    "a list": ("a.jsonl", b'{"text": ["a"]}\n', "line 1: the field 'text' holds a list, not text."),
    "half a pair": ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1: the text holds half a surrogate pair"),
    "deep": ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "line 1 is not JSON"),
    "many digits": ("a.jsonl", b'{"text": "a", "n": ' + b"1" * 9999 + b"}\n", "line 1 is not JSON that can be read"),
    "not UTF-8": ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "a.jsonl, line 2 is not UTF-8: byte 0xff"),
    "all empty": ("a.jsonl", b'{"text": ""}\n', "a.jsonl is empty"),
    "blank": ("a.jsonl", b"\n \n", "a.jsonl is empty"),
    "nothing": ("a.csv", b"", "a.csv is empty"),
    "only a header": ("a.csv", b"id,text\n", "a.csv is empty"),
    "no column": ("a.csv", b"id,body\n1,a\n", "has no column 'text': it has 'id', 'body'; name one with --column."),
    "two columns": ("a.csv", b"text,text\n1,a\n", "a.csv has 2 columns 'text'"),
    "a row too long": ("a.csv", b'id,text\n1,"a\nb"\n2,b,c\n', "a.csv, line 4 has 3 columns, and the header 2"),
    "a quote not closed": ("a.csv", b'id,text\n1,"a\n2,b\n', "line 2 is no row of a table: unexpected end of data"),
    "a quote inside": ("a.csv", b'id,text\n1,"a"b\n', "a.csv, line 2 is no row of a table: ',' expected after"),
    "a header not closed": ("a.csv", b'id,"text\n', "a.csv, line 1 is no header of a table"),
    "damaged gzip": ("a.jsonl.gz", gzip.compress(json_lines(["a"] * 99))[:-9], "its gzip data is cut short or altered"),
    "half a zstd": ("a.txt.zst", PACKINGS[".zst"](b"text" * 99)[:-3], "its zstd data is cut short or altered"),
    "altered zstd": ("a.txt.zst", b"\x28\xb5\x2f\xfdrubbish, this is", "its zstd data is cut short or altered"),
    "xz": ("a.txt.xz", b"\xfd7zXZ\0", "compressed with xz: unpack it"),
}


@pytest.mark.parametrize(("name", "content", "sentence"), ROWS.values(), ids=ROWS)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    assert sentence in said(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_line_or_a_cell_without_end_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST", 1000)
    before = csv.field_size_limit()
    (tmp_path / "a.jsonl").write_bytes(json_lines(["a", "b" * 1000]))
    assert "line 2 is longer than 1,000 bytes" in said(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_bytes(table(["a", "b\n" * 1000]))
    assert "line 3 is no row of a table: field larger than field limit (1000)" in said(tmp_path / "a.csv")
    assert csv.field_size_limit() == before  # which is not ours alone


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"field": "body"}, "the field 'body' is for JSON (.jsonl, .json), and there is none"),
        ({"column": "body"}, "the column 'body' is for a table (.csv, .tsv), and there is none"),
        ({"field": ""}, "field is empty"),
        ({"encoding": "klingon"}, "unknown encoding 'klingon'"),
        ({"encoding": "rot13"}, "unknown encoding 'rot13'"),
        ({"encoding": "utf-7"}, "cannot be told from UTF-8"),
        ({"encoding": "a\0b"}, "unknown encoding"),
    ],
)
def test_asked_for_what_is_not_there(tmp_path, how, sentence):
    (tmp_path / "a.txt").write_text("text")
    assert sentence in said(tmp_path, **how)


def test_zstd_without_its_package_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.zst").write_bytes(PACKINGS[".zst"](b"text"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install 'tapeless[zstd]'" in said(tmp_path / "a.zst")


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_several_members_are_read_to_the_last(tmp_path, packing):
    (tmp_path / f"a{packing}").write_bytes(PACKINGS[packing](b"one ") + PACKINGS[packing](b"two"))
    assert texts(tmp_path / f"a{packing}") == ["one two"]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_what_grows_without_measure_is_refused(tmp_path, monkeypatch, packing):
    monkeypatch.setattr(compressed, "UNSUSPICIOUS", 1 << 20)
    (tmp_path / f"a{packing}").write_bytes(PACKINGS[packing](b"a" * (1 << 25)))
    assert "unpacks to more than 100 times its size" in said(tmp_path / f"a{packing}")
    assert len(list(tmp_path.iterdir())) == 1


def test_copies_are_dropped_on_request_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(["same", "other", "same", "else"]))
    (tmp_path / "b.txt").write_text("same")
    (tmp_path / "c.txt").write_bytes("else".encode("utf-16"))
    assert len(texts(tmp_path)) == 6
    assert texts(tmp_path, drop_duplicates=True) == ["same", "other", "else"]
    assert find_documents(str(tmp_path), Reading(drop_duplicates=True)).skipped == {"duplicate": 3}
    made = prepare(str(tmp_path), tmp_path / "out", validation=0.4, reading=Reading(drop_duplicates=True))
    assert made.meta.training.documents + made.meta.validation.documents == 3
    assert made.meta.skipped == {"duplicate": 3}


@given(rows=st.lists(st.sampled_from(["a", "bb", "ccc", "dd"]), min_size=2, max_size=20), seed=st.integers(0, 3))
@cases(60)
def test_the_same_text_is_on_one_side_whatever_it_came_in(tmp_path_factory, rows, seed):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(json_lines(rows)))
    (folder / "b.csv").write_bytes(table(rows[::2]))
    (folder / "c.txt").write_text(rows[0] if len(set(rows)) > 1 else "another")
    corpus = find_documents(str(folder))
    numbers = split_documents(corpus, 0.3, seed).values()
    sides = [{b"".join(corpus.documents.pieces(each)) for each in side.tolist()} for side in numbers]
    assert all(sides)
    assert not sides[0] & sides[1]


def test_prepared_rows_are_documents_and_nothing_else_stays(tmp_path):
    rows = [f"row {number} of them" for number in range(50)]
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(json_lines(rows)))
    made = prepare(str(tmp_path / "rows.jsonl.gz"), tmp_path / "out")
    assert (made.meta.training.documents, made.meta.validation.documents) == (45, 5)
    data = open_data(tmp_path / "out")
    found = bytes(
        min(token, 10) if token == 256 else token
        for side in (data.training, data.validation)
        for token in side.window(0, len(side))
    )
    assert sorted(found.decode().splitlines()) == sorted(rows)
    places = [json.loads(line) for line in (tmp_path / "out/documents.jsonl").read_text().splitlines()]
    assert sorted(place["line"] for place in places) == list(range(1, 51))
    assert {place["file"] for place in places} == {str(tmp_path / "rows.jsonl.gz")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows.jsonl.gz"]


@pytest.mark.parametrize("stage", ["reading", "tokenising"])
def test_an_interruption_leaves_no_text_behind(tmp_path, stage):
    (tmp_path / "rows.csv").write_bytes(table([f"row {number}" for number in range(5000)]))

    def interrupt(told, done, total):
        if told == stage and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(str(tmp_path / "rows.csv"), tmp_path / "out", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_memory_is_bounded_however_many_rows_there_are(tmp_path):
    """Peak memory of a process of its own: 60,000 rows in 6 MB."""
    with (tmp_path / "rows.jsonl").open("w") as file:
        for number in range(60_000):
            file.write(json.dumps({"text": f"row {number} " + "words and more words " * 3}) + "\n")
    code = f"""
        import resource
        from pathlib import Path
        from tapeless.tasks.data.prepare import prepare
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        prepare({str(tmp_path / "rows.jsonl")!r}, Path({str(tmp_path / "out")!r}))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert int(done.stdout) / 1024 < 60, done.stdout
