"""Text written token by token, beside the plain model that reads everything anew: the scores after each token, and the
window that slides. A cache and positions that are off by one still write text, only worse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tapeless.check.finding import Finding, difference
from tapeless.generate import Decoder, generate
from tapeless.model import Model
from tapeless.models.decoding import CHUNK
from tapeless.ops.contract import Array
from tests.check import plain_model as plain

CONTEXT = CHUNK + 9  # more than is read at a time
READ = (1, 7, CHUNK + 5)  # tokens before the first step: a part of a chunk, and one chunk and a part
TIME, WRITTEN = 5, 12  # the window of what is written, and how much that is: it slides more than once


def check_decoding() -> Iterator[Finding]:
    for place, check in (("decoder", _decoder), ("generate", _windows)):
        try:
            for detail in check():
                yield Finding(place, "decoding", detail)
        except Exception as error:  # a decoder that cannot go on is wrong, too
            yield Finding(place, "decoding", f"raises {type(error).__name__}: {error}")


# Positions from a table; and by turning, with shared heads, a window that is shorter than a chunk, and adapters.
MODELS: dict[str, dict[str, Any]] = {
    "gpt2-4x256": {"channels": 6, "heads": 2},
    "qwen3-0.6b": {"channels": 8, "heads": 4, "kv_heads": 2, "hidden": 9, "head_width": 6, "window": 50, "lora": 1},
}


def _model(name: str, time: int) -> Model:
    """No two positions, and no two weights, are alike."""
    made: dict[str, Any] = {"layers": 2, "vocab": 13, "context": CONTEXT} | MODELS[name]
    model = Model(name, time=time, backend="reference", precision="float64", **made)
    rng = np.random.default_rng(5)
    for weight in model.params.values():
        weight[...] = rng.normal(0.1, 0.7, weight.shape)
    return model


def _scores(model: Model, tokens: list[int]) -> Array:
    """Of what may follow these tokens, which are read from the first position on."""
    weights = plain.adapted(model.preset, model.params)
    values = plain.forward(model.config, weights, np.array([tokens]))
    found: Array = plain.scores(model.config, weights, values)[0, -1]
    return found


def _decoder() -> Iterator[str]:
    for name in MODELS:
        yield from _read_and_stepped(name)


def _read_and_stepped(name: str) -> Iterator[str]:
    model = _model(name, time=1)
    decoder = Decoder(model)
    tokens = [int(token) for token in np.random.default_rng(6).integers(0, model.config.vocab, CONTEXT)]
    for length in READ:
        decoder.read(tokens[:length])
        for place in range(length, length + 3):
            found = difference(decoder.step(tokens[place]), _scores(model, tokens[: place + 1]))
            if found:
                yield f"{name}: after {length} tokens that were read, the scores at position {place}: it says {found}"


def _windows() -> Iterator[str]:
    """A window that was asked for; and of a model that was updated, the time it was trained on."""
    for trained in (False, True):
        model = _model("gpt2-4x256", TIME)
        model.steps = int(trained)
        prompt = [3, 1, 4, 1, 5, 9, 2]
        window = None if trained else TIME
        found, true = list(generate(model, prompt, WRITTEN, temperature=0, window=window)), _plainly(model, prompt)
        if found != true:
            said = "the time it was trained on" if trained else "the window that was asked for"
            yield f"with {said}, it writes {found}, and reading it all anew gives {true}"


def _plainly(model: Model, prompt: list[int]) -> list[int]:
    """When the window is full, its last half becomes the beginning."""
    window, written = list(prompt), list[int]()
    for _ in range(WRITTEN):
        if len(window) > TIME:
            window = window[-(TIME // 2) :]
        written.append(int(np.argmax(_scores(model, window))))
        window.append(written[-1])
    return written
