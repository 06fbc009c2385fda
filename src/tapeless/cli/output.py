"""Standard output that may be closed or full: what cannot be written is one sentence, and ends no training."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

BROKEN_PIPE = 128 + 13  # what shells show for a process that a closed pipe ended


class OutputError(Exception):
    """Nothing more can be written to standard output."""


class StandardOutput:
    """Standard output. If it fails, the rest goes nowhere, and a command that has nothing to lose ends there."""

    failure: OSError | None = None
    patient = False  # a training goes on without being read

    def __init__(self, stream: TextIOWrapper) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = self.failure or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)
        if not self.patient:
            raise OutputError from None


def install() -> None:
    """Before anything is written. A stream that was closed from the start takes everything and keeps nothing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    given: Any = sys.stdout
    if isinstance(given, TextIOWrapper):
        given.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
        output: Any = StandardOutput(given)
        sys.stdout = output


def go_on_unread() -> None:
    """From here on there is something to lose: no failure of the output ends what is done."""
    output: Any = sys.stdout
    if isinstance(output, StandardOutput):
        output.patient = True


def closing_status() -> int:
    """Write what is left; 0, or what to exit with where not everything could be written, with a sentence."""
    output: Any = sys.stdout
    if not isinstance(output, StandardOutput):
        return 0
    with suppress(OutputError):
        output.flush()
    sys.stdout = output.stream
    if output.failure is None:
        return 0
    if output.failure.errno == errno.EPIPE:  # whoever read has read enough
        return BROKEN_PIPE
    say(f"error: the output could not be written: {output.failure.strerror}.")
    return 1


def say(sentence: str) -> None:
    """To standard error, which may be closed as well."""
    with suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)
