"""LoRA on frozen matrices in bfloat16 beside the same in float32, in turns in one process: a step, a token that is
decoded, and the memory of either. `python benchmarks/frozen.py [PRESET] [--time 512] [--turns 9]`"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from tapeless import Model
from tapeless.backends.backend import backend_named, gemm_library
from tapeless.generate import Decoder
from tapeless.kernels.cpu import faster_gemm
from tapeless.shown import size

KINDS = ("float32", "bfloat16")
RANK, TOKENS = 16, 16


def in_turns(runs: list[Callable[[], object]], turns: int) -> list[list[float]]:
    """Milliseconds; the first turn of each only warms up."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(turns + 1):
        for run, taken in zip(runs, times, strict=True):
            begin = perf_counter()
            run()
            if turn:
                taken.append(1000 * (perf_counter() - begin))
    return times


def told(what: str, times: list[list[float]], each: int = 1) -> str:
    wide, narrow = (median(taken) / each for taken in times)
    ratio = median(mine / theirs for theirs, mine in zip(*times, strict=True))
    return f"  {what:<18}{wide:9.2f} ms {narrow:9.2f} ms    bfloat16 / float32 {ratio:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="smollm2-135m")
    parser.add_argument("--time", type=int, default=512)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    products = gemm_library(backend_named("cpu"), faster_gemm().library)
    models = [Model(options.preset, time=options.time, lora=RANK, lean=True, frozen_precision=kind) for kind in KINDS]
    tokens = np.random.default_rng(0).integers(0, models[0].config.vocab, (2, 1, options.time))
    print(f"{options.preset}, 1 × {options.time}, LoRA {RANK}, float32; frozen matrices in {' and in '.join(KINDS)}")
    print(f"  in float32 the products are {products}; with a bfloat16 factor they are our own")
    for kind, model in zip(KINDS, models, strict=True):
        frozen = model.plan.bytes_by_kind()["frozen"]
        print(f"  {kind:<18}{size(model.plan.peak_bytes)}, of which frozen {size(frozen)}")
    print(told("step", in_turns([lambda each=each: each.step(*tokens, lr=1e-4) for each in models], options.turns)))
    decoders = [Decoder(model, room=options.time) for model in models]

    def decode(decoder: Decoder) -> None:
        decoder.position = 0
        for token in range(TOKENS):
            decoder.step(token)

    print(told("token", in_turns([lambda each=each: decode(each) for each in decoders], options.turns), TOKENS))


if __name__ == "__main__":
    main()
