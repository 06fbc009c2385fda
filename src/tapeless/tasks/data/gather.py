"""File by file into documents, whatever they come in, as UTF-8 with plain line ends."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import IncrementalNewlineDecoder
from pathlib import Path
from typing import BinaryIO

from tapeless.errors import TapelessError
from tapeless.files.compressed import ForeignError, unpacked
from tapeless.tasks.data.documents import PIECE, Documents, opened, unreadable
from tapeless.tasks.data.reading import (
    JSON,
    JSON_LINES,
    JSON_LIST,
    TABLE,
    TEXT,
    USUAL,
    NoSuchNameError,
    NotRowsError,
    NotUtf8Error,
    Reading,
    as_utf8,
    json_form,
    marked_encoding,
    not_text,
    rows,
)

LOOKED_AT = 1 << 16  # bytes in which a NUL tells a binary file from text
BYTE_ORDER_MARK = codecs.BOM_UTF8
# What no text holds, in whatever 8-bit encoding; DOS ended its files with 0x1a, and terminals know escapes.
CONTROLS = re.compile(rb"[\x00-\x06\x0e-\x19\x1c-\x1f]")
TOLD_EVERY = 1 << 10  # rows


class LeftOutError(TapelessError):
    """A file without text for us: among others it is left out, by itself it is refused."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Gatherer:
    """`alone`: there is one file, so that nothing can be left out of it. `told` hears of the bytes read so far."""

    def __init__(self, reading: Reading, alone: bool, near: Path | None, told: Callable[[int], None]) -> None:
        self.reading, self.alone, self._told = reading, alone, told
        self.documents = Documents(near)
        self.skipped, self.examples = Counter[str](), dict[str, str]()
        self._forms, self._before = set[str](), 0

    def skip(self, reason: str, path: Path) -> None:
        self.skipped[reason] += 1
        self.examples.setdefault(reason, str(path))

    def take(self, path: Path) -> None:
        """All the documents of a file."""
        try:
            self._take(path)
        except LeftOutError as error:
            if self.alone:
                raise
            self.skip(error.reason, path)
        self._before += path.stat().st_size
        self._told(self._before)

    def finish(self) -> None:
        for form, name in ((JSON_LINES, "field"), (TABLE, "column")):
            given = getattr(self.reading, name)
            if given is not None and form not in self._forms:
                what = "JSON (.jsonl, .json)" if form == JSON_LINES else "a table (.csv, .tsv)"
                raise TapelessError(f"the {name} {given!r} is for {what}, and there is none: leave --{name} out.")
        self.documents.flush()

    def _take(self, path: Path) -> None:
        try:
            with self._streamed(path) as (stream, _):
                head = stream.read(LOOKED_AT)
        except ForeignError as error:
            raise LeftOutError("binary", str(error)) from None
        if head in (b"", BYTE_ORDER_MARK):
            raise LeftOutError("empty", f"{path} is empty: give a file with text.")
        form, marked = self.reading.form_of(path, self.alone), marked_encoding(head)
        if marked is None and b"\0" in head and not self._wide():
            raise LeftOutError("binary", f"{path} holds a NUL byte at offset {head.index(0):,}, so it is not text.")
        self._forms.add(JSON_LINES if form == JSON else form)
        try:
            if form == JSON:
                named = self.reading.encoding if self._wide() else None
                form = json_form(head.decode(marked or named or "utf-8-sig", "replace"), path)
            self._written_out(path, form, head, marked)
        except NotRowsError as error:
            raise LeftOutError("JSON without rows of text", str(error)) from None
        except NoSuchNameError as error:
            json = form in (JSON_LINES, JSON_LIST)
            name, given = ("field", self.reading.field) if json else ("column", self.reading.column)
            if given is not None:
                raise
            raise LeftOutError(f"without a {name} {USUAL!r}", str(error)) from None

    def _wide(self) -> bool:
        """The encoding that was named has NULs in every line."""
        return self.reading.encoding is not None and b"\0" in "\n".encode(self.reading.encoding)

    def _written_out(self, path: Path, form: str, head: bytes, marked: str | None) -> None:
        """As UTF-8 where it is that, else in the encoding that was named."""
        named = self.reading.encoding
        tries = [marked] if marked else [named] if b"\0" in head else [None, named] if named else [None]
        count = len(self.documents)
        refusal: NotUtf8Error | None = None
        for encoding in tries:
            try:
                if refusal is not None and CONTROLS.search(head) and not self._wide():
                    raise LeftOutError("binary", f"{path} holds control characters, so it is not text.")
                empty = self._write(path, form, encoding)
            except NotUtf8Error as error:
                refusal = error
                self.documents.take_back(count)
            except TapelessError:
                self.documents.take_back(count)
                raise
            else:
                if empty:
                    self.skipped["rows without text"] += empty
                if len(self.documents) == count:
                    raise LeftOutError("empty", f"{path} is empty: give a file with text.")
                return
        assert refusal is not None
        binary = marked is None and CONTROLS.search(head)
        raise LeftOutError("binary" if binary else "not UTF-8", str(refusal))

    def _write(self, path: Path, form: str, encoding: str | None) -> int:
        """How many rows had no text."""
        empty = 0
        with self._streamed(path) as (stream, raw):
            text = as_utf8(stream, path, encoding)
            if form == TEXT:
                for block in _with_plain_line_ends(text, path):
                    self.documents.write(block)
                    self._told(self._before + raw.tell())
                self.documents.end(path)
                return empty
            for number, (line, row) in enumerate(rows(text, path, form, self.reading)):
                self.documents.write(_row_utf8(row, path, line))
                empty += not self.documents.end(path, line)
                if number % TOLD_EVERY == 0:
                    self._told(self._before + raw.tell())
        return empty

    @contextmanager
    def _streamed(self, path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """What is in a file, and the file itself, which is the same where it is not packed."""
        with opened(path) as raw:
            try:
                stream = unpacked(path, raw)
                yield stream, raw
            except OSError as error:
                unreadable(path, error)


def _with_plain_line_ends(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """UTF-8, found to be that, with \\n at the end of every line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, place = IncrementalNewlineDecoder(decoder, translate=True), 0
    while True:
        block = stream.read(PIECE)
        held = len(decoder.getstate()[0])
        try:
            text = lines.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise not_text(path, error, place - held) from None
        yield (text if place else text.removeprefix("\ufeff")).encode("utf-8")
        if not block:
            return
        place += len(block)


def _row_utf8(row: str, path: Path, line: int) -> bytes:
    try:
        return row.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8")
    except UnicodeEncodeError:
        raise TapelessError(
            f"{path}, line {line:,}: the text holds half a surrogate pair, which is no character."
        ) from None
