"""Contenders take turns, each in a process of its own, and only one of them is awake at a time.

Machines are noisy: an absolute time says little, a ratio of medians from one interleaved run says much. A
contender whose turn it is not is *stopped* (SIGSTOP), because a thread pool that spins while it waits would slow
the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tapeless.errors import TapelessError

WITHOUT_AMX = "AVX512_CORE_FP16"
WORKER = ("-m", "tapeless.bench.worker")  # what Python runs for a contender; its arguments are the name and the work
TURN_SECONDS = 0.4  # a turn lasts about this long, so that a fast step is measured many times


@dataclass(frozen=True)
class Work:
    """What every contender computes: the full step of this model on this shape."""

    preset: str
    batch: int
    time: int
    threads: int
    fields: dict[str, Any]
    precision: str = "float32"  # of ours, and of the floor; a peer's stands in its name
    backend: str = "cpu"  # or cuda, where the peers are on the GPU too
    products: str | None = None  # whose ours and the floor's are; None: MKL's where it is installed


class Contender:
    def __init__(self, name: str, work: Work, worker: tuple[str, ...] = WORKER) -> None:
        self.name = name
        self.command = [sys.executable, *worker, name, json.dumps(asdict(work))]
        self.times: list[float] = []
        environment = os.environ | {
            variable: str(work.threads)
            for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        }
        self._start(environment)
        try:
            self.about: dict[str, Any] = self._answer()  # built and warmed up
            if self.about.get("compiled"):  # then its memory is that of a compiler, and what was compiled is kept
                self.close()
                self._start(environment)
                self.about = self._answer()
        except TapelessError:
            self.close()
            if self._process.returncode != -signal.SIGILL:
                raise
            # oneDNN takes AMX for usable where a virtual machine hides how its registers are laid out, and dies.
            self._start(environment | {"ONEDNN_MAX_CPU_ISA": WITHOUT_AMX})
            self.about = self._answer() | {"isa": WITHOUT_AMX}
        self._stop()

    def _start(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def turn(self, steps: int) -> list[float]:
        """Milliseconds of each of so many steps."""
        found: list[float] = self._ask({"steps": steps})["ms"]
        return found

    def profile(self, steps: int) -> dict[str, Any]:
        return self._ask({"profile": steps})

    def peak_bytes(self) -> int:
        found: int = self._ask({"peak": True})["peak_bytes"]
        return found

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._stop()
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            last = (self._process.stderr.read().strip().splitlines() or ["it ended without a word"])[-1]
            raise TapelessError(f"{self.name} could not run: {last}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TapelessError(answer["error"])
        return answer

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def contenders(names: list[str], work: Work, worker: tuple[str, ...] = WORKER) -> Iterator[list[Contender]]:
    """All of them, started one after the other; whatever happens, none is left behind."""
    started: list[Contender] = []
    try:
        for name in names:
            started.append(Contender(name, work, worker))
        yield started
    finally:
        for contender in started:
            contender.close()


def race(runners: list[Contender], turns: int) -> Iterator[int]:
    """Each in turn, `turns` times; yields the number of turns done. The times are in `contender.times`."""
    lengths = {}
    for runner in runners:
        once = median(runner.turn(2))
        lengths[runner.name] = max(1, round(TURN_SECONDS * 1000 / once))
    for number in range(turns):
        for runner in runners:
            runner.times.append(median(runner.turn(lengths[runner.name])))
        yield number + 1
