"""The model of a run that learned the operations task, at each of its snapshots, and what it answered then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.memory import MOST_LAYERS
from tapeless.explorer.snippet import text_story
from tapeless.explorer.source import check_no_link, snapshots
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import Preset
from tapeless.models.presets import preset
from tapeless.ops.contract import Array
from tapeless.tasks.operations import (
    LENGTH,
    WORDS,
    ExpressionReader,
    Expressions,
    check_fits,
    final_scores,
    spell,
    split,
    targets_for,
)
from tapeless.train.history.snapshots import KeptSnapshots
from tapeless.train.run import CONFIGURATION, open_run

QUESTIONS = ("Max(1,6,2)", "Min(7,3,9)", "Last(4,0,8)", "Second(2,5,9)", "First(9,1,4)", "Max(3,8,5)", "Min(6,9,2)")

LARGEST = 1e12  # of a weight, or of the number of a step: beyond it there is no answer that is a number


class Pupil:
    """On the reference in float64, one expression at a time: a few milliseconds each, and no kernel to compile."""

    def __init__(self, name: str, preset: Preset, kept: KeptSnapshots, seed: int = 0, lr: float = 1e-3) -> None:
        self.name, self.kept, self.seed, self.lr = name, kept, seed, lr
        self._models: dict[str, Model] = {}
        self._preset = preset
        self.model = self.twin("float64")

    def twin(self, precision: str) -> Model:
        """Its model in another type of number, with weights that somebody has to give it."""
        if precision not in self._models:
            self._models[precision] = Model(
                self._preset, batch=1, time=LENGTH, backend="reference", precision=precision, optimizer=None
            )
        return self._models[precision]

    @classmethod
    def of(cls, folder: Path) -> Pupil:
        """The model of a run. A run folder is not believed: no array is made before its sizes are those of the file."""
        check_no_link(folder / CONFIGURATION)
        run = open_run(folder)
        request, preset = run.request(), run.preset()
        if request.settings.data != "operations":
            raise TapelessError(f"{folder.name} did not learn the operations task, so it is asked nothing.")
        kept = snapshots(folder)
        if not kept.steps and not kept.lost:
            raise TapelessError(f"{folder.name} has kept none of its weights on the way: train it anew.")
        check_fits(preset.architecture)
        if preset.architecture.layers > MOST_LAYERS:
            raise TapelessError(f"a model of {preset.architecture.layers} layers is too deep to be asked here.")
        if preset.architecture.positions == "sinusoidal":
            preset = preset.override(context=LENGTH)  # a table that is made, however long the run says it is
        weights = {each.name: each.shape for each in transformer.evaluation(preset, 1, LENGTH).weights}
        shapes = [{name: each.shape for name, each in arrays.items()} for arrays in kept.weights.values()]
        if not shapes or any(each != weights for each in shapes):
            raise TapelessError(f"the snapshots of {folder.name} are not those of its model.")
        arrays = (array for each in kept.weights.values() for array in each.values())
        if not all((np.abs(array) < LARGEST).all() for array in arrays):  # False for NaN too
            raise TapelessError(f"the snapshots of {folder.name} hold weights that nothing can be computed with.")
        return cls(folder.name, preset, kept, request.settings.seed, request.settings.lr or 1e-3)

    @classmethod
    def untrained(cls) -> Pupil:
        """The teaching model as it is made: for who has trained nothing yet."""
        fresh = Model("ops-102k", batch=1, backend="reference", precision="float32", optimizer=None)
        return cls("ops-102k, untrained", preset("ops-102k"), KeptSnapshots({0: fresh.weights()}))

    @property
    def steps(self) -> list[int]:
        return self.kept.steps

    def at(self, index: int, precision: str = "float64") -> Model:
        """The model at one of its snapshots."""
        model = self.twin(precision)
        for name, values in self.kept.weights[self.steps[index]].items():
            model.write(name, values)
        return model

    def held_out(self, tokens: Array) -> bool:
        """Whether an expression was never trained on."""
        return bool((split(self.seed)[1].tokens == tokens).all(axis=1).any())

    def question(self) -> str:
        """One that it got wrong at first and right in the end; where there is none, the first."""
        asked = [ExpressionReader().expressions(each) for each in QUESTIONS]
        right = []
        for index in (0, len(self.steps) - 1):
            model = self.at(index)
            right.append([int(final_scores(model, each.tokens)[0].argmax()) == each.answers[0] for each in asked])
        learned = (text for text, first, last in zip(QUESTIONS, *right, strict=True) if last and not first)
        return next(learned, QUESTIONS[0])


def one_expression(asked: str) -> Expressions:
    expression = ExpressionReader().expressions(asked)
    if len(expression) > 1:
        raise TapelessError("ask one expression at a time.")
    return expression


def learned_operations(folder: Path) -> bool:
    check_no_link(folder / CONFIGURATION)
    return open_run(folder).request().settings.data == "operations"


def story(folder: Path, asked: str = "") -> dict[str, Any]:
    """What a run answered to an expression while it learned, and what its heads looked at; of one that learned text,
    how it would have gone on."""
    if not learned_operations(folder):
        return text_story(folder, asked)
    expression = one_expression(asked) if asked else None
    pupil = Pupil.of(folder)
    expression = expression or one_expression(pupil.question())
    tokens, answer = expression.tokens, int(expression.answers[0])
    return {
        "kind": "operations",
        "question": spell(tokens[0]),
        "shown": [WORDS[token] for token in tokens[0]],
        "words": WORDS,
        "bars": [number for number, word in enumerate(WORDS) if word.isdigit()],
        "answer": WORDS[answer],
        "held_out": pupil.held_out(tokens[0]),
        "cut": 0,
        "lost": pupil.kept.lost,
        "moments": [_moment(pupil.at(index), step, tokens, answer) for index, step in enumerate(pupil.steps)],
    }


def _moment(model: Model, step: int, tokens: Array, answer: int) -> dict[str, Any]:
    scores = final_scores(model, tokens)[0].real
    likely = np.exp(scores - scores.max())
    likely /= likely.sum()
    said = int(scores.argmax())
    return {
        "step": step,
        "said": WORDS[said] if said < len(WORDS) else f"word {said}",
        "right": said == answer,
        "loss": model.loss(tokens, targets_for(model.config, np.array([answer]))),
        "likely": [round(float(each), 6) for each in likely[: len(WORDS)]],
        "attention": {block: np.round(heads[0], 4).tolist() for block, heads in model.attention(tokens).items()},
    }
