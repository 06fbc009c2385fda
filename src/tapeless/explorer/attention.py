"""What the heads of a run look at, for one example, at every step whose weights are kept, with the gradients beside."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.source import check_no_link
from tapeless.explorer.tracing import Traced, check_size_of, opened
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.kinds import kind_of
from tapeless.tracing.attention import attention_pulls
from tapeless.train import checkpoint
from tapeless.train.attending import visible
from tapeless.train.moments import FILE as MOMENTS
from tapeless.train.moments import read_moments
from tapeless.train.run import Run, read_weights
from tapeless.train.upcoming import held_out, kept_steps, standing_at

EXAMPLES = 12  # of what was held out, to choose from
MOST_TOKENS = 48  # of an example
MOST_NUMBERS = 4_000_000  # of all maps, sent at once
LONGEST_TEXT = 400
MOST_ANSWERS = 3


class Attending:
    """Of one run: one model of one sequence, given the weights of whatever step is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock()
        self._model: Model | None = None
        self._first: dict[str, Array] | None = None  # weights of before the first step

    def examples(self) -> dict[str, Any]:
        """Those that can be chosen, and the steps they can be seen at."""
        with self._lock:
            run = opened(self.folder)
            check_size_of(run)
            decode = self._reader(run).decode
            found = held_out(run, EXAMPLES, MOST_TOKENS)
            return {
                "steps": sorted({*kept_steps(run), *self._moments(run)}),
                "examples": [[visible(decode([int(token)]), int(token)) for token in tokens[0]] for tokens, _ in found],
            }

    def maps(self, step: int, example: int, text: str) -> tuple[dict[str, Any], Array]:
        """What is known of the example at this step, and then, block by block, all weights and all gradients."""
        with self._lock:
            run = opened(self.folder)
            tokens, targets = self._typed(run, text) if text else self._held_out(run, example)
            model = self._at(run, step, tokens.shape[1])
            looked = attention_pulls(model, tokens, targets)
            if sum(each.weights.size + each.gradients.size for each in looked.values()) > MOST_NUMBERS:
                raise TapelessError("these maps are too many numbers for a page: choose a shorter text.")
            decode = self._reader(run).decode

            def word(token: int) -> str:
                return visible(decode([token]), token)

            scores = np.asarray(model.logits(tokens), np.float64).reshape(-1, model.config.vocab)[-1]
            likely = np.exp(scores - scores.max())
            likely /= likely.sum()
            target = int(np.atleast_1d(targets[0])[-1])
            head = {
                "step": step,
                "loss": model.loss(tokens, targets),
                "words": [word(int(token)) for token in tokens[0]],
                "target": word(target) if target >= 0 else None,
                "answers": [[word(int(n)), float(likely[n])] for n in np.argsort(likely)[::-1][:MOST_ANSWERS]],
                "blocks": [
                    {"name": name, "heads": each.weights.shape[1], "queries": each.weights.shape[2],
                     "keys": each.weights.shape[3]}
                    for name, each in looked.items()
                ],
            }  # fmt: skip
            flat = [array[0].reshape(-1) for each in looked.values() for array in (each.weights, each.gradients)]
            return head, np.concatenate(flat) if flat else np.empty(0)

    def _reader(self, run: Run) -> Any:
        return kind_of(run.request().settings.data, run.folder).reader(run.folder, run.tokenizer_spec())

    def _held_out(self, run: Run, example: int) -> tuple[Array, Array]:
        found = held_out(run, EXAMPLES, MOST_TOKENS)
        if example >= len(found):
            raise TapelessError(f"there is no example {example}: there are {len(found)}.")
        return found[example]

    def _typed(self, run: Run, text: str) -> tuple[Array, Array]:
        if len(text) > LONGEST_TEXT:
            raise TapelessError(f"a text of {len(text):,} characters is too long to be looked at: {LONGEST_TEXT} do.")
        reader = self._reader(run)
        length = min(len(reader.encode(text)), MOST_TOKENS, run.window())
        if length < 1:
            raise TapelessError("an empty text has nothing to be looked at: write some.")
        inputs, targets = next(iter(reader.batches(self._of(run, length), text)))
        return np.asarray(inputs), np.asarray(targets)

    def _of(self, run: Run, time: int) -> Model:
        """A model of one sequence of so many tokens; what it holds is written before it is used."""
        if self._model is None or self._model.time != time:
            check_size_of(run)
            recipe = run.recipe()
            self._model = Model(
                recipe.preset, batch=1, time=time, backend=recipe.backend, precision=recipe.precision.name,
                optimizer=None, class_weights=recipe.class_weights,
            )  # fmt: skip
        return self._model

    def _at(self, run: Run, step: int, time: int) -> Model:
        model = self._of(run, time)
        moments = self._moments(run)
        if step in moments:
            self._write(model, moments[step])
            return model
        found = checkpoint.at(run.checkpoints, step)
        if found is not None:
            read_weights(found, model)
            return model
        if step != 0 or 0 not in kept_steps(run):
            raise TapelessError(f"{self.folder.name} keeps no weights of step {step}.")
        if self._first is None:
            self._first = Traced(run, standing_at(run, 0)).update.before
        self._write(model, self._first)
        return model

    def _moments(self, run: Run) -> dict[int, dict[str, Array]]:
        """The weights that the run has kept beside its checkpoints, by step."""
        path = run.folder / MOMENTS
        if not os.path.lexists(path):
            return {}
        check_no_link(path)
        kept = read_moments(path)
        return {step: kept.weights(index) for index, step in enumerate(kept.steps)}

    def _write(self, model: Model, weights: dict[str, Array]) -> None:
        if {name: array.shape for name, array in weights.items()} != {n: a.shape for n, a in model.params.items()}:
            raise TapelessError(f"the weights that {self.folder.name} has kept are not those of its model.")
        for name, array in weights.items():
            model.write(name, array)
