"""KeyboardInterrupts in whatever a model does, mixed with forks, threads and compiling: nobody waits for ever, and no
number is wrong. `make interrupts` has a thousand of them, the suite a few."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from itertools import count
from typing import Any

import numpy as np

import tapeless
from tapeless.kernels.cpu import dispatch, has_bfloat16

PATIENCE = 600  # seconds without a round's end, after which every thread's stack is printed
EVERY = 40  # interrupts of a round
CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"activation": "gelu"},
    {"activation": "tanh", "norm_kind": "rmsnorm"},
    {"activation": "swiglu"},
    {"positions": "rotary"},
    {"channels": 24, "heads": 3},
    {"precision": "bfloat16" if has_bfloat16() else "float32"},
    {"optimizer": "sgd"},
]


def losses(fields: dict[str, Any], steps: int = 3) -> list[float]:
    rng = np.random.default_rng(0)
    model = tapeless.Model("ops-102k", batch=4, **{"layers": 1, **fields})
    tokens, targets = rng.integers(0, 10, (steps, 4, model.time)), rng.integers(0, 10, (steps, 4))
    return [model.step(x, y, lr=1e-3).loss for x, y in zip(tokens, targets, strict=True)]


class Pest:
    """Sends an interrupt to the main thread, at a random time after each time that it is told to."""

    def __init__(self, seed: int) -> None:
        self._rng, self._wanted, self.sent = np.random.default_rng(seed), threading.Semaphore(0), 0
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        while True:
            self._wanted.acquire()
            threading.Event().wait(self._rng.exponential(0.02))
            signal.raise_signal(signal.SIGINT)  # which Python hands to the main thread
            self.sent += 1

    def once(self) -> None:
        self._wanted.release()


def interrupted(pest: Pest, times: int, number: int) -> None:
    """Steps of a model that is made anew, until so many interrupts have come."""
    for each in range(times):
        sent = pest.sent
        pest.once()
        try:
            while pest.sent == sent:  # one that comes while an object is finalised is not raised, but printed
                losses(CONFIGURATIONS[(number + each) % len(CONFIGURATIONS)])
        except KeyboardInterrupt:
            while pest.sent == sent:
                threading.Event().wait(0.001)


def forked(fields: dict[str, Any]) -> list[float] | None:
    """By a child, on one thread: where MKL's products serve, it may have no more."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(PATIENCE)
            if not dispatch._on_openmp:
                os.write(theirs, np.array(losses(fields)).tobytes())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        found: list[float] = np.frombuffer(pipe.read()).tolist()
    assert os.waitpid(child, 0)[1] == 0
    return found


def in_threads(number: int) -> list[tuple[int, list[float]]]:
    found: list[tuple[int, list[float]]] = []

    def build(which: int) -> None:
        found.append((which, losses(CONFIGURATIONS[which])))

    chosen = [(number + each) % len(CONFIGURATIONS) for each in range(6)]
    threads = [threading.Thread(target=build, args=(which,)) for which in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads), "a thread has failed"
    return found


def main(interrupts: int, seed: int = 0) -> None:
    if seed % 2 == 0:  # else the first interrupts meet imports
        losses(CONFIGURATIONS[0])
    pest = Pest(seed)
    seen: dict[int, list[float]] = {}
    for number in count(seed):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        interrupted(pest, min(EVERY, interrupts - pest.sent), number)
        found = [(number % len(CONFIGURATIONS), forked(CONFIGURATIONS[number % len(CONFIGURATIONS)])) for _ in range(3)]
        for which, each in [*found, *in_threads(number)]:
            if each:
                assert seen.setdefault(which, each) == each, f"{CONFIGURATIONS[which]}: {each}, not {seen[which]}"
        if pest.sent >= interrupts:
            break
    faulthandler.cancel_dump_traceback_later()
    for which, each in seen.items():
        assert losses(CONFIGURATIONS[which]) == each
    print(
        f"{pest.sent} interrupts, {3 * (number - seed + 1)} forks, {6 * (number - seed + 1)} threads: no wrong number"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
