"""One contender in its own process: reads questions as JSON lines, answers with times. `race.py` asks."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tapeless.bench.race import Work
from tapeless.errors import TapelessError

PEERS = {"torch": "torch_peer", "peft": "peft_peer"}  # by how the names of contenders begin
Prepare = Callable[[str, Work], tuple[Callable[[], Any], dict[str, Any], Any]]  # to a step, what it is, and a profile


def serve(prepare: Prepare, name: str, work: str) -> None:
    """Answer questions until the input ends; `work` is the Work as JSON."""
    asked = Work(**json.loads(work))
    try:
        step, about, profile = prepare(name, asked)
    except TapelessError as error:
        _say({"error": str(error)})
        return
    step()  # compiles, and touches every page
    _say(about)
    for line in sys.stdin:
        question = json.loads(line)
        if "steps" in question:
            _say({"ms": [_timed(step) for _ in range(question["steps"])]})
        elif "profile" in question:
            _say(profile(question["profile"]))
        else:
            _say({"peak_bytes": _peak_bytes(asked.backend)})


def _peak_bytes(backend: str) -> int:
    if backend == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _timed(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    module = PEERS.get(sys.argv[1].partition("-")[0], sys.argv[1])
    serve(import_module(f"tapeless.bench.{module}").prepare, *sys.argv[1:])
