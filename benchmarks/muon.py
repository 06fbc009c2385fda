"""`make muon`: AdamW and Muon on Python's standard library, the same model from the same weights, over the same tokens.

Each is trained at every rate of a grid, over the whole length and with the same schedule, decay and clipping; the rate
with the lowest held-out loss stands for it, and is trained again with two more seeds. Every training is a process of
its own; its curve is kept in the folder and not made again. Writes docs/muon.svg and docs/muon.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from math import ceil, floor
from pathlib import Path
from statistics import mean
from typing import Any

from run import machine

from tapeless import Model
from tapeless.pictures.svg import OURS, PEER, Panel, legend, picture
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.text import Text
from tapeless.train.loop import Evaluated, Event, Trainer, train
from tapeless.train.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
SOURCE, VOCAB = "stdlib", 2048
FIELDS = {"layers": 4, "channels": 128, "heads": 4, "context": 128, "vocab": VOCAB}
BATCH, TIME, EVALUATED = 8, 128, 40
RATES, SEEDS = (1e-3, 3e-3, 1e-2, 3e-2), (0, 1, 2)
NAMES = {"adamw": "AdamW", "muon": "Muon"}
COLOURS = {"adamw": PEER, "muon": OURS}
Curve = dict[str, Any]
Curves = dict[str, dict[tuple[float, int], Curve]]  # of each optimizer, by rate and seed


def trained(folder: Path, name: str, lr: float, seed: int, steps: int) -> Curve:
    asked = Settings(
        data=SOURCE,
        steps=steps,
        lr=lr,
        schedule="cosine",
        warmup=min(100, steps // 10),
        clip=1.0,
        beta2=0.99,
        decay=0.1,
        eval_every=max(1, steps // 20),
        eval_batches=EVALUATED,
        batch=BATCH,
        time=TIME,
        seed=seed,
    )
    model = Model("gpt2-4x256", batch=BATCH, time=TIME, optimizer=asked.optimizer(name), seed=seed, **FIELDS)
    trainer = Trainer(model, Text(open_data(folder), TIME, seed=seed), asked)
    held_out = [(0, trainer.task.evaluate(model, EVALUATED).loss)]
    begin = time.process_time()

    def judged(event: Event) -> None:
        if isinstance(event, Evaluated):
            held_out.append((event.step, event.measured.loss))

    train(trainer, judged)
    state = model.plan.bytes_by_kind()["state"]
    return {
        "held_out": held_out,
        "seconds": time.process_time() - begin,
        "state": state,
        "parameters": model.parameters,
    }


def every_curve(folder: Path, steps: int) -> Curves:
    curves: Curves = {name: {} for name in NAMES}
    for name, lr, seed in _grid(curves):
        kept = folder / f"{name}-{lr:g}-{seed}-{steps}.json"
        if not kept.exists():
            words = ["--only", name, str(lr), str(seed), "--steps", str(steps), "--folder", str(folder)]
            subprocess.run([sys.executable, __file__, *words], check=True)
        curves[name][lr, seed] = json.loads(kept.read_text())
        print(f"{NAMES[name]} at {lr:g}, seed {seed}: held out {last(curves[name][lr, seed]):.4f}", flush=True)
    return curves


def _grid(curves: Curves) -> Iterator[tuple[str, float, int]]:
    """All rates with the first seed; then, once they are known, the best with the others."""
    first, *others = SEEDS
    yield from ((name, lr, first) for lr in RATES for name in NAMES)
    yield from ((name, best(curves[name]), seed) for seed in others for name in NAMES)


def last(curve: Curve) -> float:
    return float(curve["held_out"][-1][1])


def best(curves: dict[tuple[float, int], Curve]) -> float:
    """The rate whose loss is lowest in the end, with the first seed."""
    return min(RATES, key=lambda lr: last(curves[lr, SEEDS[0]]))


def together(curves: dict[tuple[float, int], Curve]) -> list[tuple[int, float]]:
    """The mean over seeds, at the best rate."""
    lines = [curves[best(curves), seed]["held_out"] for seed in SEEDS]
    return [(points[0][0], mean(loss for _, loss in points)) for points in zip(*lines, strict=True)]


def report(curves: Curves, steps: int) -> str:
    grid = [
        f"| {lr:g} | {last(curves['adamw'][lr, SEEDS[0]]):.4f} | {last(curves['muon'][lr, SEEDS[0]]):.4f} |"
        for lr in RATES
    ]
    seeds = {name: [last(each[best(each), seed]) for seed in SEEDS] for name, each in curves.items()}
    ends = {name: mean(losses) for name, losses in seeds.items()}
    spread = max(max(losses) - min(losses) for losses in seeds.values())
    reached = next((step for step, loss in together(curves["muon"]) if loss <= ends["adamw"]), None)
    when = (
        "it does not come to AdamW's last loss"
        if reached is None
        else (f"it is at or below AdamW's last loss at the evaluation after {reached:,} of {steps:,} updates")
    )
    edge = [NAMES[name] for name, each in curves.items() if best(each) in (RATES[0], RATES[-1])]
    doubt = f" The best rate of {' and of '.join(edge)} is at the end of what was tried." if edge else ""
    some = {name: each[best(each), SEEDS[0]] for name, each in curves.items()}
    dearer = some["muon"]["seconds"] / some["adamw"]["seconds"]
    state = {name: each["state"] / 2**20 for name, each in some.items()}
    rows = [
        f"| {NAMES[name]} | {best(curves[name]):g} | {' | '.join(f'{loss:.4f}' for loss in [*losses, ends[name]])} |"
        for name, losses in seeds.items()
    ]
    return f"""# AdamW and Muon at the same tokens

Made by `make muon` on {date.today()}, {machine()}: a GPT of {some["muon"]["parameters"]:,} parameters ({FIELDS["layers"]} layers, {FIELDS["channels"]} channels, a BPE vocabulary of {VOCAB:,}), Python's standard library, {steps:,} updates of {BATCH} × {TIME} tokens, warm-up and cosine, decay 0.1, clipping at 1. With the same seed both start from the same weights and see the same batches. Each was trained at {len(RATES)} rates over the whole length; held-out loss in the end, seed {SEEDS[0]}:

| rate | AdamW | Muon |
|---|--:|--:|
{chr(10).join(grid)}

The best rate of each, with {len(SEEDS)} seeds:

| | rate | {" | ".join(f"seed {seed}" for seed in SEEDS)} | mean |
|---|--:|{"--:|" * (len(SEEDS) + 1)}
{chr(10).join(rows)}

![held-out loss over updates, each at its best rate, mean of the seeds](muon.svg)

Muon ends {abs(ends["adamw"] - ends["muon"]):.3f} nats {"below" if ends["muon"] < ends["adamw"] else "above"} AdamW, where seeds differ by up to {spread:.3f}; {when}.{doubt} The training takes {dearer:.2f} times AdamW's processor time, and {state["muon"]:.1f} MiB of optimizer state beside {state["adamw"]:.1f}. The products of Muon do not depend on the batch: of {BATCH} × {TIME} tokens they are a larger part than of a batch as people have them. One small model on one text says nothing of large ones; `python benchmarks/muon.py --help` says how to try another length.
"""  # noqa: E501


def drawing(curves: Curves, steps: int) -> str:
    lines = {name: together(each)[1:] for name, each in curves.items()}  # without the start, which is far above
    losses = [loss for line in lines.values() for _, loss in line]
    low, high = floor(4 * min(losses)) / 4, ceil(4 * max(losses)) / 4
    panel = Panel("held-out loss, mean of the seeds", 50, 40, 640, 260, (0, steps), (low, high))
    heights = [low + quarter / 4 for quarter in range(round(4 * (high - low)) + 1)]
    parts = panel.frame(range(0, steps + 1, max(1, steps // 5)), heights[:: max(1, len(heights) // 8)], "updates")
    for name, line in lines.items():
        parts += panel.line(line, COLOURS[name], dots=False)
    names = [(f"{NAMES[name]} at {best(curves[name]):g}", colour) for name, colour in COLOURS.items()]
    return picture(720, 350, [*parts, *legend(540, 70, names)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/muon-curves"), help="for tokens and curves")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its picture are written")
    parser.add_argument("--only", nargs=3, metavar=("OPTIMIZER", "LR", "SEED"), help="one training")
    asked = parser.parse_args()
    folder, steps = asked.folder, asked.steps
    if asked.only:
        name, lr, seed = asked.only[0], float(asked.only[1]), int(asked.only[2])
        found = trained(folder / "tokens", name, lr, seed, steps)
        (folder / f"{name}-{lr:g}-{seed}-{steps}.json").write_text(json.dumps(found))
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokens").exists():
        prepare(SOURCE, folder / "tokens", tokenizer="bpe", vocab=VOCAB)
    curves = every_curve(folder, steps)
    (asked.docs / "muon.svg").write_text(drawing(curves, steps), encoding="utf-8")
    (asked.docs / "muon.md").write_text(report(curves, steps), encoding="utf-8")
    print(f"written to {asked.docs / 'muon.md'} and muon.svg")


if __name__ == "__main__":
    main()
