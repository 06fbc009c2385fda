"""Whether MKL's GEMM or the built-in one is faster here: measured once for a processor and a thread count, and kept.

It depends on the processor: MKL is at home on Intel's, on others the built-in GEMM can be ahead. A new training records
the answer, so that it is resumed with the same bits. What was measured is kept in the user's cache folder, so that the
next training on this machine has the same answer.
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

ROWS, CHANNELS, WIDTH = 512, 768, 3072  # of a linear: its forward and the two GEMMs of its backward
TURNS = 9
AHEAD = 0.97  # of MKL's time: the built-in GEMM replaces MKL's if it takes less than that
CLEAR, CLEAR_TURNS = 0.1, 3  # if so many turns are all so far on one side of that, no more are measured
MOST_BYTES = 1 << 20


class FasterGemm(NamedTuple):
    library: str
    fraction: float  # of MKL's time that the built-in GEMM takes


def faster_gemm() -> FasterGemm:
    """The faster library. If MKL is not installed, or a library was chosen, nothing is measured."""
    if dispatch.mkl() is None or dispatch.chosen() is not None:
        return FasterGemm(dispatch.gemm_library(), 1.0)
    code = digest(gemm_float32.__name__)[:16]
    key = f"{llvm.get_host_cpu_name()}, {dispatch.threads()} threads, {dispatch.gemm_version()}, ours {code}"
    fraction = _kept().get(key)
    if fraction is None:
        measured = _measured()
        fraction = _kept().get(key)  # another training may have measured meanwhile: both have what was kept first
        if fraction is None:
            _keep(key, fraction := measured)
    return FasterGemm("own" if fraction < AHEAD else "mkl", fraction)


def _measured() -> float:
    """Our time over MKL's: the median of turns in which both have all three GEMMs. What slows a turn slows both."""
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
    fractions: list[float] = []
    while len(fractions) <= TURNS and not _clear(fractions[1:]):  # in the first, kernels are compiled, threads started
        took = {}
        for name, three in runs.items():
            begun = time.perf_counter()
            for run in three:
                run()
            took[name] = time.perf_counter() - begun
        fractions.append(took["own"] / took["mkl"])
    return median(fractions[1:])


def _clear(fractions: list[float]) -> bool:
    enough = len(fractions) >= CLEAR_TURNS
    return enough and (max(fractions) < AHEAD - CLEAR or min(fractions) > AHEAD + CLEAR)


def _file() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~", ".cache").expanduser()) / "tapeless" / "products.json"


def _kept() -> dict[str, float]:
    try:
        kept = read_json(_file(), MOST_BYTES)
    except (TapelessError, OSError, RuntimeError):  # none yet, a damaged one, or no home for it
        return {}
    return {key: fraction for key, fraction in kept.items() if isinstance(fraction, float) and 0 < fraction < 1e6}


def _keep(key: str, fraction: float) -> None:
    try:
        make_folder(_file().parent)
        replace_file(_file(), json.dumps(_kept() | {key: fraction}, indent=1).encode())
    except (TapelessError, OSError, RuntimeError):  # then it is measured again the next time
        return
