"""The numbers a diagnosis rests on, read from the lines of metrics and, where there is one, the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from tapeless.ops.contract import Array
from tapeless.train.course import Course, Line, median, number, numbers
from tapeless.train.run import CONFIGURATION, open_run

T = TypeVar("T")

NOT_FINITE = re.compile(r"\b(nan|inf|not finite|weights were not changed)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Setup:
    """What the run's configuration says; None where there is none."""

    optimizer: str | None = None
    lr: float | None = None
    clip: float | None = None
    placement: str | None = None
    adapters: bool = False  # whose size beside the weights that they adapt is not recorded


def read_setup(folder: Path) -> Setup:
    """Of a run; metrics that stand alone have none."""
    if not (folder / CONFIGURATION).is_file():
        return Setup()
    run = open_run(folder)
    settings, preset = run.request().settings, run.preset()
    return Setup(
        preset.optimizer, settings.lr, settings.clip, preset.architecture.placement, adapters=preset.lora is not None
    )


@dataclass(frozen=True)
class Stop:
    step: int  # updates made until then
    ended: str  # what was seen, in words
    reason: str


@dataclass(frozen=True)
class EvaluationPoint:
    step: int
    loss: float
    trained: float | None  # loss on what was trained on, at that time
    trained_at_most: float | None  # the same; if it was not measured, what 3 in 4 of the last updates stayed below
    accuracy: float | None


@dataclass(frozen=True)
class Evidence:
    setup: Setup
    first: int  # update that was recorded
    highest_rate: float
    updates: int  # made in all
    repeated: int  # lines of updates that were recorded before: two processes wrote
    stop: Stop | None  # where a number that is not finite ended it for good
    overcome: Stop | None  # one that was stopped so, and went on
    losses: tuple[float, ...]
    evaluations: tuple[EvaluationPoint, ...]
    chance: float | None  # the loss of the best constant answer
    commonest: float | None  # the share of the commonest answer
    examples: int | None  # sequences there are to train on
    sizes: tuple[float, ...]  # of updates: the middle layer's, as a share of its weights
    norms: tuple[float, ...]  # of the whole gradient
    profile: Mapping[str, float]  # each block's gradient late in the run, as a share of the largest block's
    dead: Mapping[str, float]  # share of units that were silent at every evaluation, by layer
    spread: tuple[int, float] | None
    spikes: tuple[int, ...]

    @cached_property
    def size(self) -> float | None:
        """The largest updates."""
        return max(self.sizes, default=None)

    @cached_property
    def reached(self) -> float | None:
        """The loss in the end: of the last evaluation where there was one, else of the last updates."""
        if self.evaluations:
            return self.evaluations[-1].loss
        return median(late(self.losses)) if self.losses else None

    @property
    def mark(self) -> float | None:
        """What a loss is held against: chance, or in runs that did not record it, the loss they began with."""
        return self.chance if self.chance is not None else self.losses[0] if self.losses else None

    @cached_property
    def gain(self) -> float:
        """How far below the mark the loss came, as a share of it: 0 for nothing learned, 1 for all there is."""
        return self.below(self.reached)

    def below(self, loss: float | None) -> float:
        if loss is None or not self.mark:
            return 0.0
        return 1 - loss / self.mark

    @cached_property
    def fall(self) -> float:
        """How far the loss fell in the last quarter of the run, as a share of the mark."""
        before = [each for each in self.evaluations if 4 * each.step <= 3 * self.updates]
        if before and len(self.evaluations) >= 4:
            return self.below(self.evaluations[-1].loss) - self.below(before[-1].loss)
        quarter = max(1, len(self.losses) // 4)
        if len(self.losses) < 2 * quarter:
            return 0.0
        return self.below(median(self.losses[-quarter:])) - self.below(median(self.losses[-2 * quarter : -quarter]))

    @cached_property
    def fall_since_half(self) -> float:
        """How far below the best of its first half the loss ended, as a share of the mark."""
        before = [each.loss for each in self.evaluations if 2 * each.step <= self.updates]
        if before and len(self.evaluations) >= 4:
            return self.gain - self.below(min(before))
        quarter = len(self.losses) // 4
        if not quarter:
            return 0.0
        # Single batches are noisy: three in four of the last must lie below what was usual by then.
        ended = sorted(late(self.losses))
        return self.below(ended[3 * len(ended) // 4]) - self.below(median(self.losses[quarter : 2 * quarter]))


def gather(metrics: Iterable[Line] | Course, setup: Setup | None = None) -> Evidence:
    course = metrics if isinstance(metrics, Course) else Course.of(metrics)
    steps, first = np.unique(course.steps, return_index=True)  # a resumed run cuts what it repeats
    evaluations = list({line["step"]: line for line in reversed(course.evaluations)}.values())
    evaluations.sort(key=lambda line: line["step"])
    losses, rates, norms, _, moved = course.columns()[first].T
    stop, overcome = _stops(course, steps, steps[course.lost()[first]], evaluations)
    spread = next(
        ((line["step"], value) for line in reversed(evaluations) if (value := number(line, "spread")) is not None), None
    )
    chance = number(course.start, "chance_loss")
    if chance is not None and spread is not None:
        chance *= spread[1] * spread[1]  # a distance grows with what it is a distance between
    examples, setup = number(course.start, "examples"), setup or Setup()
    late_half = np.zeros(len(course), bool)
    late_half[first[-max(1, len(first) // 2) :]] = True
    return Evidence(
        setup=setup,
        first=int(steps[0]) if len(steps) else 0,
        highest_rate=max(_finite(rates), default=0.0),
        updates=max([*steps[-1:].tolist(), *(line["step"] for line in evaluations[-1:])], default=0),
        repeated=len(course) - len(steps),
        stop=stop,
        overcome=overcome,
        losses=_finite(losses),
        evaluations=tuple(
            EvaluationPoint(line["step"], loss, *_trained(line, steps, losses), number(line, "accuracy"))
            for line in evaluations
            if (loss := number(line, "loss")) is not None
        ),
        chance=chance,
        commonest=number(course.start, "chance_accuracy"),
        examples=None if examples is None else int(examples),
        # Adapters start from nothing, so that every update is large beside them, and small beside what they adapt.
        sizes=() if setup.adapters else _finite(moved),
        norms=_finite(norms),
        profile=course.profile(late_half),
        dead=_dead(evaluations),
        spread=spread,
        spikes=tuple(course.spikes),
    )


def _finite(values: Array) -> tuple[float, ...]:
    return tuple(values[np.isfinite(values)].tolist())


def _stops(course: Course, steps: Array, lost: Array, evaluations: Sequence[Line]) -> tuple[Stop | None, Stop | None]:
    """The last end that a number which is not finite made: for good, or overcome."""
    broken = [end for end in map(_told, course.stops) if NOT_FINITE.search(end.reason)]
    if len(lost):
        at = int(lost[0])
        return Stop(at, f"The loss of update {at} was not finite", "the loss was not finite"), None
    last = evaluations[-1] if evaluations else {}
    if not broken and "loss" in last and number(last, "loss") is None:
        after = f"The held-out loss after update {last['step']} was not finite"
        return Stop(last["step"], after, "the held-out loss was not finite"), None
    if not broken:
        return None, None
    went_on = bool((steps > broken[-1].step).any())
    return (None, broken[-1]) if went_on else (broken[-1], None)


def _told(line: Line) -> Stop:
    """As training says it: what was stopped is the update after those that were made."""
    update = f"update {line['step'] + 1} was stopped"
    reason = str(line.get("reason")).removeprefix(f"{update}: ")
    return Stop(line["step"], f"U{update[1:]} by a number that is not finite", reason)


def _trained(evaluation: Line, steps: Array, losses: Array) -> tuple[float | None, float | None]:
    """As measured with the evaluation, else what the updates just before it saw, which may be noisy."""
    measured = number(evaluation, "train_loss")
    if measured is not None:
        return measured, measured
    until = int(np.searchsorted(steps, evaluation["step"], side="right"))
    last = sorted(_finite(losses[max(0, until - 10) : until]))
    return (median(last), last[3 * len(last) // 4]) if last else (None, None)


def _dead(evaluations: Sequence[Line]) -> dict[str, float]:
    counted = [shares for line in evaluations if (shares := numbers(line, "dead_units"))]
    layers = set(counted[0]).intersection(*counted) if counted else set()
    return {layer: min(shares[layer] for shares in counted) for layer in sorted(layers)}


def late(values: Sequence[T]) -> Sequence[T]:
    """The last quarter."""
    return values[-max(1, len(values) // 4) :]
