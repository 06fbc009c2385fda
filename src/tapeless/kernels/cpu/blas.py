"""The matrix products: MKL's where it is installed, our own elsewhere and where they are chosen, one interface above
both.

Where MKL serves, parallel loops run on the threads of its OpenMP. Whoever else is in the process (PyTorch,
SciPy, the user's own NumPy) keeps what it had: MKL's interface stays at 32-bit integers and we call the functions that
take 64 by name.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapeless.errors import TapelessError, unknown
from tapeless.kernels.cpu.uninterrupted import imported
from tapeless.kernels.native import Native, Scratch

Array = NDArray[Any]

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
A_NARROW, B_NARROW = 1 << 10, 1 << 11  # added to ROW_MAJOR, they tell our own which factors are bfloat16
MKL_INTEL_THREADS, MKL_GNU_THREADS = 0, 3
THREADED = 500_000  # FLOPs; a smaller product stays on one thread
# Each further thread is woken for so large a part of the work from which there are two: with many cores, a small loop
# takes less time than all of them take to begin it.
GRAIN = 0.5
PRODUCTS = ("mkl", "own")


@cache
def mkl() -> ctypes.CDLL | None:
    """MKL on OpenMP threads, or None where it is not installed."""
    library = _installed("libmkl_rt")
    if library is None or _installed("libiomp5") is None:
        return None
    gnu = "libgomp" in _openmp()._name
    loaded = ctypes.CDLL(str(library))
    loaded.MKL_Set_Threading_Layer(MKL_GNU_THREADS if gnu else MKL_INTEL_THREADS)
    loaded.cblas_sgemm_64.restype = None
    return loaded


@cache
def _openmp() -> ctypes.CDLL:
    """The OpenMP that MKL runs on, loaded before MKL.

    If an OpenMP of GNU's is in the process already (PyTorch brings one), MKL must use that: its Intel threads would
    ask the wrong library for their number, all of them would be told 0, and products would come out doubled.
    """
    gnu = [path for path in _loaded_libraries() if "libgomp" in path]
    return ctypes.CDLL(gnu[0] if gnu else str(_installed("libiomp5")), mode=ctypes.RTLD_GLOBAL)


def _installed(name: str) -> Path | None:
    """A shared library that pip put into the environment's lib folder."""
    for root in dict.fromkeys((sys.prefix, sys.base_prefix)):
        matches = sorted(Path(root, "lib").glob(f"{name}.so*"))
        if matches:
            return matches[0]
    return None


def _loaded_libraries() -> list[str]:
    """The files that this process has mapped, on systems that tell."""
    maps = Path("/proc/self/maps")
    lines = os.fsdecode(maps.read_bytes()).splitlines() if maps.exists() else []  # a path may be any bytes
    return sorted({line.split(maxsplit=5)[-1].strip() for line in lines if "/" in line})


_chosen: str | None = None


def products() -> str:
    """Whose they are, of calls that are bound from now on."""
    return _chosen or ("own" if mkl() is None else "mkl")


def chosen() -> str | None:
    """Whose somebody has asked for."""
    return _chosen


@contextmanager
def products_of(name: str) -> Iterator[None]:
    """Calls that are bound meanwhile have these."""
    before = _chosen
    set_products(name)
    try:
        yield
    finally:
        set_products(before)


def set_products(name: str | None) -> str:
    """None means MKL's where it is installed. Models bound before keep what they were bound with."""
    global _chosen
    if name is not None and name not in PRODUCTS:
        raise unknown("products", name, PRODUCTS)
    if name == "mkl" and mkl() is None:
        raise TapelessError("the products cannot be MKL's: it is not installed. pip install 'tapeless[mkl]'.")
    _chosen = name
    if _threads:
        _settle_loops()
    return products()


def _serving() -> ctypes.CDLL | None:
    """MKL, where the products are its own."""
    return mkl() if products() == "mkl" else None


def name() -> str:
    library = _serving()
    if library is None:
        return "products of its own"
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, 200)
    return "MKL " + text.value.decode().partition("Version ")[2].partition("-")[0]


_threads = 0


def threads() -> int:
    return _threads or set_threads(None)


def sharers(work: int, threaded_from: int) -> int:
    """How many threads share a loop or a matmul of so much work: two from `threaded_from` on, then 4, 8, … where there
    is work for them, or all."""
    if work < threaded_from:
        return 1
    part = GRAIN * threaded_from
    if work >= part * threads():
        return threads()
    return min(threads(), 1 << max(1, int(work / part).bit_length() - 1))


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_threads(count: int | None) -> int:
    """None means OMP_NUM_THREADS, and where that is not set, all cores."""
    most = cores()
    if count is None:
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        return min(int(wanted), most) if wanted.isdigit() and int(wanted) else most
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise TapelessError(f"threads must be a whole number from 1 to {most}, the cores there are, not {count!r}.")
    return count


def set_threads(count: int | None) -> int:
    """Threads for BLAS and Numba together. Models bound before keep the number they were bound with."""
    global _threads
    count = checked_threads(count)
    refuse_after_fork(count)
    library = mkl()
    if library is not None:
        library.MKL_Set_Num_Threads(count)
    _threads = count
    _settle_loops()
    return count


def _settle_loops() -> None:
    """Parallel loops run on MKL's threads where its products do, else on our own."""
    global _on_openmp
    pool = imported("tapeless.kernels.cpu.pool")
    library = _openmp() if products() == "mkl" else None
    _on_openmp = _on_openmp or library is not None
    pool.use_openmp(library)
    if library is None:
        pool.start(_threads)


_on_openmp = _forked = False  # whether loops ever ran on its threads; whether this is the child of such a process


def _after_fork() -> None:
    global _forked
    _forked = _on_openmp


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def be_ready(count: int) -> None:
    """For loops on so many threads, also in a process that was forked: there our own threads are started again."""
    refuse_after_fork(count)
    if not _on_openmp:
        imported("tapeless.kernels.cpu.pool").start(count)


def refuse_after_fork(count: int) -> None:
    """OpenMP would end a child that uses more than its own thread, or let it wait for ever."""
    if _forked and count > 1:
        raise TapelessError(
            "this process was forked from one that had used the cpu backend, whose threads do not survive a fork: "
            "start processes by multiprocessing.get_context('spawn'), or fork before the first model is made."
        )


class Product(partial[None]):
    """c = a @ b + beta · c, with everything resolved: calling it is one foreign call and no lookup."""

    matrices: tuple[Array | None, ...]  # the addresses are good as long as these live
    flops: int


def on_one_thread(runs: list[Native]) -> list[Native]:
    """Native calls during which MKL stays on the calling thread. Switching costs a fifth of a microsecond."""
    library = _serving()
    if library is None or threads() == 1:
        return runs
    one, all_again = (partial(library.MKL_Set_Num_Threads_Local, ctypes.c_int(count)) for count in (1, 0))
    return [one, *runs, all_again]


def bound_gemm(
    c: Array,
    a: Array,
    b: Array,
    transpose_a: bool = False,
    transpose_b: bool = False,
    beta: float = 0.0,
    scratch: Sequence[Array] = (),
    bias: Array | None = None,
    relu: bool = False,
    mask: Array | None = None,
) -> Product:
    """A product of float32 matrices whose rows lie any distance apart; beta is 0 to write and 1 to add. `scratch`: what
    `product_scratch` asked for, in the last place. A bias is added by our own products alone, and they alone multiply
    what ReLU leaves of a, or write 0 where a mask is ≤ 0."""
    for matrix in (c, a, b):
        if matrix.dtype != np.float32 or matrix.ndim != 2 or (matrix.shape[1] > 1 and matrix.strides[1] != 4):
            raise ValueError(f"a product takes row-major float32 matrices, not {matrix.dtype} {matrix.shape}")
    left, right = (a.T if transpose_a else a), (b.T if transpose_b else b)
    (m, k), n = left.shape, right.shape[1]
    if c.shape != (m, n) or right.shape[0] != k:
        raise ValueError(f"shapes do not fit: {c.shape} = {left.shape} @ {right.shape}")
    library = _serving()
    if library is None:
        return _own_gemm(c, a, b, transpose_a, transpose_b, bool(beta), scratch, bias, relu, mask)
    if bias is not None or relu or mask is not None:
        raise ValueError("MKL's products add no bias and know of no ReLU")
    integer, real, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    product = Product(
        library.cblas_sgemm_64,
        integer(ROW_MAJOR),
        integer(TRANSPOSED if transpose_a else PLAIN),
        integer(TRANSPOSED if transpose_b else PLAIN),
        integer(m),
        integer(n),
        integer(k),
        real(1.0),
        pointer(a.ctypes.data),
        integer(_row_stride(a)),
        pointer(b.ctypes.data),
        integer(_row_stride(b)),
        real(beta),
        pointer(c.ctypes.data),
        integer(_row_stride(c)),
    )
    product.matrices, product.flops = (c, a, b), 2 * m * n * k
    return product


def _own_gemm(
    c: Array,
    a: Array,
    b: Array,
    transpose_a: bool,
    transpose_b: bool,
    add: bool,
    scratch: Sequence[Array],
    bias: Array | None,
    relu: bool,
    mask: Array | None,
) -> Product:
    own = imported("tapeless.kernels.cpu.products")
    (m, n), k = c.shape, a.shape[0 if transpose_a else 1]
    count = _threads_for(m, n, k)
    needed = own.floats(m, n, k, count)
    room = scratch[-1] if scratch else np.empty(needed, np.float32)
    if room.size < needed:
        raise ValueError(f"a product that packs into {needed} floats was given {room.size}")
    product = Product(own.bound(c, a, b, transpose_a, transpose_b, add, count, room, bias, relu, mask))
    product.matrices, product.flops = (c, a, b, room, bias, mask), 2 * m * n * k
    return product


def bound_products(
    c: Array,
    a: Array,
    b: Array,
    transpose_a: bool = False,
    transpose_b: bool = False,
    beta: float = 0.0,
    scratch: Sequence[Array] = (),
    bias: Array | None = None,
    widens: bool = False,
    relu: bool = False,
    mask: Array | None = None,
) -> list[Native]:
    """As `bound_gemm` for matrices of any type, all in one call. A float32 factor is rounded where the other is
    bfloat16; but where one of them `widens`, being a weight, and all else is float32, our own multiply it as it is."""
    wide = [each.dtype == np.float32 for each in (c, a, b)]
    if all(wide):
        return [bound_gemm(c, a, b, transpose_a, transpose_b, beta, scratch, bias, relu, mask)]
    if widens and wide in ([True, True, False], [True, False, True]):
        return [_own_gemm(c, a, b, transpose_a, transpose_b, bool(beta), scratch, bias, relu, mask)]
    if relu or mask is not None:
        raise ValueError("products of bfloat16 know of no ReLU")
    narrow = imported("tapeless.kernels.cpu.products_bfloat16")
    (m, n), k = c.shape, a.shape[0 if transpose_a else 1]
    count = _threads_for(m, n, k)
    room = scratch[-1] if scratch else np.empty(narrow.floats(m, n, k, count), np.float32)
    product = Product(narrow.bound(c, a, b, transpose_a, transpose_b, bool(beta), count, room, bias))
    product.matrices, product.flops = (c, a, b, room, bias), 2 * m * n * k
    return [product]


def _threads_for(m: int, n: int, k: int) -> int:
    return sharers(2 * m * n * k, THREADED)


def product_scratch(call: Any, precision: Any, *sizes: tuple[int, int, int]) -> list[Scratch]:
    """For products with the call's weight, of these m, n and k, one after the other: our own pack into it, MKL has its
    own memory. It comes last of what a kernel asks for. A product that is not given any has some of its own."""
    if not sizes or (precision.dtype(call["weight"].buffer.role) == "float32" and products() == "mkl"):
        return []
    if precision.activation == "float32":
        own = imported("tapeless.kernels.cpu.products")
    else:
        own = imported("tapeless.kernels.cpu.products_bfloat16")
    return [Scratch((max(own.floats(*size, _threads_for(*size)) for size in sizes),))]


def _row_stride(matrix: Array) -> int:
    """Elements from one row to the next; BLAS wants at least the row's own length, also where there is one row."""
    return max(int(matrix.strides[0]) // 4, int(matrix.shape[1]), 1)


def sgemm_address() -> int:
    """Where an sgemm with 64-bit integers lies, for kernels that call it from inside a parallel loop."""
    library = _serving()
    if library is None:
        address: int = imported("tapeless.kernels.cpu.products").sgemm_address()
        return address
    return ctypes.cast(library.cblas_sgemm_64, ctypes.c_void_p).value or 0
