"""`make muon`: AdamW and Muon on Python's standard library, the same model from the same weights, over the same tokens.

Each is trained at three rates, half a decade apart, with the same schedule, decay and clipping, in a process of its
own; the best by held-out loss stands for it. Each curve is kept in the folder and not made again. Writes docs/muon.svg
and docs/muon.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from math import ceil, floor
from pathlib import Path
from typing import Any

from tapeless import Model
from tapeless.pictures.svg import OURS, PEER, Panel, legend, picture
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.text import Text
from tapeless.train.loop import Evaluated, Trainer, train
from tapeless.train.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
VOCAB, FIELDS = 4096, {"layers": 4, "channels": 192, "heads": 4, "context": 128, "vocab": 4096}
BATCH, TIME, EVALUATED = 8, 128, 20
RATES = (1e-3, 3e-3, 1e-2)
COLOURS = {"adamw": PEER, "muon": OURS}


def trained(folder: Path, name: str, lr: float, steps: int) -> dict[str, Any]:
    asked = Settings(
        data="stdlib", steps=steps, lr=lr, schedule="cosine", warmup=min(100, steps // 10), clip=1.0, beta2=0.99,
        decay=0.1, eval_every=max(1, steps // 20), eval_batches=EVALUATED, batch=BATCH, time=TIME,
    )  # fmt: skip
    model = Model("gpt2-4x256", batch=BATCH, time=TIME, optimizer=asked.optimizer(name), seed=0, **FIELDS)
    trainer = Trainer(model, Text(open_data(folder), TIME, seed=0), asked)
    held_out = [(0, trainer.task.evaluate(model, EVALUATED).loss)]
    begin = time.process_time()
    for event in train(trainer):
        if isinstance(event, Evaluated):
            held_out.append((event.step, event.measured.loss))
            print(f"{name} at {lr:g}  {event.step:>5}  held out {event.measured.loss:.4f}", flush=True)
    state = model.plan.bytes_by_kind()["state"]
    return {
        "held_out": held_out, "seconds": time.process_time() - begin, "state": state, "parameters": model.parameters
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--folder", type=Path, default=Path("runs/muon-curves"), help="for tokens and curves")
    parser.add_argument("--only", nargs=2, metavar=("OPTIMIZER", "LR"))
    arguments = parser.parse_args()
    folder, steps = arguments.folder, arguments.steps
    if arguments.only:
        name, lr = arguments.only[0], float(arguments.only[1])
        found = trained(folder / "tokens", name, lr, steps)
        (folder / f"{name}-{lr:g}-{steps}.json").write_text(json.dumps(found))
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokens").exists():
        prepare("stdlib", folder / "tokens", tokenizer="bpe", vocab=VOCAB)
    curves: dict[str, dict[float, dict[str, Any]]] = {name: {} for name in COLOURS}
    for name, lr in ((name, lr) for lr in RATES for name in COLOURS):
        curve = folder / f"{name}-{lr:g}-{steps}.json"
        if not curve.exists():
            words = ["--only", name, str(lr), "--steps", str(steps), "--folder", str(folder)]
            subprocess.run([sys.executable, __file__, *words], check=True)
        curves[name][lr] = json.loads(curve.read_text())
    (DOCS / "muon.svg").write_text(drawing(curves, steps), encoding="utf-8")
    (DOCS / "muon.md").write_text(report(curves, steps), encoding="utf-8")
    print(f"written to {DOCS / 'muon.md'} and muon.svg")


def last(curve: dict[str, Any]) -> float:
    return float(curve["held_out"][-1][1])


def best(curves: dict[float, dict[str, Any]]) -> float:
    """The rate whose loss is lowest in the end."""
    return min(curves, key=lambda lr: last(curves[lr]))


def report(curves: dict[str, dict[float, dict[str, Any]]], steps: int) -> str:
    chosen = {name: best(each) for name, each in curves.items()}
    ends = {name: curves[name][lr] for name, lr in chosen.items()}
    rows = [f"| {lr:g} | {last(curves['adamw'][lr]):.4f} | {last(curves['muon'][lr]):.4f} |" for lr in RATES]
    reached = next((step for step, loss in ends["muon"]["held_out"] if loss <= last(ends["adamw"])), None)
    when = "Muon does not come to AdamW's last loss" if reached is None else (
        f"Muon is at or below AdamW's last loss at the evaluation after {reached:,} of {steps:,} updates"
    )  # fmt: skip
    edge = [name for name, lr in chosen.items() if lr in (RATES[0], RATES[-1])]
    doubt = f" The best rate of {' and of '.join(edge)} is at the end of what was tried." if edge else ""
    dearer = ends["muon"]["seconds"] / ends["adamw"]["seconds"]
    state = {name: end["state"] / 2**20 for name, end in ends.items()}
    return f"""# AdamW and Muon at the same tokens

Made by `python benchmarks/muon.py --steps {steps}` on {date.today()}: {ends["muon"]["parameters"]:,} parameters ({FIELDS["layers"]} layers, {FIELDS["channels"]} channels, a BPE vocabulary of {VOCAB:,}), Python's standard library, {steps:,} updates of {BATCH} × {TIME} tokens, cosine schedule, decay 0.1. Both start from the same weights and see the same batches; each has the best of three rates. Held-out loss in the end:

| rate | AdamW | Muon |
|---|---|---|
{chr(10).join(rows)}

![held-out loss over updates, each at its best rate](muon.svg)

{when}.{doubt} It takes {dearer:.2f} times AdamW's processor time for all of the training, and {state["muon"]:.1f} MiB of optimizer state beside {state["adamw"]:.1f}. One seed each: differences in the second digit after the point say little.
"""  # noqa: E501


def drawing(curves: dict[str, dict[float, dict[str, Any]]], steps: int) -> str:
    lines = {name: each[best(each)]["held_out"] for name, each in curves.items()}
    losses = [loss for line in lines.values() for _, loss in line]
    low, high = floor(min(losses)), ceil(max(losses))
    panel = Panel("held-out loss", 50, 40, 640, 260, (0, steps), (low, high))
    parts = panel.frame(range(0, steps + 1, max(1, steps // 5)), range(low, high + 1), "updates")
    for name, line in lines.items():
        parts += panel.line(line, COLOURS[name], dots=False)
    names = [(f"{name} at {best(curves[name]):g}", colour) for name, colour in COLOURS.items()]
    return picture(720, 350, [*parts, *legend(480, 70, names)])


if __name__ == "__main__":
    main()
