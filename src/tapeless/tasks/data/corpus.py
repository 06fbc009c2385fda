"""The documents of a source in a fixed order, and their text in pieces of bounded size."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tapeless.errors import TapelessError
from tapeless.tasks.data.files import user_path

STANDARD_LIBRARY = "stdlib"
PIECE = 1 << 17  # bytes read at once
LOOKED_AT = 1 << 16  # bytes in which a NUL tells a binary file from text
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Between two characters that are not spaces, tokenizers that split like GPT-2's begin a new token behind a line end.
# A piece that ends there has the ids it has within the whole.
CLEAN_LINE_END = re.compile(rb"\S\n(?=\S)")


@dataclass(frozen=True)
class Document:
    """The bytes from `start` to `stop` of a file. `complete` says that the text ends there, and is not cut."""

    path: Path
    start: int
    stop: int
    complete: bool = True

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Corpus:
    """What a source holds, and how many files of it were left out for which reason."""

    source: str
    documents: tuple[Document, ...]
    skipped: dict[str, int]

    @property
    def size(self) -> int:
        return sum(document.size for document in self.documents)


def find_documents(source: str) -> Corpus:
    """The documents of a text file, a folder, a glob, or `stdlib`; one file is one document."""
    if not source or "\0" in source:
        raise TapelessError(f"{source!r} names no text: give a file, a folder, a glob or {STANDARD_LIBRARY}.")
    try:
        return _standard_library() if source == STANDARD_LIBRARY else _on_disk(source)
    except OSError as error:
        _unreadable(Path(source), error)


def _on_disk(source: str) -> Corpus:
    path = user_path(source)
    if path.is_dir():
        return _several(source, _files_under(path))
    if path.is_file():
        return _single(source, path)
    if path.exists():
        raise TapelessError(f"{source} is neither a file nor a folder: give a text file, a folder or a glob.")
    if glob.has_magic(source):
        matches = (Path(match) for match in glob.iglob(str(path), recursive=True))  # noqa: PTH207 (takes absolute ones)
        return _several(source, ((match, match.is_file()) for match in matches if not match.is_dir()))
    raise TapelessError(f"there is no {source}: give a text file, a folder, a glob or {STANDARD_LIBRARY}.")


def pieces(document: Document) -> Iterator[bytes]:
    """The document's UTF-8 in order, cut at line ends where there are any. Joined they are the document."""
    place, rest, left = document.start, b"", document.size
    with _opened(document.path) as file:
        file.seek(document.start)
        while left:
            block = _read(file, document.path, min(PIECE, left))
            if not block:
                raise TapelessError(f"{document.path} became shorter while it was read: run again.")
            left -= len(block)
            rest += block
            cut = _cut(rest) if left else len(rest)
            yield _checked(rest[:cut], document.path, place)
            place += cut
            rest = rest[cut:]


def same_texts(documents: Sequence[Document]) -> list[list[int]]:
    """The numbers of the documents, those of one text together, by their first. Only what has the same size is read."""
    sizes = Counter(document.size for document in documents)
    groups: dict[Any, list[int]] = {}
    for number, document in enumerate(documents):
        alone = sizes[document.size] == 1
        groups.setdefault(number if alone else (document.size, _digest(document)), []).append(number)
    return list(groups.values())


def _digest(document: Document) -> bytes:
    digest = hashlib.sha256()
    with _opened(document.path) as file:
        file.seek(document.start)
        while block := _read(file, document.path, min(PIECE, document.stop - file.tell())):
            digest.update(block)
    return digest.digest()


def check_share(validation: Any) -> None:
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not 0 < validation < 1:
        raise TapelessError(f"validation must be a share between 0 and 1, such as 0.1, not {validation!r}.")


def cut_once(document: Document, share: float) -> tuple[Document, Document]:
    """One document as two, at a line end near `share` of it: no line, or at least no word, is on both sides."""
    if document.size < 2:
        raise TapelessError(f"{document.path} holds a single byte, so nothing can be held out: give more text.")
    wanted = min(max(document.start + round(document.size * share), document.start + 1), document.stop - 1)
    first = max(document.start, wanted - PIECE)
    with _opened(document.path) as file:
        file.seek(first)
        around = _read(file, document.path, min(document.stop, wanted + PIECE) - first)
    cut = first + _nearest_cut(around, wanted - first, document.path)
    return replace(document, stop=cut, complete=False), replace(document, start=cut)


def _single(source: str, path: Path) -> Corpus:
    head = _head(path)
    if b"\0" in head:
        kind = "it is UTF-16: convert it to UTF-8" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "it is not text"
        raise TapelessError(f"{path} holds a NUL byte at offset {head.index(0):,}, so {kind}.")
    document = _document(path, head)
    if not document.size:
        raise TapelessError(f"{path} is empty: give a file with text.")
    return Corpus(source, (document,), {})


def _several(source: str, files: Iterable[tuple[Path, bool]]) -> Corpus:
    """Sorted; hidden, binary and empty files are left out and counted."""
    documents, skipped = [], Counter[str]()
    for path, usable in sorted(files):
        if path.name.startswith("."):
            skipped["hidden"] += 1
            continue
        if not usable:
            skipped["not a file"] += 1
            continue
        head = _head(path)
        document = _document(path, head)
        if b"\0" in head:
            skipped["binary"] += 1
        elif not document.size:
            skipped["empty"] += 1
        else:
            documents.append(document)
    if not documents:
        why = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items()) or "nothing is there"
        raise TapelessError(f"{source} holds no text ({why}): give a text file, or a folder or glob with some.")
    return Corpus(source, tuple(documents), dict(skipped))


def _files_under(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every entry that is not a folder, hidden folders as they are; links to folders are not followed."""
    for parent, folders, names in os.walk(folder, onerror=lambda error: _unreadable(folder, error)):
        for name in [name for name in folders if name.startswith(".")]:
            folders.remove(name)
            yield Path(parent, name), False
        for name in names:
            yield Path(parent, name), Path(parent, name).is_file()


def _standard_library() -> Corpus:
    """Python's own sources. The few kept in other encodings, to test them, are left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    installed = {"site-packages", "dist-packages"}
    files = [path for path in folder.rglob("*.py") if not installed.intersection(path.relative_to(folder).parts)]
    if not files:
        raise TapelessError(f"Python {sys.version.split()[0]} comes without its sources in {folder}: give other text.")
    corpus = _several(STANDARD_LIBRARY, ((path, path.is_file()) for path in files))
    readable = tuple(document for document in corpus.documents if _is_utf8(document))
    other = len(corpus.documents) - len(readable)
    return Corpus(STANDARD_LIBRARY, readable, corpus.skipped | ({"not UTF-8": other} if other else {}))


def _is_utf8(document: Document) -> bool:
    try:
        for _ in pieces(document):
            pass
    except NotUtf8Error:
        return False
    return True


class NotUtf8Error(TapelessError):
    """A byte that is not UTF-8."""


def _checked(piece: bytes, path: Path, place: int) -> bytes:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8Error(
            f"{path} is not UTF-8: byte 0x{piece[error.start]:02x} at offset {place + error.start:,} "
            f"({error.reason}); convert the file to UTF-8."
        ) from None
    return piece


def _cut(block: bytes) -> int:
    """Where a piece may end, in the second half of `block`: what follows is read on."""
    half = len(block) // 2
    if found := CLEAN_LINE_END.search(block, half):
        return found.end()
    line = block.rfind(b"\n", half) + 1
    return line or max(block.rfind(b" ", half), 0) or _character_start(block, len(block) - 1)


def _nearest_cut(block: bytes, wanted: int, path: Path) -> int:
    """The line end nearest to `wanted` with text on both sides, else the nearest space, else a character's start."""
    for mark in (b"\n", b" "):
        # The cut stands behind the mark and before the block's last byte, so that both sides hold something.
        cuts = [block.rfind(mark, 0, wanted) + 1, block.find(mark, wanted, len(block) - 1) + 1]
        if any(cuts):
            return min((cut for cut in cuts if cut), key=lambda cut: abs(cut - wanted))
    cut = _character_start(block, wanted)
    if not cut:
        cut = next((place for place in range(1, len(block)) if block[place] & 0xC0 != 0x80), 0)
    if not cut:
        raise TapelessError(f"{path} holds a single character, so nothing can be held out: give more text.")
    return cut


def _character_start(block: bytes, place: int) -> int:
    """`place`, or up to three bytes before it, where a UTF-8 character begins."""
    lowest = max(place - 3, 0)
    while place > lowest and block[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _document(path: Path, head: bytes) -> Document:
    start = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    return Document(path, start, path.stat().st_size)


def _head(path: Path) -> bytes:
    with _opened(path) as file:
        return _read(file, path, LOOKED_AT)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        _unreadable(path, error)


def _read(file: BinaryIO, path: Path, size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> NoReturn:
    raise TapelessError(f"cannot read {error.filename or path}: {error.strerror}.") from None
