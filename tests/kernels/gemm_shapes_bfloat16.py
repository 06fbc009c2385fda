"""As `gemm_shapes.py`, of bfloat16: every size up to so many, with types, transposes and adding in turn, on AMX where
the machine has it: `python -m tests.kernels.gemm_shapes_bfloat16 [SIZE]`, part of `make gemm-shapes`."""

import sys
from itertools import product

import ml_dtypes
import numpy as np

from tapeless.kernels.cpu import dispatch, gemm_bfloat16
from tests.kernels.gemm_shapes import WAYS, Guarded, everywhere

BFLOAT16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(7)


def guarded(rows, columns, kind):
    """Rows that lie a few numbers apart, right in front of a guard page."""
    step = columns + 3
    size = np.dtype(kind).itemsize
    floats = Guarded(rows * step + 1).rows(1, 0, rows * step + 1)[0]
    numbers = floats.view(np.uint8)[floats.nbytes - ((rows - 1) * step + columns) * size :].view(kind)
    return np.lib.stride_tricks.as_strided(numbers, (rows, columns), (step * size, size))


def faults(shapes, workers=1):
    for number, (m, n, k) in enumerate(tuple(map(int, shape)) for shape in shapes):
        transpose_a, transpose_b, add = WAYS[number % 8]
        kinds = [(BFLOAT16, np.float32)[(number // 8 >> place) % 2] for place in range(3)]
        a, b, c = (
            guarded(*((k, m) if transpose_a else (m, k)), kinds[0]),
            guarded(*((n, k) if transpose_b else (k, n)), kinds[1]),
            guarded(m, n, kinds[2]),
        )
        for matrix in (a, b, c):
            matrix[...] = RNG.integers(-8, 9, matrix.shape)
        bias = RNG.integers(-8, 9, n).astype(BFLOAT16) if number % 3 == 0 and not add else None
        left, right = (
            matrix.astype(np.float64) for matrix in ((a.T if transpose_a else a), (b.T if transpose_b else b))
        )
        true = left @ right + (c.astype(np.float64) if add else 0) + (0 if bias is None else bias.astype(np.float64))
        panels = np.full(gemm_bfloat16.scratch_floats(m, n, k, workers), np.nan, np.float32)
        gemm_bfloat16.bound(c, a, b, transpose_a, transpose_b, add, workers, panels, bias)()
        if not np.array_equal(c.astype(np.float64), true.astype(np.float32).astype(c.dtype).astype(np.float64)):
            yield f"{m} × {n} × {k}, {(transpose_a, transpose_b, add)}, {kinds}, {workers} workers"


def with_rows(most, m):
    dispatch.set_threads(1)
    sizes = range(1, most + 1)
    return list(faults(product([m], sizes, sizes)))


if __name__ == "__main__":
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 70
    found = everywhere(with_rows, most)
    print(f"{'AMX' if gemm_bfloat16.AMX else 'avx512_bf16'}: {most**3:,} bfloat16 GEMMs, {len(found)} wrong")
    raise SystemExit(bool(found))
