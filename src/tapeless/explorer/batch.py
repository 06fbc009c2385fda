"""Who was it? The examples that a step of a run learned from, and how much of the gradient came from each token.

The batch of any step is drawn again as the training drew it. The weights are those of the last moment that was kept
before the step: the batch is exact, the shares are those of a model a few updates younger, and the page says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.pupil import Pupil, learned_operations
from tapeless.explorer.rows import rows_of
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.operations import LENGTH, WORDS, OperationBatches, final_scores, split
from tapeless.train.run import open_run

MOST_EXAMPLES = 512


def batch_of(folder: Path, step: int) -> dict[str, Any]:
    if not learned_operations(folder):
        return rows_of(folder, step)
    pupil = Pupil.of(folder)
    settings = open_run(folder).request().settings
    batch, accumulate = settings.batch or 32, settings.accumulate
    if batch * accumulate > MOST_EXAMPLES:
        raise TapelessError(f"a step of {batch * accumulate:,} examples is too large to be shown one by one.")
    index = max((number for number, kept in enumerate(pupil.steps) if kept < step), default=None)
    if index is None:
        raise TapelessError("before the first update nothing was learned from.")
    tokens, targets = _drawn(pupil, batch, accumulate, step)
    model = Model(pupil.model.preset, batch=len(tokens), time=LENGTH, backend="reference", optimizer=None)
    for name, values in pupil.kept.weights[pupil.steps[index]].items():
        model.write(name, values)
    scores = final_scores(model, tokens).real
    answers = targets if targets.ndim == 1 else targets[:, -1]
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(shifted)), answers]
    sizes = _token_sizes(model, tokens, targets)
    order = np.argsort(-losses)
    return {
        "kind": "operations",
        "step": step,
        "weights_of": pupil.steps[index],
        "rows": [
            {
                "words": [WORDS[token] for token in tokens[row]],
                "said": _word(int(scores[row].argmax())),
                "answer": _word(int(answers[row])),
                "loss": float(losses[row]),
                "sizes": sizes[row].tolist(),
            }
            for row in order
        ],
    }


def _drawn(pupil: Pupil, batch: int, accumulate: int, step: int) -> tuple[Array, Array]:
    """All batches of an update, as the training drew them."""
    stream = OperationBatches(pupil.model.config, split(pupil.seed)[0], batch, pupil.seed)
    epoch, position = divmod((step - 1) * accumulate, stream.steps_per_epoch)
    stream.restore({**stream.state(), "epoch": epoch, "position": position})
    drawn = [next(stream) for _ in range(accumulate)]
    return np.concatenate([inputs for inputs, _ in drawn]), np.concatenate([targets for _, targets in drawn])


def _token_sizes(model: Model, tokens: Array, targets: Array) -> Array:
    """Of each token of each example, the size of the gradient that reaches its embedding."""
    for call, values in model.trace(tokens, targets):
        if call.op == "embedding" and call.direction == "backward":
            sizes: Array = np.sqrt(np.mean(np.square(values["dy"].reshape(*tokens.shape, -1)), axis=2))
            return sizes
    raise TapelessError("the embeddings of this model are not trained, so no gradient reaches a token.")


def _word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else f"word {number}"
