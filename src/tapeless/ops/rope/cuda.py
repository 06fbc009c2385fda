"""RoPE on the GPU. What is turned, and where it goes, are mostly columns of wider buffers."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import launch, numbers, width
from tapeless.kernels.native import Native


def forward(y, x, cos, sin, other=None) -> list[Native]:
    """With `other`, another y and x whose heads are turned by the same angles, in the same pass."""
    return _turn(y, x, cos, sin, other, back=False)


def backward(dx, dy, cos, sin, other=None) -> list[Native]:
    return _turn(dx, dy, cos, sin, other, back=True)


def _turn(y, x, cos, sin, other, back) -> list[Native]:
    batch, time, _ = x.shape
    _, places, pairs = cos.shape
    arguments, heads = [], []
    for to, of in [(y, x)] if other is None else [(y, x), other]:
        arguments += [to, of, *to.stride()[:2], *of.stride()[:2]]
        heads.append(of.shape[2] // (2 * pairs))
    if other is None:
        arguments, heads = [*arguments, None, None, 0, 0, 0, 0], [*heads, 0]
    high, wide = width(max(heads)), width(pairs)
    options = {"HIGH": high, "WIDE": wide, "num_warps": min(8, max(1, high * wide // 512))}
    return [launch(_turned, batch * time, *arguments, cos, sin, time, places, *heads, pairs, BACK=back, **options)]


@triton.jit
def _turned(
    Y,
    X,
    y_batch,
    y_step,
    x_batch,
    x_step,
    Y2,
    X2,
    y2_batch,
    y2_step,
    x2_batch,
    x2_step,
    COS,
    SIN,
    T,
    S,
    H,
    H2,
    A,
    BACK: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """All heads of a place, which is turned by the same angles in each."""
    b, t = tl.program_id(0).to(tl.int64) // T, tl.program_id(0) % T
    a = tl.arange(0, WIDE)
    angle = (b * S + t + S - T) * A + a
    cos, sin = numbers(COS + angle, a < A)[None, :], numbers(SIN + angle, a < A)[None, :]
    sin = -sin if BACK else sin
    _heads(Y + b * y_batch + t * y_step, X + b * x_batch + t * x_step, cos, sin, H, A, HIGH, WIDE)
    if Y2 is not None:
        _heads(Y2 + b * y2_batch + t * y2_step, X2 + b * x2_batch + t * x2_step, cos, sin, H2, A, HIGH, WIDE)


@triton.jit
def _heads(Y, X, cos, sin, H, A, HIGH: tl.constexpr, WIDE: tl.constexpr):
    h, a = tl.arange(0, HIGH)[:, None], tl.arange(0, WIDE)[None, :]
    inside, at = (h < H) & (a < A), h * (2 * A) + a
    first, second = numbers(X + at, inside), numbers(X + A + at, inside)
    tl.store(Y + at, first * cos - second * sin, mask=inside)  # (1) (2)
    tl.store(Y + A + at, second * cos + first * sin, mask=inside)
