"""What the heads of a run look at, for one example, at every step whose weights are kept, with the gradients beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tapeless.attention import attention_pulls
from tapeless.errors import TapelessError
from tapeless.explorer.remembered import Remembered
from tapeless.explorer.tracing import check_size_of, opened
from tapeless.ops.contract import Array
from tapeless.shown import visible
from tapeless.tasks.kinds import kind_of
from tapeless.train.run import Run
from tapeless.train.upcoming import held_out

EXAMPLES = 12  # of what was held out, to choose from
MOST_TOKENS = 48  # of an example
MOST_NUMBERS = 4_000_000  # of all maps, sent at once
LONGEST_TEXT = 400
MOST_ANSWERS = 3


class Attending:
    """Of one run: one model of one sequence, given the weights of whatever step is asked for. Somebody else sees to it
    that one request at a time asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._remembered = Remembered(folder)

    def examples(self) -> dict[str, Any]:
        """Those that can be chosen, and the steps they can be seen at."""
        run = opened(self.folder)
        check_size_of(run)
        decode = self._reader(run).decode
        found = held_out(run, EXAMPLES, MOST_TOKENS)
        return {
            "steps": self._remembered.steps(run),
            "examples": [[visible(decode([int(token)]), int(token)) for token in tokens[0]] for tokens, _ in found],
        }

    def maps(self, step: int, example: int, text: str) -> tuple[dict[str, Any], Array]:
        """What is known of the example at this step, and then, block by block, all weights and all gradients."""
        run = opened(self.folder)
        tokens, targets, cut = self._typed(run, text) if text else (*self._held_out(run, example), 0)
        model = self._remembered.at(run, step, tokens.shape[1])
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
            "cut": cut,
            "target": word(target) if target >= 0 else None,
            "answers": [[word(int(n)), float(likely[n])] for n in np.argsort(likely)[::-1][:MOST_ANSWERS]],
            "blocks": [
                {
                    "name": name,
                    "heads": each.weights.shape[1],
                    "queries": each.weights.shape[2],
                    "keys": each.weights.shape[3],
                }
                for name, each in looked.items()
            ],
        }
        flat = [array[0].reshape(-1) for each in looked.values() for array in (each.weights, each.gradients)]
        return head, np.concatenate(flat) if flat else np.empty(0)

    def _reader(self, run: Run) -> Any:
        return kind_of(run.request().settings.data, run.folder).reader(run.folder, run.tokenizer_spec())

    def _held_out(self, run: Run, example: int) -> tuple[Array, Array]:
        found = held_out(run, EXAMPLES, MOST_TOKENS)
        if example >= len(found):
            raise TapelessError(f"there is no example {example}: there are {len(found)}.")
        return found[example]

    def _typed(self, run: Run, text: str) -> tuple[Array, Array, int]:
        """Its beginning, and how many tokens there are beyond it."""
        if len(text) > LONGEST_TEXT:
            raise TapelessError(f"a text of {len(text):,} characters is too long to be looked at: {LONGEST_TEXT} do.")
        reader = self._reader(run)
        whole = len(reader.encode(text))
        length = min(whole, MOST_TOKENS, run.window())
        if length < 1:
            raise TapelessError("an empty text has nothing to be looked at: write some.")
        inputs, targets = next(iter(reader.batches(self._remembered.of(run, length), text)))
        return np.asarray(inputs), np.asarray(targets), whole - length
