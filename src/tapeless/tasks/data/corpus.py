"""The documents of a source, in a fixed order."""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.tasks.data.documents import Documents, unreadable
from tapeless.tasks.data.files import is_run, user_path
from tapeless.tasks.data.gather import Gatherer
from tapeless.tasks.data.reading import Reading

Told = Callable[[str, int, int], None]  # what, done, of how much

STANDARD_LIBRARY = "stdlib"


@dataclass(frozen=True)
class Corpus:
    """What a source holds, until it is closed, and how many files, rows or copies of it were left out for which reason,
    each with one for an example."""

    source: str
    documents: Documents
    skipped: dict[str, int]
    examples: dict[str, str]

    @cached_property
    def size(self) -> int:
        return int(self.documents.sizes.sum())

    def close(self) -> None:
        self.documents.close()


def find_documents(
    source: str, reading: Reading | None = None, *, near: Path | None = None, progress: Told | None = None
) -> Corpus:
    """The documents of a text file, a folder, a glob, or `stdlib`: one file is one document, but in JSON lines and
    tables every row is. Until the corpus is closed it lies near `near`, else where temporary files are."""
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
            gatherer.documents.close()
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
    if not len(documents):
        why = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items()) or "nothing is there"
        raise TapelessError(f"{source} holds no text ({why}): give a text file, or a folder or glob with some.")
    gatherer.finish()
    if gatherer.reading.drop_duplicates:
        _, first = np.unique(documents.same_texts(), return_index=True)
        if len(first) < len(documents):
            skipped["duplicate"] = len(documents) - len(first)
            documents.keep(np.sort(first))
    return Corpus(source, documents, skipped, gatherer.examples)


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


def check_share(validation: Any) -> None:
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not 0 < validation < 1:
        raise TapelessError(f"validation must be a share between 0 and 1, such as 0.1, not {validation!r}.")


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
