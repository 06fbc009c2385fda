"""Unembed on the CPU: products alone."""

from __future__ import annotations

from tapeless.backends.blas import Run, bound_gemm


def forward(y, x, weight) -> list[Run]:
    return [bound_gemm(y, x, weight, transpose_b=True)]


def backward(dx, dweight, dy, x, weight) -> list[Run]:
    return [bound_gemm(dx, dy, weight), bound_gemm(dweight, dy, x, transpose_a=True)]
