"""GEMMs of small integers, which are exact in float32 whatever the order of their sums, at every size up to so many:
`python -m tests.kernels.gemm_shapes [SIZE]` tries them all, `make gemm-shapes` on vectors of every width. They are
exact in bfloat16, too, which either factor may be. Some add a bias, apply ReLU to a, or write 0 where a mask is ≤ 0.

The matrices end in front of a guard page, and the rows of the result have numbers between them that must stay.
"""

import ctypes
import mmap
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tapeless.kernels.cpu import dispatch, gemm_float32, packing

WAYS = tuple(product((False, True), repeat=3))  # a transposed, b transposed, added to
NARROW = ("neither", "a", "b")  # is bfloat16


class Guarded:
    """Memory that ends in front of a guard page."""

    def __init__(self, floats: int) -> None:
        whole = -(-4 * floats // mmap.PAGESIZE) * mmap.PAGESIZE
        self._mapping = mmap.mmap(-1, whole + mmap.PAGESIZE)
        guard = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping)) + whole
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError("no guard page")
        self._floats = np.frombuffer(self._mapping, np.float32, whole // 4)

    def rows(self, count: int, step: int, length: int, dtype: Any = np.float32) -> Any:
        """The last so many, which lie `step` apart."""
        numbers = self._floats.view(dtype)
        first = numbers[numbers.size - (count - 1) * step - length :]
        return np.lib.stride_tricks.as_strided(first, (count, length), (first.itemsize * step, first.itemsize))


def faults(size: int, shapes: Any, ways: Any = WAYS, workers: int = 1) -> Iterator[str]:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 9, (size, size)).astype(np.float64) for _ in range(3))
    lefts, rights, outs = (Guarded(size * (size + 5)) for _ in range(3))
    all_panels, biases, masks = (
        Guarded(gemm_float32.scratch_floats(size, size, size, workers) * 2),
        Guarded(size),
        Guarded(size * (size + 7)),
    )
    for m, n, k in shapes:
        plain, positive = a[:m, :k] @ b[:k, :n], np.maximum(a[:m, :k], 0) @ b[:k, :n]
        for (transpose_a, transpose_b, add), narrow in product(ways, NARROW):
            relu = transpose_a != transpose_b
            true = positive if relu else plain
            of_a, of_b = (bfloat16 if narrow == factor else np.float32 for factor in "ab")
            left = lefts.rows(*((k, m + 3, m) if transpose_a else (m, k + 5, k)), of_a)
            right = rights.rows(*((n, k + 1, k) if transpose_b else (k, n + 2, n)), of_b)
            out, panels = (
                outs.rows(m, n + 1, n),
                all_panels.rows(1, 0, gemm_float32.scratch_floats(m, n, k, workers))[0],
            )
            left[...], right[...] = (
                (a[:m, :k].T if transpose_a else a[:m, :k]),
                (b[:k, :n].T if transpose_b else b[:k, :n]),
            )
            between = outs.rows(m, n + 1, n + 1)[1:, :1]  # in front of every row but the first
            out[...], between[...], panels[...] = c[:m, :n], 77, np.nan
            bias = biases.rows(1, 0, n)[0] if transpose_a and not add else None
            if bias is not None:
                bias[...] = c[0, :n]
            mask = masks.rows(m, n + 7, n) if transpose_b and not add else None
            if mask is not None:
                mask[...] = c.T[:m, :n]
            gemm_float32.bound(out, left, right, transpose_a, transpose_b, add, workers, panels, bias, relu, mask)()
            found = true + (c[:m, :n] if add else 0 if bias is None else bias)
            if mask is not None:
                found = np.where(c.T[:m, :n] <= 0, 0, found)
            if not np.array_equal(out, found) or np.any(between != 77):
                way = f"a transposed {transpose_a}, b transposed {transpose_b}, added to {add}, {narrow} bfloat16"
                yield f"{m} × {n} × {k}, {way}, {workers} workers"


def with_rows(most: int, m: int) -> list[str]:
    dispatch.set_threads(1)
    sizes = range(1, most + 1)
    return list(faults(most, product([m], sizes, sizes)))


def everywhere(part: Callable[[int, int], list[str]], most: int) -> list[str]:
    """What `part` finds for every number of rows, in as many processes as there are cores."""
    found: list[str] = []
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for m, wrong in enumerate(pool.map(partial(part, most), range(1, most + 1)), 1):
            found += wrong
            print(f"\r{m} of {most} rows, {len(found)} wrong", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for line in found[:10]:
        print(line)
    return found


if __name__ == "__main__":
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 70
    found = everywhere(with_rows, most)
    count = most**3 * len(WAYS) * len(NARROW)
    print(f"{packing.TILES}: {count:,} GEMMs of up to {most} × {most} × {most}, {len(found)} wrong")
    raise SystemExit(bool(found))
