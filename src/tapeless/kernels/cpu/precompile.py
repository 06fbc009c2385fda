"""Compiling kernels on several cores: helper processes compile some of them into the cache on disk.

Numba compiles one function at a time in a process. So kernels that are missing are first all found, then taken one by
one by this process and by as many others as there are further cores, and read from disk here. A process that fails, or
cannot write, costs nothing but its kernels: what it did not leave on disk is compiled here.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from numba import types

from tapeless.collection import paused
from tapeless.kernels.cpu import dispatch
from tapeless.kernels.cpu.bfloat16 import BFLOAT16
from tapeless.kernels.cpu.cache import cache_folder
from tapeless.kernels.cpu.compile import Kernel, progress
from tapeless.kernels.cpu.functions import CFunction, Missing, collecting
from tapeless.kernels.cpu.uninterrupted import uninterrupted

T = TypeVar("T")

FEWEST = 4  # kernels; for fewer, another process takes longer to start than they take to compile
PATIENCE = 120  # seconds that another process may take for one kernel; then it is ended
SCALARS = {str(kind): kind for kind in (types.int64, types.float64, types.boolean, types.none)}
DTYPES = {
    str(kind): kind
    for kind in (
        types.float32,
        types.float64,
        types.int8,
        types.uint8,
        types.int32,
        types.uint32,
        types.int64,
        types.uint64,
        types.boolean,
        BFLOAT16,
    )
}


def compile_all(bind: Callable[[], T]) -> T:
    """Return what `bind` returns, after the kernels that it binds have been compiled on all cores."""
    with collecting() as missing:
        bound = bind()
    if not missing:
        return bound
    _compile(list(missing))
    return bind()


def _compile(missing: list[Missing]) -> None:
    """Longest first, so that all processes are done at about the same time."""
    total = len(missing)
    progress(0, total)
    found = sorted(missing, key=lambda each: size_of(each[0].function), reverse=True)
    waiting = deque(each for each in found if _described(each) is not None)
    alone = _helped.acquire(blocking=False)  # else another thread of ours has the cores already
    others = min(dispatch.cores() - 1, len(waiting) // FEWEST) if alone and _interpreter() and _is_kept() else 0
    helpers = [_Helper(waiting) for _ in range(others)]
    own = deque(each for each in found if _described(each) is None)
    try:
        dispatch.settle_loops()  # which compiles what runs them, while helpers start
        while own or waiting:
            try:
                function, kinds = (own or waiting).popleft()
            except IndexError:  # a helper was faster
                break
            with paused():
                uninterrupted(partial(function.compiled_for, kinds))
            progress(max(1, total - len(own) - len(waiting) - len(helpers)), total)
        for helper in helpers:
            helper.finish()
    finally:
        waiting.clear()
        progress(total, total)
        if alone:
            _helped.release()


def size_of(function: Callable[..., Any]) -> int:
    """Bytes of a function's code and of all that it inlines, for which it takes about as long to compile."""
    found: set[Any] = set()
    waiting = [function]
    while waiting:
        each: Any = waiting.pop()
        if each.__code__ not in found:
            found.add(each.__code__)
            named = (each.__globals__.get(name) for name in each.__code__.co_names)
            waiting += [helper for part in named if (helper := getattr(part, "py_func", None))]
    return sum(len(code.co_code) for code in found)


def _is_kept() -> bool:
    """Whether what another process compiles can be read here."""
    try:
        cache_folder()
    except RuntimeError:
        return False
    return True


def _interpreter() -> str | None:
    """The Python that other processes can be started with. A frozen application would start itself again."""
    named = Path(sys.executable or "").name.lower().startswith(("python", "pypy"))
    return sys.executable if named and not getattr(sys, "frozen", False) else None


_helped = threading.Lock()


def _after_fork() -> None:
    global _helped
    _helped = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Helper(threading.Thread):
    """Hands kernels to another process, one at a time."""

    def __init__(self, waiting: deque[Missing]) -> None:
        super().__init__(name="tapeless-helper", daemon=True)
        self._waiting = waiting
        self._process: subprocess.Popen[str] | None = None
        self._has_kernel = False
        self.start()

    def finish(self) -> None:
        """Waits for the kernel that the process has, if it has one, and ends a process that does not answer."""
        self.join(PATIENCE if self._has_kernel else 1)
        if self.is_alive() and self._process is not None:
            self._process.kill()

    def run(self) -> None:
        path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
        code = "from tapeless.kernels.cpu.precompile import serve; serve()"
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError:
            return
        self._process = process
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            if not process.stdout.readline():  # it says when it is ready
                return
            while self._waiting:
                try:
                    one = self._waiting.popleft()
                except IndexError:
                    return
                self._has_kernel = True
                try:
                    process.stdin.write(json.dumps(_described(one)) + "\n")
                    process.stdin.flush()
                except OSError:
                    return
                if not process.stdout.readline():
                    return
                self._has_kernel = False


def _described(missing: Missing) -> list[Any] | None:
    """A kernel and its types as JSON, for another process; None if they cannot be described."""
    found, kinds = missing
    function = found.function
    # Not imported: the main thread may be in the middle of that, and wait for this one.
    named = _named(sys.modules.get(function.__module__), function.__name__)
    described = [_kind(each) for each in kinds]
    return [function.__module__, function.__name__, described] if named is found and None not in described else None


def _named(module: ModuleType | None, name: str) -> Kernel | CFunction | None:
    """A module's kernel or C function."""
    held = [] if module is None else list(vars(module).values())
    found = [each for each in held if isinstance(each, Kernel | CFunction)]
    return next((each for each in found if each.function.__name__ == name), None)


def _kind(kind: Any) -> Any:
    if isinstance(kind, types.Array) and str(kind.dtype) in DTYPES and kind.aligned:
        return [str(kind.dtype), kind.ndim, kind.layout, not kind.mutable]
    return str(kind) if SCALARS.get(str(kind)) == kind else None


def _type_of(described: Any) -> Any:
    if isinstance(described, str):
        return SCALARS[described]
    dtype, ndim, layout, readonly = described
    return types.Array(DTYPES[dtype], ndim, layout, readonly=readonly)


def serve() -> None:
    """The loop of a helper process: compile the kernel that each line of input describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent is interrupted, and then sends no more
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        module, name, kinds = json.loads(line)
        found = _named(import_module(module), name)
        if found is not None:
            found.compiled_for(tuple(map(_type_of, kinds)))
        print("done", flush=True)
