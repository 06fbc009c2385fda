"""SwiGLU on the GPU. gate and up are mostly columns of one product: rows lie any distance apart."""

from __future__ import annotations

import triton
import triton.language as tl

from tapeless.kernels.cuda.launch import blocks, launch, numbers
from tapeless.kernels.native import Native

BLOCK = 1024
FAR = tl.constexpr(88.0)  # as on the CPU: exp of it nearly fills a float32


def forward(y, gate, up) -> list[Native]:
    rows, columns = y.shape
    arguments = (y, gate, up, y.stride(0), gate.stride(0), up.stride(0), columns)
    return [launch(_forward, (rows, blocks(columns, BLOCK)), *arguments, BLOCK=BLOCK)]


def backward(dgate, dup, dy, gate, up, y=None) -> list[Native]:
    """With `y` the activation once more, for the weights that read it, from the same pass."""
    rows, columns = dy.shape
    tensors = (dgate, dup, dy, gate, up)
    strides = (*(tensor.stride(0) for tensor in tensors), 0 if y is None else y.stride(0))
    arguments = (*tensors, y, *strides, columns)
    return [launch(_backward, (rows, blocks(columns, BLOCK)), *arguments, BLOCK=BLOCK)]


@triton.jit
def _within(x):
    """x where a float32 sees the sigmoid change, else the end of that range. NaN stays NaN."""
    x = tl.where(x < -FAR, -FAR, x)
    return tl.where(x > FAR, FAR, x)


@triton.jit
def _forward(Y, GATE, UP, y_step, gate_step, up_step, F, BLOCK: tl.constexpr):
    r, f = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate, up = numbers(GATE + r * gate_step + f, f < F), numbers(UP + r * up_step + f, f < F)
    s = 1.0 / (1.0 + tl.exp(-_within(gate)))
    tl.store(Y + r * y_step + f, tl.where(gate < -FAR, gate * 0.0, gate * s) * up, mask=f < F)  # (1)


@triton.jit
def _backward(
    DGATE, DUP, DY, GATE, UP, Y, dgate_step, dup_step, dy_step, gate_step, up_step, y_step, F, BLOCK: tl.constexpr
):
    r, f = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dy, gate = numbers(DY + r * dy_step + f, f < F), numbers(GATE + r * gate_step + f, f < F)
    up, z = numbers(UP + r * up_step + f, f < F), _within(gate)
    e = tl.exp(-z)
    s = 1.0 / (1.0 + e)
    tl.store(DGATE + r * dgate_step + f, dy * up * (s * (1.0 + z * (e * s))), mask=f < F)  # (2)
    swish = tl.where(gate < -FAR, gate * 0.0, gate * s)
    tl.store(DUP + r * dup_step + f, dy * swish, mask=f < F)  # (3)
    if Y is not None:
        tl.store(Y + r * y_step + f, swish * up, mask=f < F)  # (1)
