"""What a backend is like, besides what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tapeless.program.precision import Precision


def _any_number(words: int, precision: Precision) -> int | None:
    return None


@dataclass(frozen=True)
class Traits:
    """`mixed_gemm`: it multiplies wider numbers by frozen weights that are bfloat16, as they are. `asynchronous`: calls
    are still running when they return, so that the next may be launched meanwhile; they, and what is written and read,
    come about in the order in which they were asked for. `logits_chunk`: how many rows of logits at a time suit it, if
    the vocabulary has so many tokens; None where the model's own number does."""

    precisions: tuple[str, ...]  # the first unless another is asked for
    mixed_gemm: bool = True
    asynchronous: bool = False
    logits_chunk: Callable[[int, Precision], int | None] = _any_number
