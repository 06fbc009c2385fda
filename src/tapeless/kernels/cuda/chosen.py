"""Products by the fastest of cuBLAS's algorithms, which torch does not let one choose.

Under a full load a GPU is held back by the power it may draw, and the algorithm that cuBLAS thinks fastest can take a
quarter longer than another of its own. The first run of a product tries them on the numbers at hand. Only those are in
the running that sum a result in one go (where it is float32, in as many parts as the first does) and give the bits of
the first: the choice shows in the time alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from statistics import median
from typing import Any

import torch

FROM = 10**9  # operations of a product for which the choice is worth its while
WORKSPACE = 32 * 2**20  # bytes, of which there is one for all
CANDIDATES, ROUNDS = 16, 3
AT_A_TIME = 2**20  # numbers whose bits are summed

# cublasLt.h: types, the attributes that are set, and the way results are handed over
BFLOAT16, FLOAT32, COMPUTE_FLOAT32 = 14, 0, 68
FIRST_TRANSPOSED, SECOND_TRANSPOSED, EPILOGUE, BIAS_POINTER, BEFORE_POINTER, BEFORE_STRIDE = 3, 4, 7, 8, 11, 12
PLAIN, BIAS, GELU_OF_BIAS = 1, 4, 164
MOST_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)
SPLITS = 2
TYPES = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}
Pointer = ctypes.c_void_p


class _Found(ctypes.Structure):
    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@cache
def _library() -> Any:
    """cuBLASLt as torch has loaded it; nothing where it goes by another name."""
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}")
    except OSError:
        return None
    library.cublasLtMatrixLayoutCreate.argtypes = [
        Pointer,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int64,
    ]
    library.cublasLtMatmul.argtypes = [Pointer] * 14 + [ctypes.c_size_t, Pointer]
    library.cublasLtMatmulAlgoGetHeuristic.argtypes = [Pointer] * 7 + [ctypes.c_int, Pointer, Pointer]
    return library


@cache
def _handle(device: int) -> Any:
    handle = Pointer()
    _checked(_library().cublasLtCreate(ctypes.byref(handle)))
    return handle


@cache
def _workspace(device: int) -> torch.Tensor:
    return torch.empty(WORKSPACE, dtype=torch.uint8, device=torch.device("cuda", device))


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt answered with status {status}")


_CHOSEN: dict[tuple[Any, ...], Any] = {}  # by the shapes, strides and alignments of a product


def can_choose(out, a, b) -> bool:
    """Large products of matrices in bfloat16 whose rows or columns lie together, on a GPU."""
    return (
        out.device.type == "cuda"
        and out.dtype in TYPES
        and a.dtype == b.dtype == torch.bfloat16
        and 2 * out.numel() * a.shape[1] >= FROM
        and out.stride(1) == 1
        and all(1 in x.stride() and max(x.stride()) % 8 == 0 for x in (out, a, b))
        and all(x.data_ptr() % 16 == 0 for x in (out, a, b))
        and _library() is not None
    )


class Chosen:
    """out (+)= times · a @ b, with `bias` that too; with `before`, before = a @ b + bias and out = gelu of that, taken
    before it is rounded. What cuBLAS calls the first factor is b: it reads matrices by columns."""

    def __init__(self, out, a, b, bias=None, before=None, *, add=False, times=1.0):
        self._kept = out, a, b, bias, before
        self._device, self._add = out.device.index, add
        self._times, self._one, self._zero = (ctypes.c_float(value) for value in (times, 1.0, 0.0))
        self._wanted = Pointer()
        library = _library()
        _checked(library.cublasLtMatmulDescCreate(ctypes.byref(self._wanted), COMPUTE_FLOAT32, FLOAT32))
        across, down = a.stride(1) != 1, b.stride(1) != 1
        self._set(FIRST_TRANSPOSED, ctypes.c_int(down))
        self._set(SECOND_TRANSPOSED, ctypes.c_int(across))
        self._set(EPILOGUE, ctypes.c_int(PLAIN if bias is None else BIAS if before is None else GELU_OF_BIAS))
        if bias is not None:
            self._set(BIAS_POINTER, Pointer(bias.data_ptr()))
        if before is not None:
            self._set(BEFORE_POINTER, Pointer(before.data_ptr()))
            self._set(BEFORE_STRIDE, ctypes.c_int64(before.stride(0)))
        self._layouts = [_layout(b.T if down else b), _layout(a.T if across else a), _layout(out)]
        places = [x.data_ptr() for x in (out, a, b)]
        self._alignments = [min(256, place & -place) for place in places]
        strides = (out.stride(), a.stride(), b.stride())
        kind = (bias is None, before is None, add)
        self._key = (self._device, out.dtype, out.shape, a.shape[1], strides, kind, tuple(self._alignments))

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _checked(_library().cublasLtMatmulDescSetAttribute(self._wanted, attribute, ctypes.byref(value), size))

    def __call__(self) -> None:
        algorithm = _CHOSEN.get(self._key)
        if algorithm is None:
            algorithm = _CHOSEN[self._key] = self._fastest()
        self._run(algorithm, self._add)

    def _run(self, algorithm: Any, add: bool) -> None:
        out, a, b, *_ = self._kept
        first, second, result = self._layouts
        workspace = _workspace(self._device)
        times, held = ctypes.byref(self._times), ctypes.byref(self._one if add else self._zero)
        _checked(
            _library().cublasLtMatmul(
                _handle(self._device),
                self._wanted,
                times,
                b.data_ptr(),
                first,
                a.data_ptr(),
                second,
                held,
                out.data_ptr(),
                result,
                out.data_ptr(),
                result,
                ctypes.byref(algorithm),
                workspace.data_ptr(),
                WORKSPACE,
                torch.cuda.current_stream().cuda_stream,
            )
        )

    def _fastest(self) -> Any:
        """What out holds is kept on the host meanwhile, where the product adds to it: here there may be no room. The
        bits are compared without it."""
        out = self._kept[0]
        held = out.cpu() if self._add else None
        candidates, bits = self._candidates(), []
        for each in candidates:
            self._run(each, False)
            bits.append(_sum_of_bits(out))
        same = [each for each, found in zip(candidates, bits, strict=True) if found == bits[0]]
        took: list[list[float]] = [[] for _ in same]
        for _ in range(ROUNDS):  # in turn, as the GPU's clock falls and rises
            for times, each in zip(took, same, strict=True):
                times.append(_milliseconds(partial(self._run, each, self._add)))
        if held is not None:
            out.copy_(held)
        return min(zip(took, same, strict=True), key=lambda pair: median(pair[0]))[1]

    def _candidates(self) -> list[Any]:
        """That sum each result in as many parts, cuBLAS's own first choice among them first."""
        library, preference = _library(), Pointer()
        _checked(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        limits = [(MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))]
        smallest = ctypes.c_uint32(min(self._alignments))
        for attribute, value in (*limits, *((attribute, smallest) for attribute in ALIGNMENTS)):
            size = ctypes.c_size_t(ctypes.sizeof(value))
            _checked(library.cublasLtMatmulPreferenceSetAttribute(preference, attribute, ctypes.byref(value), size))
        results, number = (_Found * CANDIDATES)(), ctypes.c_int()
        layouts = (*self._layouts, self._layouts[2])
        _checked(
            library.cublasLtMatmulAlgoGetHeuristic(
                _handle(self._device),
                self._wanted,
                *layouts,
                preference,
                CANDIDATES,
                ctypes.byref(results),
                ctypes.byref(number),
            )
        )
        found = [results[n].algorithm for n in range(number.value)]
        splits = 1 if self._kept[0].dtype == torch.bfloat16 else _splits(found[0])
        return [each for each in found if _splits(each) == splits] or found[:1]


def _splits(algorithm: Any) -> int:
    value, written = ctypes.c_int32(), ctypes.c_size_t()
    _checked(
        _library().cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(algorithm), SPLITS, ctypes.byref(value), ctypes.c_size_t(4), ctypes.byref(written)
        )
    )
    return value.value


def _layout(matrix) -> Any:
    """Of a matrix by rows, which cuBLAS sees as its transpose by columns."""
    rows, columns = matrix.shape
    found = Pointer()
    kind = TYPES[matrix.dtype]
    _checked(_library().cublasLtMatrixLayoutCreate(ctypes.byref(found), kind, columns, rows, matrix.stride(0)))
    return found


def _sum_of_bits(out) -> int:
    """Some rows at a time: torch widens what it sums."""
    rows = max(1, AT_A_TIME // out.shape[1])
    return sum(int(part.sum(dtype=torch.int64)) for part in out.view(torch.int16).split(rows))


def _milliseconds(run: Callable[[], None]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    run()
    run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)
