"""The documents of a source in a fixed order, and their text in pieces of bounded size."""

from __future__ import annotations

import glob
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.tasks.data.documents import (
    PIECE,
    Document,
    DocumentReader,
    DocumentSubset,
    Spool,
    opened,
    read,
    same_texts,
    sizes,
    unreadable,
)
from tapeless.tasks.data.files import is_run, user_path
from tapeless.tasks.data.gather import Gatherer
from tapeless.tasks.data.reading import Reading, not_text

Told = Callable[[str, int, int], None]  # what, done, of how much

STANDARD_LIBRARY = "stdlib"
# Between two characters that are not spaces, tokenizers that split like GPT-2's begin a new token behind a line end.
# A piece that ends there has the ids it has within the whole.
CLEAN_LINE_END = re.compile(rb"\S\n(?=\S)")


@dataclass(frozen=True)
class Corpus:
    """What a source holds, and how many files, rows or copies of it were left out for which reason, each with one for
    an example. Text that had to be written out lies in the spool until it is closed."""

    source: str
    documents: Sequence[Document]
    skipped: dict[str, int]
    examples: dict[str, str] = field(default_factory=dict)
    spool: Spool | None = field(default=None, compare=False, repr=False)

    @cached_property
    def size(self) -> int:
        return int(sizes(self.documents).sum())

    def close(self) -> None:
        if self.spool is not None:
            self.spool.close()


def find_documents(
    source: str, reading: Reading | None = None, *, near: Path | None = None, progress: Told | None = None
) -> Corpus:
    """The documents of a text file, a folder, a glob, or `stdlib`: one file is one document, but in JSON lines and
    tables every row is. What is not plain UTF-8 is written out near `near`, else where temporary files are."""
    reading = reading or Reading()
    reading.validate()
    if not source or "\0" in source:
        raise TapelessError(f"{source!r} names no text: give a file, a folder, a glob or {STANDARD_LIBRARY}.")
    try:
        files = _standard_library() if source == STANDARD_LIBRARY else _on_disk(source)
        alone, entries = isinstance(files, Path), [(files, True)] if isinstance(files, Path) else sorted(files)
        total = sum(path.stat().st_size for path, usable in entries if usable)
        gatherer = Gatherer(reading, alone, near, lambda done: progress("reading", done, total) if progress else None)
        try:
            return _gathered(source, entries, gatherer)
        except BaseException:
            gatherer.spool.close()
            raise
    except OSError as error:
        unreadable(Path(source), error)


def _gathered(source: str, entries: Iterable[tuple[Path, bool]], gatherer: Gatherer) -> Corpus:
    """Hidden, binary and empty files are left out and counted, unless a file was named by itself."""
    for path, usable in entries:
        if path.name.startswith(".") and not gatherer.alone:
            gatherer.skip("hidden", path)
        elif not usable:
            gatherer.skip("a run" if is_run(path) else "not a file", path)
        else:
            gatherer.take(path)
    skipped, documents = dict(gatherer.skipped), gatherer.documents
    if not documents:
        why = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items()) or "nothing is there"
        raise TapelessError(f"{source} holds no text ({why}): give a text file, or a folder or glob with some.")
    gatherer.finish()
    found = Corpus(source, documents, skipped, gatherer.examples, gatherer.spool)
    return _without_copies(found) if gatherer.reading.drop_duplicates else found


def _without_copies(corpus: Corpus) -> Corpus:
    """Of every text its first document."""
    _, first = np.unique(same_texts(corpus.documents), return_index=True)
    copies = len(corpus.documents) - len(first)
    if not copies:
        return corpus
    kept = DocumentSubset(corpus.documents, np.sort(first))
    return replace(corpus, documents=kept, skipped=corpus.skipped | {"duplicate": copies})


def _on_disk(source: str) -> Path | Iterable[tuple[Path, bool]]:
    """A file, or what is in a folder or matches a glob, with whether it is a file."""
    path = user_path(source)
    if path.is_dir():
        if is_run(path):
            tokens = f", or {source}/data, the tokens that it learned from" if (path / "data").is_dir() else ""
            raise TapelessError(
                f"{source} is a run, not text: give the text itself{tokens}; "
                f"--init-from {source} trains on from its weights."
            )
        return _files_under(path)
    if path.is_file():
        return path
    if path.exists():
        raise TapelessError(f"{source} is neither a file nor a folder: give a text file, a folder or a glob.")
    if glob.has_magic(source):
        return _matches(str(path))
    raise TapelessError(f"there is no {source}: give a text file, a folder, a glob or {STANDARD_LIBRARY}.")


def _matches(pattern: str) -> Iterator[tuple[Path, bool]]:
    """Each file once: where a link leads back to a folder above, a glob meets it again and again."""
    seen = set[str]()
    for match in sorted(glob.iglob(pattern, recursive=True), key=lambda name: (name.count(os.sep), name)):  # noqa: PTH207
        path = Path(match)
        if not path.is_dir() and (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            yield path, path.is_file()


def pieces(document: Document, reader: DocumentReader | None = None) -> Iterator[bytes]:
    """The document's UTF-8 in order, cut at line ends where there are any. Joined they are the document."""
    if reader is None:
        with DocumentReader() as own:
            yield from pieces(document, own)
        return
    place, rest, left = document.start, b"", document.size
    file = reader.at(document)
    while left:
        block = read(file, document.path, min(PIECE, left))
        if not block:
            raise TapelessError(f"{document.path} became shorter while it was read: run again.")
        left -= len(block)
        rest += block
        cut = _cut(rest) if left else len(rest)
        yield _checked(rest[:cut], document.path, place)
        place += cut
        rest = rest[cut:]


def every_piece(documents: Iterable[Document]) -> Iterator[tuple[Document, bytes]]:
    """The pieces of one document after the other, each with the document."""
    with DocumentReader() as reader:
        for document in documents:
            for piece in pieces(document, reader):
                yield document, piece


def check_share(validation: Any) -> None:
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not 0 < validation < 1:
        raise TapelessError(f"validation must be a share between 0 and 1, such as 0.1, not {validation!r}.")


def cut_once(document: Document, share: float) -> tuple[Document, Document]:
    """One document as two, at a line end near `share` of it: no line, or at least no word, is on both sides."""
    if document.size < 2:
        raise TapelessError(
            f"{document.origin or document.path} holds a single byte of text, so nothing can be held out: give more."
        )
    wanted = min(max(document.start + round(document.size * share), document.start + 1), document.stop - 1)
    first = max(document.start, wanted - PIECE)
    with opened(document.path) as file:
        file.seek(first)
        around = read(file, document.path, min(document.stop, wanted + PIECE) - first)
    cut = first + _nearest_cut(around, wanted - first, document.path)
    return replace(document, stop=cut, complete=False), replace(document, start=cut)


def _files_under(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every entry that is not a folder, hidden folders and runs as they are; links to folders are not followed."""
    for parent, folders, names in os.walk(folder, onerror=lambda error: unreadable(folder, error)):
        for name in [name for name in folders if name.startswith(".") or is_run(Path(parent, name))]:
            folders.remove(name)
            yield Path(parent, name), False
        for name in names:
            yield Path(parent, name), Path(parent, name).is_file()


def _standard_library() -> Iterable[tuple[Path, bool]]:
    """Python's own sources. The few kept in other encodings, to test them, are left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    installed = {"site-packages", "dist-packages"}
    files = [path for path in folder.rglob("*.py") if not installed.intersection(path.relative_to(folder).parts)]
    if not files:
        raise TapelessError(f"Python {sys.version.split()[0]} comes without its sources in {folder}: give other text.")
    return ((path, path.is_file()) for path in files)


def _checked(piece: bytes, path: Path, place: int) -> bytes:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_text(path, error, place) from None
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
        raise TapelessError(f"{path} holds a single character, so nothing can be held out: give more.")
    return cut


def _character_start(block: bytes, place: int) -> int:
    """`place`, or up to three bytes before it, where a UTF-8 character begins."""
    lowest = max(place - 3, 0)
    while place > lowest and block[place] & 0xC0 == 0x80:
        place -= 1
    return place
