"""The classifier on the GPU: product, softmax and gradient of one chunk in place, then the two products back.

`logits` is taken for the room it has: rows of V scores rounded up to what the products like, as many as go in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.cuda.vocabulary import Table
from tapeless.kernels.native import Native
from tapeless.ops.contract import NONE

WORDS, WARPS, STAGES = 2048, 4, 3  # of a row, at a time
LOWEST = tl.constexpr(-3e38)  # of a score, nearly: −∞ − −∞ would be NaN
LOSSES = 4096


def forward(loss, logits, x, weight, targets, count, class_weights=None) -> list[Native]:
    return _bound(loss, None, None, logits, x, weight, targets, count, class_weights, False)


def backward(loss, dx, dweight, logits, x, weight, targets, count, class_weights=None, add=NONE) -> list[Native]:
    return _bound(loss, dx, dweight, logits, x, weight, targets, count, class_weights, "dweight" in add)


def _bound(loss, dx, dweight, logits, x, weight, targets, count, class_weights, add) -> list[Native]:
    rows, words, table = len(x), len(weight), Table(weight)
    room = _room(logits, table.width)
    if not len(room):  # one row of scores, say, of an odd length
        table, room = Table(weight, whole=True), logits
    height = _height(rows, len(room))
    gradient = dx is not None or dweight is not None
    losses = scratch(x, rows)
    options = {"GRADIENT": gradient, "WORDS": min(WORDS, triton.next_power_of_2(table.width))}
    options |= {"STAGES": STAGES, "num_warps": WARPS}
    runs: list[Native] = [*table.runs]
    for start in range(0, rows, height):
        chunk = slice(start, min(start + height, rows))
        z = room[: chunk.stop - start]
        given = (targets[chunk], count, class_weights, words, table.width)
        runs += table.scores(z, x[chunk])  # (1)
        runs.append(launch(_rows, len(z), losses[chunk], z, z.stride(0), *given, **options))
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
    LOSSES, Z, stride, TARGETS, COUNT, CLASS_WEIGHTS, V, W, GRADIENT: tl.constexpr, WORDS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The loss of a row, and where GRADIENT its scores replaced by dz."""
    row = tl.program_id(0)
    Z += row.to(tl.int64) * stride
    target = tl.load(TARGETS + row)
    counts = target >= 0
    # Each place of a block has a largest score and a sum of its own: no warp waits for another before the end. Of the
    # two factors that a new score brings, one is exp(0).
    tops = tl.full((WORDS,), LOWEST, tl.float32)
    totals = tl.zeros((WORDS,), tl.float32)
    for at in tl.range(0, tl.where(counts, V, 0), WORDS, num_stages=STAGES):
        v = at + tl.arange(0, WORDS)
        z = tl.load(Z + v, mask=v < V, other=-float("inf")).to(tl.float32)
        rise = z - tops
        shrink = tl.exp(-tl.abs(rise))
        totals = tl.where(rise > 0, totals * shrink + 1.0, totals + shrink)
        tops = tl.maximum(tops, z)
    top = tl.max(tops, 0)
    total = tl.sum(totals * tl.exp(tops - top), 0)
    weight = 1.0
    if CLASS_WEIGHTS is not None:
        weight = tl.load(CLASS_WEIGHTS + target, mask=counts, other=0.0).to(tl.float32)
    picked = tl.load(Z + target, mask=counts, other=0.0).to(tl.float32)
    tl.store(LOSSES + row, tl.where(counts, weight * (tl.log(total) + (top - picked)), 0.0))  # (2)
    if GRADIENT:
        share = weight * (1.0 / tl.load(COUNT)).to(tl.float32)
        scale = share / total
        last = tl.cdiv(W, WORDS) - 1
        for back in tl.range(0, last + 1, num_stages=STAGES):  # backwards: what was read last is still in the cache
            v = (last - back) * WORDS + tl.arange(0, WORDS)
            z = tl.load(Z + v, mask=v < V, other=-float("inf")).to(tl.float32)
            dz = tl.exp(z - top) * scale - tl.where(v == target, share, 0.0)  # (3)
            tl.store(Z + v, tl.where(counts, dz, 0.0), mask=v < W)


@triton.jit
def _total(LOSS, LOSSES, COUNT, R, per, BLOCK: tl.constexpr):
    """All rows' losses over count · per, in float64 and in order."""
    total = tl.zeros((BLOCK,), tl.float64)
    for at in range(0, R, BLOCK):
        r = at + tl.arange(0, BLOCK)
        total += numbers(LOSSES + r, r < R).to(tl.float64)
    tl.store(LOSS, (tl.sum(total, 0) / (tl.load(COUNT) * per)).to(tl.float32))
