"""Work of seconds in a process of its own, one at a time, each once for each state of what it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from tapeless.errors import TapelessError

PATIENCE = 180.0  # seconds
MOST_KEPT = 64
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")


class Apart:
    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[tuple[Any, ...], dict[str, Any]] = {}

    def ask(self, topic: str, argument: str | None = None, state: Any = None) -> dict[str, Any]:
        """A topic of the laboratory. `state` tells one state of what it reads from another."""
        key = topic, argument, state
        with self._lock:
            if key not in self._kept:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[key] = _computed(topic, [] if argument is None else [argument])
            return self._kept[key]


def _computed(topic: str, arguments: list[str]) -> dict[str, Any]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tapeless.explorer.laboratory", topic, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise TapelessError(f"{topic} took more than {PATIENCE:.0f} seconds: ask again when less runs here.") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise TapelessError(f"{topic} could not be computed: {said[0].removeprefix('tapeless.errors.TapelessError: ')}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
