"""Pieces that are counted are those that are cut, and each lies in a span or beside it as element by element."""

import random
from itertools import pairwise

import numpy as np

from tapeless.kernels import pieces


def test_as_many_are_counted_as_are_cut_and_lie_inside():
    draw = random.Random(1)
    for _ in range(300):
        block, size = draw.choice([1, 4, 7, 16]), draw.randint(1, 100)
        edges = [draw.randint(0, size) for _ in range(draw.randrange(6))]
        ends = sorted(draw.sample(range(size + 1), min(size + 1, 2 * draw.randrange(4))))
        spans = list(zip(ends[::2], ends[1::2], strict=False))
        cut = pieces.cut(size, block, (*edges, *ends))
        points = sorted({*range(0, size, block), *edges, *ends, size})
        assert cut.tolist() == [list(pair) for pair in pairwise(points)]
        assert cut.dtype == np.int64
        assert cut.flags.c_contiguous
        inside = pieces.inside(cut, spans)
        assert inside.tolist() == [any(first <= a < stop for first, stop in spans) for a, _ in cut.tolist()]
        assert pieces.count([(0, size)], block, (*edges, *ends)) == len(cut)
        assert pieces.count(spans, block, edges) == inside.sum()
