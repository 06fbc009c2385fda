"""The products of a training step, ours beside MKL's and NumPy's, interleaved: `make products`.

Of every shape the three that a linear has: y = x·W, dx = dy·Wᵀ, dW = xᵀ·dy. Medians of rounds in which everyone has one
turn, so that a neighbour on the machine slows all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from tapeless.kernels import cpu as cpu_kernels
from tapeless.kernels.native import Native

# rows, channels, width: of gpt2-4x256 at 1×1024, of gpt2-124m at 4×64 and 1×1024, of smollm2-135m at 1×512
SHAPES = {
    "gpt2-4x256 qkv": (1024, 256, 768),
    "gpt2-4x256 up": (1024, 256, 1024),
    "gpt2-124m qkv, 4×64": (256, 768, 2304),
    "gpt2-124m up, 4×64": (256, 768, 3072),
    "gpt2-124m qkv": (1024, 768, 2304),
    "gpt2-124m proj": (1024, 768, 768),
    "gpt2-124m up": (1024, 768, 3072),
    "gpt2-124m words": (256, 768, 50257),
    "smollm2-135m up": (512, 576, 1536),
    "attention's scores": (64, 64, 1024),
}
ROUNDS = 15


def bound(c: np.ndarray, a: np.ndarray, b: np.ndarray, turn_a: bool, turn_b: bool) -> dict[str, Native]:
    found: dict[str, Native] = {}
    for name in ("own", "mkl") if cpu_kernels.mkl() is not None else ("own",):
        cpu_kernels.set_gemm_library(name)
        found[name] = cpu_kernels.gemm(c, a, b, turn_a, turn_b)
    left, right = (a.T if turn_a else a), (b.T if turn_b else b)
    return found | {"numpy": lambda: np.matmul(left, right, out=c)}


def medians(runs: dict[str, Native], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def main(rounds: int, show: Callable[[str], None] = print) -> None:
    rng = np.random.default_rng(0)
    show("| product | m × n × k | ours, GFLOP/s | over MKL | over NumPy |\n|---|---|---|---|---|")
    for name, (rows, channels, width) in SHAPES.items():
        x, w, y = (
            rng.normal(size=size).astype(np.float32) for size in ((rows, channels), (channels, width), (rows, width))
        )
        for title, c, a, b, turn_a, turn_b in (
            ("y", y, x, w, False, False),
            ("dx", x, y, w, False, True),
            ("dW", w, x, y, True, False),
        ):
            found = medians(bound(c, a, b, turn_a, turn_b), rounds)
            m, n, k = *c.shape, a.shape[0 if turn_a else 1]
            rate = 2 * m * n * k / found["own"] / 1e9
            over = " | ".join(
                f"{found[other] / found['own']:.2f}" if other in found else "–" for other in ("mkl", "numpy")
            )
            show(f"| {name}, {title} | {m} × {n} × {k} | {rate:.0f} | {over} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
