"""The reference backend as a device runs it: to see what a training launches ahead, and whom it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tapeless.backends.reference import REFERENCE, Reference
from tapeless.kernels.native import Native
from tapeless.ops.contract import Array
from tapeless.program.call import Call


class Delayed(Reference):
    """Calls, writes and copies wait in a queue until somebody asks for a number; then what comes before it runs, and of
    what is read later, nothing that was launched since."""

    traits = replace(Reference.traits, asynchronous=True)

    def __init__(self, inner: Reference = REFERENCE) -> None:
        self.inner, self.stops = inner, 0  # how often somebody has waited for all that was launched
        self.queue: deque[Native] = deque()

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        return [partial(self.queue.append, native) for native in self.inner.bind(call, arguments, options)]

    def write(self, view: Array, values: Any) -> None:
        self.queue.append(partial(super().write, view, np.array(values)))

    def read(self, view: Array) -> Array:
        self.stops += bool(self.queue)
        self.run_until(lambda: not self.queue)
        return super().read(view)

    def read_later(
        self, views: Sequence[Array], disable: tuple[Array, Array] | None = None
    ) -> Callable[[], list[Array]]:
        held: list[Array] = []
        self.queue.append(lambda: held.extend(REFERENCE.read_later(views, disable)()))

        def values() -> list[Array]:
            self.run_until(lambda: bool(held))
            return held

        return values

    def run_until(self, done: Callable[[], bool]) -> None:
        with np.errstate(all="ignore"):
            while not done():
                self.queue.popleft()()


class Overflowing(Reference):
    """The norm of the gradients, or the loss, is infinite in one run of many, counted from 1."""

    def __init__(self, at: int, what: str = "norm") -> None:
        self.at, self.what, self.runs = at, what, 0

    def bind(self, call: Call, arguments: list[Any], options: dict[str, Any]) -> list[Native]:
        natives = super().bind(call, arguments, options)
        if call.title != {"norm": "global_norm.forward", "loss": "squared_error.backward"}[self.what]:
            return natives
        return [*natives, partial(self._overflow, arguments[call.signature.arguments.index(self.what)])]

    def _overflow(self, found: Array) -> None:
        self.runs += 1
        if self.runs == self.at:
            found[0] = np.inf
