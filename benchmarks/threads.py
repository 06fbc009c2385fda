"""A step on our own threads beside the same step on Numba's layers, OpenMP (MKL's) and `workqueue`, in turn in one
process: docs/decisions/0263. About three minutes."""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tapeless.bench.ours import prepare
from tapeless.bench.race import TURN_SECONDS, Work
from tapeless.kernels.cpu import blas, pool

WORKS = (
    ("ops-102k", 32, 8, "float32"), ("gpt2-4x256", 1, 1024, "float32"), ("gpt2-4x256", 1, 1024, "bfloat16"),
    ("gpt2-124m", 4, 64, "bfloat16"),
)  # fmt: skip
SETTLE = 0.25  # seconds: OpenMP's threads look out for work for a fifth of one, and would be in the next one's way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    threads = blas.set_threads(None)  # which loads Intel's OpenMP: asked for before that, the layer would load GNU's
    from numba.np.ufunc import omppool, workqueue  # type: ignore[attr-defined]

    ctypes.CFUNCTYPE(None, ctypes.c_int)(workqueue.launch_threads)(threads)
    ways = {"ours": 0, "OpenMP": omppool.parallel_for, "workqueue": workqueue.parallel_for}
    print(f"a step's time over that on our own threads, {threads} threads, medians of {turns} turns")
    for preset, batch, length, precision in WORKS:
        step, _, _ = prepare("ours", Work(preset, batch, length, threads, {}, precision, "cpu", "own"))
        for _ in range(4):  # by then a list of small calls is one
            step()
        count = max(3, round(TURN_SECONDS / _timed(step)))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(turns):
            for way, address in ways.items():
                pool._words[pool.DELEGATE] = address
                time.sleep(SETTLE)
                step()
                times[way].append(median(_timed(step) for _ in range(count)))
        pool._words[pool.DELEGATE] = 0
        ratios = {way: median(a / b for a, b in zip(times[way], times["ours"], strict=True)) for way in ways}
        said = ", ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items() if way != "ours")
        print(f"{preset} {batch}×{length} {precision}: {said}", flush=True)


def _timed(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
