"""Text as people have it: compressed, in other encodings, in rows of JSON and of tables. Out comes UTF-8."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from tapeless.errors import TapelessError
from tapeless.files.compressed import Pieces
from tapeless.tasks.data.documents import PIECE
from tapeless.tasks.data.files import LARGEST_JSON

READING_HELP = {
    "field": "Field of JSON that is the text. Default: text.",
    "column": "Column of .csv and .tsv that is the text. Default: text.",
    "encoding": "Encoding of files that are not UTF-8, such as latin-1. Default: leave them out.",
    "drop_duplicates": "Keep one of several documents with the same text.",
}
USUAL = "text"  # what a field or column is called where nobody says
TEXT, JSON, JSON_LINES, JSON_LIST, TABLE = "text", "JSON", "JSON lines", "a JSON list", "a table"
FORMS = {".jsonl": JSON_LINES, ".ndjson": JSON_LINES, ".json": JSON, ".csv": TABLE, ".tsv": TABLE, ".tab": TABLE}
BLANK = re.compile(r"[ \t\n\r]*")
PACKED = (".gz", ".zst", ".zstd")
DELIMITERS = {".tsv": "\t", ".tab": "\t"}
LONGEST = 1 << 26  # bytes of a line, and characters of a cell
MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}  # before UTF-16, whose mark begins one of them
MARKS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
FEW = 8  # names in a sentence


class NotUtf8Error(TapelessError):
    """A byte that is not UTF-8, nor of the encoding that was named."""


class NoSuchNameError(TapelessError):
    """A field or column that the first row does not have."""


class NotRowsError(TapelessError):
    """JSON that is no list of objects, nor a line of its own for each."""


@dataclass(frozen=True)
class Reading:
    """How text is taken out of files, where that is not plain."""

    field: str | None = None  # of JSON; `text` by default
    column: str | None = None  # of a table; `text` by default
    encoding: str | None = None  # of what is not UTF-8
    drop_duplicates: bool = False  # of the same text one document

    def validate(self) -> None:
        for name in ("field", "column", "encoding"):
            if getattr(self, name) == "":
                raise TapelessError(f"{name} is empty: name one, or leave it out.")
        if self.encoding is not None:
            _check_encoding(self.encoding)

    def form_of(self, path: Path, alone: bool) -> str:
        """What a file is by its name; where it is the only one, a field or column that was named says it too."""
        form = FORMS.get(bare_suffix(path))
        if form is None and self.field is not None and alone:
            return JSON_LINES
        if form is None and self.column is not None and alone:
            return TABLE
        return form or TEXT


def bare_suffix(path: Path) -> str:
    """`.jsonl` of `a.jsonl.gz`."""
    return Path(path.stem if path.suffix.lower() in PACKED else path.name).suffix.lower()


def _check_encoding(encoding: str) -> None:
    try:
        codecs.getincrementaldecoder(encoding)("strict").decode(b"", final=True)
        seen = "é日я".encode(encoding, "ignore")
    except (LookupError, UnicodeError, ValueError, TypeError):
        raise TapelessError(
            f"unknown encoding {encoding[:40]!r}: name one that Python knows, such as latin-1, cp1252, shift_jis or "
            f"utf-16-le."
        ) from None
    if seen and max(seen) < 0x80:
        raise TapelessError(f"{encoding} is written in ASCII, so it cannot be told from UTF-8: convert it to UTF-8.")


def marked_encoding(head: bytes) -> str | None:
    """What a byte-order mark says, other than UTF-8."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), None)


def as_utf8(stream: BinaryIO, path: Path, encoding: str | None) -> BinaryIO:
    """The stream as UTF-8 without a mark. None: it is UTF-8 already, if it is text."""
    return stream if encoding is None else BufferedReader(Pieces(_transcoded(stream, path, encoding)))


def _transcoded(stream: BinaryIO, path: Path, encoding: str) -> Iterator[bytes]:
    decoder, place, block = codecs.getincrementaldecoder(encoding)("strict"), 0, b"."
    while block:
        block = stream.read(PIECE)
        held = len(decoder.getstate()[0])
        try:
            yield decoder.decode(block, final=not block).encode("utf-8")
        except UnicodeEncodeError:  # half a surrogate pair, which some decoders let pass
            raise NotUtf8Error(f"{path} is no {encoding}: it holds half a character.") from None
        except UnicodeDecodeError as error:
            raise not_text(path, error, place - held, encoding) from None
        place += len(block)


def not_text(path: Path, error: UnicodeDecodeError, place: int, encoding: str = "UTF-8") -> NotUtf8Error:
    advice = "convert the file to UTF-8, or say what it is with --encoding, such as latin-1"
    return NotUtf8Error(
        f"{path} is not {encoding}: byte 0x{error.object[error.start]:02x} at offset {place + error.start:,} "
        f"({error.reason}); {advice}."
    )


def json_form(text: str, path: Path) -> str:
    """What a .json file is, by its beginning: one list, or lines with an object each."""
    line, ended, _ = text.lstrip().partition("\n")
    if line.startswith("["):
        return JSON_LIST
    try:
        whole = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        whole = line.startswith("{") and not ended  # longer than what was looked at, or cut off
    if not whole:
        raise _no_rows(path, "it holds neither a list of objects nor an object in each line")
    return JSON_LINES


def _no_rows(path: Path, why: str) -> NotRowsError:
    return NotRowsError(f"{path} is no JSON with rows, as {why}: give such, or call it .txt to read it as it is.")


def rows(stream: BinaryIO, path: Path, form: str, reading: Reading) -> Iterator[tuple[int, str]]:
    """The texts of JSON or of a table, each with the line that it begins in. One without text is empty."""
    if form in (JSON_LINES, JSON_LIST):
        objects = json_objects(stream, path) if form == JSON_LINES else listed_objects(stream, path)
        return _json_rows(objects, path, reading.field or USUAL)
    return _table_rows(stream, path, reading.column or USUAL)


def _lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    while line := stream.readline(LONGEST):
        number += 1
        if len(line) == LONGEST and not line.endswith(b"\n"):
            raise TapelessError(f"{path}, line {number:,} is longer than {LONGEST:,} bytes: are these rows?")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise NotUtf8Error(
                f"{path}, line {number:,} is not UTF-8: byte 0x{line[error.start]:02x} ({error.reason}); convert the "
                f"file to UTF-8, or say what it is with --encoding, such as latin-1."
            ) from None
        yield number, text


def json_objects(stream: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON lines, each with its line."""
    for number, line in _lines(stream, path):
        if line.isspace():
            continue
        try:
            row = json.loads(line.rstrip("\r\n"))  # where it ends too early is then a column that it has
        except json.JSONDecodeError as error:
            cut = ", and it is the last line: is the file cut off?" if not line.endswith("\n") else "."
            raise TapelessError(
                f"{path}, line {number:,} is not JSON: {error.msg} at column {error.colno:,}{cut}"
            ) from None
        except (ValueError, RecursionError):
            raise TapelessError(
                f"{path}, line {number:,} is not JSON that can be read: it is nested too deeply, or holds a number of "
                f"thousands of digits."
            ) from None
        if not isinstance(row, dict):
            raise TapelessError(f"{path}, line {number:,} holds {json_kind(row)}, and JSON lines hold an object each.")
        yield number, row


def listed_objects(stream: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of one JSON list, each with the line that it begins in."""
    data = stream.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise TapelessError(f"{path} is longer than {LARGEST_JSON:,} bytes: write it as JSON lines, a row each.")
    try:
        text = data.decode("utf-8-sig").rstrip()  # where it is cut off would else be a line that it does not have
    except UnicodeDecodeError as error:
        raise not_text(path, error, 0) from None
    if not text.lstrip().startswith("["):
        raise _no_rows(path, "it holds no list")
    place, line, decoder = text.index("[") + 1, 1, json.JSONDecoder()
    line += text.count("\n", 0, place)
    mark = ","
    if text.startswith("]", _after_blanks(text, place)):
        mark, place = "]", _after_blanks(text, place) + 1
    while mark == ",":
        start = _after_blanks(text, place)
        line += text.count("\n", place, start)
        try:
            row, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise _no_rows(path, f"line {error.lineno:,} is not JSON ({error.msg})") from None
        except (ValueError, RecursionError):
            raise _no_rows(
                path, f"line {line:,} cannot be read: it is nested too deeply, or a number too long"
            ) from None
        if not isinstance(row, dict):
            raise _no_rows(path, f"line {line:,} holds {json_kind(row)}, not an object")
        yield line, row
        place = _after_blanks(text, end) + 1
        line += text.count("\n", start, place)
        mark = text[place - 1 : place]
        if mark not in (",", "]") or not mark:
            raise _no_rows(path, f"its list is cut off or broken in line {line:,}")
    if _after_blanks(text, place) != len(text):
        raise _no_rows(path, f"something follows its list in line {line:,}")


def _after_blanks(text: str, place: int) -> int:
    found = BLANK.match(text, place)
    return place if found is None else found.end()


def _json_rows(objects: Iterator[tuple[int, dict[str, Any]]], path: Path, field: str) -> Iterator[tuple[int, str]]:
    first = True
    for number, row in objects:
        if field not in row:
            kind = NoSuchNameError if first else TapelessError
            raise kind(f"{path}, line {number:,} has no field {field!r}: {_others(list(row), 'field')}")
        text, first = row[field], False
        if not isinstance(text, str | None):
            raise TapelessError(f"{path}, line {number:,}: the field {field!r} holds {json_kind(text)}, not text.")
        yield number, text or ""


def json_kind(value: Any) -> str:
    kinds: dict[type, str] = {list: "a list", dict: "an object", str: "text", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _others(names: list[str], what: str) -> str:
    if not names:
        return f"it has no {what} at all."
    shown = ", ".join(repr(name[:40]) for name in names[:FEW]) + (" and more" if len(names) > FEW else "")
    return f"it has {shown}; name one with --{what}."


def _table_rows(stream: BinaryIO, path: Path, column: str) -> Iterator[tuple[int, str]]:
    with _long_cells():
        numbered = _lines(stream, path)
        first = next(numbered, (1, ""))[1]
        delimiter, names = _header(first, path, column)
        if column not in names:
            raise NoSuchNameError(f"{path} has no column {column!r}: {_others(names, 'column')}")
        if names.count(column) > 1:
            raise TapelessError(f"{path} has {names.count(column)} columns {column!r}: give each a name of its own.")
        place = names.index(column)
        reader = csv.reader((line for _, line in numbered), delimiter=delimiter, strict=True)
        begin = 2  # the header is one line
        try:
            for row in reader:
                if row and len(row) != len(names):
                    raise TapelessError(
                        f"{path}, line {begin:,} has {len(row)} columns, and the header {len(names)}: is a quote "
                        f"missing?"
                    )
                if row:
                    yield begin, row[place]
                begin = reader.line_num + 2
        except csv.Error as error:
            raise TapelessError(f"{path}, line {begin:,} is no row of a table: {error}.") from None


def _header(line: str, path: Path, column: str) -> tuple[str, list[str]]:
    """How cells are separated, and what the columns are called: as it has the wanted one, and by commas in doubt."""
    given = DELIMITERS.get(bare_suffix(path))
    found = [(each, _cells(line, path, each)) for each in ([given] if given else [",", ";", "\t"])]
    return next((one for one in found if column in one[1]), max(found, key=lambda one: len(one[1])))


def _cells(line: str, path: Path, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise TapelessError(f"{path}, line 1 is no header of a table: {error}.") from None


@contextmanager
def _long_cells() -> Iterator[None]:
    """The csv module's limit is one for the whole process; whoever else uses it finds it as it was."""
    before = csv.field_size_limit(LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)
