"""What a run that learned text thought would come next, at every moment that is kept, in a snippet it never saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.remembered import Remembered
from tapeless.explorer.tracing import opened
from tapeless.inputs import unpacked
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.shown import visible
from tapeless.tasks.kinds import kind_of
from tapeless.train.run import Run
from tapeless.train.upcoming import held_out

SNIPPETS = 12  # of what was held out, among which one is looked for
MOST_TOKENS = 24  # of a snippet
FEWEST_TOKENS = 4  # before the one that is asked for
LONGEST_TEXT = 400
MOST_WORDS = 8  # whose probabilities are shown
MOST_MOMENTS = 24


def text_story(folder: Path, asked: str = "") -> dict[str, Any]:
    """A run folder is not believed: what is read of it are its own files, checked before anything is allocated."""
    run = opened(folder)
    kept = Remembered(folder)
    steps = _some(kept.steps(run))
    if not steps:
        raise TapelessError(f"{folder.name} keeps no weights yet: the first checkpoint is not made.")
    reader = kind_of(run.request().settings.data, folder).reader(folder, run.tokenizer_spec())

    def word(token: int) -> str:
        return visible(reader.decode([token]), token)

    if asked:
        (tokens, cut), answer = _typed(run, reader, asked), None
    else:
        (tokens, answer), cut = _learned(run, kept, steps, word), 0
    likely, attention = [], []
    for step in steps:
        model = kept.at(run, step, 1)
        likely.append(_likely(model, tokens)[-1])
        attention.append(
            {block: np.round(heads[0, :, -1:], 4).tolist() for block, heads in model.attention(tokens[None]).items()}
        )
    words = _words(np.array(likely), answer)
    said = [int(each.argmax()) for each in likely]
    return {
        "kind": "text",
        "question": reader.decode([int(token) for token in tokens]),
        "shown": [word(int(token)) for token in tokens],
        "words": [word(token) for token in words],
        "bars": list(range(len(words))),
        "answer": None if answer is None else word(answer),
        "held_out": not asked,
        "cut": cut,
        "lost": kept.lost(),
        "moments": [
            {
                "step": step,
                "said": word(top),
                "right": None if answer is None else top == answer,
                "loss": None if answer is None else float(-np.log(max(each[answer], 1e-300))),
                "likely": [round(float(each[token]), 6) for token in words],
                "attention": looked,
            }
            for step, top, each, looked in zip(steps, said, likely, attention, strict=True)
        ],
    }


def _some(steps: list[int]) -> list[int]:
    """At most so many, the first and the last among them."""
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), MOST_MOMENTS)).round().astype(int)
    return [steps[index] for index in chosen]


def _typed(run: Run, reader: Any, text: str) -> tuple[Array, int]:
    """Its end, and how many tokens there are before it."""
    if len(text) > LONGEST_TEXT:
        raise TapelessError(f"a text of {len(text):,} characters is too long to be asked: {LONGEST_TEXT} do.")
    whole = reader.encode(text)
    tokens = whole[-min(MOST_TOKENS, run.window()) :]
    if not tokens:
        raise TapelessError("an empty text has nothing that could come next: write some.")
    return np.array(tokens), len(whole) - len(tokens)


def _learned(run: Run, kept: Remembered, steps: list[int], word: Callable[[int], str]) -> tuple[Array, int]:
    """A held-out snippet up to a token that the model did not expect at first and does in the end; where there is
    none, up to the one of which it has learned the most. What can be seen goes before spaces and the like."""
    found = held_out(run, SNIPPETS, MOST_TOKENS + 1)
    if not found:
        raise TapelessError(f"{run.folder.name} has held nothing out that it could be asked.")
    first, last = (
        [_likely(kept.at(run, step, 1), unpacked(i)[0][0]) for i, _ in found] for step in (steps[0], steps[-1])
    )
    best: tuple[tuple[bool, bool, float], Array, int] | None = None
    for (tokens, targets), before, after in zip(found, first, last, strict=True):
        for place, target in enumerate(np.asarray(targets)[0].tolist()):
            if target < 0 or (place + 1 < FEWEST_TOKENS and len(targets[0]) > FEWEST_TOKENS):
                continue
            turned = int(after[place].argmax()) == target != int(before[place].argmax())
            gained = float(after[place, target] - before[place, target])
            rank = turned, word(target).strip("␣⏎⇥␍‹›") != "", gained
            if best is None or rank > best[0]:
                best = rank, np.asarray(tokens)[0, : place + 1][-MOST_TOKENS:], target
    if best is None:
        raise TapelessError(f"{run.folder.name} has held nothing out that it could be asked.")
    return best[1], best[2]


def _likely(model: Model, tokens: Array) -> Array:
    """Of every place, how likely each word is to come next."""
    scores = np.asarray(model.logits(np.asarray(tokens)[None]), np.float64)[0]
    if not np.isfinite(scores).all():
        raise TapelessError("with weights that it has kept nothing can be computed: it diverged, or they are damaged.")
    likely: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    likely /= likely.sum(axis=-1, keepdims=True)
    return likely


def _words(likely: Array, answer: int | None) -> list[int]:
    """The right one, and those that were ever the likeliest; in the order of the last moment."""
    most = likely.max(axis=0)
    if answer is not None:
        most[answer] = np.inf
    chosen = np.argsort(-most, kind="stable")[:MOST_WORDS]
    return [int(token) for token in sorted(chosen, key=lambda token: -likely[-1][token])]
