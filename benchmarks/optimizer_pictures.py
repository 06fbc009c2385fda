"""`python benchmarks/optimizer_pictures.py`: the optimizer exercises, walked by our kernels and drawn into docs/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tapeless.ops import OPS
from tapeless.pictures.svg import Panel, picture
from tapeless.train.schedules import NAMES, Schedule

DOCS = Path(__file__).parents[1] / "docs"
GRADIENTS = (-0.1, -0.08, -0.12, -0.09, -0.11)
RATES = (0.1, 0.5, 1.0, 2.1)
COLOURS = {"SGD": "#999", "momentum": "#07c", "Adam": "#0a7"}


def walk(optimizer: str, gradient: Callable[[int, float], float], start: float, lr: float, steps: int) -> list[float]:
    """One weight from `start` on. `gradient` is given the number of the step, from 0, and the weight."""
    weight, m, v = np.array([start]), np.zeros(1), np.zeros(1)
    told = (np.array([0]), np.zeros(1), np.zeros(1))  # the number of the step, and how far it went
    found = [start]
    for step in range(steps):
        read = (np.array([gradient(step, float(weight[0]))]), np.ones(1), np.ones(1), np.array([lr]))
        if optimizer == "SGD":
            OPS["sgd"].forward(weight, None, *told, *read, (0,))
        elif optimizer == "momentum":
            OPS["momentum"].forward(weight, m, None, *told, *read, 0.9, (0,))
        else:
            OPS["adamw"].forward(weight, m, v, None, *told, *read, 0.9, 0.999, 1e-8, 0.0, (), (0,))
        found.append(float(weight[0]))
    return found


def optimizer_steps() -> str:
    """Five gradients, three optimizers: where the weight goes, and how long each step is."""
    weight = Panel("the weight", 55, 40, 260, 210, (0, 5), (0.5, 0.55))
    length = Panel("each step, in learning rates", 480, 40, 260, 210, (1, 5), (0, 1.1))
    parts = weight.frame(range(6), (0.5, 0.51, 0.52, 0.53, 0.54, 0.55), "step")
    parts += length.frame(range(1, 6), (0, 0.2, 0.4, 0.6, 0.8, 1), "step")
    for name, colour in COLOURS.items():
        course = walk(name, lambda step, _: GRADIENTS[step], 0.5, 0.01, 5)
        parts += weight.line(list(enumerate(course)), colour)
        parts.append(weight.label((5, course[-1]), f"{name} {course[-1]:.4f}", colour))
        steps = [(number, (course[number] - course[number - 1]) / 0.01) for number in range(1, 6)]
        parts += length.line(steps, colour)
        parts.append(length.label(steps[-1], name, colour))
    return picture(830, 300, parts)


def learning_rates() -> str:
    """The quadratic: above, the walk on the loss; below, the weight over the steps."""
    parts = []
    for number, lr in enumerate(RATES):
        course = walk("SGD", lambda _, weight: weight - 3, 0.0, lr, 10)
        wild = lr > 2
        span = (-6.0, 12.0) if wild else (-0.5, 6.5)
        highest = 42.0 if wild else 6.5
        colour = "#c33" if wild else "#0a7"
        left = 45 + 225 * number
        hill = Panel(f"lr = {lr:g}", left, 40, 170, 150, span, (0, highest))
        grid = np.linspace(*span, 61)
        valley = [(float(w), 0.5 * float(w - 3) ** 2) for w in grid if 0.5 * (w - 3) ** 2 <= highest]
        parts += hill.frame(
            (-6, 0, 3, 6, 12) if wild else (0, 3, 6), (0, 20, 40) if wild else (0, 2, 4, 6), "loss over weight"
        )
        parts += hill.line(valley, "#bbb", dots=False)
        parts += hill.line([(w, 0.5 * (w - 3) ** 2) for w in course], colour)
        time = Panel("", left, 250, 170, 150, (0, 10), span)
        parts += time.frame((0, 5, 10), (-6, 0, 3, 6, 12) if wild else (0, 3, 6), "weight over steps")
        parts += time.line([(0, 3), (10, 3)], "#bbb", dash="4 4", dots=False)
        parts += time.line(list(enumerate(course)), colour)
    return picture(930, 450, parts)


def schedules() -> str:
    """Every schedule over 1,000 updates, the first 100 of them warm-up."""
    panel = Panel("learning rate, as a share of its highest", 55, 40, 460, 200, (0, 1000), (0, 1.05))
    parts = panel.frame((0, 100, 250, 500, 750, 1000), (0, 0.2, 0.4, 0.6, 0.8, 1), "update")
    for name, colour in zip(NAMES, ("#999", "#c33", "#c80", "#07c", "#0a7"), strict=True):
        schedule = Schedule(name, 1.0, 1000, warmup=100, floor=0.1, every=400, rate=0.5)
        course = [(float(step), schedule.at(step)) for step in range(0, 1001, 4)]
        parts += panel.line(course, colour, dots=False)
        apart = {"step": 0.02, "exponential": -0.02, "linear": 0.01, "cosine": -0.06}  # so that no name covers another
        parts.append(panel.label((1000, schedule.at(1000) + apart.get(name, 0.0)), name, colour))
    return picture(610, 295, parts)


PICTURES = {"optimizer-steps.svg": optimizer_steps, "learning-rates.svg": learning_rates, "schedules.svg": schedules}


def main() -> None:
    for name, drawn in PICTURES.items():
        (DOCS / name).write_text(drawn(), encoding="utf-8")
        print(f"written to {DOCS / name}")


if __name__ == "__main__":
    main()
