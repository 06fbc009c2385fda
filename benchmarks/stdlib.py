"""`make stdlib`: a GPT of ten million parameters learns Python's standard library, beside PyTorch.

Both start from the same weights and see the same batches at the same learning rates, in float32, each in a process of
its own; each curve is kept in the folder and not made again. Writes docs/stdlib.svg (the curves) and docs/stdlib.md
(what came of it, with samples).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
from run import machine

from tapeless import Model
from tapeless.bench.torch_peer import transformer
from tapeless.generate import generate
from tapeless.pictures.svg import OURS, PEER, QUIET, Panel, legend, picture
from tapeless.tasks.data.batches import evaluation_batches
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.text import Text
from tapeless.train.loop import Evaluated, Event, Step, Trainer, train
from tapeless.train.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
VOCAB, FIELDS = 8192, {"layers": 6, "channels": 320, "heads": 5, "context": 256, "vocab": 8192}
BATCH, TIME, EVERY, EVALUATED = 8, 128, 100, 20
PROMPTS = ("import os\n", "def main(", "class Test", "for name in")


def settings(steps: int) -> Settings:
    return Settings(
        data="stdlib",
        steps=steps,
        lr=1e-3,
        schedule="cosine",
        warmup=min(100, steps // 10),
        clip=1.0,
        beta2=0.99,
        decay=0.1,
        eval_every=EVERY,
        eval_batches=EVALUATED,
        batch=BATCH,
        time=TIME,
    )


def assembled(folder: Path, steps: int) -> Trainer:
    asked = settings(steps)
    model = Model("gpt2-4x256", batch=BATCH, time=TIME, optimizer=asked.optimizer("adamw"), seed=0, **FIELDS)
    return Trainer(model, Text(open_data(folder), TIME, seed=0), asked)


def ours(folder: Path, steps: int) -> dict[str, Any]:
    trainer = assembled(folder, steps)
    losses, held_out = [], [(0, trainer.task.evaluate(trainer.model, EVALUATED).loss)]

    def note(event: Event) -> None:
        if isinstance(event, Step):
            losses.append(event.loss)
        if isinstance(event, Evaluated):
            held_out.append((event.step, event.measured.loss))
            print(f"ours   {event.step:>5}  held out {event.measured.loss:.4f}", flush=True)

    train(trainer, note)
    tokenizer = trainer.task.tokenizer
    assert tokenizer is not None
    samples = []
    for seed, prompt in enumerate(PROMPTS):
        tokens = generate(trainer.model, tokenizer.encode(prompt), 120, temperature=0.7, top_k=50, seed=seed)
        samples.append(prompt + tokenizer.decode(list(tokens)))
    return {"losses": losses, "held_out": held_out, "samples": samples, "parameters": trainer.model.parameters}


def torchs(folder: Path, steps: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(2)
    trainer = assembled(folder, steps)
    peer = transformer(trainer.model.config)
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            source = torch.from_numpy(trainer.model.params[_our_name(name)].copy())
            linear = weight.ndim == 2 and any(part in name for part in (".qkv.", ".proj.", ".mlp."))
            weight.copy_(source.T if linear else source)
    # Our decay is on matrices, the token embedding among them, and not on positions.
    decayed = [w for name, w in peer.named_parameters() if w.ndim == 2 and name != "positions"]
    others = [w for name, w in peer.named_parameters() if w.ndim != 2 or name == "positions"]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    validation = open_data(folder).validation

    def held_out_loss() -> float:
        total, counted = 0.0, 0
        with torch.no_grad():
            for inputs, targets in evaluation_batches(validation, BATCH, TIME, EVALUATED):
                here = int((targets >= 0).sum())
                total += here * float(
                    peer(torch.from_numpy(inputs), torch.from_numpy(np.where(targets < 0, -100, targets)))
                )
                counted += here
        return total / counted

    losses, held_out = [], [(0, held_out_loss())]
    batches = trainer.task.batches(BATCH)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = trainer.schedule.at(step)
        inputs, targets = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = peer(torch.from_numpy(inputs), torch.from_numpy(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            held_out.append((step + 1, held_out_loss()))
            print(f"torch  {step + 1:>5}  held out {held_out[-1][1]:.4f}", flush=True)
    return {"losses": losses, "held_out": held_out}


def _our_name(name: str) -> str:
    """PyTorch's name of a weight, as we call it."""
    if name == "positions":
        return "positions.weight"
    for theirs, here in (
        (".qkv", ".attn.qkv"),
        (".proj", ".attn.proj"),
        (".mlp.0", ".mlp.up"),
        (".mlp.2", ".mlp.down"),
    ):
        name = name.replace(theirs, here)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--folder", type=Path, default=Path("runs/stdlib-curves"), help="for tokens and curves")
    parser.add_argument("--only", choices=("ours", "torch"))
    arguments = parser.parse_args()
    folder, steps = arguments.folder, arguments.steps
    if arguments.only:
        found = {"ours": ours, "torch": torchs}[arguments.only](folder / "tokens", steps)
        (folder / f"{arguments.only}-{steps}.json").write_text(json.dumps(found))
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokens").exists():
        prepare("stdlib", folder / "tokens", tokenizer="bpe", vocab=VOCAB)
    curves = {who: folder / f"{who}-{steps}.json" for who in ("ours", "torch")}
    for who, curve in curves.items():
        if not curve.exists():
            words = [sys.executable, __file__, "--only", who, "--steps", str(steps), "--folder", str(folder)]
            subprocess.run(words, check=True)
    mine, peer = (json.loads(curve.read_text()) for curve in curves.values())
    (DOCS / "stdlib.svg").write_text(drawing(mine, peer), encoding="utf-8")
    (DOCS / "stdlib.md").write_text(report(mine, peer, steps), encoding="utf-8")
    print(f"written to {DOCS / 'stdlib.md'} and stdlib.svg")


def report(mine: dict[str, Any], peer: dict[str, Any], steps: int) -> str:
    pairs = list(zip(mine["held_out"], peer["held_out"], strict=True))
    apart = max(abs(one[1] - other[1]) / other[1] for one, other in pairs)
    early = max(abs(a - b) / b for a, b in zip(mine["losses"][:100], peer["losses"][:100], strict=True))
    rows = [f"| {one[0]} | {one[1]:.4f} | {other[1]:.4f} |" for one, other in pairs[:: max(1, len(pairs) // 10)]]
    samples = "\n\n".join(f"```python\n{sample}\n```" for sample in mine["samples"])
    return f"""# A GPT learns the standard library

Made by `make stdlib` on {date.today()}, {machine()}: {mine["parameters"]:,} parameters ({FIELDS["layers"]} layers, {FIELDS["channels"]} channels, a BPE vocabulary of {VOCAB:,} learned from the training documents), {steps:,} updates of {BATCH} × {TIME} tokens, AdamW, cosine schedule. PyTorch starts from the same weights and sees the same batches at the same rates, in float32.

![loss over updates, ours and PyTorch's](stdlib.svg)

| updates | held out, ours | held out, PyTorch |
|---|---|---|
{chr(10).join(rows)}

Over the first 100 updates the two training losses differ by at most {early:.1e} of themselves; after that rounding has grown into different paths through the same valley. Held-out losses differ by at most {apart:.1%} at any evaluation.

## What it writes

Temperature 0.7, the 50 likeliest tokens; the first words are given.

{samples}
"""  # noqa: E501


def drawing(mine: dict[str, Any], peer: dict[str, Any]) -> str:
    steps = len(mine["losses"])
    training = [(step + 1, float(np.mean(mine["losses"][step : step + 10]))) for step in range(0, steps, 10)]
    losses = [loss for _, loss in [*training, *mine["held_out"], *peer["held_out"]]]
    low, high = floor(min(losses)), ceil(max(losses))
    panel = Panel("loss", 50, 40, 640, 260, (0, steps), (low, high))
    parts = panel.frame(range(0, steps + 1, max(1, steps // 5)), range(low, high + 1), "updates")
    parts += panel.line(training, "#ccc", dots=False, wide=1)
    parts += panel.line(peer["held_out"], PEER, dots=False, wide=5, faint=True)
    parts += panel.line(mine["held_out"], OURS, dots=False)
    names = (("held out, ours", OURS), ("held out, PyTorch", PEER), ("training, ours (mean of ten)", QUIET))
    return picture(720, 350, [*parts, *legend(480, 70, names)])


if __name__ == "__main__":
    main()
