"""Norms of the sections of a model, on the way through its memory: a pass is cut into pieces that lie in one section,
a program has a piece, and the sums of a section's pieces are added in order, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from tapeless.kernels import pieces
from tapeless.kernels.cuda.launch import constant, launch
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native

BLOCK = 4096  # elements of a piece, at most
PIECES = 4096  # whose sums are added at once


@dataclass(frozen=True)
class Cut:
    """(start, stop, decays) of each piece, where each section's pieces begin and the last ends, and what goes with
    them: how many pieces, and whether all begin where vectors can be loaded."""

    pieces: torch.Tensor
    firsts: torch.Tensor
    options: dict[str, int]

    def __len__(self):
        return len(self.pieces)

    def squares(self, *norms):
        """Room for the sums of as many squares as there are norms."""
        return [scratch(self.pieces, len(self), dtype=torch.float64) for _ in norms]

    def roots(self, norms, squares) -> Native:
        return roots(norms, squares, self.firsts)


def roots(norms, squares, firsts) -> Native:
    """The root of each section's sum, whose parts begin at `firsts`."""
    return launch(_roots, len(norms), norms, squares, firsts, BLOCK=PIECES, num_warps=8)


def cut(values, sections, decayed=()) -> Cut:
    size, edges = values.numel(), (*sections, *(edge for span in decayed for edge in span))
    grain = 16 if all(edge % 16 == 0 for edge in (size, *edges)) else 1
    options = {"GRAIN": grain, "BLOCK": BLOCK, "num_warps": 8}
    if values.is_meta:  # to be planned with, for which their number is enough
        rows = (pieces.count([(0, size)], BLOCK, edges), len(sections) + 1)
        return Cut(values.new_empty((rows[0], 3)), values.new_empty(rows[1]), options)
    found = pieces.cut(size, BLOCK, edges)
    firsts = np.searchsorted(found[:, 0], (*sections, size)).astype(np.int64)
    found = np.column_stack([found, pieces.inside(found, decayed)])
    return Cut(constant(values, found), constant(values, firsts), options)


def full_and_rounded(weights, master):
    """What an update steps, and where its rounding goes, if that is another."""
    return (weights, None) if master is None else (master, weights)


@triton.jit
def step_to(WEIGHTS, ROUNDED, at, value, changes):
    tl.store(WEIGHTS + at, value, mask=changes)
    if ROUNDED is not None:
        tl.store(ROUNDED + at, value, mask=changes)


@triton.jit
def piece(PIECES, GRAIN: tl.constexpr):
    """Where this program's begins and ends."""
    at = PIECES + 3 * tl.program_id(0)
    return tl.multiple_of(tl.load(at), GRAIN), tl.multiple_of(tl.load(at + 1), GRAIN)


@triton.jit
def sum_of_squares(SUMS, x, part):
    x = x.to(tl.float64)
    tl.store(SUMS + part, tl.sum(x * x, 0))


@triton.jit
def _roots(NORMS, SQUARES, FIRSTS, BLOCK: tl.constexpr):
    section = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float64)
    last = tl.load(FIRSTS + section + 1)
    for start in range(tl.load(FIRSTS + section), last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(SQUARES + at, mask=at < last, other=0.0)
    tl.store(NORMS + section, tl.sqrt(tl.sum(total, 0)))
