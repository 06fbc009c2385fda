"""Is the rate that `train --find-lr` suggests a good one? Beside the best of a grid, on real tasks, as a table.

    python benchmarks/find_lr.py [TASK …] [--json FILE]

Each task is trained for a short, fixed budget with its default schedule, once at every rate of the grid and once at
the suggestion, from the same weights and on the same batches; what counts is the held-out loss at the end. The grid
has four rates a decade and grows until two of them stand on either side of its best. The chromosome of yeast and its
genes, from NCBI, are no part of the repository: --yeast FOLDER says where NC_001133.9.fasta and .gff lie.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from tapeless.errors import NonFiniteError
from tapeless.labelling import run as labelling
from tapeless.labelling.signal.wavelet import SCALES
from tapeless.labelling.source import make_source
from tapeless.train.find_rate import Kept, find_rate
from tapeless.train.loop import Trainer
from tapeless.train.run import making
from tapeless.train.session import Session, start
from tapeless.train.settings import Settings, read_request

GPT: dict[str, Any] = {"layers": 2, "channels": 32, "heads": 4}
EMAIL = str(Path(sysconfig.get_path("stdlib")) / "email")
ASYNCIO = str(Path(sysconfig.get_path("stdlib")) / "asyncio")
STEPS = 240


def trained(preset: str, model: dict[str, Any], settings: dict[str, Any]) -> Callable[..., Session]:
    def make(folder: Path, yeast: Path, backend: str) -> Session:
        return start(read_request(preset).override(model, {"steps": STEPS, "backend": backend, **settings}), folder)

    return make


def labelled(folder: Path, yeast: Path, backend: str) -> Session:
    source = make_source(
        fasta=yeast / "NC_001133.9.fasta", gff=yeast / "NC_001133.9.gff", feature=None, held_out=(), signal=None,
        labels=None, scales=SCALES,
    )  # fmt: skip
    with making(folder) as made:
        return labelling.start(
            made, source, Settings(steps=STEPS, time=128, backend=backend), {"layers": 2, "channels": 32}
        )


TEXT: dict[str, Any] = {"batch": 8, "time": 32}
TASKS: dict[str, tuple[str, Callable[..., Session]]] = {
    "operations": ("ops-102k, adam", trained("ops-102k", {}, {})),
    "bytes": ("GPT 2×32, bytes of Python's asyncio, adamw", trained("gpt2-4x256", GPT, {"data": ASYNCIO, **TEXT})),
    "bpe": (
        "GPT 2×32, BPE of Python's email, adamw",
        trained("gpt2-4x256", GPT | {"vocab": 512}, {"data": EMAIL, "tokenizer": "bpe", **TEXT}),
    ),
    "cllm": ("cllm 2×32, bytes of Python's email, adam", trained("cllm", GPT, {"data": EMAIL, **TEXT})),
    "yeast": ("sunfish 2×32, exons of yeast chromosome I, adam", labelled),
    "momentum": (
        "GPT 2×32, bytes of Python's asyncio, momentum",
        trained("gpt2-4x256", GPT | {"optimizer": "momentum"}, {"data": ASYNCIO, **TEXT}),
    ),
    "sgd": ("ops-102k, sgd", trained("ops-102k", {"optimizer": "sgd"}, {})),
    "dropout": (
        "GPT 2×32, bytes of Python's asyncio, adamw, dropout 0.1",
        trained("gpt2-4x256", GPT | {"dropout": 0.1}, {"data": ASYNCIO, **TEXT}),
    ),
}
FIRST = {"momentum": -4, "sgd": -4}  # of the grid, in quarters of a decade; seven to begin with
USUAL = -12


def final(trainer: Trainer, start: Kept, rate: float) -> float:
    trainer.restore(start)  # type: ignore[arg-type]
    trainer.schedule = replace(trainer.settings, lr=rate).learning_rate(trainer.steps)
    try:
        while trainer.step < trainer.steps:
            trainer.batch()
    except NonFiniteError:
        return inf
    return trainer.task.evaluate(trainer.model, trainer.settings.eval_batches).loss


def best_of_grid(trainer: Trainer, start: Kept, first: int) -> dict[float, float]:
    losses = {quarter: final(trainer, start, 10 ** (quarter / 4)) for quarter in range(first, first + 7)}
    while True:
        best = min(losses, key=losses.__getitem__)
        missing = [quarter for quarter in range(best - 2, best + 3) if quarter not in losses]
        if not missing:
            return {10 ** (quarter / 4): losses[quarter] for quarter in sorted(losses)}
        losses |= {quarter: final(trainer, start, 10 ** (quarter / 4)) for quarter in missing}


def measure(name: str, yeast: Path, backend: str) -> dict[str, Any]:
    title, make = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        session = make(Path(folder) / "run", yeast, backend)
        trainer, start = session.trainer, Kept(session.trainer)
        found = find_rate(trainer)
        begun = time.perf_counter()
        grid = best_of_grid(trainer, start, FIRST.get(name, USUAL))
        seconds = (time.perf_counter() - begun) / len(grid)
        suggested = final(trainer, start, found.rate)
        sweep = min(found.sweep, key=lambda each: each.smooth)
        steepest = _steepest(found)
        rules = {"a tenth of the lowest": sweep.rate / 10, "steepest": steepest}
        best = min(grid, key=grid.__getitem__)
        session.run.release()
        return {
            "task": name, "title": title, "suggestion": found.rate, "loss": suggested, "best": best,
            "best_loss": grid[best], "off": suggested / grid[best] - 1, "updates": found.updates,
            "seconds": found.seconds, "one_run": seconds, "steps": trainer.steps, "grid": list(grid.items()),
            "rules": {rule: (rate, final(trainer, start, rate) / grid[best] - 1) for rule, rate in rules.items()},
            "tries": [vars(each) for each in found.tries],
        }  # fmt: skip


def _steepest(found: Any) -> float:
    pairs = zip(found.sweep[:-1], found.sweep[1:], strict=True)
    return min(pairs, key=lambda pair: pair[1].smooth - pair[0].smooth)[1].rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), choices=list(TASKS), metavar="TASK")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--yeast", type=Path, default=Path("yeast"))
    parser.add_argument("--backend", default="cpu")
    asked = parser.parse_args()
    rows = []
    print("| task | suggested | held-out loss | best of the grid | its loss | off | lowest/10 | steepest | updates |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in asked.tasks:
        row = measure(name, asked.yeast, asked.backend)
        rows.append(row)
        others = " | ".join(f"{off:+.1%}" for _, off in row["rules"].values())
        print(
            f"| {row['title']} | {row['suggestion']:.1e} | {row['loss']:.4f} | {row['best']:.1e} | "
            f"{row['best_loss']:.4f} | {row['off']:+.1%} | {others} | {row['updates']} |",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
