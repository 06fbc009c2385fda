"""Children of a process whose threads are at work, or not, have threads of their own."""

import os
import threading

import numpy as np
from numba import prange

from tapeless.kernels.cpu import dispatch, pool
from tapeless.kernels.cpu.compile import THREADED, Kernel

CHILDREN = 20


def fill(out, times):
    for i in prange(out.size):
        value = i + times
        for _ in range(times):
            value ^= value << 13
            value ^= value >> 7
            value ^= value << 17
        out[i] += 1 if value != 0 else 0


def main(busy):
    dispatch.set_gemm_library("own")
    dispatch.set_threads(2)
    outs = np.zeros((2, 4))
    runs = [Kernel(fill).bind(THREADED, out, times) for out, times in zip(outs, (100_000, 20_000), strict=True)]
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            runs[1]()

    if busy:
        threading.Thread(target=keep_busy).start()
    for _ in range(CHILDREN):
        with pool._starting:  # somebody may be starting threads at that moment, who in the child never ends
            number = os.fork()
            if number == 0:
                os._exit(0 if _computes(runs[0], outs[0]) else 1)
        assert os.waitpid(number, 0)[1] == 0
    stop.set()
    print(f"{CHILDREN} children were right")


def _computes(run, out):
    dispatch.start_threads(2)
    for _ in range(20):
        run()
    names = [thread.name for thread in threading.enumerate()]
    return out.tolist() == [20.0] * 4 and pool._words[pool.GENERATION] == 20 and "tapeless-1" in names
