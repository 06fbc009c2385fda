"""Which GEMM serves a call, MKL's or the built-in one, and on how many threads calls run.

MKL serves where it is installed, the built-in GEMM elsewhere and where it is chosen. Where MKL serves, parallel loops
run on the threads of its OpenMP. Other users of MKL in the process (PyTorch, SciPy, your own NumPy) keep what they had:
MKL's interface stays at 32-bit integers and we call the functions that take 64 by name.
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
from tapeless.kernels.cpu.uninterrupted import load
from tapeless.kernels.native import Native

Array = NDArray[Any]

ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 111, 112  # CBLAS's names for them
A_BFLOAT16, B_BFLOAT16 = 1 << 10, 1 << 11  # added to ROW_MAJOR, they tell the built-in GEMM which factors are bfloat16
MKL_INTEL_THREADS, MKL_GNU_THREADS = 0, 3
THREADED_FLOPS = 500_000  # a smaller GEMM stays on one thread
# Each further thread is woken for this fraction of the work that two are woken for: with many cores, a small loop takes
# less time than all of them take to begin it.
GRAIN = 0.5
GEMM_LIBRARIES = ("mkl", "own")


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
    ask the wrong library for their number, all of them would be told 0, and GEMMs would come out doubled.
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
    """The files that this process has mapped, on systems that list them."""
    maps = Path("/proc/self/maps")
    lines = os.fsdecode(maps.read_bytes()).splitlines() if maps.exists() else []  # a path may be any bytes
    return sorted({line.split(maxsplit=5)[-1].strip() for line in lines if "/" in line})


_chosen: str | None = None


def gemm_library() -> str:
    """The library whose GEMM serves calls that are bound from now on."""
    return _chosen or ("own" if mkl() is None else "mkl")


def chosen() -> str | None:
    """The library that was asked for, if one was."""
    return _chosen


@contextmanager
def using_gemm_library(name: str) -> Iterator[None]:
    """Calls that are bound meanwhile have this library's GEMM."""
    before = _chosen
    set_gemm_library(name)
    try:
        yield
    finally:
        set_gemm_library(before)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Calls that are bound meanwhile run on so many threads."""
    before = threads()
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def set_gemm_library(name: str | None, lower: bool = False) -> str:
    """Choose the library for calls bound from now on. None means MKL where it is installed. `lower`: instead of an MKL
    that is not installed the built-in GEMM serves."""
    global _chosen
    if lower and name == "mkl" and mkl() is None:
        name = "own"
    if name is not None and name not in GEMM_LIBRARIES:
        raise unknown("products", name, GEMM_LIBRARIES)
    if name == "mkl" and mkl() is None:
        raise TapelessError("the products cannot be MKL's: it is not installed. pip install 'tapeless[mkl]'.")
    _chosen = name
    if _settled:
        _settle_loops()
    return gemm_library()


def _serving() -> ctypes.CDLL | None:
    """MKL, where its GEMM serves."""
    return mkl() if gemm_library() == "mkl" else None


def gemm_version() -> str:
    """The library whose GEMM serves, and its version, for reports."""
    library = _serving()
    if library is None:
        return "built-in GEMM"
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, 200)
    return "MKL " + text.value.decode().partition("Version ")[2].partition("-")[0]


_threads = 0


def threads() -> int:
    """The thread count of calls bound from now on."""
    return _threads or set_threads(None)


def threads_for(work: int, threaded_from: int) -> int:
    """How many threads share a loop or a GEMM of so much work: two from `threaded_from` on, then 4, 8, … where there is
    work for them, or all."""
    if work < threaded_from:
        return 1
    part = GRAIN * threaded_from
    if work >= part * threads():
        return threads()
    return min(threads(), 1 << max(1, int(work / part).bit_length() - 1))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_threads(count: int | None) -> int:
    """A valid thread count. None means OMP_NUM_THREADS, and where that is not set, all cores."""
    most = cores()
    if count is None:
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        return min(int(wanted), most) if wanted.isdigit() and int(wanted) else most
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise TapelessError(f"threads must be a whole number from 1 to {most}, the cores there are, not {count!r}.")
    return count


def set_threads(count: int | None) -> int:
    """Set the thread count of GEMMs and kernels. Models bound before keep the number they were bound with."""
    global _threads
    count = checked_threads(count)
    refuse_after_fork(count)
    library = mkl()
    if library is not None:
        library.MKL_Set_Num_Threads(count)
    _threads = count
    if _settled:
        _settle_loops()
    return count


_settled = False


def settle_loops() -> None:
    """Settle on whose threads parallel loops run, before the first one does."""
    if not _settled:
        _settle_loops()


def _settle_loops() -> None:
    """Run parallel loops on MKL's threads where its GEMM serves, else on our own."""
    global _on_openmp, _settled
    pool = load("tapeless.kernels.cpu.pool")
    library = _openmp() if gemm_library() == "mkl" else None
    _on_openmp = _on_openmp or library is not None
    pool.use_openmp(library)
    if library is None:
        pool.start(threads())
    _settled = True


_on_openmp = _forked = False  # whether loops ever ran on its threads; whether this is the child of such a process


def _after_fork() -> None:
    global _forked
    _forked = _on_openmp


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def start_threads(count: int) -> None:
    """Start the threads that loops need. In a forked process our own threads are started again."""
    refuse_after_fork(count)
    settle_loops()
    if not _on_openmp:
        load("tapeless.kernels.cpu.pool").start(count)


def refuse_after_fork(count: int) -> None:
    """OpenMP would end a child that uses more than its own thread, or let it wait for ever."""
    if _forked and count > 1:
        raise TapelessError(
            "this process was forked from one that had used the cpu backend, whose threads do not survive a fork: "
            "start processes by multiprocessing.get_context('spawn'), or fork before the first model is made."
        )


class Gemm(partial[None]):
    """c = a @ b + beta · c, with everything resolved: calling it is one foreign call and no lookup."""

    arrays: tuple[Array | None, ...]  # the addresses are valid as long as these live
    flops: int

    @classmethod
    def of(cls, function: Any, kernel: Any, plans: Array, c: Array, k: int, arrays: tuple[Array | None, ...]) -> Gemm:
        """A built-in GEMM: one plan is computed by the function, several by the kernel, on as many threads."""
        called = function.ctypes
        if len(plans) > 1:
            made = cls(kernel.bind(c.size, plans, threads=len(plans)))
        else:
            made = cls(called, ctypes.c_uint64(plans.ctypes.data), ctypes.c_float(1))
        made.arrays, made.flops = (plans, c, *arrays), 2 * c.size * k
        return made


def on_one_thread(natives: list[Native]) -> list[Native]:
    """The same native calls, with MKL on the calling thread. Switching costs a fifth of a microsecond."""
    library = _serving()
    if library is None or threads() == 1:
        return natives
    one, all_again = (partial(library.MKL_Set_Num_Threads_Local, ctypes.c_int(count)) for count in (1, 0))
    return [one, *natives, all_again]


def small_on_one_thread(natives: list[Native]) -> list[Native]:
    """The same native calls, with MKL on the calling thread if every GEMM among them is small."""
    gemms = [native for native in natives if isinstance(native, Gemm)]
    small = gemms and all(each.flops < THREADED_FLOPS for each in gemms)
    return on_one_thread(natives) if small else natives


def gemm(
    c: Array,
    a: Array,
    b: Array,
    transpose_a: bool = False,
    transpose_b: bool = False,
    beta: float = 0.0,
    scratch: Sequence[Array] = (),
    bias: Array | None = None,
    upcast: bool = False,
    relu: bool = False,
    mask: Array | None = None,
) -> Gemm:
    """Bind c (m n) = a (m k) @ b (k n) + beta · c, for matrices of float32 or bfloat16 whose rows may lie apart.

    beta is 0 to write and 1 to add. `scratch`: what `gemm_scratch` asked for, in the last place. Where one factor is
    bfloat16, the other is rounded to it; but if the bfloat16 one is a weight that may be `upcast` and all else is
    float32, the built-in GEMM multiplies it as it is.

    The built-in GEMM alone can add a `bias` (n), multiply max(a, 0) in place of a (`relu`), and write 0 where a `mask`
    (m n) is ≤ 0.
    """
    for matrix in (c, a, b):
        _check_layout(matrix)
    (m, k), (inner, n) = (a.T if transpose_a else a).shape, (b.T if transpose_b else b).shape
    if c.shape != (m, n) or k != inner:
        raise ValueError(f"shapes do not fit: {c.shape} = {(m, k)} @ {(inner, n)}")
    float32 = [each.dtype == np.float32 for each in (c, a, b)]
    upcasts = upcast and float32 in ([True, True, False], [True, False, True])
    fuses = relu or mask is not None
    library = _serving() if all(float32) else None
    if library is not None:
        if fuses or bias is not None:
            raise ValueError("MKL's GEMM adds no bias and fuses no ReLU")
        return _mkl_gemm(library, c, a, b, transpose_a, transpose_b, beta)
    if fuses and not (all(float32) or upcasts):
        raise ValueError("a bfloat16 GEMM fuses no ReLU")
    kernel = load(f"tapeless.kernels.cpu.gemm_{'float32' if all(float32) or upcasts else 'bfloat16'}")
    count = gemm_threads(m, n, k)
    needed = kernel.scratch_floats(m, n, k, count)
    panels = scratch[-1] if scratch else np.empty(needed, np.float32)
    if panels.size < needed:
        raise ValueError(f"a GEMM that packs into {needed} floats was given {panels.size}")
    fused = {"relu": relu, "mask": mask} if fuses else {}
    made: Gemm = kernel.bound(c, a, b, transpose_a, transpose_b, bool(beta), count, panels, bias, **fused)
    return made


def _check_layout(matrix: Array) -> None:
    known = matrix.dtype.name in ("float32", "bfloat16") and matrix.ndim == 2
    if not known or (matrix.shape[1] > 1 and matrix.strides[1] != matrix.itemsize):
        raise ValueError(
            f"a GEMM takes row-major matrices of float32 or bfloat16, not {matrix.dtype} {matrix.shape} with strides "
            f"{matrix.strides}"
        )


def _mkl_gemm(
    library: ctypes.CDLL, c: Array, a: Array, b: Array, transpose_a: bool, transpose_b: bool, beta: float
) -> Gemm:
    (m, n), k = c.shape, a.shape[0 if transpose_a else 1]
    integer, real, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    made = Gemm(
        library.cblas_sgemm_64,
        integer(ROW_MAJOR),
        integer(TRANSPOSED if transpose_a else NOT_TRANSPOSED),
        integer(TRANSPOSED if transpose_b else NOT_TRANSPOSED),
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
    made.arrays, made.flops = (c, a, b), 2 * m * n * k
    return made


def gemm_threads(m: int, n: int, k: int) -> int:
    return threads_for(2 * m * n * k, THREADED_FLOPS)


def _row_stride(matrix: Array) -> int:
    """Elements from one row to the next; a BLAS wants at least the row's own length, also where there is one row."""
    return max(int(matrix.strides[0]) // 4, int(matrix.shape[1]), 1)


def gemm_address(bfloat16: bool, rows: int, keys: int, width: int) -> int:
    """The address of a GEMM that kernels call from inside a parallel loop by `call_gemm`, with CBLAS's arguments.

    bfloat16: for factors of that type. Else it serves attention of at most so many `rows` and `keys`, whose heads are
    so wide: the tiny GEMM if they are small enough, or the library's."""
    kernel, library = load(f"tapeless.kernels.cpu.gemm_{'bfloat16' if bfloat16 else 'float32'}"), _serving()
    if bfloat16:
        function = kernel.SMALL_GEMM
    elif kernel.is_tiny(rows, keys, width):
        function = kernel.TINY_GEMM
    elif library is None:
        function = kernel.SMALL_GEMM
    else:
        return ctypes.cast(library.cblas_sgemm_64, ctypes.c_void_p).value or 0
    return int(function.address)
