"""Whose products are faster here, MKL's or our own: measured once for a processor and a number of threads, and kept.

It depends on the processor: MKL is at home on Intel's, on others ours can be ahead. A new training asks, and records
what it was told, so that it is resumed with the same bits; what was measured is kept in the user's cache folder, so
that the next training on this machine is told the same.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import llvmlite.binding as llvm
import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import make_folder, replace_file
from tapeless.files.plain import read_json
from tapeless.kernels.cpu import dispatch, gemm_float32
from tapeless.kernels.cpu.cache import digest

ROWS, CHANNELS, WIDTH = 512, 768, 3072  # of a linear: its forward and the two products of its backward
TURNS = 9
AHEAD = 0.97  # of MKL's time: who is not further ahead than that does not replace it
MOST_BYTES = 1 << 20


class FasterGemm(NamedTuple):
    library: str
    fraction: float  # of MKL's time that the built-in GEMM takes


def faster_gemm() -> FasterGemm:
    """Where MKL is not installed, or products were chosen, there is nothing to measure."""
    if dispatch.mkl() is None or dispatch.chosen() is not None:
        return FasterGemm(dispatch.gemm_library(), 1.0)
    code = digest(gemm_float32.__name__)[:16]
    key = f"{llvm.get_host_cpu_name()}, {dispatch.threads()} threads, {dispatch.gemm_version()}, ours {code}"
    share = _kept().get(key)
    if share is None:
        measured = _measured()
        share = _kept().get(key)  # another training may have measured meanwhile: both have what was kept first
        if share is None:
            _keep(key, share := measured)
    return FasterGemm("own" if share < AHEAD else "mkl", share)


def _measured() -> float:
    """Ours over MKL's, the median of turns in which both have all three products: what slows a turn slows both."""
    rng = np.random.default_rng(0)
    x, w, y = (
        rng.normal(size=size).astype(np.float32) for size in ((ROWS, CHANNELS), (CHANNELS, WIDTH), (ROWS, WIDTH))
    )
    runs = {}
    for name in dispatch.GEMM_LIBRARIES:
        with dispatch.using_gemm_library(name):
            runs[name] = [
                dispatch.gemm(y, x, w),
                dispatch.gemm(x, y, w, transpose_b=True),
                dispatch.gemm(w, x, y, transpose_a=True),
            ]
    shares = []
    for _ in range(TURNS + 1):
        took = {}
        for name, three in runs.items():
            begun = time.perf_counter()
            for product in three:
                product()
            took[name] = time.perf_counter() - begun
        shares.append(took["own"] / took["mkl"])
    return median(shares[1:])  # in the first, kernels are compiled and threads started


def _file() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~", ".cache").expanduser()) / "tapeless" / "products.json"


def _kept() -> dict[str, float]:
    try:
        kept = read_json(_file(), MOST_BYTES)
    except (TapelessError, OSError, RuntimeError):  # none yet, a damaged one, or no home for it
        return {}
    return {key: share for key, share in kept.items() if isinstance(share, float) and 0 < share < 1e6}


def _keep(key: str, share: float) -> None:
    try:
        make_folder(_file().parent)
        replace_file(_file(), json.dumps(_kept() | {key: share}, indent=1).encode())
    except (TapelessError, OSError, RuntimeError):  # then it is measured again the next time
        return
