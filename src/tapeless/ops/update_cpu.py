"""Norms of the sections of a model, on the way through its memory: a pass is cut into pieces that lie in one section,
and the sums of the pieces are added in order, so that no number depends on threads."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numba import float64

from tapeless.kernels import pieces
from tapeless.kernels.cpu import inlined, plus
from tapeless.ops.update_scratch import BLOCK

# Squares that an update adds up in float32 before the sum goes on in float64: converting each would cost more than all
# the rest of the update. What is not within 10±18 is lost in them.
RUN = 1024


def cut(size, sections, *edges):
    """(start, stop) of each piece in order, cut at `edges` too, and the first piece of each section and of the end."""
    found = pieces.cut(size, BLOCK, (*sections, *edges))
    return found, np.searchsorted(found[:, 0], (*sections, size))


def stepped(weights, master):
    """What an update steps, and the working weights that are its rounding, where there are both."""
    return (weights, None) if master is None else (master, weights)


@inlined
def round_into(working, weights):
    """The working weights of a piece, while it is in the cache."""
    for i in range(weights.size):
        working[i] = weights[i]


@inlined
def square_sum(x):
    total = 0.0
    for i in range(x.size):
        total = plus(total, float64(x[i]) * float64(x[i]))
    return total


@inlined
def roots(norms, squares, firsts):
    for section in range(norms.size):
        total = 0.0
        for piece in range(firsts[section], firsts[section + 1]):
            total += squares[piece]
        norms[section] = sqrt(total)
