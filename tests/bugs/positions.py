"""Bugs of where a token stands: positions shifted, not restarted, trained by others, lost when decoding, or kept when
the window slides. Nearly all of them write text that only looks worse."""

from __future__ import annotations

from typing import Any

import numpy as np

import tapeless.generate as generating
from tapeless import model
from tapeless.generate import Decoder
from tapeless.ops.contract import Array
from tapeless.ops.positions import reference as positions
from tapeless.program.builder import Builder
from tests.bugs.planting import Bug, Plant, around, backward, forward, replaced, together


def _continued(a: Any) -> Any:
    """Sequence after sequence, as if the batch were one long text."""
    batch, time, channels = a.y.shape
    rows = np.arange(batch * time).reshape(batch, time) % len(a.table)
    return a.table[rows].reshape(batch, time, channels)


def _rows(a: Any, values: Array) -> Array:
    table: Array = np.zeros_like(a.dtable)
    kept = min(len(values), len(table))
    table[:kept] = values[:kept]
    return table


def _to_the_end(a: Any) -> Any:
    """Rows beyond the sequence get the gradient of its last position."""
    table = np.zeros_like(a.dtable)
    table[:] = a.dy[:, -1].sum(axis=0)
    table[: a.dy.shape[1]] = a.dy.sum(axis=0)
    return table


def _sinusoid(wrong: Any) -> Plant:
    return together(replaced(positions, "sinusoid", wrong), replaced(model, "sinusoid", wrong))


def _angles(first: int, count: int, channels: int) -> Array:
    rates = 10000.0 ** (-(np.arange(channels) // 2 * 2) / channels)
    angles: Array = np.arange(first, first + count)[:, None] * rates
    return angles


def _from_one(count: int, channels: int) -> Array:
    angles = _angles(1, count, channels)
    return np.where(np.arange(channels) % 2, np.cos(angles), np.sin(angles))


def _swapped(count: int, channels: int) -> Array:
    angles = _angles(0, count, channels)
    return np.where(np.arange(channels) % 2, np.sin(angles), np.cos(angles))


def _stays(right: Any, self: Decoder, token: int) -> Array:
    before = self.position
    scores: Array = right(self, token)
    self.position = max(before, 1)
    return scores


def _one_further(right: Any, self: Decoder, tokens: list[int]) -> None:
    right(self, tokens)
    self.position += 1


def _chunks_from_zero(right: Any, engine: Any, position: int, tokens: list[int]) -> None:
    right(engine, position if len(tokens) == 1 else 0, tokens)


def _absolute(right: Any, self: Decoder, tokens: list[int]) -> None:
    """What was read before stays in the cache, and what is kept goes behind it."""
    if self.position == 0:
        right(self, tokens)
        return
    for token in tokens:
        self.step(token)


def _without_positions(right: Any, self: Builder, op: str, direction: str, values: Any, source: str) -> None:
    if op != "positions_at" or not source.startswith("decoding.py"):
        right(self, op, direction, values, source)


BUGS = (
    Bug(
        "positions-from-one",
        "positions",
        "A sequence gets the rows 1 … T of the table instead of 0 … T − 1.",
        "Trains; weights from elsewhere write nonsense, and the last position is out of bounds.",
        forward("positions", y=lambda a: np.broadcast_to(np.roll(a.table, -1, axis=0)[: a.y.shape[1]], a.y.shape)),
        public="RoBERTa's positions begin at 2, after the padding: a trap for who converts its weights.",
    ),
    Bug(
        "positions-not-restarted",
        "positions",
        "The second sequence of a batch goes on counting where the first ended.",
        "Right for a batch of one; the loss depends on the place in the batch.",
        forward("positions", y=_continued),
    ),
    Bug(
        "positions-backwards",
        "positions",
        "The first token gets the last row.",
        "Trains; sampling, where the length is not known, falls apart.",
        forward("positions", y=lambda a: np.broadcast_to(a.table[: a.y.shape[1]][::-1], a.y.shape)),
    ),
    Bug(
        "positions-gradient-over-time",
        "positions",
        "dtable is summed over the positions of each sequence instead of over the sequences.",
        "Rows learn by the place in the batch, not in the text.",
        backward("positions", dtable=lambda a: _rows(a, a.dy.sum(axis=1))),
    ),
    Bug(
        "positions-gradient-of-mixed-rows",
        "positions",
        "dy is taken for T × B × C, which has as many elements.",
        "Each position is trained by some others.",
        backward(
            "positions",
            dtable=lambda a: _rows(a, a.dy.reshape(a.dy.shape[1], a.dy.shape[0], a.dy.shape[2]).sum(axis=1)),
        ),
    ),
    Bug(
        "positions-beyond-the-sequence-trained",
        "positions",
        "Rows that no token used get the gradient of the last position.",
        "Positions beyond the training length look trained, and are copies.",
        backward("positions", dtable=_to_the_end),
    ),
    Bug(
        "sinusoid-from-one",
        "positions",
        "The sinusoid's first position is 1.",
        "Trains; weights from elsewhere do not fit.",
        _sinusoid(_from_one),
    ),
    Bug(
        "sinusoid-sine-and-cosine-swapped",
        "positions",
        "Cosine at even channels, sine at odd ones.",
        "Trains; weights from elsewhere do not fit.",
        _sinusoid(_swapped),
    ),
    Bug(
        "decoding-one-position-late",
        "positions_at",
        "When decoding, the token at position p gets row p + 1.",
        "Sampled text is worse than the validation loss promises.",
        forward(
            "positions_at",
            y=lambda a: np.broadcast_to(np.roll(a.table, -1, axis=0)[int(a.position[0]) :][: a.y.shape[1]], a.y.shape),
        ),
    ),
    Bug(
        "decoding-all-at-one-position",
        "positions_at",
        "All tokens that are read together get the row of the first.",
        "Right token by token; a prompt that is read at once is a bag of words.",
        forward("positions_at", y=lambda a: np.broadcast_to(a.table[int(a.position[0])], a.y.shape)),
    ),
    Bug(
        "decoding-without-positions",
        "decoder",
        "The decoding program leaves the positions out, which training has.",
        "The validation loss is fine, and what is sampled repeats itself.",
        around(Builder, "call", _without_positions),
    ),
    Bug(
        "decoder-does-not-move-on",
        "decoder",
        "The decoder does not count the token it has just read.",
        "Each token overwrites the one before it in the cache.",
        around(Decoder, "step", _stays),
    ),
    Bug(
        "decoder-one-position-ahead",
        "decoder",
        "After reading n tokens the decoder goes on at position n + 1.",
        "A gap in the cache: every token also looks at a position that was never written.",
        around(Decoder, "read", _one_further),
    ),
    Bug(
        "chunks-all-from-the-start",
        "decoder",
        "Every chunk of a long prompt is read to the first positions.",
        "Short prompts are fine, long ones are forgotten but for their end.",
        around(generating, "_run", _chunks_from_zero),
    ),
    Bug(
        "slide-keeps-absolute-positions",
        "decoder",
        "When the window slides, what is kept stays at its old positions.",
        "Text past the training length falls apart.",
        around(Decoder, "read", _absolute),
        public="The reason why StreamingLLM counts positions within the cache, not in the text.",
    ),
    Bug(
        "slide-keeps-the-beginning",
        "generate",
        "When the window slides, its first half is kept.",
        "Past the window the text starts over, again and again.",
        replaced(generating, "kept_when_full", lambda read, most: read[: max(1, most // 2)]),
    ),
    Bug(
        "slide-keeps-one-more",
        "generate",
        "Half the window and one token are kept.",
        "Nothing but another text: two programs with one seed disagree.",
        replaced(generating, "kept_when_full", lambda read, most: read[-(most // 2 + 1) :]),
    ),
    Bug(
        "window-beyond-the-trained-length",
        "generate",
        "A model trained on T positions writes on to the end of its context, over rows that never learned.",
        "Good text up to T, then noise.",
        replaced(
            generating, "checked_window", lambda model, window: model.config.context if window is None else window
        ),
        public="tapeless itself, until --time became the context.",
    ),
)
