"""One reader and its inputs, one after the other, in a process whose memory and time are bounded."""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tools.fuzz.readers import READERS, Read, Reader, example_of

MEMORY = 1 << 30  # bytes that all inputs of a reader may take beyond what the process has when it starts
LONGEST = 4500  # characters of a sentence: a path in it may have 4,096
SECONDS = 5.0  # that one input may take
FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # in memory: a million files would wear a disk


@dataclass(frozen=True)
class Result:
    """How far it is: inputs tried, of which so many were refused, and what should not have happened."""

    tried: int
    refused: int
    finding: str | None = None
    input: bytes = b""
    slowest: float = 0.0


def hunt(reader: Reader, seed: int, numbers: range, report_every: int = 500) -> Iterator[Result]:
    """Try the inputs of these numbers. A finding is yielded at once, and the hunt goes on."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=FOLDER))
    try:
        examples, read = reader.prepare(folder)
        for example in examples:
            with suppress(TapelessError):  # imports what is imported late: that is no input's memory
                _quietly(read, example)
        _limit_memory()
        faulthandler.dump_traceback_later(12 * SECONDS, exit=True)
        tried = refused = 0
        slowest = 0.0
        for number in numbers:
            data = example_of(reader, examples, seed, number)
            started = time.perf_counter()
            finding = None
            try:
                _quietly(read, data)
            except TapelessError as error:
                refused += 1
                finding = _unfit(error)
            except Exception as error:  # whatever it is, it is what is looked for
                finding = _told(error)
            spent = time.perf_counter() - started
            slowest = max(slowest, spent)
            if spent > SECONDS:
                finding = f"took {spent:.1f} seconds"
            tried += 1
            if finding or tried % report_every == 0:
                faulthandler.dump_traceback_later(12 * SECONDS, exit=True)
                yield Result(
                    tried, refused, finding and f"input {number}: {finding}", data if finding else b"", slowest
                )
        yield Result(tried, refused, slowest=slowest)
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(folder, ignore_errors=True)


def _quietly(read: Read, data: bytes) -> None:
    """A warning is an error here: a user would see it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(data)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _unfit(error: TapelessError) -> str | None:
    """A sentence must be one that can be shown: of bounded length, and of characters."""
    said = str(error)
    try:
        said.encode()
    except UnicodeEncodeError:
        return f"the sentence cannot be printed: {said[:200]!r}"
    return f"the sentence has {len(said):,} characters" if len(said) > LONGEST else None


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "tapeless" in frame.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
    return f"{type(error).__name__} at {where}: {str(error)[:200]}"


def work(sending: Any, name: str, seed: int, numbers: range) -> None:
    """A process's part: results, and None when all is done."""
    reader = next(each for each in READERS if each.name == name)
    for result in hunt(reader, seed, numbers):
        sending.send(result)
    sending.send(None)
