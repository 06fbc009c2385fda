"""An RMSNorm in Triton as its author would write it, a definition and inputs beside it, and one with a mistake."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

EPS = 1e-5


@triton.jit  # type: ignore[untyped-decorator]
def _forward(y, x, w, rstd, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    a = tl.load(x + row * columns + at, mask, 0).to(tl.float32)
    r = 1 / tl.sqrt(tl.sum(a * a, 0) / columns + eps)
    tl.store(y + row * columns + at, a * r * tl.load(w + at, mask, 0).to(tl.float32), mask)
    tl.store(rstd + row, r)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(dx, dw, dy, x, w, rstd, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    d = tl.load(dy + row * columns + at, mask, 0).to(tl.float32)
    r = tl.load(rstd + row)
    n = tl.load(x + row * columns + at, mask, 0).to(tl.float32) * r
    t = d * tl.load(w + at, mask, 0).to(tl.float32)
    tl.store(dx + row * columns + at, r * (t - n * (tl.sum(t * n, 0) / columns)), mask)
    tl.store(dw + row * columns + at, d * n, mask)


class RMSNorm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, x, w):
        shape, x, w = x.shape, x.contiguous().flatten(0, -2), w.contiguous()
        y, rstd = torch.empty_like(x), torch.empty(len(x), dtype=torch.float32)
        if len(x):
            _forward[(len(x),)](y, x, w, rstd, x.shape[-1], EPS, BLOCK=triton.next_power_of_2(x.shape[-1]))
        ctx.save_for_backward(x, w, rstd)
        return y.view(shape)

    @staticmethod
    def prepared(dy):
        return dy.contiguous()

    @classmethod
    def gradients(cls, ctx, dy):
        x, w, rstd = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float32)
        block = triton.next_power_of_2(x.shape[-1])
        if len(x):
            _backward[(len(x),)](dx, dw, cls.prepared(dy), x, w, rstd, x.shape[-1], BLOCK=block)
        return dx.view(dy.shape), dw.sum(0).to(w.dtype)

    @staticmethod
    def backward(ctx, dy):
        return RMSNorm.gradients(ctx, dy)


class Careless(RMSNorm):
    """It reads dy through its pointer."""

    @staticmethod
    def prepared(dy):
        return dy

    @staticmethod
    def backward(ctx, dy):
        return Careless.gradients(ctx, dy)


def rms_norm_definition(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


definition = rms_norm_definition
inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.ones(6)
