"""Launching: a Triton kernel with all that it is given, as a native call without arguments.

A bound call runs on the current stream, allocates nothing and asks the device nothing, so that a list of them can be
captured in a CUDA graph. Each must have run once before: Triton compiles a kernel when it is first launched.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from tapeless.kernels.native import Native

BLOCK = 2048  # elements of a program that goes along flat memory


def launch(kernel, grid: int | tuple[int, ...], *arguments, **options) -> Native:
    return partial(kernel[(grid,) if isinstance(grid, int) else grid], *arguments, **options)


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def along(kernel, *tensors, **options) -> list[Native]:
    """A kernel over tensors of one size, which it is given flat, with their number of elements and a BLOCK."""
    size = tensors[0].numel()
    flat = [tensor.view(-1) for tensor in tensors]
    return [launch(kernel, blocks(size, BLOCK), *flat, size, BLOCK=BLOCK, num_warps=4, **options)]


def width(channels: int) -> int:
    """Of a program that holds a whole row: Triton's blocks are powers of two."""
    return triton.next_power_of_2(channels)


def constant(like, array):
    """What is known when the call is bound, where its kernel can read it."""
    return torch.from_numpy(array).to(like.device)


@triton.jit
def put(at, value, inside, ADD: tl.constexpr):
    """`=` or `+=`, as the call says; rounded to the type of what it is stored in."""
    if ADD:
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, value, mask=inside)


@triton.jit
def numbers(at, inside):
    """What lies there, in float32, and 0 outside."""
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)
