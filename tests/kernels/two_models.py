"""Run as a program: models that step in threads of their own, beside the same models one after the other.

`python two_models.py STEPS [without-mkl]`; says `same` where every loss, weight and token is the same to the bit.
"""

import sys
import threading

import numpy as np

import tapeless
from tapeless.kernels.cpu import dispatch

STEPS = int(sys.argv[1])
if "without-mkl" in sys.argv:
    dispatch._installed = lambda name: None
dispatch.set_threads(min(2, dispatch.checked_threads(None)))
SMALL = {"layers": 2, "vocab": 300, "context": 80, "channels": 64, "heads": 4}
WIDE = SMALL | {"channels": 96, "heads": 6, "vocab": 1100}


def trained(fields, time, seed, steps=STEPS):
    model = tapeless.Model("gpt2-4x256", batch=2, time=time, seed=seed, optimizer="adamw", **fields)
    rng = np.random.default_rng(seed)

    def work():
        losses = []
        for _ in range(steps):
            tokens = rng.integers(0, fields["vocab"], (2, time + 1))
            losses.append(model.forward_backward(tokens[:, :-1], tokens[:, 1:]))
            model.update(1e-3, clip=1.0)
        return losses, model.loss(tokens[:, :-1], tokens[:, 1:]), [w.tobytes() for w in model.params.values()]

    return work


def sampled(fields, seed):
    model = tapeless.Model("gpt2-4x256", batch=2, time=8, seed=seed, **fields)
    return lambda: [model.generate([1, 2, 3], 30, seed=n) for n in range(max(1, STEPS // 20))]


def built(fields, seed):
    """Models that are made, run and dropped, while others run."""
    return lambda: [trained(fields, 60, seed + n, steps=2)() for n in range(max(1, STEPS // 10))]


GROUPS = {
    "same shapes": lambda: [trained(SMALL, 70, 1), trained(SMALL, 70, 2)],
    "different shapes": lambda: [trained(SMALL, 70, 3), trained(WIDE, 64, 4)],
    "training and sampling": lambda: [trained(WIDE, 70, 5), sampled(WIDE, 6), sampled(WIDE, 7)],
    "training and building": lambda: [trained(SMALL, 70, 8), built(SMALL, 9)],
}


def together(works):
    found = [None] * len(works)
    gate = threading.Barrier(len(works))

    def run(number):
        gate.wait()
        found[number] = works[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


for name, group in GROUPS.items():
    alone = [work() for work in group()]
    if together(group()) != alone:
        raise SystemExit(f"{name}: other results than one after the other")
print("same", dispatch.gemm_version())
