"""Run as a program: `python forking.py WAY THREADS [without-mkl]`. A model steps here, and in a child."""

import multiprocessing
import os
import sys
from typing import Any

import numpy as np

import tapeless
from tapeless.kernels.cpu import dispatch

WAY, THREADS = sys.argv[1], min(int(sys.argv[2]), dispatch.checked_threads(None))
TOKENS = np.random.default_rng(0).integers(0, 50, (2, 65))
model: Any = None


def settle():
    if "without-mkl" in sys.argv:
        dispatch._installed = lambda name: None
    dispatch.set_threads(THREADS)


def step():
    global model
    if model is None:
        settle()
        model = tapeless.Model("gpt2-4x256", batch=2, time=64, layers=1, vocab=1100, context=80)
    return model.forward_backward(TOKENS[:, :-1], TOKENS[:, 1:])


def child():
    try:
        print("child has", step(), flush=True)
    except tapeless.TapelessError as error:
        print("child says", error, flush=True)


def start_child():
    if WAY.startswith("fork"):
        if os.fork() == 0:
            child()
            os._exit(0)
        assert os.wait()[1] == 0
    else:
        context: Any = multiprocessing.get_context(WAY.split()[-1])
        process = context.Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    if WAY != "fork early":
        print("parent has", step(), flush=True)
    start_child()
    print("parent has" if WAY == "fork early" else "parent goes on", step(), flush=True)
