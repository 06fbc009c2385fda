"""The memory that the classifier on the CPU needs while it runs."""

from __future__ import annotations

from typing import Any

from tapeless.kernels.cpu import gemm_scratch, part_count
from tapeless.kernels.native import Scratch

TRANSPOSED_FROM = 1024  # words
BANDS = 16  # of the vocabulary, each with sums of its own: a fixed number, whatever the threads


def forward_scratch(call: Any, precision: Any) -> list[Scratch]:
    return [*_passes(call), *gemm_scratch(call, precision, *_products(call))]


def backward_scratch(call: Any, precision: Any) -> list[Scratch]:
    return forward_scratch(call, precision)


def _passes(call: Any) -> list[Scratch]:
    """What the passes over a chunk hand to each other: the loss of every row, or what a column's bands have found."""
    rows, vocab = min(call.dims["R"], call.dims["K"]), call.dims["V"]
    if vocab < TRANSPOSED_FROM:
        return [Scratch((rows,), "float64")]
    bands = part_count(vocab, 256, BANDS)
    return [Scratch((bands * 3 * rows,)), Scratch((bands * rows,), "float64"), Scratch((rows,)), Scratch((rows,))]


def _products(call: Any) -> list[tuple[int, int, int]]:
    """m, n and k: for the scores of a chunk, and for both gradients. The last chunk may have fewer rows."""
    rows, chunk, channels, words = (call.dims[letter] for letter in "RKCV")
    found = []
    for count in {min(rows, chunk), rows % chunk or min(rows, chunk)}:
        found.append((words, count, channels) if words >= TRANSPOSED_FROM else (count, words, channels))
        found += [(count, channels, words), (words, channels, count)]
    return found
