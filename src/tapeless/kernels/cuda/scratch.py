"""Scratch: a binder asks for it where it needs it, so that what is asked for and what is used cannot drift apart.

How much a call needs is found by binding it once to tensors that have shapes and types but no memory (`recorded`);
when it is bound in earnest it is given arrays of just these shapes, in the same order (`handed`); those that it does
without, where an input says nothing, are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from tapeless.errors import ProgramError
from tapeless.kernels.native import Scratch

_asked: ContextVar[list[Scratch] | None] = ContextVar("asked", default=None)
_given: ContextVar[list[torch.Tensor] | None] = ContextVar("given", default=None)


@contextmanager
def recorded() -> Iterator[list[Scratch]]:
    """What is bound meanwhile, in this thread, says here what it asks for."""
    asked: list[Scratch] = []
    before = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(before)


@contextmanager
def handed(arrays: Sequence[torch.Tensor]) -> Iterator[None]:
    """What is bound meanwhile, in this thread, is given these."""
    before = _given.set(list(arrays))
    try:
        yield
    finally:
        _given.reset(before)


def scratch(like, *shape: int, dtype=torch.float32):
    """Memory that a call needs while it runs and nobody reads afterwards; it holds anything. A call that is bound by
    itself has its own."""
    asked, given = _asked.get(), _given.get()
    if asked is not None:
        asked.append(Scratch(shape, str(dtype).removeprefix("torch.")))
    elif given is not None:
        while given:
            array = given.pop(0)
            if (array.shape, array.dtype) == (shape, dtype):
                return array
        raise ProgramError(f"a kernel asks for scratch of {shape} in {dtype}, and was not given it.")
    return torch.empty(shape, dtype=dtype, device=like.device)
