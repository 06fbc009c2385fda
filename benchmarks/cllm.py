"""`make cllm`: one model under two losses, squared error to the target's embedding and cross-entropy.

Same first weights, same batches, same learning rates, on the operations task and on Python's standard library as bytes;
and a third model whose targets are no constants, to see embeddings collapse. Each curve is kept in the folder and not
made again. Writes docs/cllm.md, docs/cllm-operations.svg and docs/cllm-text.svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from run import machine

from tapeless import Model
from tapeless.generate import generate
from tapeless.models.presets import preset
from tapeless.ops.contract import Array
from tapeless.pictures.svg import OTHER, OURS, PEER, Panel, legend, picture
from tapeless.tasks.data.batches import evaluation_batches
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.operations import LENGTH, Operations, score_totals, targets_for
from tapeless.tasks.text import Text
from tapeless.train.doctor import diagnose
from tapeless.train.loop import Trainer
from tapeless.train.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
STEPS, BATCH, TIME, EVALUATED = 1000, 8, 128, 10  # of the text
SEEDS = (0, 1, 2)
PROMPTS = ("import ", "    def ")
TEMPERATURES = {"squared_error": 0.25, "cross_entropy": 0.8}  # distances are flatter than log-probabilities
COLOURS = {"squared error": OURS, "cross-entropy": OTHER, "target not constant": PEER}
Batch = tuple[Array, Array]
Curve = dict[str, Any]


class Leaky(Model):
    """What the squared error must not be: its gradient also flows into the embedding it aims at."""

    def forward_backward(
        self, inputs: Any, targets: Any, *, accumulate: bool = False, count: float | None = None
    ) -> float:
        for call, values in self.trace(inputs, targets):
            if call.op == "squared_error":
                loss, dx = float(values["loss"][0]), values["dx"].copy()
        known = targets >= 0
        # ‖x − e‖² falls as fast when e goes towards x as when x goes towards e.
        np.subtract.at(self.grads["tokens.weight"], targets[known], dx.reshape(*targets.shape, -1)[known])
        return loss


def operations(loss: str, seed: int, leaky: bool = False) -> tuple[Trainer, list[Batch]]:
    """As `tapeless train cllm --data operations --lr 0.001 --schedule constant --warmup 0` does it."""
    config = preset("cllm").override(loss=loss).architecture
    asked = Settings(data="operations", seed=seed, lr=1e-3, schedule="constant", warmup=0).suited(config)
    task = Operations(config, seed)
    model = made(leaky, loss, batch=asked.batch, time=LENGTH, optimizer=asked.optimizer("adam"), seed=seed)
    held_out = (task.validation.tokens, targets_for(config, task.validation.answers))
    return Trainer(model, task, asked), [held_out]


def text(folder: Path, loss: str, leaky: bool = False) -> tuple[Trainer, list[Batch]]:
    """As `tapeless train cllm --data stdlib` does it."""
    data = open_data(folder)
    asked = Settings(data="stdlib", steps=STEPS, batch=BATCH, time=TIME).suited(preset("cllm").architecture)
    optimizer = asked.optimizer("adam")
    model = made(leaky, loss, batch=BATCH, time=TIME, vocab=data.vocab, optimizer=optimizer, seed=0)
    return Trainer(model, Text(data, TIME, 0), asked), list(evaluation_batches(data.validation, BATCH, TIME, EVALUATED))


def made(leaky: bool, loss: str, **fields: Any) -> Model:
    """Whatever the loss, it starts from the weights that squared error starts from."""
    model = (Leaky if leaky else Model)("cllm", loss=loss, **fields)
    start = Model("cllm", **fields)
    for name, weight in model.params.items():
        weight[...] = start.params[name]
    return model


def curve(trainer: Trainer, held_out: list[Batch]) -> Curve:
    model = trainer.model
    every = 125 if isinstance(trainer.task, Operations) else 100
    aims = np.concatenate([targets[targets >= 0] for _, targets in held_out])
    first = spread(model, aims)
    points, lines = [], []
    while True:
        loss, accuracy, cross_entropy = measured(model, held_out)
        points.append(
            {
                "step": trainer.step,
                "loss": loss,
                "accuracy": accuracy,
                "cross_entropy": cross_entropy,
                "spread": spread(model, aims) / first,
            }
        )
        lines.append({"kind": "evaluation", **points[-1]})
        print("  ".join(f"{name} {value:.4g}" for name, value in points[-1].items()), flush=True)
        if trainer.step == trainer.steps:
            break
        for _ in range(min(every, trainer.steps - trainer.step)):
            trainer.batch()
    verdict = diagnose(lines)[0]
    return {"points": points, "doctor": verdict.sentence, "commonest": float(np.bincount(aims).max() / len(aims))}


def measured(model: Model, batches: Iterable[Batch]) -> list[float]:
    """Loss, accuracy and cross-entropy: means over all targets."""
    totals, counted = np.zeros(3), 0
    for inputs, targets in batches:
        known = targets >= 0
        totals += score_totals(model.config, model.logits(inputs)[known], targets[known])
        counted += int(known.sum())
    return [float(mean) for mean in totals / counted]


def spread(model: Model, aims: Array) -> float:
    """Of the embeddings that are predicted, each as often as it is: how far from their mean. The others are never
    pulled, and would hide a collapse."""
    table = model.params["tokens.weight"][aims]
    return float(np.sqrt(np.mean(np.square(table - table.mean(axis=0)))))


def samples(trainer: Trainer, temperature: float) -> list[str]:
    """Each prompt continued twice: always by the likeliest byte, and drawn at a temperature."""
    tokenizer, found = trainer.task.tokenizer, []
    assert tokenizer is not None
    for prompt in PROMPTS:
        for chosen in (0.0, temperature):
            tokens = generate(trainer.model, tokenizer.encode(prompt), 100, temperature=chosen)
            found.append(prompt + tokenizer.decode(list(tokens)))
    return found


def kept(path: Path, make: Callable[[], Curve]) -> Curve:
    if not path.exists():
        print(path.stem, flush=True)
        path.write_text(json.dumps(make()), encoding="utf-8")
    found: Curve = json.loads(path.read_text(encoding="utf-8"))
    return found


def written(trainer: Trainer, held_out: list[Batch]) -> Curve:
    found = curve(trainer, held_out)
    return found | {"samples": samples(trainer, TEMPERATURES[trainer.model.config.loss])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/cllm-curves"), help="for tokens and curves")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    tokens = folder / "tokens"
    if not tokens.exists():
        prepare("stdlib", tokens)

    def answers(name: str, loss: str, seed: int, leaky: bool = False) -> Curve:
        return kept(folder / f"operations-{name}.json", lambda: curve(*operations(loss, seed, leaky)))

    def writes(name: str, loss: str, leaky: bool = False) -> Curve:
        return kept(folder / f"text-{name}.json", lambda: written(*text(tokens, loss, leaky)))

    seeds = [answers(f"squared-{seed}", "squared_error", seed) for seed in SEEDS]
    asked = {
        "squared error": seeds[0],
        "cross-entropy": answers("cross-entropy", "cross_entropy", 0),
        "target not constant": answers("leaky", "squared_error", 0, leaky=True),
    }
    read = {
        "squared error": writes("squared", "squared_error"),
        "cross-entropy": writes("cross-entropy", "cross_entropy"),
        "target not constant": writes("leaky", "squared_error", leaky=True),
    }
    (DOCS / "cllm-operations.svg").write_text(drawing(asked), encoding="utf-8")
    (DOCS / "cllm-text.svg").write_text(drawing(read), encoding="utf-8")
    (DOCS / "cllm.md").write_text(page(seeds, asked, read), encoding="utf-8")
    print(f"written to {DOCS / 'cllm.md'}, cllm-operations.svg and cllm-text.svg")


def drawing(curves: dict[str, Curve]) -> str:
    """Four panels: accuracy, cross-entropy, the squared errors alone on a logarithmic axis, and the spread."""
    distances = {name: found for name, found in curves.items() if name != "cross-entropy"}
    return picture(
        820,
        540,
        [
            *legend(60, 18, [(name, COLOURS[name]) for name in curves], apart=170),
            *panel("accuracy on what is held out", curves, "accuracy", 60, 60),
            *panel("cross-entropy (softmax over the scores)", curves, "cross_entropy", 470, 60),
            *panel("squared error to the target, logarithmic", distances, "loss", 60, 315, logarithmic=True),
            *panel("spread of the predicted embeddings", curves, "spread", 470, 315),
        ],
    )


def panel(
    title: str, curves: dict[str, Curve], value: str, left: float, top: float, logarithmic: bool = False
) -> list[str]:
    lines = {name: [(point["step"], point[value]) for point in found["points"]] for name, found in curves.items()}
    values = [each for line in lines.values() for _, each in line]
    last = max(step for line in lines.values() for step, _ in line)
    low, high = (min(values), max(values)) if logarithmic else (0.0, max(values))
    made = Panel(title, left, top, 320, 165, (0, last), (low, high), log_y=logarithmic)
    parts = made.named_frame(
        [(0, "0"), (last, f"{last:,}")], [(each, f"{each:.2g}") for each in (low, high)], "updates"
    )
    for name, line in lines.items():
        parts += made.line(line, COLOURS[name], dots=False, wide=2)
    return parts


def page(seeds: list[Curve], asked: dict[str, Curve], read: dict[str, Curve]) -> str:
    config = preset("cllm").architecture
    length = float(np.square(Model("cllm").params["tokens.weight"]).sum(axis=1).mean())
    rows = [
        f"| {seed} | {reached(found)} | {found['points'][-1]['accuracy']:.1%} | {best(found):.1%} |"
        for seed, found in zip(SEEDS, seeds, strict=True)
    ]
    return f"""# CLLM: predicting in embedding space

A language model usually ends in a score for every word, and cross-entropy asks for a high probability of the right one. `cllm` ends in a *point*: the state x at a position is compared with the embedding e of the word that comes next, and the loss is the squared distance, ‖x − e‖² / C. To predict is to take the word whose embedding is nearest. There is no head and no softmax in training; the gradient, 2(x − e) / C, starts at the state and goes back through the norm, the feed-forward and the whole of attention like any other.

This page trains the same model ({config.layers} layers, {config.channels} channels, tanh) from the same first weights on the same batches under both losses. Made by `make cllm` on {date.today()}, {machine()}; the curves are held-out measurements.

An evaluation of a squared-error model (`metrics.jsonl`, and the lines of `tapeless train`) reports

- `loss`: the squared error;
- `accuracy`: how often the nearest embedding is the right one;
- `cross_entropy`: for comparison, of the softmax over *minus the squared distances*, at temperature 1. The model is not trained by it;
- `spread`: how far the embeddings that are predicted lie from their mean, from 1 at the start.

## Where the answer is certain: operations

`tapeless train cllm --data operations --lr 0.001 --schedule constant --warmup 0 --seed N`: ten epochs of `Max(1,6,2)` → `6`, Adam at 0.001, batch 32. Accuracy by nearest embedding, on 1,000 expressions never trained on:

| seed | updates until 99 % | at the end | best |
|---|---|---|---|
{chr(10).join(rows)}

![accuracy, cross-entropy, squared error and spread on the operations task](cllm-operations.svg)

{ends(asked)}

Both losses learn it. There is one right answer, so the mean of the likely answers *is* the answer, and the two losses ask for the same thing.

## Where it is not: text

`tapeless train cllm --data stdlib`, bytes, {STEPS:,} updates of {BATCH} × {TIME}:

![accuracy, cross-entropy, squared error and spread on text](cllm-text.svg)

{ends(read)}

Always guessing the commonest byte, the space, would be right {commonest(read):.1%} of the time. Before its first update the squared-error model repeats the byte it has just read: the residual stream still carries that embedding, so it is the nearest.

**Squared error learns a mean.** Of all points, the one with the smallest expected squared distance to the next word's embedding is the mean of the embeddings, weighted by probability: x = Σ p(v) e(v). The loss cannot fall below the variance around that mean, and on text much of it is such variance: that is why it seems to stand still while accuracy grows. Cross-entropy has no such floor of geometry; it learns every p(v) by itself.

**The nearest neighbour of a mean** is, at the start, the likeliest word: the embeddings begin equally long and nearly at right angles, so that ‖x − e(v)‖² = constant − 2·ℓ²·p(v), with ℓ² = {length:.2f}. So taking the nearest loses nothing by itself; what is lost is how likely. Distances are linear in p where cross-entropy's scores are its logarithm: the ratio of two words' softmax is e^(2ℓ²·(p − q)) at temperature 1, at most e^{2 * length:.0f}, and one word in a thousand cannot be told from one in a million. Even the exact mean would pay for that in cross-entropy, which is why that gap is so much wider than the gap in accuracy, and samples need a low temperature. Later the embeddings move, as inputs: the mean of two words can then be nearest to a third. How much of the gap in accuracy is due to that, and how much to learning rates that were tuned for neither loss, this page does not tell apart.

**Equal lengths matter.** An unsure state lies in the middle of all embeddings. If some were shorter, the shortest would be the nearest there, whatever the text says: bytes that never occur would be predicted. That is why `cllm` starts with all embeddings on a sphere, and with a last norm that gives states of the same size.

## What they write

Each prompt first continued by the likeliest byte every time (temperature 0), then drawn: at {TEMPERATURES["squared_error"]} from the squared-error model, at {TEMPERATURES["cross_entropy"]} from the other.

**Squared error**

{quoted(read["squared error"])}

**Cross-entropy**

{quoted(read["cross-entropy"])}

After so few updates both run in circles when they always take the likeliest. Drawn, the model of probabilities writes lines, indents and calls; the model of means mixes in bytes that never occur, because their distance is hardly larger than that of bytes that seldom do.

## Collapse

The embedding aimed at is the same weight the inputs are embedded with. If the loss's gradient were let into it, there would be a second way to lower ‖x − e‖²: move e. The red curves do that, in `benchmarks/cllm.py` only.

- On the operations the predicted embeddings are at {final(asked, "spread"):.0%} of their spread, and the model is right all the same: {final(asked, "accuracy"):.1%}. They are pulled together while the model is unsure, and the pull ends when the answers are certain.
- On text it never is certain. The spread goes to {final(read, "spread"):.1%}, the squared error to {final(read, "loss"):.1e}, a fraction of the honest model's, and accuracy is {final(read, "accuracy"):.1%}. Of the models of text, the one that knows least has the lowest loss. The doctor's rule says of these numbers: "{read["target not constant"]["doctor"]}"

So the target side is a constant ([why](decisions/losses.md)): embeddings learn as inputs alone. Then nothing pulls them together, and the green spread stays where it was: {read["squared error"]["points"][-1]["spread"]:.2f} on text, {asked["squared error"]["points"][-1]["spread"]:.2f} on the operations. `tapeless doctor RUN` watches it, and names a collapse when less than a tenth is left.
"""  # noqa: E501


def best(found: Curve) -> float:
    return max(float(point["accuracy"]) for point in found["points"])


def reached(found: Curve) -> str:
    return next((f"{point['step']:,}" for point in found["points"] if point["accuracy"] >= 0.99), "not reached")


def final(curves: dict[str, Curve], value: str) -> float:
    return float(curves["target not constant"]["points"][-1][value])


def ends(curves: dict[str, Curve]) -> str:
    lines = ["| | updates | accuracy | cross-entropy | squared error | spread |", "|---|---|---|---|---|---|"]
    for name, found in curves.items():
        last = found["points"][-1]
        squared = "" if name == "cross-entropy" else f"{last['loss']:.4g}"
        lines.append(
            f"| {name} | {last['step']:,} | {last['accuracy']:.1%} | {last['cross_entropy']:.3f} | {squared} "
            f"| {last['spread']:.2g} |"
        )
    return "\n".join(lines)


def commonest(curves: dict[str, Curve]) -> float:
    return float(curves["squared error"]["commonest"])


def quoted(found: Curve) -> str:
    """Spaces and controls made visible, so that a page shows what was written."""
    return "\n".join(f"- `{json.dumps(sample, ensure_ascii=False).strip(chr(34))}`" for sample in found["samples"])


if __name__ == "__main__":
    main()
