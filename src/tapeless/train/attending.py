"""What the heads of a run look at, at any checkpoint, in words that its tokens stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tapeless.errors import NonFiniteError, TapelessError
from tapeless.ops.contract import Array
from tapeless.shown import visible
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks.data.tokenizer import load_tokenizer, lost_in
from tapeless.tasks.kinds import kind_of
from tapeless.train import checkpoint
from tapeless.train.run import Run, read_weights


@dataclass(frozen=True)
class Words:
    """A prompt as a run reads it: its tokens, and each as it can be shown."""

    tokens: list[int]
    shown: list[str]


@dataclass(frozen=True)
class Attended:
    """Weights by block, (heads, queries, keys): how much a query takes of each key. Rows add up to 1."""

    step: int
    words: Words
    weights: dict[str, Array]


def read_prompt(opened: Run, prompt: str) -> Words:
    """By the run's own tokenizer, or as an expression where it learned the operations task."""
    config, spec = opened.preset().architecture, opened.tokenizer_spec()
    if config.features:
        raise TapelessError(f"{opened.folder} reads features, not words, so there is no prompt to attend to.")
    reader = kind_of(opened.request().settings.data, opened.folder).reader(opened.folder, spec)
    tokens = reader.encode(prompt)
    if spec is not None and (lost := lost_in(prompt, tokens, load_tokenizer(spec))):
        raise TapelessError(f"the tokenizer of {opened.folder} loses part of this prompt, {lost}: leave that out.")
    shown = [visible(reader.decode([token]), token) for token in tokens]
    window = opened.window()
    if not tokens:
        raise TapelessError("the prompt is empty, so there is nothing to look at: give some words.")
    if len(tokens) > window:
        raise TapelessError(f"the prompt has {len(tokens):,} tokens and {opened.folder} reads {window:,}: shorten it.")
    return Words(tokens, shown)


def attend(opened: Run, prompt: str, *, at: str = "best", backend: str = DEFAULT_BACKEND) -> tuple[Attended, list[str]]:
    """At the checkpoint `best`, `newest`, or that of a step; with messages about damaged ones."""
    words = read_prompt(opened, prompt)
    model, found, messages = opened.model(at, backend=backend, time=1)
    return Attended(found.step, words, _of_one(model.attention(np.array([words.tokens])))), messages


def over_training(opened: Run, prompt: str, *, backend: str = DEFAULT_BACKEND) -> tuple[list[Attended], list[str]]:
    """At every checkpoint that is kept, the oldest first; with a message for each that is damaged."""
    words = read_prompt(opened, prompt)
    model, _, _ = opened.model("newest", backend=backend, time=1)
    found, messages = [], []
    for step in checkpoint.steps(opened.checkpoints):
        try:
            here = checkpoint.at(opened.checkpoints, step)
        except TapelessError as fault:
            messages.append(f"{str(fault).rpartition(':')[0]}: it is passed over.")
            continue
        if here is not None:  # a training may just have removed it
            read_weights(here, model)
            found.append(Attended(step, words, _of_one(model.attention(np.array([words.tokens])))))
    return found, messages


def _of_one(weights: dict[str, Array]) -> dict[str, Array]:
    for block, array in weights.items():
        if not np.isfinite(array).all():
            raise NonFiniteError(f"what the heads of {block} look at is not finite: its weights are too large.")
    return {block: array[0] for block, array in weights.items()}


def chosen(attended: Attended, layer: int | None, head: int | None) -> list[tuple[str, Array]]:
    """The maps of all heads by name, or of one layer, or of one head in each."""
    blocks = list(attended.weights)
    for what, number, most in (("layer", layer, len(blocks)), ("head", head, _heads(attended))):
        if number is not None and not 0 <= number < most:
            raise TapelessError(f"there is no {what} {number}: there are {what}s 0 to {most - 1}.")
    return [
        (f"{layer_number}.{head_number}", array[head_number])
        for layer_number, array in enumerate(attended.weights.values())
        for head_number in range(len(array))
        if layer in (None, layer_number) and head in (None, head_number)
    ]


def _heads(attended: Attended) -> int:
    counts: Sequence[int] = [len(array) for array in attended.weights.values()]
    return min(counts)
