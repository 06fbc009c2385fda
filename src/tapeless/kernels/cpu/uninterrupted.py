"""Work that no KeyboardInterrupt can cut, and that is not going on while the process forks.

Compiling takes locks of Numba's and of llvmlite's, both in Python code: an interrupt between taking one and noting so
leaves it taken for ever, and the next thread that compiles waits for ever. An import that is cut leaves half a package.
Python delivers interrupts to the main thread alone, so the work is done on another one; the main thread is interrupted
when the work is done. A fork waits until no thread is at such work, because the child would have its locks taken, and
no thread that gives them back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")

STACK = 16 << 20  # bytes: LLVM recurses deeply, and a thread has half a megabyte on some systems
_working = threading.RLock()
_starting = threading.Lock()


def uninterrupted(work: Callable[[], T]) -> T:
    if threading.current_thread() is not threading.main_thread():
        with _working:
            return work()
    results: list[T] = []
    errors: list[BaseException] = []
    interrupts: list[BaseException] = []
    waiting = threading.Lock()

    def run() -> None:
        try:
            with _working:
                results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            waiting.release()

    waiting.acquire()
    with _starting:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=run, name="tapeless-compiler").start()
        finally:
            threading.stack_size(before)
    while not (results or errors):
        try:
            with waiting:
                pass
        except KeyboardInterrupt as interrupt:
            interrupts.append(interrupt)
    for error in (*interrupts, *errors):
        raise error
    return results[0]


@cache
def load(name: str) -> Any:
    """A module that imports Numba; None where there is no such module."""
    return uninterrupted(lambda: import_module(name) if find_spec(name) else None)


def _before_fork() -> None:
    while True:
        try:
            if not _working._is_owned():  # type: ignore[attr-defined]
                _working.acquire()
            return
        except KeyboardInterrupt:  # it would be ignored here anyway, and the child must not have the lock taken
            continue


def _in_child() -> None:
    global _starting
    _starting = threading.Lock()
    _working.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_working.release, after_in_child=_in_child)
