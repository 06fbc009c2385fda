"""The classifier on the GPU: product, softmax and gradient of one chunk in place, then the two products back.

`logits` is taken for the room it has: rows of V scores rounded up to what the products like, as many as go in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.vocabulary import VocabularyTable
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

# Words of a row at a time, and a few rows for each of an H200's 132 multiprocessors: what one of them reads twice is
# still in the cache when it does. (More rows at once took 17 % longer.) Long rows are read in larger pieces.
PROGRAMS, STAGES = 528, 4
WORDS, WARPS = 2048, 8
LONG, LONG_WORDS, LONG_WARPS = 65536, 4096, 16
LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3e38)  # of a score, nearly: −∞ − −∞ would be NaN
LOSSES = 4096


def forward(loss, logits, x, weight, targets, count, class_weights=None) -> list[Native]:
    return _bound(loss, None, None, logits, x, weight, targets, count, class_weights, False)


def backward(loss, dx, dweight, logits, x, weight, targets, count, class_weights=None, add=NONE) -> list[Native]:
    return _bound(loss, dx, dweight, logits, x, weight, targets, count, class_weights, "dweight" in add)


def _bound(loss, dx, dweight, logits, x, weight, targets, count, class_weights, add) -> list[Native]:
    rows, words, table = len(x), len(weight), VocabularyTable(weight)
    room = _room(logits, table.width)
    if not len(room):  # one row of scores, say, of an odd length
        table, room = VocabularyTable(weight, whole=True), logits
    height = _height(rows, len(room))
    gradient = dx is not None or dweight is not None
    losses = scratch(x, rows)
    at_a_time, warps = (LONG_WORDS, LONG_WARPS) if words >= LONG else (WORDS, WARPS)
    options = {"GRADIENT": gradient, "WORDS": min(at_a_time, triton.next_power_of_2(table.width)), "STAGES": STAGES}
    runs: list[Native] = [*table.runs]
    for start in range(0, rows, height):
        chunk = slice(start, min(start + height, rows))
        z = room[: chunk.stop - start]
        given = (targets[chunk], count, class_weights, len(z), words, table.width)
        runs += table.scores(z, x[chunk])  # (1)
        programs = min(PROGRAMS, len(z))
        runs.append(launch(_rows, programs, losses[chunk], z, z.stride(0), *given, num_warps=warps, **options))
        if dx is not None:
            runs += table.back(dx[chunk], z)  # (4)
        if dweight is not None:
            runs += table.gradient(dweight, z, x[chunk], add or start > 0)  # (5)
    return [*runs, launch(_total, 1, loss, losses, count, rows, 1.0, BLOCK=LOSSES, num_warps=8)]


def _room(logits, width):
    """The memory of `logits` as rows of this width."""
    if (logits.stride(0) >= width and logits.stride(0) % 8 == 0) or logits.shape[1] == width:
        return logits.as_strided((len(logits), width), logits.stride())
    return logits.view(-1)[: logits.numel() // width * width].view(-1, width)


def _height(rows, most):
    """Rows of a chunk: chunks of one size, and that a round one where it fits."""
    height = blocks(rows, blocks(rows, most))
    return min(blocks(height, 128) * 128, most)


@triton.jit
def _rows(
    LOSSES,
    Z,
    stride,
    TARGETS,
    COUNT,
    CLASS_WEIGHTS,
    R,
    V,
    W,
    GRADIENT: tl.constexpr,
    WORDS: tl.constexpr,
    STAGES: tl.constexpr,
):
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        z = Z + tl.cast(row, tl.int64) * stride
        _row(LOSSES + row, z, tl.load(TARGETS + row), COUNT, CLASS_WEIGHTS, V, W, GRADIENT, WORDS, STAGES)


@triton.jit
def _row(
    LOSS, Z, target, COUNT, CLASS_WEIGHTS, V, W, GRADIENT: tl.constexpr, WORDS: tl.constexpr, STAGES: tl.constexpr
):
    """The loss of a row, and where GRADIENT its scores replaced by dz. Whole blocks first, then the rest, masked. What
    counts for nothing (a target below 0) has weight 0 and picks the first word."""
    words = tl.arange(0, WORDS)
    whole = V // WORDS * WORDS
    tops = tl.full((WORDS,), LOWEST, tl.float32)
    totals = tl.zeros((WORDS,), tl.float32)
    for at in tl.range(0, whole, WORDS, num_stages=STAGES):
        tops, totals = _taken_in(tops, totals, tl.load(Z + at + words).to(tl.float32))
    rest = tl.load(Z + whole + words, mask=whole + words < V, other=-float("inf")).to(tl.float32)
    tops, totals = _taken_in(tops, totals, rest)
    top = tl.max(tops, 0)
    total = tl.sum(totals * tl.exp2((tops - top) * LOG2E), 0)
    own = tl.maximum(target, 0)
    weight = tl.where(target < 0, 0.0, 1.0)
    if CLASS_WEIGHTS is not None:
        weight *= tl.load(CLASS_WEIGHTS + own).to(tl.float32)
    picked = tl.load(Z + own).to(tl.float32)
    tl.store(LOSS, weight * (tl.log(total) + (top - picked)))  # (2)
    if GRADIENT:
        share = weight * (1.0 / tl.load(COUNT)).to(tl.float32)
        scale = share / total
        inside = whole + words < W  # the columns beyond V get 0
        tl.store(Z + whole + words, tl.exp2((rest - top) * LOG2E) * scale, mask=inside)  # (3)
        for number in tl.range(0, whole // WORDS, num_stages=STAGES):  # backwards: what was read last is still there
            at = whole - WORDS - number * WORDS
            z = tl.load(Z + at + words).to(tl.float32)
            tl.store(Z + at + words, tl.exp2((z - top) * LOG2E) * scale)
        tl.debug_barrier()  # the target's is there now, but for its share
        tl.store(Z + own, tl.exp2((picked - top) * LOG2E) * scale - share)


@triton.jit
def _taken_in(tops, totals, z):
    """Each place of a block has a largest score and a sum of its own, so that no warp waits for another. Of the two
    factors that a new score brings, one is exp(0)."""
    rise = z - tops
    shrink = tl.exp2(-tl.abs(rise) * LOG2E)
    return tl.maximum(tops, z), tl.where(rise > 0, totals * shrink + 1.0, totals + shrink)


@triton.jit
def _total(LOSS, LOSSES, COUNT, R, per, BLOCK: tl.constexpr):
    """All rows' losses over count · per, in float64 and in order."""
    total = tl.zeros((BLOCK,), tl.float64)
    for at in range(0, R, BLOCK):
        r = at + tl.arange(0, BLOCK)
        total += numbers(LOSSES + r, r < R).to(tl.float64)
    tl.store(LOSS, (tl.sum(total, 0) / (tl.load(COUNT) * per)).to(tl.float32))
