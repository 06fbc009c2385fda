"""Is the rate that `train --find-lr` suggests a good one? Beside the best of a grid, on real tasks, as a table.

    python benchmarks/find_lr.py [TASK …] [--seeds N] [--json FILE]

Each task is trained for a short, fixed budget with its default schedule, at every rate of the grid and at the
suggestion, each from the same weights and on the same batches; what counts is the held-out loss at the end. All of
that once per seed of weights and batches, the search itself among it, and then the mean: of so few updates a single
one says little, and the best of nine rates would be the luckiest. The grid has four rates a decade and grows until
two of them stand on either side of its best. The chromosome of yeast and its genes, from NCBI, are no part of the
repository: --yeast FOLDER says where NC_001133.9.fasta and .gff lie.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from tapeless.errors import NonFiniteError
from tapeless.labelling import run as labelling
from tapeless.labelling.source import make_source
from tapeless.train.find_rate import MemoryCheckpoint, RateFound, find_rate
from tapeless.train.run import making
from tapeless.train.session import Session, start
from tapeless.train.settings import Settings, read_request

GPT: dict[str, Any] = {"layers": 2, "channels": 32, "heads": 4}
EMAIL = str(Path(sysconfig.get_path("stdlib")) / "email")
ASYNCIO = str(Path(sysconfig.get_path("stdlib")) / "asyncio")
STEPS = 240


def trained(preset: str, model: dict[str, Any], settings: dict[str, Any]) -> Callable[..., Session]:
    def make(folder: Path, yeast: Path, seed: int) -> Session:
        return start(read_request(preset).override(model, {"steps": STEPS, "seed": seed, **settings}), folder)

    return make


def labelled(folder: Path, yeast: Path, seed: int) -> Session:
    source = make_source(fasta=[yeast / "NC_001133.9.fasta"], gff=[yeast / "NC_001133.9.gff"], feature="exon")
    with making(folder) as made:
        return labelling.start(made, source, Settings(steps=STEPS, time=128, seed=seed), {"layers": 2, "channels": 32})


TEXT: dict[str, Any] = {"batch": 8, "time": 32}
CONSTANT: dict[str, Any] = {"schedule": "constant", "warmup": 0}
TASKS: dict[str, tuple[str, Callable[..., Session]]] = {
    "operations": ("ops-102k, adam", trained("ops-102k", {"optimizer": "adam"}, CONSTANT)),
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
    "sgd": ("ops-102k, sgd", trained("ops-102k", {"optimizer": "sgd"}, CONSTANT)),
    "dropout": (
        "GPT 2×32, bytes of Python's asyncio, adamw, dropout 0.1",
        trained("gpt2-4x256", GPT | {"dropout": 0.1}, {"data": ASYNCIO, **TEXT}),
    ),
}
FIRST = {"momentum": -4, "sgd": -4}  # of the grid, in quarters of a decade; seven to begin with
USUAL = -12


class Seed:
    """One beginning of a task: its weights and its batches, from which it can be trained again and again."""

    def __init__(self, session: Session) -> None:
        self.trainer, self.start = session.trainer, MemoryCheckpoint(session.trainer)
        session.run.release()

    def final(self, rate: float) -> float:
        trainer = self.trainer
        trainer.restore(self.start)  # type: ignore[arg-type]
        trainer.schedule = replace(trainer.settings, lr=rate).learning_rate(trainer.steps)
        try:
            while trainer.step < trainer.steps:
                trainer.batch()
        except NonFiniteError:
            return inf
        return trainer.task.evaluate(trainer.model, trainer.settings.eval_batches).loss


def best_of_grid(seeds: list[Seed], first: int) -> dict[float, list[float]]:
    def all_of(quarters: Iterable[int]) -> dict[int, list[float]]:
        return {quarter: [seed.final(10 ** (quarter / 4)) for seed in seeds] for quarter in quarters}

    losses = all_of(range(first, first + 7))
    while True:
        best = min(losses, key=lambda quarter: mean(losses[quarter]))
        missing = [quarter for quarter in range(best - 2, best + 3) if quarter not in losses]
        if not missing:
            return {10 ** (quarter / 4): losses[quarter] for quarter in sorted(losses)}
        losses |= all_of(missing)


def measure(name: str, yeast: Path, count: int) -> dict[str, Any]:
    title, make = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        seeds = [Seed(make(Path(folder) / f"run-{seed}", yeast, seed)) for seed in range(count)]
        found = [find_rate(seed.trainer) for seed in seeds]
        grid = best_of_grid(seeds, FIRST.get(name, USUAL))
        best = min(grid, key=lambda rate: mean(grid[rate]))

        def off(rates: list[float]) -> tuple[list[float], float]:
            losses = [seed.final(rate) for seed, rate in zip(seeds, rates, strict=True)]
            return losses, mean(losses) / mean(grid[best]) - 1

        losses, much = off([each.rate for each in found])
        lowest = [min(each.sweep, key=lambda one: one.smooth).rate / 10 for each in found]
        return {
            "task": name,
            "title": title,
            "suggestions": [each.rate for each in found],
            "losses": losses,
            "best": best,
            "best_loss": mean(grid[best]),
            "off": much,
            "lowest": off(lowest)[1],
            "steepest": off([_steepest(each) for each in found])[1],
            "updates": round(mean(each.updates for each in found)),
            "grid": list(grid.items()),
            "tries": [[vars(one) for one in each.tries] for each in found],
        }


def _steepest(found: RateFound) -> float:
    pairs = zip(found.sweep[:-1], found.sweep[1:], strict=True)
    return min(pairs, key=lambda pair: pair[1].smooth - pair[0].smooth)[1].rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), choices=list(TASKS), metavar="TASK")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--yeast", type=Path, default=Path("yeast"))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    rows = []
    print("| task | suggested | held-out loss | best of the grid | its loss | off | lowest/10 | steepest | updates |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in asked.tasks:
        row = measure(name, asked.yeast, asked.seeds)
        rows.append(row)
        suggested = ", ".join(f"{rate:.1e}" for rate in row["suggestions"])
        print(
            f"| {row['title']} | {suggested} | {mean(row['losses']):.4f} | {row['best']:.1e} | "
            f"{row['best_loss']:.4f} | {row['off']:+.1%} | {row['lowest']:+.1%} | {row['steepest']:+.1%} | "
            f"{row['updates']} |",
            flush=True,
        )
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
