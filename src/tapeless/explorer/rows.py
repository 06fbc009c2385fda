"""Who was it, where a run learns text: the rows that an update learned from, and how much of the gradient came from
each token.

The batch is drawn again as the training drew it. The weights are those of the last step before it that is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.remembered import Remembered
from tapeless.explorer.tracing import check_size_of, opened
from tapeless.inputs import rows_of as some_rows
from tapeless.inputs import unpacked
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.shown import visible
from tapeless.tasks.kinds import kind_of
from tapeless.train.upcoming import drawn_for

MOST_ROWS = 128  # of an update
SHOWN = 12  # rows whose tokens are told
AROUND = 12  # tokens on each side of the one that got the most
MOST_SCORES = 40_000_000  # of a row: places times words


def rows_of(folder: Path, step: int) -> dict[str, Any]:
    run = opened(folder)
    settings = run.request().settings
    count = (settings.batch or 1) * settings.accumulate
    if count > MOST_ROWS:
        raise TapelessError(f"a step of {count:,} rows is too large to be shown one by one.")
    check_size_of(run)
    kept = Remembered(folder)
    before = [each for each in kept.steps(run) if each < step]
    if not before:
        raise TapelessError(f"{folder.name} keeps no weights of before step {step}.")
    decode = kind_of(settings.data, folder).reader(folder, run.tokenizer_spec()).decode
    batches = drawn_for(run, step)
    first = unpacked(batches[0][0])[0]
    model = kept.at(run, before[-1], first.shape[1])  # a row at a time, so that each has its own loss
    rows = []
    for inputs, targets in batches:
        for row in range(len(targets)):
            chosen = slice(row, row + 1)
            loss = float(model.loss(some_rows(inputs, chosen), targets[chosen])) if (targets[row] >= 0).any() else 0.0
            rows.append((loss, some_rows(inputs, chosen), targets[chosen]))
    order = sorted(range(len(rows)), key=lambda number: -rows[number][0])[:SHOWN]

    def word(token: int) -> str:
        return visible(decode([token]), token)

    told = []
    where = ""
    for number in order:
        loss, inputs, targets = rows[number]
        tokens = unpacked(inputs)[0][0]
        sizes, where = _sizes(model, inputs, targets)
        strongest = int(sizes.argmax())
        span = slice(max(0, strongest - AROUND), strongest + AROUND + 1)
        told.append(
            {
                "row": number,
                "loss": loss,
                "first": span.start,
                "strongest": strongest - span.start,
                "words": [word(int(token)) for token in tokens[span]],
                "sizes": sizes[span].tolist(),
                **_said(model, inputs, targets[0], word),
            }
        )
    return {
        "kind": "text",
        "step": step,
        "weights_of": before[-1],
        "count": count,
        "time": len(first[0]),
        "rows": told,
        "where": where,
    }


def _sizes(model: Model, inputs: Any, targets: Array) -> tuple[Array, str]:
    """Of each token of a row, the size of the gradient that reaches its embedding; where that is not trained, of the
    stream's as far down as it comes."""
    found, where = None, ""
    for call, values in model.trace(inputs, targets):
        if call.phase != "backward":
            continue
        if call.op == "embedding":
            return _by_token(values["dy"], targets), "its embedding"
        for each in call.writes:
            if each.view.buffer.role == "stream" and each.view.elements % targets.size == 0:
                found, where = _by_token(values[each.name], targets), f"the stream in {call.section}"
    if found is None:
        raise TapelessError("no gradient reaches the tokens of this model.")
    return found, where


def _by_token(gradient: Array, targets: Array) -> Array:
    rows = np.asarray(gradient, np.float64).reshape(targets.size, -1)
    found: Array = np.sqrt(np.mean(np.square(rows), axis=1))
    return found


def _said(model: Model, inputs: Any, targets: Array, word: Any) -> dict[str, Any]:
    """The place that cost the most: what was expected there, and what stands there."""
    if targets.size * model.config.vocab > MOST_SCORES or not (targets >= 0).any():
        return {"said": None, "answer": None, "place": None}
    scores = np.asarray(model.logits(inputs), np.float64)[0]
    known = np.flatnonzero(targets >= 0)
    shifted = scores[known] - scores[known].max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(known)), targets[known]]
    place = int(known[losses.argmax()])
    return {"said": word(int(scores[place].argmax())), "answer": word(int(targets[place])), "place": place}
