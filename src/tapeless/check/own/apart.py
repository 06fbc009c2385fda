"""A kernel where it can do no harm: Triton's without a GPU in its interpreter; any in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from select import select
from threading import RLock
from typing import Any

from tapeless.check.own.report import Mistake, Verdict, read

_one_at_a_time = RLock()  # the interpreter is for one thread


@contextmanager
def interpreted() -> Iterator[None]:
    """Triton's kernels run in its interpreter where there is no GPU, whether TRITON_INTERPRET was set or not."""
    torch, triton = sys.modules.get("torch"), sys.modules.get("triton")
    if torch is None or triton is None or torch.cuda.is_available():
        yield
        return
    import triton.runtime.interpreter as interpreter
    import triton.runtime.jit as jit
    from triton.runtime.autotuner import Autotuner

    made: dict[int, Any] = {}

    def version(self: Any) -> Any:
        if id(self) not in made:
            made[id(self)] = interpreter.InterpretedFunction(self.fn)
        return made[id(self)]

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        with _one_at_a_time:
            return version(self).run(*arguments, grid=grid, warmup=warmup, **options)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return version(self)(*arguments, **options)

    def first_of(self: Any, *arguments: Any, **options: Any) -> Any:
        """The first configuration: there is nothing to measure here."""
        return self.fn.run(*arguments, **options, **self.configs[0].all_kwargs())

    plain = interpreter._implicit_cvt

    def typed(value: Any) -> Any:
        """A float that is no constant has a type, as it has on a GPU."""
        if isinstance(value, float):
            import numpy as np
            import triton.language as tl

            return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
        return plain(value)

    kind = jit.JITFunction
    before = {name: getattr(kind, name) for name in ("run", "__call__")}, Autotuner.run
    kind.run, kind.__call__, Autotuner.run, interpreter._implicit_cvt = run, call, first_of, typed
    try:
        yield
    finally:
        kind.run, kind.__call__ = before[0]["run"], before[0]["__call__"]
        Autotuner.run, interpreter._implicit_cvt = before[1], plain


@contextmanager
def on_one_thread() -> Iterator[None]:
    """torch's threads cost more than they bring where tensors are small."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    if torch is not None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


def in_a_process(check: Callable[[Callable[[int, int, str], None]], Verdict], limit: float, kernel: str) -> Verdict:
    """The verdict of a check that runs in a process of its own, which may end or hang: `limit` seconds a case."""
    import json

    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(out)
        _work(check, into)
    os.close(into)
    began, last, text, case = time.perf_counter(), time.perf_counter(), b"", "the first case"
    hung = False
    while True:
        ready, _, _ = select([out], [], [], 0.1)
        if ready:
            piece = os.read(out, 1 << 16)
            if not piece:
                break
            text, last = text + piece, time.perf_counter()
            lines = text.split(b"\n")
            titles = [each[1:].decode() for each in lines[:-1] if each[:1] == b"c" and each[1:]]
            case = titles[-1] if titles else case
        elif time.perf_counter() - last > limit:
            hung = True
            os.kill(child, 9)
            break
    os.close(out)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for line in text.split(b"\n"):
        if line[:1] == b"r":
            return replace(read(line[1:].decode()), kernel=kernel)
        if line[:1] == b"e":
            from tapeless.errors import TapelessError

            raise TapelessError(json.loads(line[1:].decode()))
    if hung:
        wrong = Mistake("hangs", f"the kernel does not come back within {limit:g} s", case, case)
    else:
        how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
        wrong = Mistake("ends the process", f"the kernel ends the process {how}", case, case)
    return Verdict("wrong", "", None, (wrong,), kernel=kernel, seconds=time.perf_counter() - began)


def _work(check: Callable[[Callable[[int, int, str], None]], Verdict], into: int) -> None:
    """The child: it tells the title of each case before it tries it, and the report at the end."""
    import json

    from tapeless.errors import TapelessError

    def tell(kind: str, text: str) -> None:
        data = (kind + text.replace("\n", " ") + "\n").encode()
        while data:
            data = data[os.write(into, data) :]

    try:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # the parent's threads are not here
        report = check(lambda done, total, title: tell("c", title))
        tell("r", json.dumps(report.document()))
    except TapelessError as error:
        tell("e", json.dumps(str(error)))
    finally:
        os._exit(0)
